"""Jobs and their outcomes, by whichever launcher, with their records as they are written."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final, final

from hessalign._files import make_folder, write_atomically
from hessalign.bench.runs.job import Job
from hessalign.bench.runs.records import RESULTS
from hessalign.bench.runs.run import train_job
from hessalign.bench.sweep.execution import (
    ERROR,
    JOBS,
    SPECIFICATION,
    JobStatus,
    Outcome,
    Task,
    Work,
    job_status,
)
from hessalign.bench.sweep.launcher import Launcher, nothing
from hessalign.bench.sweep.selection.reading import parse_record
from hessalign.bench.sweep.specification import SweepSpec

_SECONDS_BETWEEN_LOOKS: Final = 1.0

_ReportRecord = Callable[[Job, Mapping[str, Any]], None]
"""Called with a job and a new line of its `results.jsonl`."""


def training_work(spec: SweepSpec) -> Work:
    """What does the jobs of a sweep: `train_job`, told what to evaluate and keep."""
    return partial(
        train_job, evaluate=spec.evaluate, keep_model=spec.keep_models, data_dir=spec.place
    )


def run_jobs(
    folder: Path,
    jobs: Sequence[Job | JobStatus],
    launcher: Launcher,
    work: Work,
    *,
    retry_failed: bool = False,
    report: Callable[[Outcome], None] = lambda outcome: None,
    report_record: _ReportRecord | None = None,
) -> list[Outcome]:
    """Have the jobs done that are not.

    Args:
        folder: The folder of the sweep, or of any jobs: each gets a folder in it.
        jobs: The jobs, with how far they are if that is known; those that somebody else does now
            may be free when their turn comes.
        launcher: What has them done.
        work: What does a job.
        retry_failed: Whether to do again what failed before.
        report: Called with every outcome as it comes.
        report_record: Called with every record that a job writes, within a second or so: the files
            of jobs that go on are looked at, so that it does not matter where they do. A job's
            records come before its outcome, and never at the same time as another call.

    Returns:
        The outcomes, in the order in which they came.
    """
    statuses = [job_status(folder, each) if isinstance(each, Job) else each for each in jobs]
    states = {"left", "running", "failed"} if retry_failed else {"left", "running"}
    wanted = [each for each in statuses if each.state in states]
    folder, name = folder.absolute(), uuid.uuid4().hex
    tasks = [
        Task(each.job, folder, launcher=name)
        for each in sorted(wanted, key=lambda each: each.state == "running")
    ]
    for each in wanted:
        if each.state == "failed":
            (folder / each.job.folder / ERROR).unlink(missing_ok=True)
    outcomes: list[Outcome] = []
    if not tasks:
        return outcomes
    _mark(folder, [task.job for task in tasks])
    with nullcontext() if report_record is None else _Watch(report_record) as watch:
        begin = nothing if watch is None else watch.begin
        with closing(launcher.run(tasks, work, begin)) as results:
            for outcome in results:
                outcomes.append(outcome)
                with nullcontext() if watch is None else watch.ended(outcome.task):
                    report(outcome)
    return outcomes


def _mark(folder: Path, jobs: Iterable[Job]) -> None:
    """Let all machines know the folder; that of a sweep has its specification."""
    make_folder(folder)
    if (folder / SPECIFICATION).exists():
        return
    path = folder / JOBS
    there = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    lines = dict.fromkeys([*there, *(f"{job.folder}  {job.describe()}" for job in jobs)])
    if len(lines) > len(there):
        write_atomically(path, "".join(f"{line}\n" for line in lines).encode())


@final
class _Watch:
    """Reports what jobs that go on add to their records, from a thread that looks now and then."""

    def __init__(self, report: _ReportRecord) -> None:
        self._report = report
        self._records: dict[str, _Records] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._look, name="records", daemon=True)

    def begin(self, task: Task) -> None:
        """Look at a task from now on; records that are there are old."""
        with self._lock:
            self._records.setdefault(task.job.folder, _Records(task))

    @contextmanager
    def ended(self, task: Task) -> Iterator[None]:
        """Report the last records of a task; meanwhile no others are."""
        with self._lock:
            if self._error is not None:
                raise self._error
            records = self._records.pop(task.job.folder, None)
            if records is not None:
                self._pass_on(records)
            yield

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(_SECONDS_BETWEEN_LOOKS):
            with self._lock:
                try:
                    for records in self._records.values():
                        self._pass_on(records)
                except Exception as error:  # it is raised where the outcomes are
                    self._error = error
                    return

    def _pass_on(self, records: _Records) -> None:
        for record in records.new():
            self._report(records.job, record)


@final
class _Records:
    """The file of a job's records, as far as it was read."""

    def __init__(self, task: Task) -> None:
        self.job = task.job
        self._path = task.folder / RESULTS
        self._offset = 0
        self._step = -1
        for _ in self.new():
            pass

    def new(self) -> Iterator[Mapping[str, Any]]:
        """The records of later steps than were read."""
        try:
            with self._path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._offset:
                    self._offset = 0  # it went on from its checkpoint, and drops what came after
                file.seek(self._offset)
                whole = file.read().rpartition(b"\n")[0]
        except OSError:  # not begun, or out of reach
            return
        self._offset += len(whole) + 1 if whole else 0
        for line in whole.splitlines():
            record = parse_record(line)
            step = None if record is None else record.get("step")
            if record is not None and isinstance(step, int) and step > self._step:
                self._step = step
                yield record
