"""From the folder of a sweep to tables, and to its best run: read, check, select, tabulate.

Runs are put in one table if they are finished, each there once, and of one protocol.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import final

from hessalign._errors import InputError, check_name
from hessalign.bench.algorithms import ALGORITHMS
from hessalign.bench.data.catalog import catalog_entry
from hessalign.bench.data.samples import domain_index
from hessalign.bench.sweep.selection.reading import Note, Run, braces, read_runs
from hessalign.bench.sweep.selection.tables import (
    SELECTIONS,
    Candidate,
    Selection,
    Table,
    build_tables,
    choose,
    find_selection,
)
from hessalign.report.tables import grouped


@final
@dataclass(frozen=True)
class Collection:
    """The results of a sweep: tables, the number of records behind them, and the runs.

    Notes say what was odd about the files and what was left out.
    """

    records: int
    tables: tuple[Table, ...]
    notes: tuple[Note, ...]
    runs: tuple[Run, ...] = ()


def collect(
    folder: str | os.PathLike[str],
    selections: Sequence[str] = tuple(SELECTIONS),
    *,
    include_unfinished: bool = False,
    mix: bool = False,
    averaged: bool = False,
) -> Collection:
    """Read the runs below a folder and tabulate their results.

    Args:
        folder: The folder of the sweep.
        selections: Names of the methods of model selection.
        include_unfinished: Whether runs that did not finish count.
        mix: Whether runs of different protocols may share a table.
        averaged: Whether to read the accuracies of averaged weights, instead of the last ones.

    Returns:
        The tables and what to know about them.

    Raises:
        InputError: If there is nothing to collect, or runs contradict each other.
    """
    methods = [find_selection(name) for name in selections]
    runs, notes = read_runs(folder, averaged=averaged)
    if not include_unfinished:
        finished, found = finished_runs(runs)
        if not finished:
            raise InputError(
                f"Expected a finished run below {os.fspath(folder)!r}, found {len(runs)} "
                f"unfinished, such as {found[0].text} Include them with --include-unfinished."
            )
        runs, notes = finished, notes + found
    return tabulate(runs, notes, methods, mix=mix)


def tabulate(
    runs: Sequence[Run], notes: Sequence[Note], methods: Sequence[Selection], *, mix: bool = False
) -> Collection:
    """Select among runs that count, and tabulate; as `collect`, which reads them."""
    runs, found = _distinct_runs(runs)
    unread = [
        Note(
            "unread run",
            f"{run.path} has {len(run.key.test_domains)} test domains, "
            f"{braces(run.key.test_domains)}; model selection reads runs with one or two.",
        )
        for run in runs
        if len(run.key.test_domains) > 2
    ]
    if not mix:
        check_protocols(runs)
    return Collection(
        records=sum(len(run.records) for run in runs),
        tables=tuple(build_tables(runs, methods)),
        notes=(*notes, *found, *unread),
        runs=tuple(runs),
    )


def _unfinished_reason(run: Run) -> str | None:
    """Why a run counts as unfinished; None if it has all records that its arguments imply."""
    reason, sure = _missing_records(run)
    if run.unreadable and not (sure and reason is None):
        return f"it lost the records of lines {', '.join(map(str, run.unreadable))}"
    return reason


def _missing_records(run: Run) -> tuple[str | None, bool]:
    """Why records are missing, if they are; and whether it is known which there should be."""
    info = catalog_entry(run.key.dataset)
    steps = run.protocol.steps or None
    if steps is None:
        if run.done:  # which decides nothing where the arguments say how many steps there are
            steps = run.records[-1].step + 1
        elif info is None:
            return "it is not marked as done and does not say how many steps it takes", False
        else:
            steps = info.steps
    if run.records[-1].step < steps - 1:
        return f"its last record is of step {run.records[-1].step}, not {steps - 1}", True
    freq = run.protocol.checkpoint_freq or (info.checkpoint_freq if info else None)
    if freq is None:
        return None, False
    found = {record.step for record in run.records}
    implied = {*range(0, steps, freq), steps - 1}
    # Where the frequency is the data set's, steps outside of it show that the code had another one.
    if run.protocol.checkpoint_freq is None and not found <= implied:
        return None, False
    lost = sorted(implied - found)
    reason = f"it lacks the records of steps {', '.join(map(str, lost))}" if lost else None
    return reason, True


def finished_runs(runs: Iterable[Run]) -> tuple[list[Run], list[Note]]:
    """The runs that are finished, and a note for each of the others."""
    kept: list[Run] = []
    notes: list[Note] = []
    for run in runs:
        if reason := _unfinished_reason(run):
            notes.append(Note("unfinished run", f"{run.path}: {reason}."))
        else:
            kept.append(run)
    return kept, notes


def _distinct_runs(runs: Iterable[Run]) -> tuple[list[Run], list[Note]]:
    """Of several copies of a run keep the longest; the first of equals."""
    kept: dict[Hashable, Run] = {}
    notes: list[Note] = []
    for run in sorted(runs, key=lambda run: run.path):
        other = kept.setdefault(run.key, run)
        if other is run:
            continue
        difference = _difference(other, run)
        if difference is not None:
            raise InputError(
                f"Expected one run of {run.key}, got two that differ in {difference}: {other.path} "
                f"and {run.path}. Remove one of them."
            )
        better, worse = (run, other) if len(run.records) > len(other.records) else (other, run)
        kept[run.key] = better
        notes.append(Note("repeated run", f"{worse.path} repeats {better.path}; it is left out."))
    return list(kept.values()), notes


def _difference(first: Run, second: Run) -> str | None:
    if first.protocol != second.protocol:
        names = _differing(first.protocol._asdict(), second.protocol._asdict())
        return f"their protocol ({names})"
    if first.hparams != second.hparams:
        return f"their hyper-parameters ({_differing(first.hparams, second.hparams)})"
    by_step = {record.step: record for record in first.records}
    for record in second.records:
        if by_step.get(record.step, record) != record:
            return f"the record of step {record.step}"
    return None


def check_protocols(runs: Sequence[Run]) -> None:
    """Refuse to put runs in one table that were made under different protocols.

    Runs of one data set must agree in steps, frequency of evaluation and number of domains; all
    runs, which the table of averages puts side by side, in task and splits; runs with the same
    seeds in hyper-parameters.

    Raises:
        InputError: If they disagree; the text lists the fields, the values and a run of each.
    """
    problems: list[str] = []
    for name in ("task", "holdout_fraction", "uda_holdout_fraction"):
        problems += _disagreement(name, f"protocol.{name}", runs)
    for dataset, group in grouped(runs, lambda run: run.key.dataset).items():
        for name in ("steps", "checkpoint_freq"):
            problems += _disagreement(f"{dataset}: {name}", f"protocol.{name}", group)
        problems += _disagreement(f"{dataset}: number of domains", "domains", group)
    problems += _hparams_disagreements(runs)
    if problems:
        listed = "".join(f"\n  {problem}" for problem in problems)
        raise InputError(
            f"Expected runs of one protocol in one table, got several:{listed}\nCollect them "
            "apart, or mix them on purpose (--mix)."
        )


def _disagreement(name: str, attribute: str, runs: Sequence[Run]) -> list[str]:
    groups = grouped(runs, attrgetter(attribute))
    if len(groups) < 2:
        return []
    parts = [
        f"{value!r} ({len(group)} run{'s' * (len(group) > 1)}, such as {group[0].path})"
        for value, group in groups.items()
    ]
    return [f"{name}: {', '.join(parts)}"]


def _hparams_disagreements(runs: Sequence[Run]) -> list[str]:
    first: dict[Hashable, Run] = {}
    problems = []
    for run in runs:
        key = run.key
        seeds = (key.dataset, key.algorithm, key.trial_seed, key.hparams_seed)
        other = first.setdefault(seeds, run)
        if other.hparams != run.hparams:
            names = _differing(other.hparams, run.hparams)
            problems.append(
                f"{key.dataset}, {key.algorithm}, trial seed {key.trial_seed}, hyper-parameter "
                f"seed {key.hparams_seed}: {names} differ between {other.path} and {run.path}"
            )
    return problems[:5]


def _differing(first: Mapping[str, object], second: Mapping[str, object]) -> str:
    absent, names = object(), sorted({*first, *second})
    return ", ".join(name for name in names if first.get(name, absent) != second.get(name, absent))


def best_run(
    folder: Path,
    selection: str,
    dataset: str | None = None,
    algorithm: str | None = None,
    test_domain: str | None = None,
    *,
    averaged: bool = False,
) -> Candidate:
    """The best finished run over trials, draws and algorithms: which step of it was judged best."""
    tables = collect(folder, [selection], averaged=averaged).tables
    named = {table.dataset: table for table in tables if table.dataset is not None}
    table = named[_one("dataset", list(named), dataset)]
    rows = {row.algorithm: row for row in table.rows}
    if algorithm is not None:
        info = ALGORITHMS.get(algorithm)
        recorded = algorithm if info is None else info.recorded
        rows = {recorded: rows[_one("algorithm", list(rows), recorded)]}
    if test_domain is None:
        tested = [
            column
            for place, column in enumerate(table.columns)
            if any(row.cells[place].chosen for row in table.rows)
        ]
        test_domain = _one("test-domain", tested, None)
    place = domain_index(table.dataset or "the sweep", table.columns, test_domain)
    cells = [row.cells[place] for row in rows.values()]
    candidates = [candidate for cell in cells for candidate in cell.chosen]
    if not candidates:
        reasons = dict.fromkeys(reason for cell in cells for reason in cell.reasons)
        raise InputError(
            f"Expected a run that {selection} can choose for {table.columns[place]} below "
            f"{folder}, found none: {'; '.join(reasons)}."
        )
    chosen = choose(candidates)  # a run that keeps an average of its weights is judged by that
    if chosen.run.hparams.get("average") is None or averaged:
        return chosen
    return best_run(folder, selection, table.dataset, algorithm, test_domain, averaged=True)


def _one(what: str, names: Sequence[str], wanted: str | None) -> str:
    """What is wanted, if it is there; the only one, if nothing is said."""
    if wanted is None and len(names) == 1:
        return names[0]
    if wanted is None:
        raise InputError(
            f"Expected --{what} for a sweep that has several: {', '.join(names) or 'none'}. Say "
            "which is meant."
        )
    check_name(f"{what} of the sweep", wanted, names)
    return wanted
