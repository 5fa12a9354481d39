"""The folder of a sweep: its specification, and one folder for each run, named as DomainBed does.

sweep.yaml                 the specification that was last run here
74b108bb6da5…/             a run: results.jsonl, checkpoints, in the end the file done
74b108bb6da5…/err.txt      why it failed, if it did
74b108bb6da5…/claim.0      who is doing it, while it goes on; see claims.py

How far a sweep is, is told from it alone.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, final, get_args

from hessalign._errors import InputError
from hessalign._files import make_folder, write_atomically
from hessalign.bench.runs.job import Job, read_file
from hessalign.bench.runs.records import DONE
from hessalign.bench.sweep.claims import is_claimed
from hessalign.bench.sweep.execution import SPECIFICATION, failed_by_bug, last_error
from hessalign.bench.sweep.specification import SweepSpec, make_specification

_JobState = Literal["done", "running", "failed", "left"]
STATES: Final[tuple[_JobState, ...]] = get_args(_JobState)


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


def open_sweep(folder: Path, spec: SweepSpec, *, keep: bool = False) -> Path:
    """Make the folder of a sweep, or continue the one that is there.

    Algorithms, data sets, test domains, draws and trials may be added to a sweep or left out; what
    all of its runs share may not change, since a table would mix them.

    Args:
        folder: The folder.
        spec: What to run.
        keep: Leave the specification of a sweep that is there as it is: these are runs beside its
            own.

    Returns:
        The folder as an absolute path.

    Raises:
        PermissionError: If it cannot be written to. One that belongs to a sweep with another
            protocol raises a ValueError.
    """
    folder = folder.absolute()
    path = folder / SPECIFICATION
    text = dataclasses.replace(spec, data_folder=str(spec.place)).to_yaml().encode()
    if path.exists():
        _check_protocol(folder, make_specification(read_file(path)), spec)
    try:
        make_folder(folder)
        if not path.exists() or (path.read_bytes() != text and not keep):
            write_atomically(path, text)
    except OSError as error:
        raise PermissionError(
            f"Expected a folder for the sweep that can be written to, got {folder}: "
            f"{error.strerror}. Choose another with --output."
        ) from error
    return folder


def _check_protocol(folder: Path, found: SweepSpec, asked: SweepSpec) -> None:
    """Refuse to mix protocols in one folder."""
    theirs, ours = found.protocol, asked.protocol
    differences = [
        f"{key} is {theirs[key]!r} there and {ours[key]!r} here"
        for key in ours
        if theirs[key] != ours[key]
    ]
    if differences:
        raise InputError(
            f"{folder} belongs to a sweep with another protocol: {'; '.join(differences)}. Choose "
            "another folder with --output, or remove that one."
        )


def job_status(folder: Path, job: Job) -> JobStatus:
    """How far a job is."""
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
    """How far the jobs of a sweep are, in their order."""
    return [job_status(folder, job) for job in jobs]


def mean_seconds(statuses: Iterable[JobStatus]) -> dict[str, float]:
    """Mean seconds of a run by algorithm, from those that are done."""
    found: dict[str, list[float]] = {}
    for status in statuses:
        if status.seconds is not None:
            found.setdefault(status.job.algorithm, []).append(status.seconds)
    return {name: sum(values) / len(values) for name, values in found.items()}


def seconds_left(
    statuses: Sequence[JobStatus],
    means: Mapping[str, float],
    parallel: int,
    shares: Mapping[str, float] | None = None,
) -> float | None:
    """How long the rest of a sweep will take.

    The mean of all algorithms stands in for those that `means` does not have. `shares` tells how
    much of a job is done, by its folder; of those that somebody does, half where nothing is known.

    Returns:
        Seconds; None if nothing is known yet.

    Example:
        >>> job = Job("PACS", "ERM", (0,), 0, 0, "data")
        >>> seconds_left([JobStatus(job, "left")] * 4 + [JobStatus(job, "running")], {"ERM": 10}, 2)
        22.5
    """
    guesses = {"left": 0.0, "running": 0.5}
    rest = [status for status in statuses if status.state in guesses]
    if not rest:
        return 0.0
    if not means:
        return None
    usual = sum(means.values()) / len(means)
    total = 0.0
    for each in rest:
        share = (shares or {}).get(each.job.folder, guesses[each.state])
        total += (1 - share) * means.get(each.job.algorithm, usual)
    return total / max(1, min(parallel, len(rest)))


def _seconds(path: Path) -> float | None:
    try:
        seconds = json.loads(path.read_text(encoding="utf-8"))["seconds"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return float(seconds) if isinstance(seconds, int | float) else None
