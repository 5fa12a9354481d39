"""`hessalign algorithms`: what can be trained."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase

from hessalign._names import UnknownNameError
from hessalign._plugins import is_path
from hessalign.bench.algorithms import AlgorithmInfo, algorithm_names, find_algorithm
from hessalign.report.tables import markdown_table


def _matching(patterns: Sequence[str]) -> list[AlgorithmInfo]:
    """The algorithms whose names match.

    Returns:
        Their rows, each once: in the order of the table, then those of one's own.

    Raises:
        UnknownNameError: If a pattern matches nothing.

    Example:
        >>> [info.name for info in _matching(["h*", "erm"])]
        ['erm', 'hgp', 'hutchinson']
    """
    names = algorithm_names()
    own = [pattern for pattern in patterns if is_path(pattern)]
    others = [pattern for pattern in patterns if not is_path(pattern)]
    for pattern in others:
        if not any(_matches(name, pattern) for name in names):
            raise UnknownNameError("algorithm", pattern, names)
    found = [
        name for name in names if not patterns or any(_matches(name, pattern) for pattern in others)
    ]
    return [find_algorithm(name) for name in (*found, *own)]


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name.lower(), pattern.lower())


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
