"""`hessalign algorithms`: what can be trained."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import sys
import textwrap
from collections.abc import Sequence
from fnmatch import fnmatchcase

from hessalign._errors import UnknownNameError
from hessalign._plugins import is_path
from hessalign.bench.algorithms import AlgorithmInfo, algorithm_names, find_algorithm
from hessalign.report.tables import plain


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
    """List the algorithms, or describe those that are named."""
    found = _matching(options.patterns)
    if options.patterns:
        said = [_description(info) for info in found]
    else:
        rows = [[info.name, info.title, info.aligns] for info in found]
        said = [_columns([["name", "method", "aligns"], *rows])]
        said.append("`hessalign algorithms NAME` says who proposed one, and lists its options.")
    sys.stdout.write("\n\n\n".join(said) + "\n")


def _description(info: AlgorithmInfo) -> str:
    """Who proposed an algorithm, its options, and where sweeps draw them from."""
    said = _columns([["aligns", info.aligns], ["reference", info.reference]])
    rows = [
        [
            name,
            value if isinstance(value, str) else json.dumps(value, default=str),
            _drawn(info, name),
        ]
        for name, value in dataclasses.asdict(info.configure({})).items()
    ]
    options = _columns([["option", "default", "drawn in sweeps"], *rows]) if rows else "no options"
    return f"{plain(f'{info.name}: {info.title}')}\n\n{said}\n\n{options}"


def _drawn(info: AlgorithmInfo, option: str) -> str:
    """Where sweeps draw an option from, and what records call it where that is another name."""
    spaces = {
        "": info.search,
        "small images: ": info.search_small,
        "features: ": info.search_features,
        "preset hgp-2023: ": info.search_released,
    }
    said, recorded = [], option
    for where, space in spaces.items():
        if option in space:
            each = space[option]
            recorded, distribution = each if isinstance(each, tuple) else (option, each)
            said.append(f"{where}{distribution}")
    for dataset, hypers in info.by_dataset.items():
        if recorded in hypers:
            default, distribution = hypers[recorded]
            said.append(f"{dataset}: {distribution}, default {default}")
    return "; ".join([*said, *([f"recorded as {recorded}"] if recorded != option else [])]) or "–"


def _columns(rows: Sequence[Sequence[str]]) -> str:
    """Columns of text, of which the last is wrapped at the width of the terminal, if it is one."""
    lines = [[plain(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)][:-1]
    left = sum(widths) + 2 * len(widths)
    room = max(shutil.get_terminal_size((1000, 24)).columns - left, 20)
    said = []
    for *cells, last in lines:
        begin = "".join(f"{cell:{width}}  " for cell, width in zip(cells, widths, strict=True))
        said.append(begin + f"\n{'':{left}}".join(textwrap.wrap(last, room)))
    return "\n".join(said)
