"""The launcher that has tasks done by a Ray cluster."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, final

from hessalign._errors import InputError
from hessalign._numbers import check_count
from hessalign._plugins import import_optional
from hessalign._processes import SAVING_SECONDS, Interruption
from hessalign.bench.sweep.execution import Begin, Outcome, Task, Work, execute_there, nothing
from hessalign.bench.sweep.launcher import Retries, Waiting

_POLL_SECONDS: Final = 0.2
_SECONDS_BETWEEN_COUNTS: Final = 10.0
"""How often to look how many runs the cluster has room for: nodes come and go."""

_QUEUED: Final = 2
"""Tasks given to the cluster for each run it has room for, so that no worker waits for us."""

_OBJECT_STORE_BYTES: Final = 128 << 20  # of a cluster of our own; results of runs are files
_QUIET: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # A lost worker is our business: its run goes on elsewhere.
    "RAY_DEDUP_LOGS_SKIP_REGEX": "A worker died or was killed while executing a task",
    # Ray announces that it will no longer hide the GPUs from runs that ask for none.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}

_LOST: Final = (
    "WorkerCrashedError", "OutOfMemoryError", "NodeDiedError", "LocalRayletDiedError",
    "ObjectLostError",
)  # fmt: skip
"""Ray's errors by which a worker is lost, and its task is begun again."""

_TOKEN: Final = (
    "Give this machine the token of the cluster: RAY_AUTH_MODE=token in the environment, and "
    "RAY_AUTH_TOKEN_PATH=FILE, or the file ~/.ray/auth_token (`ray get-auth-token` shows it there)."
)

_PROBE: Final = """
import sys, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
"""


@final
@dataclass(eq=False)
class RayLauncher:
    """Tasks of a Ray cluster: an existing one, or one of this machine that lasts for the sweep.

    Ray keeps its worker processes, so that short tasks cost no start. All machines must see the
    folder of the sweep, and the data, under the same paths. A task whose worker or machine is lost
    is begun again, from its checkpoint.

    Attributes:
        address: Of a cluster, as HOST:PORT, or "auto" for that of this machine; None starts one.
            A process that is already connected to a cluster stays with it.
        jobs: Runs at a time at most; None: as many as the cluster has room for.
        cpus_per_run: Processor cores for each run, also its number of threads.
        gpus_per_run: Graphics processors for each run; a fraction shares them.
        retries: How often a task is begun again.
        connect_seconds: How long to wait for the cluster's answer.
    """

    address: str | None = None
    jobs: int | None = None
    cpus_per_run: float = 1
    gpus_per_run: float = 0
    retries: Retries = field(default_factory=Retries)
    connect_seconds: float = 30.0

    def __post_init__(self) -> None:
        self.parallel = 1 if self.jobs is None else self.jobs
        check_count(self.parallel, "jobs")
        cpus, gpus = self.cpus_per_run, self.gpus_per_run
        if cpus <= 0 or gpus < 0:
            raise InputError(
                f"Expected more than 0 CPUs and 0 or more GPUs per run, got {cpus} and {gpus}."
            )
        if gpus > 1 and gpus != int(gpus):
            raise InputError(
                f"Expected a fraction of one GPU or a whole number of them per run, got {gpus:g}."
            )

    def run(
        self, tasks: Sequence[Task], work: Work, begin: Begin = nothing
    ) -> Generator[Outcome, None, None]:
        """See `Launcher`."""
        ray = _import_ray()
        ours = not ray.is_initialized()
        with Interruption():
            if ours:
                self._connect(ray)
        with Interruption() as interruption:  # anew: Ray has put its own in place of ours
            waiting = Waiting(tasks, self.retries)
            submitted: dict[Any, tuple[Task, float]] = {}
            try:
                yield from self._run(ray, waiting, work, submitted, interruption, begin)
            except BaseException:
                for reference in submitted:
                    ray.cancel(reference, force=False)  # in a worker: as if by Ctrl-C
                if submitted:
                    left = list(submitted)
                    ray.wait(left, num_returns=len(left), timeout=SAVING_SECONDS)
                raise
            finally:
                if ours:
                    ray.shutdown()

    def _run(
        self,
        ray: Any,  # noqa: ANN401 - the package
        waiting: Waiting,
        work: Work,
        submitted: dict[Any, tuple[Task, float]],
        interruption: Interruption,
        begin: Begin,
    ) -> Iterator[Outcome]:
        remote = ray.remote(execute_there).options(
            num_cpus=self.cpus_per_run, num_gpus=self.gpus_per_run, max_retries=0
        )
        threads, here = max(1, int(self.cpus_per_run)), os.getcwd()
        room, counted = self._room(ray, least=1), time.monotonic()
        while waiting or submitted:
            interruption.raise_if_requested()
            now = time.monotonic()
            if now - counted >= _SECONDS_BETWEEN_COUNTS:
                room, counted = self._room(ray), now
            while len(submitted) < room and (task := waiting.next()):
                begin(task)
                reference = remote.remote(task, work, threads, here)
                submitted[reference] = task, now
            if not submitted:
                time.sleep(_POLL_SECONDS)
                continue
            ready, _ = ray.wait(list(submitted), num_returns=1, timeout=_POLL_SECONDS)
            for reference in ready:
                task, since = submitted.pop(reference)
                if outcome := waiting.ended(task, since, _result(ray, reference)):
                    yield outcome

    def _connect(self, ray: Any) -> None:  # noqa: ANN401
        options = {"log_to_driver": False, "logging_level": "ERROR"}
        if self.address is not None:
            _check_answer(self.address, self.connect_seconds)
            ray.init(address=self.address, **options)
            return
        count = None if self.jobs is None else max(1, int(self.jobs * self.cpus_per_run))
        ray.init(
            address="local",
            num_cpus=count,
            include_dashboard=False,
            object_store_memory=_OBJECT_STORE_BYTES,
            **options,
        )

    def _room(self, ray: Any, least: int = 0) -> int:  # noqa: ANN401
        """How many tasks to give to the cluster; machines may be away for a while, once it runs."""
        room, found = 0, []
        for node in ray.nodes():
            if not node["Alive"]:
                continue
            cpus, gpus = (float(node["Resources"].get(name, 0)) for name in ("CPU", "GPU"))
            found.append(f"{cpus:g} CPUs and {gpus:g} GPUs")
            places = cpus / self.cpus_per_run
            if self.gpus_per_run:
                places = min(places, _shares(gpus, self.gpus_per_run))
            room += int(places)
        if room < least:
            raise InputError(
                f"Expected a machine with {self.cpus_per_run:g} CPUs and {self.gpus_per_run:g} GPUs"
                f" for a run, found in the cluster: {'; '.join(found) or 'none'}. Ask for fewer "
                "per run."
            )
        self.parallel = room if self.jobs is None else min(room, self.jobs)
        # A cluster of our own has room for as many as were asked for, and may queue more.
        return _QUEUED * self.parallel if self.jobs is None or self.address is None else self.jobs


def _shares(gpus: float, per_run: float) -> int:
    """For how many runs some GPUs suffice; those that share one share no other.

    Returns:
        The number of runs.

    Example:
        >>> _shares(2, 0.6), _shares(2, 0.25), _shares(5, 2)
        (2, 8, 2)
    """
    return int(gpus // per_run) if per_run >= 1 else int(gpus) * int(1 / per_run + 1e-9)


def _import_ray() -> Any:  # noqa: ANN401 - it has no types of its own
    """Ray, told to be quiet."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    return import_optional(
        "ray",
        "The launcher 'ray' needs Ray: pip install 'hessalign[ray]'. The launcher 'local' needs "
        "nothing.",
    )


def _check_answer(address: str, seconds: float) -> None:
    """Refuse an address that does not answer; Ray itself would try for minutes, or for ever."""
    try:
        probe = subprocess.run(
            [sys.executable, "-c", _PROBE, address],
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ConnectionError(
            f"Expected a Ray cluster at {address}, got no answer within {seconds:g} s. Check the "
            "address (`ray start --head` shows it), or leave it out to use this machine alone."
        ) from error
    if probe.returncode != 0:
        lines = probe.stderr.strip().splitlines() or ["no reason given"]
        # Ray wraps a wrong token in a failure to connect.
        reason = next((line for line in lines if "AuthenticationError" in line), lines[-1])
        remedy = f" {_TOKEN}" if "AuthenticationError" in reason else ""
        raise ConnectionError(
            f"Expected a Ray cluster at {address}, could not join it: {reason}{remedy}"
        )


def _result(ray: Any, reference: Any) -> Outcome | str:  # noqa: ANN401
    """How a task ended; if its worker was lost, by what."""
    errors = ray.exceptions
    lost = tuple(getattr(errors, name) for name in _LOST)
    try:
        outcome: Outcome = ray.get(reference)
    except lost as error:
        return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
    except errors.RayTaskError as error:  # not of the job: it concerns the whole sweep
        cause = error.cause
        raise cause if isinstance(cause, Exception) else error from None
    return outcome
