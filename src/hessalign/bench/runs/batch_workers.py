"""Batches made ahead of the training step by torch's DataLoader, in shared memory.

The "samples" of the loader are whole batches, and their indices are the batches' numbers: a batch
depends on its number and on nothing else, so a run continues by the number alone. The processes
write into memory that is shared once, when they start, and hand over only that a batch is there:
3 × 32 images are 58 MB, which the system would else have to clear and map for every batch.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from multiprocessing.process import BaseProcess
from typing import Final, final

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from hessalign._errors import InputError
from hessalign._processes import (
    WORKERS_VARIABLE,
    describe_end,
    holding_back_interrupts,
    start_worker,
)

_FillBatch = Callable[[int, Tensor, Tensor], None]
"""Fills in the inputs and labels of a batch, which depend on its number and on nothing else."""

_AHEAD: Final = 2
"""Batches of each worker that are ready or being made."""

_MOST_WORKERS: Final = 2
"""Unless more are asked for: with the run itself and Python's tracker, four processes."""


@final
class BatchWorkerError(OSError):
    """A worker that died."""


def default_workers() -> int:
    """How many workers suit this machine, or the number that the environment asks for."""
    wanted = os.environ.get(WORKERS_VARIABLE, "")
    if wanted.isdecimal():
        return int(wanted)
    if wanted:
        raise InputError(
            f"Expected {WORKERS_VARIABLE} as a whole number of 0 or more, got {wanted!r}."
        )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(_MOST_WORKERS, (cores or 1) - 1)


@final
class BatchWorkers:
    """Numbered batches, a few of them made ahead of the one that is asked for.

    It does not matter which process makes a batch or when, and any batch can be asked for next. The
    processes start with the first batch and end with this one, even if it is killed; with 0 of them
    this one makes its batches itself. x and y have the shapes and types of a batch.
    """

    def __init__(self, fill: _FillBatch, x: Tensor, y: Tensor, workers: int) -> None:
        self._fill, self._templates, self._workers = fill, (x, y), workers
        self._numbers = _Numbers()
        self._batches: _Batches | None = None
        self._loader: DataLoader[Exception | None] | None = None
        self._ready: Iterator[Exception | None] = iter(())
        self._next: int | None = None
        self.processes: list[BaseProcess] = []
        weakref.finalize(self, _end, self.processes)

    def get(self, number: int) -> tuple[Tensor, Tensor]:
        """Inputs and labels, in memory that another batch takes when the next one is asked for."""
        if self._loader is None or self._batches is None:
            self._batches, self._loader = self._make()
        with self._noticing_deaths(number):
            if number != self._next:
                self._seek(self._loader, number)
            self._next = None
            error = next(self._ready)
        if error is not None:
            raise error
        self._next = number + 1
        return self._batches.place(number)

    def close(self) -> None:
        """End the processes, as happens at the latest when this object is no longer used."""
        _end(self.processes)
        self._ready, self._loader, self._next = iter(()), None, None

    def _make(self) -> tuple[_Batches, DataLoader[Exception | None]]:
        # While a batch is in use, as many as the loader allows are asked for.
        places, parallel = _AHEAD * self._workers + 1, self._workers > 0
        x, y = (
            torch.empty(places, *each.shape, dtype=each.dtype).share_memory_()
            for each in self._templates
        )
        batches = _Batches(self._fill, x, y)
        with warnings.catch_warnings():  # more workers than cores were asked for, then
            warnings.filterwarnings("ignore", "This DataLoader will create")
            return batches, DataLoader(
                batches,
                batch_size=None,
                sampler=self._numbers,
                num_workers=self._workers,
                worker_init_fn=_start if parallel else None,
                multiprocessing_context="spawn" if parallel else None,
                generator=torch.Generator(),  # else it would draw from the global one
                prefetch_factor=_AHEAD if parallel else None,
                persistent_workers=parallel,
            )

    def _seek(self, loader: DataLoader[Exception | None], number: int) -> None:
        """Forget what was asked for, and ask the same processes for the batches from this one."""
        self._numbers.first = number
        before = multiprocessing.active_children()
        with holding_back_interrupts(), _keeping_child_signals():
            self._ready = iter(loader)
        self.processes += [each for each in multiprocessing.active_children() if each not in before]

    @contextmanager
    def _noticing_deaths(self, number: int) -> Iterator[None]:
        """Say what became of a process that died before a batch was ready."""
        try:
            yield
        except (RuntimeError, OSError) as error:
            dead = [each for each in self.processes if not each.is_alive()]
            if not dead:
                raise
            end = describe_end(dead[0].exitcode)
            self.close()
            raise BatchWorkerError(
                f"A process that makes batches of images {end} before batch {number} was ready. If "
                "memory ran out, make the batches smaller. In a container, shared memory may be "
                "too small (docker run --shm-size=1g). The run makes its batches itself with "
                f"{WORKERS_VARIABLE}=0 in the environment. Run it again to continue from its last "
                "checkpoint."
            ) from error


@final
class _Numbers:
    """The numbers of the batches to make, in their order."""

    def __init__(self) -> None:
        self.first = 0

    def __iter__(self) -> Iterator[int]:
        return count(self.first)


@final
class _Batches(Dataset["Exception | None"]):
    """The batches, by number, each in its place in shared memory."""

    def __init__(self, fill: _FillBatch, x: Tensor, y: Tensor) -> None:
        self._fill, self._x, self._y = fill, x, y

    def place(self, number: int) -> tuple[Tensor, Tensor]:
        """Where a batch is."""
        place = number % len(self._x)
        return self._x[place], self._y[place]

    def __getitem__(self, number: int) -> Exception | None:
        """Make a batch; an error is handed over as it is: the loader would wrap its traceback."""
        try:
            self._fill(number, *self.place(number))
        except Exception as error:
            return _portable(error)
        return None


def _portable(error: Exception) -> Exception:
    """An error as it can go to another process: of what cannot, the loader would say nothing."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # classes of errors may do anything
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _start(_: int) -> None:
    start_worker()


@contextmanager
def _keeping_child_signals() -> Iterator[None]:
    """The loader would have the death of a worker raise an error anywhere, not where we wait."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGCHLD)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, before)


def _end(processes: list[BaseProcess]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.join()
    processes.clear()
