"""Processes that work for this one: how they start, which signals they heed, how they end.

A worker of any kind

- is started while signals are held back (`holding_back_interrupts`), since it can deal with none
  before it has imported what it needs, which takes seconds;
- then decides by itself which signals it heeds (`start_worker`), whatever it has inherited: what is
  started by nohup, or in the background by a script, ignores SIGINT, and so do its children; when
  it is ready for them it lets them through (`release_interrupts`);
- ends when the process that started it has died, also if that was killed.

`completed` calls one function with many things in them. The function is copied to each worker once,
after `prepare`, which imports the modules that it needs; so it may be an object that carries much.

`Interruption` is for the process itself: Ctrl-C at a safe moment, when work is finished and saved.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor
from concurrent.futures import wait as wait_for
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from types import FrameType
from typing import Any, Final, TypeVar, cast, final

from hessalign._errors import InputError

WORKERS_VARIABLE: Final = "HESSALIGN_BATCH_WORKERS"
"""The environment variable that asks for another number of processes that make batches."""

SAVING_SECONDS: Final = 300.0
"""How long runs that were asked to stop may take to finish their step and save it."""

_SECONDS_BETWEEN_LOOKS: Final = 1.0
"""How often a worker looks whether it still has its parent, should it not be told."""

_POLL_SECONDS: Final = 0.5

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

_Error = TypeVar("_Error", bound=BaseException)
_Job = TypeVar("_Job")
_Result = TypeVar("_Result")


@contextmanager
def holding_back_interrupts() -> Iterator[None]:
    """Start processes that see neither Ctrl-C nor a SIGTERM until they `release_interrupts`."""
    resource_tracker.ensure_running()  # which would let them through, if it came with the first
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_worker(*, interruptible: bool = False) -> None:
    """What a worker does first: it has one thread, follows its parent, and chooses its signals."""
    import torch

    torch.set_num_threads(1)
    # Linux could send a signal instead (PR_SET_PDEATHSIG), but it does so when the thread ends that
    # started the process, and for the server only.
    threading.Thread(target=_exit_with_parent, args=(os.getppid(),), daemon=True).start()
    # A SIGTERM, which may be sent to all processes of a job, is its parent's business, and so is
    # Ctrl-C: the parent asks workers to save by a SIGINT, and of a second one they would not save.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for number in (signal.SIGUSR1, signal.SIGUSR2):  # by which batch systems announce their end
        signal.signal(number, signal.SIG_IGN)
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


def _exit_with_parent(starter: int) -> None:
    """End with the parent; of a server that forks, with it or with the one that wants the work."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        while parent.is_alive() and os.getppid() == starter:
            parent.join(_SECONDS_BETWEEN_LOOKS)
        os._exit(1)


def describe_end(code: int | None) -> str:
    """How a process ended, as a predicate."""
    if code is None or code >= 0:
        return "ended" if code is None else f"ended with exit code {code}"
    known = {number.value: number.name for number in signal.Signals}
    reason = ", perhaps because memory ran out" if code == -signal.SIGKILL else ""
    return f"was killed by {known.get(-code, f'signal {-code}')}{reason}"


def portable(error: _Error) -> _Error | RuntimeError:
    """An error as it can go to another process; of what cannot, its kind and its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # classes of errors may do anything
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


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
class Interruption:
    """While it is entered, a first SIGINT or SIGTERM asks to stop; a second one stops at once.

    None is lost. One within another knows from the start what the outer was asked before, and tells
    it what it was asked itself; without an outer one, what came too late to be heeded inside raises
    KeyboardInterrupt at the end.

    In a thread other than the main one signals cannot be caught, and nothing is done. A signal that
    is ignored, as nohup has SIGINT ignored, stays so.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[int, Any] = {}
        self._outer: Interruption | None = None

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) is signal.SIG_IGN:
                    continue
                previous = signal.signal(number, self._request)
                self._previous[number] = previous
                outer = getattr(previous, "__self__", None)
                if isinstance(outer, Interruption):
                    self._outer = outer
                    self.requested = self.requested or outer.requested
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if self._outer is not None:
            self._outer.requested = self._outer.requested or self.requested
        elif kind is None:
            self.raise_if_requested()

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True

    def raise_if_requested(self) -> None:
        """Stop by a KeyboardInterrupt if a signal came, now that everything is in order."""
        if self.requested:
            raise KeyboardInterrupt


def _culprit(codes: Iterable[int | None]) -> int | None:
    """The exit code of the process that broke a pool, among those of the others, killed then."""
    least_first = (0, None, -signal.SIGTERM, -signal.SIGKILL)  # by what they tell
    ranks = {code: rank for rank, code in enumerate(least_first)}
    return max(codes, key=lambda code: ranks.get(code, len(ranks)), default=None)


def completed(
    function: Callable[[_Job], _Result],
    jobs: Sequence[_Job],
    workers: int,
    prepare: Callable[[], None] | None = None,
) -> Iterator[_Result]:
    """Results as they come, in any order if there are several workers; an error ends them all."""
    if workers < 1:
        raise InputError(f"Expected 1 or more workers, got {workers}.")
    workers = min(workers, len(jobs))
    if workers <= 1:
        yield from map(function, jobs)
        return
    context = multiprocessing.get_context("spawn")
    begin: Callable[..., None] = _receive  # the parcel is bytes when it arrives
    pool = ProcessPoolExecutor(workers, context, begin, (prepare, _Parcel(function)))
    processes = cast("MutableMapping[int, BaseProcess]", pool._processes)
    try:
        with holding_back_interrupts():
            left = {pool.submit(_call, job) for job in jobs}
        while left:
            done, left = wait_for(left, _POLL_SECONDS, FIRST_COMPLETED)
            for future in done:
                yield future.result()
            # If the process that was started last dies, the pool does not notice by itself: it
            # begins to watch before it starts a process.
            if wait([process.sentinel for process in processes.values()], 0):
                raise BrokenProcessPool
    except BaseException as error:
        end = threading.Thread(target=pool.shutdown, kwargs={"cancel_futures": True})
        end.start()
        kill_unless_ended(processes.values(), 0)
        end.join()
        if isinstance(error, BrokenProcessPool):
            code = _culprit(process.exitcode for process in processes.values())
            raise ChildProcessError(
                f"Expected {workers} processes to finish their work, but one {describe_end(code)}. "
                "Run it again, with fewer processes if it happens again."
            ) from error
        raise
    pool.shutdown()


class _Parcel:
    """Something that is copied to another process as bytes, to be read there at a known moment."""

    def __init__(self, content: object) -> None:
        self._content = content

    def __reduce__(self) -> tuple[type[bytes], tuple[bytes]]:
        return bytes, (bytes(ForkingPickler.dumps(self._content)),)


_received: list[Callable[[Any], Any] | Exception] = []
"""What this process, a worker, is there for, or why it could not be read."""


def _receive(prepare: Callable[[], None] | None, parcel: bytes) -> None:
    start_worker()
    try:
        if prepare is not None:
            prepare()
        _received.append(ForkingPickler.loads(parcel))
    except Exception as error:  # raised where it can be reported: with the first job
        _received.append(error)


def _call(job: Any) -> Any:  # noqa: ANN401
    function = _received[0]
    if isinstance(function, Exception):
        raise function
    return function(job)
