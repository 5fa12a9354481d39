"""Several runs, each with a single thread; those that go on at once have processes of their own.

One thread per process because the threads of several runs fight for the cores: two processes of one
thread each finish sooner than one process of two, and far sooner where the machine is busy.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from contextlib import suppress
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import Empty, Queue

import torch

from hessalign._errors import InputError
from hessalign.data.parallel import explaining_kills, follow_parent
from hessalign.training.colored_mnist import ColoredMnistConfig, Run, train_colored_mnist
from hessalign.training.interruption import (
    Interruption,
    holding_back_interrupts,
    release_interrupts,
)
from hessalign.training.records import Record

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
    context = multiprocessing.get_context("spawn")
    with (
        explaining_kills(jobs),
        context.Manager() as manager,
        ProcessPoolExecutor(jobs, context, _start_worker) as pool,
    ):
        others = set(multiprocessing.active_children())
        queue: Messages = manager.Queue()
        futures: list[Future[Run]] = []
        try:
            # A run is handed over when a worker is free: the pool would begin one that waits in its
            # queue even after Ctrl-C.
            while len(futures) < len(configs) or not all(future.done() for future in futures):
                free = jobs - sum(not future.done() for future in futures)
                for config in configs[len(futures) :][:free]:
                    with holding_back_interrupts():
                        futures.append(pool.submit(_train, config, folder(config), queue))
                _forward(queue, report, warn, wait=0.2)
                _raise_early(futures)
        except BaseException:
            _stop(set(multiprocessing.active_children()) - others, futures)
            raise
        _forward(queue, report, warn, wait=0.0)
        return [future.result() for future in futures]


def _stop(workers: Collection[BaseProcess], futures: Sequence[Future[Run]]) -> None:
    """Have the runs saved that are going on; a second Ctrl-C does not wait for it."""
    try:
        for worker in workers:
            if worker.pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(worker.pid, signal.SIGINT)
        wait(futures)
    except KeyboardInterrupt:
        for worker in workers:
            worker.kill()
        raise


_interruption = Interruption()
"""What this process, a worker, was asked, be it training or not."""


def _start_worker() -> None:
    """Its parent alone hears Ctrl-C on the terminal, and asks the workers to save."""
    torch.set_num_threads(1)
    follow_parent()
    os.setpgrp()
    _interruption.__enter__()
    release_interrupts()


def _train(config: ColoredMnistConfig, folder: Path | None, queue: Messages) -> Run:
    _interruption.raise_if_requested()
    return train_colored_mnist(
        config, folder, lambda record: queue.put((config, record)), queue.put
    )


def _forward(queue: Messages, report: Report, warn: Callable[[str], None], wait: float) -> None:
    try:
        while True:
            message = queue.get(timeout=wait) if wait else queue.get_nowait()
            if isinstance(message, str):
                warn(message)
            else:
                report(*message)
    except Empty:
        return


def _raise_early(futures: list[Future[Run]]) -> None:
    """Do not wait for the other runs once one has failed."""
    for future in futures:
        if future.done() and future.exception() is not None:
            future.result()
