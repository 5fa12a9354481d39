"""`hessalign collect`: the tables of a sweep, from records in the form that DomainBed writes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from hessalign._files import write_atomically
from hessalign._names import UnknownNameError
from hessalign.bench.sweep.printed import FORMATS
from hessalign.bench.sweep.selection import SELECTIONS, Collection, Note, collect

DOMAINBED: Final = "domainbed"
"""The format that is DomainBed's byte for byte."""

SHOWN: Final = 5
"""How many notes of a kind are shown."""


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the verb.

    Args:
        verbs: The parser's verbs.
    """
    parser = verbs.add_parser(
        "collect",
        help="tables of a sweep, by three methods of model selection",
        description="Reads results.jsonl of all runs below DIR. What is left out or odd is said on "
        "stderr; what a cell lacks stands below its table.",
    )
    add = parser.add_argument
    add("folder", metavar="DIR", type=Path, help="the folder of the sweep")
    add(
        "--format",
        default="text",
        metavar="NAME",
        help=f"one of: {', '.join(FORMATS)}; text is DomainBed's, with reasons for what is missing",
    )
    add(
        "--selection",
        nargs="+",
        action="extend",
        metavar="NAME",
        help=f"one or more of: {', '.join(SELECTIONS)} (default: all)",
    )
    add("--chosen", action="store_true", help="show run, step and hyper-parameters of each value")
    add("--include-unfinished", action="store_true", help="count runs that did not finish")
    add("--mix", action="store_true", help="allow runs of different protocols in one table")
    add("--output", type=Path, metavar="FILE", help="write the tables there")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Read the sweep and print its tables.

    Args:
        options: The parsed command line.

    Raises:
        UnknownNameError: If the format is unknown.
    """
    if options.format not in FORMATS:
        raise UnknownNameError("format", options.format, FORMATS)
    collection = collect(
        options.folder,
        options.selection or list(SELECTIONS),
        include_unfinished=options.include_unfinished,
        mix=options.mix,
    )
    notes = list(collection.notes)
    if options.format == DOMAINBED:  # its tables have no place for reasons
        notes += missing(collection)
    sys.stderr.write("".join(f"{line}\n" for line in summarise(notes)))
    text = FORMATS[options.format](collection, chosen=options.chosen)
    if options.output is None:
        sys.stdout.write(text)
    else:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(options.output, text.encode())


def missing(collection: Collection) -> list[Note]:
    """What the cells of the tables lack.

    Args:
        collection: The results.

    Returns:
        A note for each reason.
    """
    return [
        Note(
            "missing",
            f"{table.dataset}, {row.algorithm}, {column}, by {table.selection.name}: {reason}.",
        )
        for table in collection.tables
        for row in table.rows
        for column, cell in zip(table.columns, row.cells, strict=True)
        for reason in cell.reasons
        if table.dataset is not None
    ]


def summarise(notes: Iterable[Note]) -> list[str]:
    """Notes by kind, the first few of each.

    Args:
        notes: The notes.

    Returns:
        Lines.

    Example:
        >>> summarise([Note("torn line", "a, line 3 was cut off; it is skipped.")])
        ['note: torn line: a, line 3 was cut off; it is skipped.']
    """
    kinds: dict[str, list[str]] = {}
    for note in notes:
        kinds.setdefault(note.kind, []).append(note.text)
    lines = []
    for kind, texts in kinds.items():
        lines += [f"note: {kind}: {text}" for text in texts[:SHOWN]]
        if len(texts) > SHOWN:
            lines.append(f"note: {kind}: {len(texts) - SHOWN} more; --format json lists all.")
    return lines
