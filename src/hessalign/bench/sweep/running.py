"""A sweep from its jobs to their outcomes, by whichever launcher."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from hessalign.bench.runs.run import train_job
from hessalign.bench.sweep.execution import ERROR, Outcome, Task, Work
from hessalign.bench.sweep.launcher import Launcher
from hessalign.bench.sweep.specification import SweepSpec
from hessalign.bench.sweep.status import JobStatus


def training_work(spec: SweepSpec) -> Work:
    """What does the jobs of a sweep.

    Args:
        spec: The specification.

    Returns:
        `train_job`, told what to evaluate and keep.
    """
    return partial(
        train_job, evaluate=spec.evaluate, keep_model=spec.keep_models, data_dir=spec.place
    )


def run_jobs(
    folder: Path,
    statuses: Sequence[JobStatus],
    launcher: Launcher,
    work: Work,
    *,
    retry_failed: bool = False,
    report: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Have the jobs done that are not.

    Args:
        folder: The folder of the sweep.
        statuses: The jobs; those that somebody else does now may be free when their turn comes.
        launcher: What has them done.
        work: What does a job.
        retry_failed: Whether to do again what failed before.
        report: Called with every outcome as it comes.

    Returns:
        The outcomes, in the order in which they came.
    """
    wanted = {"left", "running", "failed"} if retry_failed else {"left", "running"}
    name = uuid.uuid4().hex
    tasks = [
        Task(status.job, folder, launcher=name)
        for status in sorted(
            (each for each in statuses if each.state in wanted),
            key=lambda each: each.state == "running",
        )
    ]
    for status in statuses:
        if retry_failed and status.state == "failed":
            (folder / status.job.folder / ERROR).unlink(missing_ok=True)
    outcomes = []
    if tasks:
        with closing(launcher.run(tasks, work)) as results:
            for outcome in results:
                outcomes.append(outcome)
                report(outcome)
    return outcomes
