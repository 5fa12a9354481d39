"""Several runs, each with a single thread; those that go on at once have processes of their own.

One thread per process because the threads of several runs fight for the cores: two processes of one
thread each finish sooner than one process of two, and far sooner where the machine is busy.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial
from pathlib import Path
from queue import Empty, Queue

import torch

from hessalign.data.parallel import explaining_kills
from hessalign.training.colored_mnist import ColoredMnistConfig, Run, train_colored_mnist
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
        ValueError: If `jobs` is not positive.
    """
    if jobs < 1:
        raise ValueError(f"Expected 1 or more jobs, got {jobs}.")
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
        queue: Messages = manager.Queue()
        futures = [pool.submit(_train, config, folder(config), queue) for config in configs]
        try:
            while not all(future.done() for future in futures):
                _forward(queue, report, warn, wait=0.2)
                _raise_early(futures)
        except BaseException:
            # Ctrl-C reaches the workers too: they save their runs, and the rest is not begun.
            pool.shutdown(wait=True, cancel_futures=True)
            raise
        _forward(queue, report, warn, wait=0.0)
        return [future.result() for future in futures]


def _start_worker() -> None:
    """One thread; and an interrupt concerns a worker only while it trains, see `Interruption`."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _train(
    config: ColoredMnistConfig,
    folder: Path | None,
    queue: Messages,
) -> Run:
    parent = multiprocessing.parent_process()

    def report(record: Record) -> None:
        if parent is not None and not parent.is_alive():
            raise SystemExit  # nobody is left to take the result
        queue.put((config, record))

    return train_colored_mnist(config, folder, report, queue.put)


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
            for other in futures:
                other.cancel()
            future.result()
