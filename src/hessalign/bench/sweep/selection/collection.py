"""From the folder of a sweep to tables: read, check, select, tabulate."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from hessalign._errors import InputError
from hessalign.bench.sweep.selection.checks import (
    check_protocols,
    distinct_runs,
    finished_runs,
    unread_runs,
)
from hessalign.bench.sweep.selection.methods import SELECTIONS, find_selection
from hessalign.bench.sweep.selection.reading import read_runs
from hessalign.bench.sweep.selection.records import Note
from hessalign.bench.sweep.selection.tables import Table, build_tables


@final
@dataclass(frozen=True)
class Collection:
    """The results of a sweep.

    Attributes:
        records: Number of records behind the tables.
        tables: The tables.
        notes: What was odd about the files and what was left out.
    """

    records: int
    tables: tuple[Table, ...]
    notes: tuple[Note, ...]


def collect(
    folder: str | os.PathLike[str],
    selections: Sequence[str] = tuple(SELECTIONS),
    *,
    include_unfinished: bool = False,
    mix: bool = False,
) -> Collection:
    """Read the runs below a folder and tabulate their results.

    Args:
        folder: The folder of the sweep.
        selections: Names of the methods of model selection.
        include_unfinished: Whether runs that did not finish count.
        mix: Whether runs of different protocols may share a table.

    Returns:
        The tables and what to know about them.

    Raises:
        InputError: If there is nothing to collect, or runs contradict each other.
    """
    methods = [find_selection(name) for name in selections]
    runs, notes = read_runs(folder)
    if not include_unfinished:
        finished, found = finished_runs(runs)
        if not finished:
            raise InputError(
                f"Expected a finished run below {os.fspath(folder)!r}, found {len(runs)} "
                f"unfinished, such as {found[0].text} Include them with --include-unfinished."
            )
        runs, notes = finished, notes + found
    runs, found = distinct_runs(runs)
    notes += found + unread_runs(runs)
    if not mix:
        check_protocols(runs)
    return Collection(
        records=sum(len(run.records) for run in runs),
        tables=tuple(build_tables(runs, methods)),
        notes=tuple(notes),
    )
