"""`hessalign algorithms`: what can be trained."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase

from hessalign._errors import UnknownNameError
from hessalign._plugins import is_path
from hessalign.bench.algorithms import AlgorithmInfo, algorithm_names, find_algorithm
from hessalign.report.tables import markdown_table


def _matching(patterns: Sequence[str]) -> list[AlgorithmInfo]:
    """The algorithms whose names match: in the order of the table, then those of one's own."""
    names, found = algorithm_names(), set[str]()
    own = [pattern for pattern in patterns if is_path(pattern)]
    for pattern in [each for each in patterns if each not in own] if patterns else ["*"]:
        matching = [name for name in names if fnmatchcase(name.lower(), pattern.lower())]
        if not matching:
            raise UnknownNameError("algorithm", pattern, names)
        found.update(matching)
    return [find_algorithm(name) for name in (*filter(found.__contains__, names), *own)]


def run(options: argparse.Namespace) -> None:
    """List the algorithms."""
    rows = [
        [
            info.name,
            info.title,
            info.aligns,
            info.reference,
            " ".join(f"{k}={v}" for k, v in dataclasses.asdict(info.configure({})).items()) or "–",
        ]
        for info in _matching(options.patterns)
    ]
    header = ["name", "method", "aligns", "reference", "options and defaults"]
    sys.stdout.write(markdown_table(header, rows, text_columns=5) + "\n")
