"""`hessalign algorithms`: what can be trained."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from hessalign._names import UnknownNameError
from hessalign.report.tables import markdown_table

if TYPE_CHECKING:
    from hessalign.bench.algorithms import AlgorithmInfo


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the verb.

    Args:
        verbs: The parser's verbs.
    """
    parser = verbs.add_parser("algorithms", help="list the algorithms, what they align, options")
    parser.add_argument(
        "patterns",
        nargs="*",
        metavar="NAME",
        help="list only these; * and ? stand for any letters, as in 'h*' (with the quotes)",
    )
    parser.set_defaults(run=run)


def matching(patterns: Sequence[str]) -> list[AlgorithmInfo]:
    """The algorithms whose names match.

    Args:
        patterns: Names, or patterns with `*`, `?` and `[…]`; none match all.

    Returns:
        Their rows, each once, in the order of the table.

    Raises:
        UnknownNameError: If a pattern matches nothing.

    Example:
        >>> [info.name for info in matching(["h*", "erm"])]
        ['erm', 'hgp', 'hutchinson']
    """
    from hessalign.bench.algorithms import ALGORITHMS

    for pattern in patterns:
        if not any(fnmatchcase(name, pattern.lower()) for name in ALGORITHMS):
            raise UnknownNameError("algorithm", pattern, ALGORITHMS)
    return [
        info
        for name, info in ALGORITHMS.items()
        if not patterns or any(fnmatchcase(name, pattern.lower()) for pattern in patterns)
    ]


def run(options: argparse.Namespace) -> None:
    """List the algorithms.

    Args:
        options: The parsed command line.
    """
    from hessalign.bench.algorithms import make_config

    rows = [
        [
            info.name,
            info.title,
            info.aligns,
            info.reference,
            " ".join(f"{k}={v}" for k, v in dataclasses.asdict(make_config(info.name, {})).items())
            or "–",
        ]
        for info in matching(options.patterns)
    ]
    header = ["name", "method", "aligns", "reference", "options and defaults"]
    sys.stdout.write(markdown_table(header, rows, text_columns=5) + "\n")
