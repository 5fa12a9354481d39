"""How far a sweep is, told from its folder alone."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, final, get_args

from hessalign.bench.runs.job import Job
from hessalign.bench.sweep.claims import is_claimed
from hessalign.bench.sweep.execution import DONE, failed_by_bug, last_error

JobState = Literal["done", "running", "failed", "left"]
STATES: Final[tuple[JobState, ...]] = get_args(JobState)


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
    state: JobState
    seconds: float | None = None
    error: str = ""
    bug: bool = False


def job_status(folder: Path, job: Job) -> JobStatus:
    """How far a job is.

    Args:
        folder: The folder of the sweep.
        job: The job.

    Returns:
        Its status.
    """
    home = folder / job.folder
    if (home / DONE).exists():
        return JobStatus(job, "done", seconds=_seconds(home / DONE))
    if is_claimed(home):
        return JobStatus(job, "running")
    error = last_error(home)
    if not error:
        return JobStatus(job, "left")
    return JobStatus(job, "failed", error=error, bug=failed_by_bug(home))


def sweep_status(folder: Path, jobs: Iterable[Job]) -> list[JobStatus]:
    """How far the jobs of a sweep are.

    Args:
        folder: The folder of the sweep.
        jobs: The jobs.

    Returns:
        A status each, in their order.
    """
    return [job_status(folder, job) for job in jobs]


def mean_seconds(statuses: Iterable[JobStatus]) -> dict[str, float]:
    """How long runs take, from those that are done.

    Args:
        statuses: The jobs.

    Returns:
        Mean seconds by algorithm.
    """
    found: dict[str, list[float]] = {}
    for status in statuses:
        if status.seconds is not None:
            found.setdefault(status.job.algorithm, []).append(status.seconds)
    return {name: sum(values) / len(values) for name, values in found.items()}


def seconds_left(
    statuses: Sequence[JobStatus], means: Mapping[str, float], parallel: int
) -> float | None:
    """How long the rest of a sweep will take.

    Args:
        statuses: The jobs. Those that go on count half.
        means: Mean seconds by algorithm; the mean of all stands in for those it does not have.
        parallel: Runs at a time.

    Returns:
        Seconds; None if nothing is known yet.

    Example:
        >>> job = Job("PACS", "ERM", (0,), 0, 0, "data")
        >>> seconds_left([JobStatus(job, "left")] * 4 + [JobStatus(job, "running")], {"ERM": 10}, 2)
        22.5
    """
    weights = {"left": 1.0, "running": 0.5}
    rest = [status for status in statuses if status.state in weights]
    if not rest:
        return 0.0
    if not means:
        return None
    usual = sum(means.values()) / len(means)
    total = sum(weights[each.state] * means.get(each.job.algorithm, usual) for each in rest)
    return total / max(1, parallel)


def _seconds(path: Path) -> float | None:
    try:
        seconds = json.loads(path.read_text(encoding="utf-8"))["seconds"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return float(seconds) if isinstance(seconds, int | float) else None
