"""`hessalign algorithms`: what can be trained."""

from __future__ import annotations

import argparse
import dataclasses
import sys

from hessalign.algorithms import ALGORITHMS
from hessalign.report.tables import markdown_table


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the verb.

    Args:
        verbs: The parser's verbs.
    """
    parser = verbs.add_parser("algorithms", help="list the algorithms, what they align, options")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """List the algorithms.

    Args:
        options: The parsed command line.
    """
    rows = [
        [
            info.name,
            info.title,
            info.aligns,
            info.reference,
            " ".join(f"{k}={v}" for k, v in dataclasses.asdict(info.config).items()) or "–",
        ]
        for info in ALGORITHMS.values()
    ]
    header = ["name", "method", "aligns", "reference", "options and defaults"]
    sys.stdout.write(markdown_table(header, rows, text_columns=5) + "\n")
