"""A task of a sweep, carried out by whatever process a launcher gives it."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, final

from hessalign._errors import MENDABLE, describe_error
from hessalign.bench.runs.job import Job
from hessalign.bench.runs.records import DONE
from hessalign.bench.runs.run_folder import RunFolderError
from hessalign.bench.sweep.claims import claim_job, this_claimant

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

_State = Literal["done", "failed", "elsewhere"]
"""How it ended: done now or before, failed, or left to another process that has claimed it."""


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
        state: How it ended.
        seconds: How long it took; 0 if there was nothing to do.
        error: The last line of what went wrong, if anything did.
    """

    task: Task
    state: _State
    seconds: float = 0.0
    error: str = ""


def execute(task: Task, work: Work) -> Outcome:
    """Do a task, unless it is done, somebody else does it, or it failed in somebody else's hands.

    An exception is kept in the job's folder and becomes an outcome, so that one failing job does
    not stop the others. An interrupt passes, after the job was given up so that others may take it.

    Returns:
        How it ended.

    Raises:
        FileNotFoundError: If this machine does not see the folder of the sweep.
    """
    if not any((task.sweep / name).exists() for name in (SPECIFICATION, JOBS)):
        raise FileNotFoundError(
            f"Expected the folder of the sweep, {task.sweep}, on {os.uname().nodename}, found no "
            f"{SPECIFICATION} or {JOBS} there. All machines of a sweep need a folder that they "
            "share, under the same path."
        )
    folder = task.folder
    if (folder / DONE).exists():
        return Outcome(task, "done")
    start = time.monotonic()
    try:
        folder.mkdir(exist_ok=True)
        claim = claim_job(folder, this_claimant(task.launcher, task.attempt))
        if claim is None:
            return Outcome(task, "elsewhere")
        with claim:
            if (folder / DONE).exists():
                return Outcome(task, "done")
            if error := last_error(folder):
                return Outcome(task, "failed", error=error)
            work(task.job, folder)
            _check_done(task)
    except Exception as error:
        if isinstance(error, RunFolderError) and error.held:
            return Outcome(task, "elsewhere")
        return fail(task, time.monotonic() - start, _explain(error))
    return Outcome(task, "done", time.monotonic() - start)


def _check_done(task: Task) -> None:
    """Refuse to call a job done that does not say so itself."""
    if not (task.folder / DONE).exists():
        raise RuntimeError(f"Expected {task.folder / DONE} after the job, found none.")


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


def last_error(folder: Path) -> str:
    """Why a job failed: the last line of what was kept; nothing if it did not fail."""
    try:
        return _last_line((folder / ERROR).read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return ""


def failed_by_bug(folder: Path) -> bool:
    """Whether a job failed for a reason that the user cannot mend."""
    try:
        with (folder / ERROR).open(encoding="utf-8", errors="replace") as file:
            return file.readline().strip() == _BUG
    except OSError:
        return False


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1].strip()
