"""The same function of many things, in processes of their own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from hessalign._errors import InputError

Job = TypeVar("Job")
Result = TypeVar("Result")


def completed(
    function: Callable[[Job], Result], jobs: Sequence[Job], workers: int
) -> Iterator[Result]:
    """Results as they come, in no particular order if there are several workers.

    An error, or a worker that is killed, ends it all: jobs that have not begun are not done.

    Args:
        function: What to do. With several workers it is copied to each of them once, so it may be
            an object that carries much; functions inside functions cannot be copied.
        jobs: What to do it to.
        workers: How many processes; with one, everything happens in this one.

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
    context = multiprocessing.get_context("spawn")
    with (
        explaining_kills(workers),
        ProcessPoolExecutor(
            min(workers, len(jobs)), context, _receive, initargs=(function,)
        ) as pool,
    ):
        futures = [pool.submit(_call, job) for job in jobs]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


@contextmanager
def explaining_kills(workers: int) -> Iterator[None]:
    """Say what it means that a worker of a pool was killed.

    Args:
        workers: How many there are.

    Yields:
        Nothing.

    Raises:
        ChildProcessError: If one was killed.
    """
    try:
        yield
    except BrokenProcessPool as error:
        raise ChildProcessError(
            f"Expected {workers} processes to finish their work, but one was killed, perhaps "
            "because memory ran out. Run it again with fewer processes."
        ) from error


_received: list[Callable[[Any], Any]] = []
"""What this process, a worker, is there for."""


def _receive(function: Callable[[Any], Any]) -> None:
    start_worker()
    _received.append(function)


def _call(job: Any) -> Any:  # noqa: ANN401
    return _received[0](job)


def start_worker() -> None:
    """One thread; Ctrl-C is the parent's business; and no worker outlives a parent that died."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    follow_parent()


def follow_parent() -> None:
    """Let this process end when its parent has died."""
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
