"""Processes that work for this one: how they start, which signals they heed, how they end.

A worker of any kind

- is started while signals are held back (`holding_back_interrupts`), since it can deal with none
  before it has imported what it needs, which takes seconds;
- then decides by itself which signals it heeds (`start_worker`), whatever it has inherited: what is
  started by nohup, or in the background by a script, ignores SIGINT, and so do its children; when
  it is ready for them it lets them through (`release_interrupts`);
- ends when the process that started it has died, also if that was killed (`follow_parent`).

`completed` calls one function with many things in them.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor
from concurrent.futures import wait as wait_for
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from types import TracebackType
from typing import Any, Final, ParamSpec, TypeVar, cast, final

from hessalign._errors import InputError

WORKERS_VARIABLE: Final = "HESSALIGN_BATCH_WORKERS"
"""The environment variable that asks for another number of processes that make batches."""

SAVING_SECONDS: Final = 300.0
"""How long runs that were asked to stop may take to finish their step and save it."""

SECONDS_BETWEEN_LOOKS: Final = 1.0
"""How often a worker looks whether it still has its parent, should it not be told."""

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

Given = ParamSpec("Given")
Result = TypeVar("Result")


@contextmanager
def holding_back_interrupts() -> Iterator[None]:
    """Start processes that will not see Ctrl-C or a SIGTERM before they can deal with it.

    They inherit that these are held back, until they call `release_interrupts`.

    Yields:
        Nothing.
    """
    resource_tracker.ensure_running()  # which would let them through, if it came with the first
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_worker(*, interruptible: bool = False) -> None:
    """What a worker does first: it has one thread, follows its parent, and chooses its signals.

    A SIGTERM, which may be sent to all processes of a job, is its parent's business, and so is
    Ctrl-C: the parent asks workers to save by a SIGINT, and a second one would have them not save.

    Args:
        interruptible: Whether it heeds a SIGINT at all, once it calls `release_interrupts`.
    """
    import torch

    torch.set_num_threads(1)
    follow_parent()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if interruptible:
        os.setpgrp()  # the terminal sends Ctrl-C to the group
        signal.signal(signal.SIGINT, signal.default_int_handler)
    else:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def heed_interrupts() -> None:
    """Let SIGINT interrupt this process, a worker, although it may have inherited to ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def release_interrupts() -> None:
    """Let signals through that this process heeds, also one held back since it was started."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def follow_parent() -> None:
    """Let this process end when its parent has died.

    A process that a server forks has two: the one that wants its work, and the server.

    Linux could send a signal instead (PR_SET_PDEATHSIG), but it does so when the thread ends that
    started the process, and for the server only.
    """
    name, starter = "parent", os.getppid()
    threading.Thread(target=_exit_with_parent, args=(starter,), name=name, daemon=True).start()


def _exit_with_parent(starter: int) -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        while parent.is_alive() and os.getppid() == starter:
            parent.join(SECONDS_BETWEEN_LOOKS)
        os._exit(1)


def describe_end(code: int | None) -> str:
    """How a process ended.

    Returns:
        A predicate.

    Example:
        >>> describe_end(-9)
        'was killed by SIGKILL, perhaps because memory ran out'
        >>> describe_end(3)
        'ended with exit code 3'
    """
    if code is None or code >= 0:
        return "ended" if code is None else f"ended with exit code {code}"
    known = {number.value: number.name for number in signal.Signals}
    reason = ", perhaps because memory ran out" if code == -signal.SIGKILL else ""
    return f"was killed by {known.get(-code, f'signal {-code}')}{reason}"


def kill_unless_ended(processes: Iterable[BaseProcess], seconds: float) -> None:
    """Wait some seconds for processes to end; those that have not, or after Ctrl-C, are killed."""
    every, deadline = list(processes), time.monotonic() + seconds
    left = {process.sentinel for process in every}
    try:
        while left and (rest := deadline - time.monotonic()) > 0:
            left.difference_update(wait(left, rest))
    finally:
        for process in every:
            process.kill()


@final
class WorkerPool:
    """A pool of processes, as a context manager.

    An error within it ends all of them: they are interrupted, and killed if they have not ended
    when it is time. If one of them died, that is the error.

    Args:
        workers: How many processes.
        initializer: Called in each of them first; see `start_worker`.
        arguments: What to call it with.
        grace: Seconds that they have to end when they are interrupted.

    Raises:
        ChildProcessError: On leaving it, if one of them died.
    """

    def __init__(
        self,
        workers: int,
        initializer: Callable[..., None],
        arguments: tuple[Any, ...] = (),
        grace: float = 0.0,
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(workers, context, initializer, arguments)
        self._processes = cast("MutableMapping[int, BaseProcess]", self._pool._processes)
        self._workers = workers
        self._grace = grace

    def submit(
        self, function: Callable[Given, Result], *args: Given.args, **kwargs: Given.kwargs
    ) -> Future[Result]:
        """Have something done, perhaps by a process that is started for it."""
        with holding_back_interrupts():
            return self._pool.submit(function, *args, **kwargs)

    def check(self) -> None:
        """Notice that a process has died; to be called now and then.

        Python's pool alone would not notice it before something else happens, if the process was
        the last one started: it begins to watch before it starts a process.

        Raises:
            BrokenProcessPool: If one has died; what the user is told follows on leaving this.
        """
        if wait([process.sentinel for process in self._processes.values()], 0):
            raise BrokenProcessPool

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        end = threading.Thread(target=self._pool.shutdown, kwargs={"cancel_futures": True})
        end.start()
        try:
            if error is not None:
                self._interrupt()
        finally:
            end.join()
        if isinstance(error, BrokenProcessPool):
            codes = [process.exitcode for process in self._processes.values()]
            raise ChildProcessError(
                f"Expected {self._workers} processes to finish their work, but one "
                f"{describe_end(_culprit(codes))}. Run it again, with fewer processes if it "
                "happens again."
            ) from error

    def _interrupt(self) -> None:
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGINT)
        kill_unless_ended(self._processes.values(), self._grace)


def _culprit(codes: Iterable[int | None]) -> int | None:
    """The exit code of the process that broke a pool, among those of the others, killed then."""
    least_first = (0, None, -signal.SIGTERM, -signal.SIGKILL)  # by what they tell
    ranks = {code: rank for rank, code in enumerate(least_first)}
    return max(codes, key=lambda code: ranks.get(code, len(ranks)), default=None)


_POLL_SECONDS: Final = 0.5

_Job = TypeVar("_Job")
_Result = TypeVar("_Result")


def completed(
    function: Callable[[_Job], _Result],
    jobs: Sequence[_Job],
    workers: int,
    prepare: Callable[[], None] | None = None,
) -> Iterator[_Result]:
    """Results as they come, in no particular order if there are several workers.

    An error, Ctrl-C, or a worker that is killed, ends it all at once.

    Args:
        function: What to do. With several workers it is copied to each of them once, so it may be
            an object that carries much; functions inside functions cannot be copied.
        jobs: What to do it to.
        workers: How many processes; with one, everything happens in this one.
        prepare: Called in every other process before the function is read there, which imports
            the modules that it needs.

    Yields:
        One result for each job.

    Raises:
        InputError: If there is no worker.

    Example:
        >>> list(completed(abs, [-1, 2], workers=1))
        [1, 2]
    """
    if workers < 1:
        raise InputError(f"Expected 1 or more workers, got {workers}.")
    if min(workers, len(jobs)) <= 1:
        yield from map(function, jobs)
        return
    with WorkerPool(min(workers, len(jobs)), _receive, (prepare, _Parcel(function))) as pool:
        left = {pool.submit(_call, job) for job in jobs}
        while left:
            done, left = wait_for(left, _POLL_SECONDS, FIRST_COMPLETED)
            for future in done:
                yield future.result()
            pool.check()


class _Parcel:
    """Something that is copied to another process as bytes, to be read there at a known moment."""

    def __init__(self, content: object) -> None:
        self._content = content

    def __reduce__(self) -> tuple[type[bytes], tuple[bytes]]:
        return bytes, (bytes(ForkingPickler.dumps(self._content)),)


_received: list[Callable[[Any], Any]] = []
"""What this process, a worker, is there for; nothing if it could not be read."""

_failures: list[Exception] = []
"""Why it could not be read."""


def _receive(prepare: Callable[[], None] | None, parcel: bytes) -> None:
    start_worker()
    try:
        if prepare is not None:
            prepare()
        _received.append(ForkingPickler.loads(parcel))
    except Exception as error:  # raised where it can be reported: with the first job
        _failures.append(error)


def _call(job: Any) -> Any:  # noqa: ANN401
    for failure in _failures:
        raise failure
    return _received[0](job)
