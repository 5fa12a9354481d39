"""The folder of runs that experiments share, and how runs get there: by any launcher."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Final, final

from hessalign.bench.data.catalog import COLORED_MNIST
from hessalign.bench.runs import Job, Record, Run, read_records, train_job
from hessalign.bench.runs.irm import IrmOptions, settle
from hessalign.bench.runs.plan import Evaluated
from hessalign.bench.runs.records import DONE, RESULTS
from hessalign.bench.sweep import (
    JobStatus,
    Launcher,
    SweepSpec,
    Work,
    open_sweep,
    run_jobs,
    sweep_status,
    training_work,
)
from hessalign.bench.sweep.report import SweepProgress

MakeProgress = Callable[[Sequence[JobStatus], Launcher], SweepProgress]
"""Makes the display of runs that are done."""

_EVALUATED: Final[Evaluated] = "all"
"""What runs in the cache evaluate, as those of `hessalign train` do."""


def run_name(job: Job) -> str:
    """What a run is called in a display: its algorithm and seed, where that says enough."""
    if job.dataset == COLORED_MNIST:
        return f"{job.algorithm} #{job.trial_seed}"
    return job.describe()


def no_progress(statuses: Sequence[JobStatus], launcher: Launcher) -> SweepProgress:
    """A display that nobody sees."""
    return SweepProgress(statuses, launcher, StringIO())


@final
@dataclass(frozen=True, eq=False)
class Part:
    """Runs that are kept in one folder.

    Attributes:
        jobs: The runs.
        folder: The folder.
        spec: The sweep that they are, if it is not the cache.
    """

    jobs: Sequence[Job]
    folder: Path
    spec: SweepSpec | None = None


@final
@dataclass(frozen=True, eq=False)
class FinishedRun:
    """A complete run, of which only the records are in memory.

    Attributes:
        job: What was run.
        folder: Its folder.
        records: What it reported.
    """

    job: Job
    folder: Path
    records: Sequence[Record]

    @property
    def seed(self) -> int:
        """The seed of a run on Colored MNIST."""
        return self.job.trial_seed

    @property
    def options(self) -> IrmOptions:
        """The options of a run on Colored MNIST."""
        return settle(self.job)[0]

    @property
    def final(self) -> Mapping[str, float]:
        """What the last evaluation measured."""
        return self.records[-1].metrics

    def load(self) -> Run:
        """The run with its network and its data, which are large: for one run at a time."""
        return train_job(self.job, self.folder, evaluate=_EVALUATED, keep_model=True)


def finished_runs(cache: Path, jobs: Iterable[Job]) -> list[FinishedRun]:
    """Those of some runs that are complete in the cache."""
    folders = {job: cache / job.folder for job in jobs}
    return [
        FinishedRun(job, folder, read_records(folder / RESULTS))
        for job, folder in folders.items()
        if (folder / DONE).exists()
    ]


def have_done(part: Part, launcher: Launcher, progress: MakeProgress = no_progress) -> None:
    """Have the runs done that are not.

    A sweep that is there already keeps its own specification. In the cache, runs that failed are
    tried again.

    """
    before = sweep_status(part.folder, part.jobs)
    if all(status.state == "done" for status in before):
        return
    work: Work = partial(train_job, evaluate=_EVALUATED, keep_model=True)
    if part.spec is not None:
        open_sweep(part.folder, part.spec, keep=True)
        work = training_work(part.spec)
    with closing(progress(before, launcher)) as show:
        run_jobs(
            part.folder,
            before,
            launcher,
            work,
            retry_failed=part.spec is None,
            report=show,
            report_record=show.record,
        )
