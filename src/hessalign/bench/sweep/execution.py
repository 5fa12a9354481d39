"""Tasks of a sweep, carried out by whatever process a launcher gives them, and how far they are.

How far a sweep is, is told from its folder alone:

sweep.yaml                 the specification that was last run here
74b108bb6da5…/             a run, named as DomainBed does: results.jsonl, in the end the file done
74b108bb6da5…/err.txt      why it failed, if it did
74b108bb6da5…/claim.0      who is doing it, while it goes on; see claims.py
"""

from __future__ import annotations

import os
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, Protocol, final, get_args

from hessalign._errors import MENDABLE, describe_error
from hessalign._files import make_folder, parse_json, write_atomically
from hessalign._numbers import finite
from hessalign._processes import heed_interrupts
from hessalign.bench.runs import Job, RunFolderError, train_job
from hessalign.bench.runs.records import DONE, RESULTS, parse_line
from hessalign.bench.sweep.claims import claim_job, is_claimed, this_claimant
from hessalign.bench.sweep.specification import SweepSpec

_SECONDS_BETWEEN_LOOKS: Final = 1.0

ERROR: Final = "err.txt"
"""The file that keeps why a job failed."""

_BUG: Final = "This is a bug in hessalign; please report it with what follows."
"""The first line of that file where the user has nothing to mend."""

SPECIFICATION: Final = "sweep.yaml"
"""The file by which a folder is known to be that of a sweep."""

_JOBS: Final = "jobs.txt"
"""The file by which a folder of runs is known that belongs to no sweep: which run is where."""

Work = Callable[[Job, Path], object]
"""Does a job in a folder: continues what is there, and in the end writes the file `done`.

It is sent to other processes by its name, so it is a function of a module, or a `partial` of one.
"""

_ReportRecord = Callable[[Job, Mapping[str, Any]], None]
"""Called with a job and a new line of its `results.jsonl`."""

_JobState = Literal["done", "running", "failed", "left"]
STATES: Final[tuple[_JobState, ...]] = get_args(_JobState)


@final
@dataclass(frozen=True)
class Task:
    """A job in the folder of a sweep, or of other runs, and who asks for it.

    The name of the launcher, and how many workers it has lost over it so far, are for claims.
    """

    job: Job
    sweep: Path
    launcher: str = ""
    attempt: int = 0

    @property
    def folder(self) -> Path:
        """The folder of the job."""
        return self.sweep / self.job.folder


@final
@dataclass(frozen=True)
class Outcome:
    """How a task ended: done now or before, failed, or left to another process that has claimed it.

    With how long it took, 0 if there was nothing to do, and the last line of what went wrong.
    """

    task: Task
    state: Literal["done", "failed", "elsewhere"]
    seconds: float = 0.0
    error: str = ""


@final
@dataclass(frozen=True)
class JobStatus:
    """How far a job is: done, being done by somebody, failed, or still to be done.

    With how long it trained, if it is done and says so, the last line of what went wrong, if it
    failed, and whether that is a bug, which the user cannot mend.
    """

    job: Job
    state: _JobState
    seconds: float | None = None
    error: str = ""
    bug: bool = False


Begin = Callable[[Task], None]
"""Told of a task that is about to begin, or to be begun again."""


def nothing(task: Task) -> None:
    """For those who need not be told."""


class Launcher(Protocol):
    """Has tasks done, somewhere.

    Attributes:
        parallel: How many at a time, as far as is known.
    """

    parallel: int

    def run(
        self, tasks: Sequence[Task], work: Work, begin: Begin = nothing
    ) -> Generator[Outcome, None, None]:
        """Have tasks done.

        Each is carried out by `execute`, which decides whether there is anything to do. Ctrl-C or
        a SIGTERM begins no further task, lets those that go on save what they have, and then raises
        KeyboardInterrupt; a second one stops at once. Processes import `work` by its name.

        Args:
            tasks: The tasks, those to begin with first.
            work: What does a job.
            begin: Called in this process with each task before it begins, or is queued where only
                a cluster knows when it does; a task whose worker was lost comes again.

        Returns:
            How each ended, as they end.
        """


def execute(task: Task, work: Work) -> Outcome:
    """Do a task, unless it is done, somebody else does it, or it failed in another's hands."""
    if not any((task.sweep / name).exists() for name in (SPECIFICATION, _JOBS)):
        raise FileNotFoundError(
            f"Expected the folder of the sweep, {task.sweep}, on {os.uname().nodename}, found no "
            f"{SPECIFICATION} or {_JOBS} there. All machines of a sweep need a folder that they "
            "share, under the same path."
        )
    folder, start = task.folder, time.monotonic()
    done = folder / DONE
    if done.exists():
        return Outcome(task, "done")
    try:
        folder.mkdir(exist_ok=True)
        claim = claim_job(folder, this_claimant(task.launcher, task.attempt))
        if claim is None:
            return Outcome(task, "elsewhere")
        with claim:
            if done.exists():
                return Outcome(task, "done")
            if error := failure(folder):
                return Outcome(task, "failed", error=error)
            work(task.job, folder)
            if not done.exists():
                raise RuntimeError(f"Expected {done} after the job, found none.")
    except Exception as error:  # an outcome, so that one failing job does not stop the others
        if isinstance(error, RunFolderError) and error.held:
            return Outcome(task, "elsewhere")
        return fail(task, time.monotonic() - start, _explain(error))
    return Outcome(task, "done", time.monotonic() - start)


def execute_there(task: Task, work: Work, threads: int, here: str) -> Outcome:
    """In a process of a cluster: do a task; paths mean what they mean where the sweep began."""
    import torch

    heed_interrupts()
    torch.set_num_threads(threads)
    if Path.cwd() != Path(here) and Path(here).is_dir():
        os.chdir(here)
    return execute(task, work)


def _explain(error: Exception) -> str:
    """What to keep of an error: its traceback, and whether it is the user's to mend."""
    trace = "".join(traceback.format_exception(error))
    if isinstance(error, MENDABLE):
        reason = " ".join(describe_error(error).split())
        return f"{trace}\n{type(error).__name__}: {reason}\n"
    return f"{_BUG}\n\n{trace}"


def fail(task: Task, seconds: float, text: str) -> Outcome:
    """Keep why a task failed, a traceback or an explanation, and make it the outcome."""
    error = _last_line(text) or "unknown"
    try:
        task.folder.mkdir(exist_ok=True)
        (task.folder / ERROR).write_text(text, encoding="utf-8")
    except OSError as problem:
        error += f" (and it could not be kept: {problem})"
    return Outcome(task, "failed", seconds, error)


def job_status(folder: Path, job: Job) -> JobStatus:
    """How far a job is."""
    home = folder / job.folder
    if (home / DONE).exists():
        return JobStatus(job, "done", seconds=_seconds(home / DONE))
    if is_claimed(home):
        return JobStatus(job, "running")
    kept = _kept(home)
    if error := _last_line(kept):
        return JobStatus(job, "failed", error=error, bug=kept.partition("\n")[0].strip() == _BUG)
    return JobStatus(job, "left")


def sweep_status(folder: Path, jobs: Iterable[Job]) -> list[JobStatus]:
    """How far the jobs of a sweep are, in their order."""
    return [job_status(folder, job) for job in jobs]


def failure(folder: Path) -> str:
    """The last line of what went wrong with the run in a folder; nothing if it did not fail."""
    return _last_line(_kept(folder))


def _kept(folder: Path) -> str:
    """Why a job failed, as it was kept; nothing if it did not fail."""
    try:
        return (folder / ERROR).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1].strip()


def _seconds(path: Path) -> float | None:
    try:
        return finite(parse_json(path.read_text(encoding="utf-8"))["seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def training_work(spec: SweepSpec) -> Work:
    """What does the jobs of a sweep: `train_job`, told what to evaluate and keep."""
    return partial(
        train_job,
        evaluate=spec.evaluate,
        keep_model=spec.keep_models,
        data_dir=spec.place,
        computing=spec.computing,
    )


def run_jobs(
    folder: Path,
    jobs: Sequence[Job | JobStatus],
    launcher: Launcher,
    work: Work,
    *,
    retry_failed: bool = False,
    report: Callable[[Outcome], None] = lambda outcome: None,
    report_record: _ReportRecord = lambda job, record: None,
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
    with _Watch(report_record) as watch, closing(launcher.run(tasks, work, watch.begin)) as results:
        for outcome in results:
            outcomes.append(outcome)
            with watch.ended(outcome.task):
                report(outcome)
    return outcomes


def _mark(folder: Path, jobs: Iterable[Job]) -> None:
    """Let all machines know the folder; that of a sweep has its specification."""
    make_folder(folder)
    if (folder / SPECIFICATION).exists():
        return
    path = folder / _JOBS
    there = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    lines = dict.fromkeys([*there, *(f"{job.folder}  {job.describe()}" for job in jobs)])
    if len(lines) > len(there):
        write_atomically(path, "".join(f"{line}\n" for line in lines).encode())


@final
class _Watch:
    """Reports what jobs that go on add to their records, from a thread that looks now and then."""

    def __init__(self, report: _ReportRecord) -> None:
        self._report = report
        self._added: dict[Job, Iterator[list[Mapping[str, Any]]]] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._look, name="records", daemon=True)

    def begin(self, task: Task) -> None:
        """Look at a task from now on; records that are there are old."""
        with self._lock:
            if task.job not in self._added:
                self._added[task.job] = _added_records(task.folder / RESULTS)
                next(self._added[task.job])

    @contextmanager
    def ended(self, task: Task) -> Iterator[None]:
        """Report the last records of a task; meanwhile no others are."""
        with self._lock:
            if self._error is not None:
                raise self._error
            if task.job in self._added:
                self._pass_on(task.job)
                del self._added[task.job]
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
                    for job in self._added:
                        self._pass_on(job)
                except Exception as error:  # it is raised where the outcomes are
                    self._error = error
                    return

    def _pass_on(self, job: Job) -> None:
        for record in next(self._added[job]):
            self._report(job, record)


def _added_records(path: Path) -> Iterator[list[Mapping[str, Any]]]:
    """Whenever it is asked for: the records in a file of later steps than were read."""
    offset, last, whole = 0, -1, b""
    while True:
        try:
            with path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < offset:
                    offset = 0  # it went on from its checkpoint, and drops what came after
                file.seek(offset)
                whole = file.read().rpartition(b"\n")[0]
        except OSError:  # not begun, or out of reach
            whole = b""
        offset += len(whole) + 1 if whole else 0
        found = []
        for record in map(parse_line, whole.splitlines()):
            step = None if record is None else record.get("step")
            if record is not None and isinstance(step, int) and step > last:
                last = step
                found.append(record)
        yield found
