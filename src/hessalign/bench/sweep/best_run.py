"""The run of a sweep that a method of model selection would take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hessalign._errors import InputError
from hessalign._names import UnknownNameError
from hessalign.bench.algorithms import ALGORITHMS
from hessalign.bench.data.samples import domain_index
from hessalign.bench.sweep.selection import Candidate, Table, choose, collect


def best_run(
    folder: Path,
    selection: str,
    *,
    dataset: str | None = None,
    algorithm: str | None = None,
    test_domain: str | None = None,
) -> Candidate:
    """The best finished run of a sweep, over trials, draws of hyper-parameters and algorithms.

    What is judged is a step of a run; a model that was kept is that of the run's last step.

    Args:
        folder: The folder of the sweep.
        selection: The method, see `SELECTIONS`.
        dataset: The data set; may be left out if the sweep has one.
        algorithm: The algorithm; all if None.
        test_domain: Name or number of the unseen domain; may be left out if the sweep has one.

    Returns:
        The step of the run that the method chooses.

    Raises:
        InputError: If no run can be judged. Likewise if it is not said which data set or domain is
            meant, or there is none of that name.
    """
    tables = collect(folder, [selection]).tables
    named = {table.dataset: table for table in tables if table.dataset is not None}
    table = named[_one("dataset", list(named), dataset)]
    rows = {row.algorithm: row for row in table.rows}
    if algorithm is not None:
        info = ALGORITHMS.get(algorithm)
        recorded = algorithm if info is None else info.recorded
        rows = {recorded: rows[_one("algorithm", list(rows), recorded)]}
    place = _column(table, test_domain)
    cells = [row.cells[place] for row in rows.values()]
    candidates = [candidate for cell in cells for candidate in cell.chosen]
    if not candidates:
        reasons = dict.fromkeys(reason for cell in cells for reason in cell.reasons)
        raise InputError(
            f"Expected a run that {selection} can choose for {table.columns[place]} below "
            f"{folder}, found none: {'; '.join(reasons)}."
        )
    return choose(candidates)


def _column(table: Table, wanted: str | None) -> int:
    if wanted is not None:
        return domain_index(table.dataset or "the sweep", table.columns, wanted)
    tested = [
        column
        for place, column in enumerate(table.columns)
        if any(row.cells[place].chosen for row in table.rows)
    ]
    return table.columns.index(_one("test-domain", tested, None))


def _one(what: str, names: Sequence[str], wanted: str | None) -> str:
    """What is wanted, if it is there; the only one, if nothing is said."""
    if wanted is None and len(names) == 1:
        return names[0]
    if wanted is None:
        raise InputError(
            f"Expected --{what} for a sweep that has several: {', '.join(names) or 'none'}. Say "
            "which is meant."
        )
    if wanted not in names:
        raise UnknownNameError(f"{what} of the sweep", wanted, names)
    return wanted
