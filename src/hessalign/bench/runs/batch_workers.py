"""Processes that make batches ahead of the training step and hand them over in shared memory."""

from __future__ import annotations

import multiprocessing
import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Final, final

import torch
import torch.multiprocessing  # noqa: F401  (lets tensors in shared memory go to other processes)
from torch import Tensor

from hessalign._errors import InputError
from hessalign._processes import (
    WORKERS_VARIABLE,
    describe_end,
    holding_back_interrupts,
    start_worker,
)

FillBatch = Callable[[int, Tensor, Tensor], None]
"""Fills in the inputs and labels of a batch, which depend on its number and on nothing else."""

AHEAD: Final = 2
"""Batches of each worker that are in use, ready or being made."""

MOST_WORKERS: Final = 2
"""Unless more are asked for: with the run itself and Python's tracker, four processes."""


@final
class BatchWorkerError(OSError):
    """A worker that died."""


def default_workers() -> int:
    """How many workers suit this machine, unless the environment asks for another number.

    Returns:
        One for each core but the one that trains, two at most; 0 on a single core.

    Raises:
        InputError: If the environment asks for something else than a number.
    """
    wanted = os.environ.get(WORKERS_VARIABLE, "")
    if wanted:
        if not wanted.isdecimal():
            raise InputError(
                f"Expected {WORKERS_VARIABLE} as a whole number of 0 or more, got {wanted!r}."
            )
        return int(wanted)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(MOST_WORKERS, (cores or 1) - 1)


@final
@dataclass
class _Worker:
    """A process, its end of the line, and what it was asked for."""

    process: SpawnProcess
    connection: Connection[tuple[int, int], tuple[int, Exception | None]]
    asked: list[int] = field(default_factory=list)


@final
class BatchWorkers:
    """A pool of processes that make numbered batches, a few ahead of the one that is asked for.

    A batch is a function of its number, so it does not matter which process makes it or when, and
    any batch can be asked for next. The processes start with the first batch and end with this
    one, even if it is killed.

    Args:
        fill: Makes a batch; it is copied into the processes.
        x: A tensor of the shape and type of a batch's inputs.
        y: The same for the labels.
        workers: How many processes, 1 or more.
    """

    def __init__(self, fill: FillBatch, x: Tensor, y: Tensor, workers: int) -> None:
        self._fill = fill
        self._templates = (x, y)
        self._count = workers
        self._workers: list[_Worker] = []
        self._used: int | None = None
        self._x = self._y = torch.empty(0)
        weakref.finalize(self, _end, self._workers)

    def get(self, number: int) -> tuple[Tensor, Tensor]:
        """A batch.

        Args:
            number: Which one; the next in turn is probably there already.

        Returns:
            Inputs and labels, in memory that another batch takes when the next one is asked for.
            Whatever making the batch raised is raised again here; a worker that died raises
            `BatchWorkerError`.
        """
        if not self._workers:
            self._start()
        if self._used is not None:
            self._ask(self._used + AHEAD * self._count)
            self._used = None
        place = number % self._count
        worker = self._workers[place]
        if worker.asked[:1] != [number]:
            self._seek(number)
        error = self._answer(worker)
        if error is not None:
            raise error
        self._used = number
        slot = place, number // self._count % AHEAD
        return self._x[slot], self._y[slot]

    def close(self) -> None:
        """End the processes, as happens at the latest when this object is no longer used."""
        _end(self._workers)

    def _start(self) -> None:
        self._x, self._y = (
            torch.empty(self._count, AHEAD, *each.shape, dtype=each.dtype).share_memory_()
            for each in self._templates
        )
        context = multiprocessing.get_context("spawn")
        for place in range(self._count):
            ours, theirs = context.Pipe()
            arguments = (theirs, self._fill, self._x[place], self._y[place])
            process = context.Process(target=_work, args=arguments, daemon=True)
            with holding_back_interrupts():
                process.start()
            theirs.close()
            self._workers.append(_Worker(process, ours))

    def _seek(self, number: int) -> None:
        """Forget what was asked for, and ask for the batches from this one on."""
        for worker in self._workers:
            while worker.asked:
                self._answer(worker)
        for following in range(number, number + AHEAD * self._count):
            self._ask(following)

    def _ask(self, number: int) -> None:
        worker = self._workers[number % self._count]
        with suppress(BrokenPipeError):  # a worker that died is noticed when its answer is due
            worker.connection.send((number, number // self._count % AHEAD))
        worker.asked.append(number)

    def _answer(self, worker: _Worker) -> Exception | None:
        """Wait for what the worker was asked for first."""
        number = worker.asked.pop(0)
        if worker.connection in wait([worker.connection, worker.process.sentinel]):
            with suppress(EOFError, ConnectionError):
                return worker.connection.recv()[1]
        worker.process.join()
        end = describe_end(worker.process.exitcode)
        self.close()
        raise BatchWorkerError(
            f"A process that makes batches of images {end} before batch {number} was ready. If "
            "memory ran out, make the batches smaller. In a container, shared memory may be too "
            f"small (docker run --shm-size=1g). With {WORKERS_VARIABLE}=0 in the environment the "
            "run makes its batches itself. Run it again to continue from its last checkpoint."
        )


def _end(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.connection.close()
        worker.process.kill()
    for worker in workers:
        worker.process.join()
    workers.clear()


def _work(
    connection: Connection[tuple[int, Exception | None], tuple[int, int]],
    fill: FillBatch,
    x: Tensor,
    y: Tensor,
) -> None:
    """Make batches until the line is closed."""
    start_worker()
    with suppress(EOFError, ConnectionError):
        while True:
            number, slot = connection.recv()
            try:
                fill(number, x[slot], y[slot])
                error = None
            except Exception as caught:  # the run raises it
                error = caught
            connection.send((number, error))
