"""A task of a sweep, carried out by whatever process a launcher gives it, and how far it is.

How far a sweep is, is told from its folder alone:

sweep.yaml                 the specification that was last run here
74b108bb6da5…/             a run, named as DomainBed does: results.jsonl, in the end the file done
74b108bb6da5…/err.txt      why it failed, if it did
74b108bb6da5…/claim.0      who is doing it, while it goes on; see claims.py
"""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, final, get_args

from hessalign._errors import MENDABLE, describe_error
from hessalign.bench.runs.job import Job
from hessalign.bench.runs.records import DONE
from hessalign.bench.runs.run_folder import RunFolderError
from hessalign.bench.sweep.claims import claim_job, is_claimed, this_claimant

ERROR: Final = "err.txt"
"""The file that keeps why a job failed."""

_BUG: Final = "This is a bug in hessalign; please report it with what follows."
"""The first line of that file where the user has nothing to mend."""

SPECIFICATION: Final = "sweep.yaml"
"""The file by which a folder is known to be that of a sweep."""

JOBS: Final = "jobs.txt"
"""The file by which a folder of runs is known that belongs to no sweep: which run is where."""

Work = Callable[[Job, Path], object]
"""Does a job in a folder: continues what is there, and in the end writes the file `done`.

It is sent to other processes by its name, so it is a function of a module, or a `partial` of one.
"""

_JobState = Literal["done", "running", "failed", "left"]
STATES: Final[tuple[_JobState, ...]] = get_args(_JobState)


@final
@dataclass(frozen=True)
class Task:
    """A job of a sweep, and who asks for it.

    Attributes:
        job: The job.
        sweep: The folder of the sweep, or of other runs.
        launcher: Names the launcher, for claims.
        attempt: How many workers were lost over it so far.
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
    """How a task ended.

    Attributes:
        task: The task.
        state: Done now or before, failed, or left to another process that has claimed it.
        seconds: How long it took; 0 if there was nothing to do.
        error: The last line of what went wrong, if anything did.
    """

    task: Task
    state: Literal["done", "failed", "elsewhere"]
    seconds: float = 0.0
    error: str = ""


@final
@dataclass(frozen=True)
class JobStatus:
    """How far a job is.

    Attributes:
        job: The job.
        state: Whether it is done, somebody does it, it failed, or it is still to be done.
        seconds: How long it trained, if it is done and says so.
        error: The last line of what went wrong, if it failed.
        bug: Whether it failed for a reason that the user cannot mend.
    """

    job: Job
    state: _JobState
    seconds: float | None = None
    error: str = ""
    bug: bool = False


def execute(task: Task, work: Work) -> Outcome:
    """Do a task, unless it is done, somebody else does it, or it failed in another's hands."""
    if not any((task.sweep / name).exists() for name in (SPECIFICATION, JOBS)):
        raise FileNotFoundError(
            f"Expected the folder of the sweep, {task.sweep}, on {os.uname().nodename}, found no "
            f"{SPECIFICATION} or {JOBS} there. All machines of a sweep need a folder that they "
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
            if error := _last_line(_kept(folder)):
                return Outcome(task, "failed", error=error)
            work(task.job, folder)
            if not done.exists():
                raise RuntimeError(f"Expected {done} after the job, found none.")
    except Exception as error:  # an outcome, so that one failing job does not stop the others
        if isinstance(error, RunFolderError) and error.held:
            return Outcome(task, "elsewhere")
        return fail(task, time.monotonic() - start, _explain(error))
    return Outcome(task, "done", time.monotonic() - start)


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
        seconds = json.loads(path.read_text(encoding="utf-8"))["seconds"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return float(seconds) if isinstance(seconds, int | float) else None
