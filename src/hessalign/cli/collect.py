"""`hessalign collect`: the tables of a sweep, from records in the form that DomainBed writes."""

from __future__ import annotations

import argparse
import sys
from typing import Final

from hessalign._errors import check_name
from hessalign._files import write_atomically
from hessalign.bench.sweep.printed import FORMATS
from hessalign.bench.sweep.selection import SELECTIONS, Collection, Note, collect
from hessalign.report.tables import first_notes

_DOMAINBED: Final = "domainbed"  # the format that is DomainBed's byte for byte
_SHOWN: Final = 5  # how many notes of a kind are shown


def run(options: argparse.Namespace) -> None:
    """Read the sweep and print its tables."""
    check_name("format", options.format, FORMATS)
    collection = collect(
        options.folder,
        options.selection or list(SELECTIONS),
        include_unfinished=options.include_unfinished,
        mix=options.mix,
        averaged=options.averaged,
    )
    notes = list(collection.notes)
    if options.format == _DOMAINBED:  # its tables have no place for reasons
        notes += _missing(collection)
    for line in first_notes(notes, _SHOWN, "--format json lists all."):
        sys.stderr.write(f"note: {line}\n")
    text = FORMATS[options.format](collection, chosen=options.chosen)
    if options.output is None:
        sys.stdout.write(text)
    else:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(options.output, text.encode())


def _missing(collection: Collection) -> list[Note]:
    """What the cells of the tables lack."""
    return [
        Note(
            "missing",
            f"{table.dataset}, {algorithm}, {column}, by {table.selection.name}: {reason}.",
        )
        for table in collection.tables
        for algorithm, column, cell in table.cells()
        for reason in cell.reasons
        if table.dataset is not None
    ]
