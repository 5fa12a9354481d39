"""A sweep as a whole: what it will take, how far it is, and its display while it goes on."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Final, TextIO, final

import numpy as np

from hessalign.bench.data.catalog import default_steps
from hessalign.bench.runs.job import Job
from hessalign.bench.runs.records import RESULTS
from hessalign.bench.sweep.execution import (
    ERROR,
    STATES,
    JobStatus,
    Launcher,
    Outcome,
    Task,
    Work,
    job_status,
    run_jobs,
)
from hessalign.bench.sweep.selection import SELECTIONS
from hessalign.report.progress import Pace, Progress, duration
from hessalign.report.tables import grouped, markdown_table

_LENGTHS: Final = (1, 16, 64)  # steps of the measured runs
_LONG_ENOUGH: Final = 0.5
"""Seconds that the longest measured run should take; short ones are followed by longer ones."""

_MOST_STEPS: Final = 4096


@final
@dataclass(frozen=True)
class RunCost:
    """What one run costs.

    Seconds of its start, once a process has read the data, of a step and of an evaluation; bytes of
    a record and of all other files.
    """

    start: float
    step: float
    evaluation: float
    record: float
    files: float

    def seconds(self, steps: int, evaluations: int) -> float:
        """How long a run takes, in seconds."""
        return self.start + steps * self.step + evaluations * self.evaluation

    def size(self, evaluations: int) -> float:
        """What a run leaves on the disk."""
        return self.files + evaluations * self.record


def measure_cost(job: Job, work: Work, clock: Callable[[], float] = time.perf_counter) -> RunCost:
    """Measure what a run of a job costs by some that are very short.

    A run of n steps with k evaluations takes start + n step + k evaluation seconds; k is the number
    of records it wrote. The three are fitted, none below zero. A first run, which is not counted,
    reads the data. No run is longer than the job.

    Returns:
        The cost.
    """
    from scipy.optimize import nnls

    rows: list[tuple[int, int, int]] = []
    seconds: list[float] = []
    most = min(_MOST_STEPS, default_steps(job.dataset) if job.steps is None else job.steps)
    lengths = [length for length in _LENGTHS if length < most] or [1]
    with tempfile.TemporaryDirectory(prefix="hessalign-plan-") as name:
        work(dataclasses.replace(job, steps=1), Path(name) / "first")
        while lengths:
            length = lengths.pop(0)
            folder = Path(name) / str(length)
            start = clock()
            work(dataclasses.replace(job, steps=length), folder)
            seconds.append(clock() - start)
            records = (folder / RESULTS).read_bytes().count(b"\n")
            rows.append((1, length, records))
            if not lengths and seconds[-1] < _LONG_ENOUGH and 4 * length <= most:
                lengths.append(4 * length)
        written = (folder / RESULTS).stat().st_size
        files = sum(path.stat().st_size for path in folder.iterdir()) - written
    (begin, step, evaluation), _ = nnls(np.array(rows, dtype=float), np.array(seconds))
    return RunCost(float(begin), float(step), float(evaluation), written / records, files)


def evaluations(steps: int, every: int) -> int:
    """How often a run is evaluated: the number of its records."""
    return len(range(0, steps, every)) + ((steps - 1) % every != 0)


_LEAST_TIMED: Final = 2  # how many runs are timed before the time left is told
_Cell = tuple[str, str]  # a data set and an algorithm


def plan_table(jobs: Sequence[Job], seconds: Mapping[_Cell, float]) -> str:
    """Runs and cost by data set and algorithm."""
    counts = Counter((job.dataset, job.algorithm) for job in jobs)
    header = ["data set", "algorithm", "runs", "one run", "all runs"]
    rows, total = [], 0.0
    for cell, count in counts.items():
        one = seconds.get(cell, 0.0)
        rows.append([*cell, f"{count:,}", f"{one:.2f} s", duration(count * one)])
        total += count * one
    rows.append(["all", "", f"{len(jobs):,}", "", duration(total)])
    if not seconds:
        header, rows = header[:3], [row[:3] for row in rows]
    return markdown_table(header, rows, text_columns=2)


def selection_table(jobs: Sequence[Job], chosen: Sequence[str]) -> str:
    """What each method of model selection needs."""
    singles = sum(len(job.test_domains) == 1 for job in jobs)
    alone = {name: (len(jobs) - singles) * each.pairs for name, each in SELECTIONS.items()}
    rows = [
        [name, "yes" if name in chosen else "no", f"{singles + pairs:,}", f"{pairs:,}"]
        for name, pairs in alone.items()
    ]
    header = ["selection", "asked for", "runs it reads", "of these for it alone"]
    return markdown_table(header, rows, text_columns=2)


def status_table(statuses: Sequence[JobStatus]) -> str:
    """How far a sweep is, by data set and algorithm."""
    cells = grouped(statuses, lambda status: (status.job.dataset, status.job.algorithm))
    rows = []
    for cell, group in (*cells.items(), (("all", ""), list(statuses))):
        counts = Counter(status.state for status in group)
        means = mean_seconds(group)
        usual = f"{sum(means.values()) / len(means):.2f} s" if len(means) == 1 else "–"
        rows.append([*cell, *(f"{counts[state]:,}" for state in STATES), usual])
    return markdown_table(["data set", "algorithm", *STATES, "mean time"], rows, text_columns=2)


def mean_seconds(statuses: Iterable[JobStatus]) -> dict[str, float]:
    """Mean seconds of a run by algorithm, from those that are done."""
    timed = [each for each in statuses if each.seconds is not None]
    return _means((each.job.algorithm, each.seconds or 0.0) for each in timed)


def _means(seconds: Iterable[tuple[str, float]]) -> dict[str, float]:
    found = grouped(seconds, lambda pair: pair[0])
    return {name: fmean(value for _, value in pairs) for name, pairs in found.items()}


def seconds_left(
    statuses: Sequence[JobStatus],
    means: Mapping[str, float],
    parallel: int,
    shares: Mapping[str, float] | None = None,
) -> float | None:
    """How long the rest of a sweep will take; None if nothing is known yet."""
    # How much of a job is done where `shares`, by folder, does not tell.
    guesses = {"left": 0.0, "running": 0.5}
    rest = [status for status in statuses if status.state in guesses]
    if not rest:
        return 0.0
    if not means:
        return None
    usual = fmean(means.values())  # of algorithms that have no mean
    total = 0.0
    for each in rest:
        share = (shares or {}).get(each.job.folder, guesses[each.state])
        total += (1 - share) * means.get(each.job.algorithm, usual)
    return total / max(1, min(parallel, len(rest)))


def failures(statuses: Sequence[JobStatus], folder: str, shown: int) -> list[str]:
    """The runs that failed, with what went wrong and where it is kept."""
    failed = [status for status in statuses if status.state == "failed"]
    lines = []
    for status in failed[:shown]:
        kept = Path(folder, status.job.folder, ERROR)
        where = f" ({kept})" if kept.exists() else ""
        how = "failed by a bug" if status.bug else "failed"
        lines.append(f"{how}: {status.job.describe()}: {status.error}{where}")
    if len(failed) > shown:
        lines.append(f"failed: {len(failed) - shown} more; `sweep status --all` shows them.")
    return lines


@final
class SweepProgress:
    """Shows how many runs are done, failed, going on and waiting, how fast, and the time left.

    `statuses` are the jobs as they are before the launcher begins. Runs whose records are reported
    are shown with their step and accuracy.
    """

    def __init__(
        self,
        statuses: Sequence[JobStatus],
        launcher: Launcher,
        stream: TextIO | None = None,
        name: Callable[[Job], str] = Job.describe,
    ) -> None:
        self._statuses = {status.job.folder: status for status in statuses}
        self._launcher = launcher
        self._name = name
        self._progress = Progress("", "runs", stream)
        self._running: dict[str, _Running] = {}
        self._rated: dict[str, tuple[str, float]] = {}  # algorithm and seconds, by folder
        self._elsewhere: list[Task] = []  # that another sweep was doing when last looked at
        self._show(now=True)

    def __call__(self, outcome: Outcome) -> None:
        """Count an outcome."""
        job = outcome.task.job
        state = "running" if outcome.state == "elsewhere" else outcome.state
        self._statuses[job.folder] = JobStatus(job, state, outcome.seconds or None, outcome.error)
        self._running.pop(job.folder, None)
        if outcome.state == "elsewhere":
            self._elsewhere.append(outcome.task)
        if outcome.state == "failed":
            self._progress.say(f"failed: {job.describe()}: {outcome.error}")
        if self._progress.due:
            self._show()

    def record(self, job: Job, record: Mapping[str, Any]) -> None:
        """Show a record."""
        running = self._running.setdefault(job.folder, _Running(job))
        running.update(record)
        if running.seconds is not None:
            self._rated[job.folder] = job.algorithm, running.seconds
        if self._progress.due:
            self._show()

    def run(self, folder: Path, work: Work, *, retry_failed: bool = False) -> None:
        """Have the jobs done, shown as they go on; see `run_jobs`."""
        jobs = list(self._statuses.values())
        shown = partial(run_jobs, report=self, report_record=self.record)
        with closing(self):
            shown(folder, jobs, self._launcher, work, retry_failed=retry_failed)

    @property
    def failed(self) -> bool:
        """Whether runs failed."""
        return any(status.state == "failed" for status in self._statuses.values())

    def completed(self, status: JobStatus) -> JobStatus:
        """What a folder tells of a run, or that it failed, if that could not be kept there."""
        seen = self._statuses[status.job.folder]
        return seen if (status.state, seen.state) == ("left", "failed") else status

    def close(self) -> None:
        """Show the last state, and leave the line."""
        self._show()
        self._progress.close()

    def _look_elsewhere(self) -> None:
        """Count what others have done since."""
        for task in list(self._elsewhere):
            status = job_status(task.sweep, task.job)
            if status.state in {"done", "failed"}:
                self._statuses[task.job.folder] = status
                self._elsewhere.remove(task)

    def _show(self, *, now: bool = False) -> None:
        self._look_elsewhere()
        statuses = list(self._statuses.values())
        counts = Counter(status.state for status in statuses)
        going = min(self._launcher.parallel, counts["left"]) + counts["running"]
        parts = [f"{counts['failed']} failed"] if counts["failed"] else []
        waiting = counts["left"] + counts["running"] - going
        parts += [f"{going} running", f"{waiting} waiting"]
        running = list(self._running.values())
        for each in running if self._progress.live else running[-1:]:
            parts.append(f" {each.text} {self._name(each.job)}")
        left = self._left(statuses)
        self._progress(counts["done"], len(statuses), "  ".join(parts), left=left, now=now)

    def _left(self, statuses: Sequence[JobStatus]) -> float | None:
        """Seconds left, once as many runs were timed, or rated, as go on at once."""
        timed = sum(status.seconds is not None for status in statuses)
        parallel = self._launcher.parallel
        enough = len(self._rated) >= min(parallel, len(statuses))
        if not enough and timed < max(_LEAST_TIMED, parallel):
            return None
        means = _means(self._rated.values()) | mean_seconds(statuses)
        shares = {folder: each.share for folder, each in self._running.items()}
        return seconds_left(statuses, means, parallel, shares)


@final
class _Running:
    """A run that goes on: how far it is, and how long it will have taken."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.share = 0.0
        self.seconds: float | None = None
        self.text = ""
        self._pace = Pace()

    def update(self, record: Mapping[str, Any]) -> None:
        asked = (record.get("args") or {}).get("steps") or self.job.steps
        steps = asked or default_steps(self.job.dataset)
        reached = record["step"] + 1
        self.share = min(1.0, reached / steps)
        if isinstance(record.get("seconds"), int | float):
            rate = self._pace.rate(reached, record["seconds"])
            self.seconds = self.seconds if rate is None else steps / rate
        tests = [record.get(f"env{domain}_in_acc") for domain in self.job.test_domains]
        found = [value for value in tests if isinstance(value, int | float)]
        self.text = f"{reached}/{steps}"
        if found:
            self.text += f" OOD {100 * fmean(found):.1f} %"
