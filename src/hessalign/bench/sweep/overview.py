"""All there is to see of a sweep: tables, runs one by one, what is not there and why, and costs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
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
from hessalign.bench.sweep.selection.differences import Difference, paired_difference
from hessalign.bench.sweep.selection.reading import read_run, read_runs
from hessalign.bench.sweep.selection.tables import Candidate, oracle, training_domain
from hessalign.bench.sweep.specification import make_specification

REFERENCE: Final = "ERM"
"""The algorithm that others are compared with, as records name it."""

_WAITING: Final = ("running", "left", "unfinished")
"""States of runs that are still to be done, or may be."""

Read = Callable[[str], tuple[Run | None, list[Note]]]
"""Reads the run in a folder."""


class _Trouble(NamedTuple):
    """Runs that are in no table, and why."""

    state: str  # failed, diverged, unfinished, running or left
    what: str
    reason: str


class Point(NamedTuple):
    """A run with one test domain, at the step that training-domain selection takes of it."""

    run: Run
    domain: int  # that is tested on
    validation: float
    test: float
    step: int
    distance: float | None  # between Hessians

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return os.path.basename(os.path.dirname(self.run.path))


class Cost(NamedTuple):
    """What the runs of an algorithm on a data set took."""

    dataset: str
    algorithm: str
    runs: int
    seconds: float


@final
@dataclass(frozen=True)
class Overview:
    """A sweep as it is now.

    Attributes:
        folder: Where it is.
        collection: The tables of the runs that are finished.
        unfinished: The others that have records.
        states: How many runs are in which state.
        troubles: What is in no table.
    """

    folder: Path
    collection: Collection
    unfinished: tuple[Run, ...]
    states: Mapping[str, int]
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
    def points(self) -> tuple[Point, ...]:
        """The finished runs with one test domain."""
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

    @property
    def costs(self) -> list[Cost]:
        """What runs took, of those that tell."""
        found: dict[tuple[str, str], list[float]] = {}
        for run in self.runs:
            if run.seconds is not None:
                found.setdefault((run.key.dataset, run.key.algorithm), []).append(run.seconds)
        return [Cost(*cell, len(each), sum(each)) for cell, each in sorted(found.items())]


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
    first, second = ({**_values(rows[name], places)} for name in (algorithm, REFERENCE))
    return paired_difference(first, second)


def _values(row: Row, places: Sequence[int]) -> dict[tuple[int, int], float]:
    """Accuracies in percent by domain and trial."""
    return {
        (place, trial): 100 * value
        for place in places
        for trial, value in zip(row.cells[place].trials, row.cells[place].values, strict=True)
    }


def look(folder: Path, read: Read = read_run, *, mix: bool = False) -> Overview:
    """Read a sweep, ours or DomainBed's, whatever is there of it; `mix` as for `collect`."""
    jobs, notes = _jobs(folder)
    runs, odd = read_runs(folder, least=0 if jobs else 1, read=read)
    finished, reasons = finished_runs(runs)
    done = {run.path for run in finished}
    rest = [run for run in runs if run.path not in done]
    collection = tabulate(finished, notes + odd, list(SELECTIONS.values()), mix=mix)
    if jobs:
        statuses = sweep_status(folder, jobs)
        troubles = list(_troubles(statuses, {os.path.dirname(run.path): run for run in rest}))
        states = Counter(_state(status) for status in statuses)
    else:
        troubles = [_unfinished(*pair) for pair in zip(rest, reasons, strict=True)]
        states = Counter(each.state for each in troubles)
        states["done"] = len(collection.runs)
    return Overview(folder, collection, tuple(rest), states, tuple(troubles))


def remembering() -> Read:
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


def _points(runs: Iterable[Run]) -> Iterator[Point]:
    for run in runs:
        if len(run.key.test_domains) > 1:
            continue
        (domain,) = run.key.test_domains
        alone = {run.key.test_domains: run}
        found = training_domain(alone, domain)
        found = found if isinstance(found, Candidate) else oracle(alone, domain)
        if isinstance(found, Candidate):
            places = {record.step: place for place, record in enumerate(run.records)}
            distance = run.distances[places[found.step]] if run.distances else None
            yield Point(run, domain, found.validation, found.test, found.step, distance)


def _state(status: JobStatus) -> str:
    diverged = status.state == "failed" and status.error.startswith("DivergedError")
    return "diverged" if diverged else status.state


def _troubles(statuses: Sequence[JobStatus], begun: Mapping[str, Run]) -> Iterator[_Trouble]:
    """Runs that failed or go on, one by one, and how many of each kind are not begun."""
    left: Counter[tuple[str, str]] = Counter()
    by_name = {os.path.basename(path): run for path, run in begun.items()}
    for status in statuses:
        job, run = status.job, by_name.get(status.job.folder)
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
