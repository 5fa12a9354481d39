"""Several runs, each with a single thread; those that go on at once have processes of their own.

One thread per process because the threads of several runs fight for the cores: two processes of one
thread each finish sooner than one process of two, and far sooner where the machine is busy.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from multiprocessing.managers import SyncManager
from pathlib import Path
from queue import Empty, Queue
from typing import Final

import torch

from hessalign._errors import InputError
from hessalign._processes import (
    SAVING_SECONDS,
    WorkerPool,
    holding_back_interrupts,
    release_interrupts,
    start_worker,
)
from hessalign.bench.runs.colored_mnist import ColoredMnistConfig, Run, train_colored_mnist
from hessalign.bench.runs.interruption import Interruption
from hessalign.bench.runs.records import Record

POLL_SECONDS: Final = 0.2

Report = Callable[[ColoredMnistConfig, Record], None]

Messages = Queue[tuple[ColoredMnistConfig, Record] | str]
"""What workers tell: records with what they belong to, and warnings."""


def train_many(
    configs: Sequence[ColoredMnistConfig],
    jobs: int,
    report: Report,
    folder: Callable[[ColoredMnistConfig], Path | None] = lambda config: None,
    warn: Callable[[str], None] = lambda message: None,
) -> list[Run]:
    """Train several configurations, `jobs` of them at a time.

    Args:
        configs: What to run; those that take longest are best named first.
        jobs: Processes.
        report: Called in this process with every record as it is made.
        folder: Where a run keeps its records and checkpoints, if anywhere.
        warn: Called in this process with what the user should know but need not act on.

    Returns:
        The runs, in the order of the configurations.

    Raises:
        InputError: If `jobs` is not positive.
    """
    if jobs < 1:
        raise InputError(f"Expected 1 or more jobs, got {jobs}.")
    if jobs == 1:
        torch.set_num_threads(1)
        return [
            train_colored_mnist(config, folder(config), partial(report, config), warn)
            for config in configs
        ]
    with (
        Interruption() as interruption,
        _message_queue() as queue,
        WorkerPool(jobs, _start_worker, grace=SAVING_SECONDS) as pool,
    ):
        futures: list[Future[Run]] = []
        # A run is handed over when a worker is free: the pool would begin one that waits in its
        # queue even after Ctrl-C.
        while len(futures) < len(configs) or not all(future.done() for future in futures):
            interruption.raise_if_requested()
            free = jobs - sum(not future.done() for future in futures)
            for config in configs[len(futures) :][:free]:
                futures.append(pool.submit(_train, config, folder(config), queue))
            _forward(queue, report, warn, POLL_SECONDS)
            _raise_early(futures)
            pool.check()
        _forward(queue, report, warn, 0.0)
        return [future.result() for future in futures]


@contextmanager
def _message_queue() -> Iterator[Messages]:
    """A queue in a process of its own, which a worker that is killed cannot damage."""
    manager = SyncManager(ctx=multiprocessing.get_context("spawn"))
    with _explaining_its_end(), holding_back_interrupts():
        manager.start(start_worker)
    with manager:
        yield manager.Queue()


@contextmanager
def _explaining_its_end() -> Iterator[None]:
    try:
        yield
    except (EOFError, ConnectionError) as error:
        raise ChildProcessError(
            "The process that passes messages of the runs on was killed. Run it again to continue."
        ) from error


_interruption = Interruption()
"""What this process, a worker, was asked, be it training or not."""


def _start_worker() -> None:
    start_worker(interruptible=True)
    _interruption.__enter__()
    release_interrupts()


def _train(config: ColoredMnistConfig, folder: Path | None, queue: Messages) -> Run:
    try:
        _interruption.raise_if_requested()
        return train_colored_mnist(
            config, folder, lambda record: queue.put((config, record)), queue.put
        )
    except KeyboardInterrupt:  # all is saved; its parent, which asked for it, waits for the end
        os._exit(0)


def _forward(queue: Messages, report: Report, warn: Callable[[str], None], seconds: float) -> None:
    """Pass messages on for a while, and those that are there already, however many come."""
    with _explaining_its_end():
        there = queue.qsize()
    deadline = time.monotonic() + seconds
    while there > 0 or time.monotonic() < deadline:
        try:
            with _explaining_its_end():
                message = queue.get(timeout=max(0.0, deadline - time.monotonic()))
        except Empty:
            return
        there -= 1
        if isinstance(message, str):
            warn(message)
        else:
            report(*message)


def _raise_early(futures: list[Future[Run]]) -> None:
    """Do not wait for the other runs once one has failed."""
    for future in futures:
        if future.done() and future.exception() is not None:
            future.result()
