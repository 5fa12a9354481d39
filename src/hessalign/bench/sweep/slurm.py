"""The launcher that has tasks done by Slurm, each as a job of its own, through submitit.

A job that comes near its time limit is told so by a signal. It saves its run, asks Slurm to be
queued again, and continues there. One that is killed without a word is submitted again.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Final, final

from hessalign._errors import InputError
from hessalign._numbers import check_count
from hessalign._plugins import import_optional
from hessalign._processes import SAVING_SECONDS, Interruption
from hessalign.bench.algorithms.options import Count, Options, Range, check_options
from hessalign.bench.sweep.claims import is_claimed
from hessalign.bench.sweep.execution import Begin, Outcome, Task, Work, execute_there, nothing
from hessalign.bench.sweep.launcher import Retries, Waiting

_POLL_SECONDS: Final = 1.0

_FOLDER: Final = "slurm"  # where, in the folder of a sweep, jobs leave what they print
_ARRAY: Final = 1000  # jobs in one array; Slurm takes no more than 1,001 unless it is told to
_TIMEOUTS: Final = 100  # how often a run may come to its time limit
_RESTARTS: Final = 1000  # fewer than so many times Slurm begins a job again, for claims


@final
@dataclass(frozen=True)
class SlurmOptions(Options):
    """What jobs are submitted with; the others are Slurm's own, or those of SBATCH_… variables.

    Attributes:
        time: Minutes after which a job ends, to be queued again.
        memory: Gigabytes.
        partition: Where it is queued.
        account: Who pays.
        qos: Quality of service.
        constraint: What a machine has to have.
        exclude: Machines not to use.
    """

    time: Count = 60
    memory: Annotated[float, Range(0, open_low=True)] | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    exclude: str | None = None


def make_slurm_options(values: Mapping[str, Any]) -> SlurmOptions:
    """Checked options, from what users write."""
    check_options(SlurmOptions, values, "--slurm")
    return SlurmOptions(**values)


@final
@dataclass(eq=False)
class SlurmLauncher:
    """Tasks as jobs of Slurm, submitted from a machine that has `sbatch`.

    All machines must see the folder of the sweep, and the data, under the same paths.

    Attributes:
        jobs: Runs at a time at most; None leaves that to Slurm.
        cpus_per_run: Processor cores for each run, also its number of threads.
        gpus_per_run: Graphics processors for each run.
        options: What else jobs are submitted with.
        retries: How often a task is begun again.
        cluster: "slurm", or "local" for processes of this machine, to try things out.
    """

    jobs: int | None = None
    cpus_per_run: float = 1
    gpus_per_run: float = 0
    options: SlurmOptions = field(default_factory=SlurmOptions)
    retries: Retries = field(default_factory=Retries)
    cluster: str = "slurm"

    def __post_init__(self) -> None:
        self.parallel = 1 if self.jobs is None else self.jobs
        check_count(self.parallel, "jobs")
        cpus, gpus = self.cpus_per_run, self.gpus_per_run
        if cpus < 1 or gpus < 0 or cpus != int(cpus) or gpus != int(gpus):
            raise InputError(
                "Expected whole numbers for Slurm, 1 or more CPUs and 0 or more GPUs per run, got "
                f"{cpus:g} and {gpus:g}."
            )
        self._submitit = _import_submitit()
        if self.cluster == "slurm" and shutil.which("srun") is None:
            raise InputError(
                "Expected Slurm's commands (sbatch, srun) on this machine for --launcher slurm, "
                "found none. Run it on a login node of the cluster, or use --launcher local."
            )

    def run(
        self, tasks: Sequence[Task], work: Work, begin: Begin = nothing
    ) -> Generator[Outcome, None, None]:
        """See `Launcher`."""
        if not tasks:
            return
        self.parallel = self.jobs or len(tasks)
        executor = self._executor(tasks[0].sweep / _FOLDER)
        waiting = Waiting(tasks, self.retries)
        submitted: list[_Submitted] = []
        with Interruption() as interruption:
            try:
                while waiting or submitted:
                    interruption.raise_if_requested()
                    submitted += self._submit(executor, waiting, len(submitted), work, begin)
                    for each in [each for each in submitted if each.job.done()]:
                        submitted.remove(each)
                        if outcome := waiting.ended(each.task, each.since, each.result()):
                            yield outcome
                    time.sleep(_POLL_SECONDS)
            except BaseException:
                _cancel(submitted)
                raise

    def _executor(self, folder: Path) -> Any:  # noqa: ANN401 - submitit's
        executor = self._submitit.AutoExecutor(
            folder, cluster=self.cluster, slurm_max_num_timeout=_TIMEOUTS
        )
        given = dataclasses.asdict(self.options)
        named = ("partition", "account", "qos", "constraint", "exclude")
        executor.update_parameters(
            name="hessalign",
            timeout_min=given["time"],
            mem_gb=given["memory"],
            cpus_per_task=int(self.cpus_per_run),
            gpus_per_node=int(self.gpus_per_run) or None,
            slurm_array_parallelism=self.parallel,
            **{f"slurm_{name}": given[name] for name in named},
        )
        return executor

    def _submit(
        self,
        executor: Any,  # noqa: ANN401
        waiting: Waiting,
        under_way: int,
        work: Work,
        begin: Begin,
    ) -> list[_Submitted]:
        """Submit what may be begun now; several together are one array of jobs."""
        tasks: list[Task] = []
        room = min(_ARRAY, self.parallel - under_way)
        while len(tasks) < room and (task := waiting.next()):
            begin(task)
            tasks.append(task)
        if not tasks:
            return []
        here, now = os.getcwd(), time.monotonic()
        calls = [_Remote(task, work, int(self.cpus_per_run), here) for task in tasks]
        made = executor.submit_array(calls)
        return [_Submitted(*each, now) for each in zip(tasks, made, strict=True)]


@final
@dataclass(frozen=True, eq=False)
class _Submitted:
    """A task with its job, as the launcher sees it."""

    task: Task
    job: Any  # submitit's
    since: float

    def result(self) -> Outcome | str:
        """How the task ended; if its job did without a result, how."""
        if self.job.exception() is not None:
            output = self.job.paths.stderr
            return f"its job {self.job.job_id} ended as {self.job.state}, see {output}"
        ended: Outcome | Exception = self.job.result()
        if isinstance(ended, Exception):  # not of the run: it concerns the whole sweep
            raise ended
        return ended


def _cancel(submitted: Sequence[_Submitted]) -> None:
    """Have jobs end, and wait until those that run have saved."""
    for each in submitted:
        each.job.cancel(check=False)
    deadline = time.monotonic() + SAVING_SECONDS
    while time.monotonic() < deadline and any(is_claimed(each.task.folder) for each in submitted):
        time.sleep(_POLL_SECONDS)


@final
@dataclass(frozen=True)
class _Remote:
    """What a job of Slurm does."""

    task: Task
    work: Work
    threads: int
    here: str

    def __call__(self) -> Outcome | Exception:
        """Do the task; at the time limit save it and have the job queued again."""
        number = getattr(signal, f"SIG{os.environ.get('SUBMITIT_PREEMPT_SIGNAL', 'USR2')}")
        queue_again: Any = signal.getsignal(number)  # submitit's, which ends this process
        told: list[int] = []

        def save(number: int, frame: FrameType | None) -> None:
            told.append(number)
            listening = getattr(signal.getsignal(signal.SIGINT), "__self__", None)
            if not (isinstance(listening, Interruption) and listening.requested):
                os.kill(os.getpid(), signal.SIGINT)

        signal.signal(number, save)
        # A worker that is lost has a claim that a later attempt, also by Slurm itself, may take.
        restarts = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
        attempt = self.task.attempt * _RESTARTS + restarts
        task = dataclasses.replace(self.task, attempt=attempt)
        try:
            outcome = execute_there(task, self.work, self.threads, self.here)
        except KeyboardInterrupt:
            if not told:
                raise
            queue_again(number, None)
            raise
        except Exception as error:
            return error
        return dataclasses.replace(outcome, task=self.task)

    def checkpoint(self) -> Any:  # noqa: ANN401
        """What submitit queues again: the same, which continues from the run's folder."""
        return _import_submitit().helpers.DelayedSubmission(self)


def _import_submitit() -> Any:  # noqa: ANN401
    return import_optional(
        "submitit",
        "The launcher 'slurm' needs submitit: pip install 'hessalign[slurm]'. The launcher 'local' "
        "needs nothing.",
    )
