"""All there is to see of a sweep: tables, runs one by one, what is not there and why, and costs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Final, NamedTuple, final

from hessalign._errors import UserError, describe_error
from hessalign.bench.runs.job import Job, read_file
from hessalign.bench.runs.records import RESULTS
from hessalign.bench.sweep.claims import is_claimed
from hessalign.bench.sweep.execution import SPECIFICATION, JobStatus, failure, sweep_status
from hessalign.bench.sweep.jobs import sweep_jobs
from hessalign.bench.sweep.selection import SELECTIONS, Cell, Collection, Note, Row, Run, Table
from hessalign.bench.sweep.selection.collection import finished_runs, tabulate
from hessalign.bench.sweep.selection.reading import Reader, read_run, read_runs
from hessalign.bench.sweep.selection.tables import (
    Candidate,
    Difference,
    oracle,
    paired_difference,
    training_domain,
)
from hessalign.bench.sweep.specification import make_specification
from hessalign.report.tables import grouped

REFERENCE: Final = "ERM"
"""The algorithm that others are compared with, as records name it."""

_WAITING: Final = ("running", "left", "unfinished")
"""States of runs that are still to be done, or may be."""


class _Trouble(NamedTuple):
    """Runs that are in no table, and why."""

    state: str  # failed, diverged, unfinished, running or left
    what: str
    reason: str


@final
@dataclass(frozen=True)
class Overview:
    """A sweep as it is now."""

    folder: Path
    collection: Collection  # of the runs that are finished
    unfinished: tuple[Run, ...]  # the others that have records
    states: Mapping[str, int]  # how many runs are in which
    troubles: tuple[_Trouble, ...]

    @property
    def complete(self) -> bool:
        """Whether nothing is left to be done, as far as is known."""
        return bool(self.states) and not any(self.states.get(state) for state in _WAITING)

    @property
    def runs(self) -> tuple[Run, ...]:
        """All runs that have records."""
        return self.collection.runs + self.unfinished

    @cached_property
    def points(self) -> tuple[Candidate, ...]:
        """The finished runs with one test domain, at the steps that training-domain takes."""
        return tuple(_points(self.collection.runs))

    def tables(self, dataset: str | None) -> dict[str, Table]:
        """The tables of a data set, or of averages, by the method of selection."""
        found = (each for each in self.collection.tables if each.dataset == dataset)
        return {each.selection.name: each for each in found}

    @property
    def datasets(self) -> list[str]:
        """Names of the data sets that have tables."""
        found = (each.dataset for each in self.collection.tables)
        return list(dict.fromkeys(each for each in found if each is not None))

    @cached_property
    def seconds(self) -> dict[tuple[str, str], list[float]]:
        """What runs took, of those that tell, by data set and algorithm."""
        timed = [(run.key[:2], run.seconds) for run in self.runs if run.seconds is not None]
        groups = grouped(sorted(timed, key=itemgetter(0)), itemgetter(0))
        return {cell: [seconds for _, seconds in group] for cell, group in groups.items()}

    @property
    def total_seconds(self) -> float:
        """What all of them took."""
        return sum(sum(times) for times in self.seconds.values())


class Result(NamedTuple):
    """What an algorithm reaches on a data set by a method of selection, on average of its domains.

    The difference to the reference is over trials and domains that both have.
    """

    cell: Cell
    difference: Difference | None


def results(overview: Overview, dataset: str) -> dict[str, dict[str, Result]]:
    """What each algorithm reaches on a data set, by algorithm and method of selection."""
    averages = overview.tables(None)
    found: dict[str, dict[str, Result]] = {}
    for name, table in overview.tables(dataset).items():
        column = averages[name].columns.index(dataset)
        cells = {row.algorithm: row.cells[column] for row in averages[name].rows}
        rows = {row.algorithm: row for row in table.rows}
        for algorithm, row in rows.items():
            if any(cell.values for cell in row.cells):
                difference = _difference(rows, algorithm, range(len(row.cells)))
                found.setdefault(algorithm, {})[name] = Result(cells[algorithm], difference)
    return found


def domain_differences(table: Table) -> dict[str, list[Difference | None]]:
    """Differences to the reference by algorithm and domain, over the trials that both have."""
    rows = {row.algorithm: row for row in table.rows}
    return {
        algorithm: [_difference(rows, algorithm, [place]) for place in range(len(table.columns))]
        for algorithm in rows
        if algorithm != REFERENCE
    }


def _difference(
    rows: Mapping[str, Row], algorithm: str, places: Sequence[int]
) -> Difference | None:
    """To the reference, in points, on some of the domains."""
    if REFERENCE not in rows or algorithm == REFERENCE:
        return None
    ours, theirs = (
        {
            (place, trial): 100 * value
            for place in places
            for trial, value in rows[name].cells[place].by_trial.items()
        }
        for name in (algorithm, REFERENCE)
    )
    return paired_difference(ours, theirs)


def look(folder: Path, read: Reader = read_run, *, mix: bool = False) -> Overview:
    """Read a sweep, ours or DomainBed's, whatever is there of it; `mix` as for `collect`."""
    jobs, notes = _jobs(folder)
    runs, odd = read_runs(folder, least=0 if jobs else 1, read=read)
    finished, reasons = finished_runs(runs)
    done = {run.path for run in finished}
    rest = [run for run in runs if run.path not in done]
    collection = tabulate(finished, notes + odd, list(SELECTIONS.values()), mix=mix)
    if jobs:
        statuses = sweep_status(folder, jobs)
        troubles = list(_troubles(statuses, {Path(run.path).parent.name: run for run in rest}))
        states = Counter(_state(status) for status in statuses)
    else:
        troubles = [_unfinished(*pair) for pair in zip(rest, reasons, strict=True)]
        states = Counter(each.state for each in troubles)
        states["done"] = len(collection.runs)
    return Overview(folder, collection, tuple(rest), states, tuple(troubles))


def remembering() -> Reader:
    """What reads a run as `read_run` does, but one that is done only once."""
    known: dict[str, tuple[int, tuple[Run | None, list[Note]]]] = {}

    def read(folder: str) -> tuple[Run | None, list[Note]]:
        try:
            size = os.stat(os.path.join(folder, RESULTS)).st_size
        except OSError:
            return read_run(folder)
        if folder in known and known[folder][0] == size:
            return known[folder][1]
        found = read_run(folder)
        if found[0] is not None and found[0].done:
            known[folder] = size, found
        return found

    return read


def _jobs(folder: Path) -> tuple[list[Job], list[Note]]:
    """The jobs of a sweep that says which it has, or why they cannot be told."""
    if not (folder / SPECIFICATION).exists():
        return [], []
    try:
        spec = make_specification(read_file(folder / SPECIFICATION))
        return sweep_jobs(spec, without_data=True), []
    except (UserError, OSError) as error:
        why = " ".join(describe_error(error).split())
        return [], [Note("missing", f"Which runs there should be cannot be told: {why}")]


def _points(runs: Iterable[Run]) -> Iterator[Candidate]:
    for run in runs:
        domain, *others = run.key.test_domains
        found = (method({(domain,): run}, domain) for method in (training_domain, oracle))
        if not others:
            yield next(each for each in found if isinstance(each, Candidate))


def _state(status: JobStatus) -> str:
    diverged = status.state == "failed" and status.error.startswith("DivergedError")
    return "diverged" if diverged else status.state


def _troubles(statuses: Sequence[JobStatus], begun: Mapping[str, Run]) -> Iterator[_Trouble]:
    """Runs that failed or go on, one by one, and how many of each kind are not begun."""
    left: Counter[tuple[str, str]] = Counter()
    for status in statuses:
        job, run = status.job, begun.get(status.job.folder)
        reached = "" if run is None else f"at step {run.records[-1].step}"
        if status.state == "failed":
            yield _Trouble(_state(status), job.describe(), status.error)
        elif status.state == "running":
            yield _Trouble("running", job.describe(), reached or "no record yet")
        elif status.state == "left" and run is not None:
            yield _Trouble("left", job.describe(), f"stopped {reached}; `sweep run` goes on")
        elif status.state == "left":
            left[job.algorithm, job.dataset] += 1
    for (algorithm, dataset), count in left.items():
        yield _Trouble("left", f"{algorithm} on {dataset}", f"{count:,} not begun")


def _unfinished(run: Run, note: Note) -> _Trouble:
    """A run of a folder that does not say which runs it should have."""
    folder = Path(run.path).parent
    reason = note.text.removeprefix(f"{run.path}: ")
    if is_claimed(folder):
        return _Trouble("running", str(run.key), f"at step {run.records[-1].step}")
    error = failure(folder)
    why = f"{reason} Its err.txt ends: {error}" if error else reason
    return _Trouble("failed" if error else "unfinished", str(run.key), why)
