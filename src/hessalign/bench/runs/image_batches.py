"""Batches of images, made ahead of the training step by torch's DataLoader, in shared memory.

Batch k is a function of the run's seed and k alone: which images, and every random change of them,
come from a generator with the seed `seed_hash(seed, k)`. So batches may be made ahead, by any
process, and a run that is continued meets the very images it would have met.

The "samples" of the loader are whole batches, and their indices are the batches' numbers. The
processes write into memory that is shared once, when they start, and hand over only that a batch is
there: 3 × 32 images are 58 MB, which the system would else have to clear and map for every batch.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from multiprocessing.process import BaseProcess
from typing import Final, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from hessalign._errors import InputError
from hessalign._numbers import check_count
from hessalign._processes import (
    WORKERS_VARIABLE,
    describe_end,
    holding_back_interrupts,
    portable,
    start_worker,
)
from hessalign._protocol import seed_hash
from hessalign.bench.algorithms import Batch
from hessalign.bench.data import Augmentation, ImageError, ImageReader, augment, normalise
from hessalign.bench.models.sharded import current_processes, own_rows

_Rows = Sequence[int] | np.ndarray  # samples of a domain, for example a part of its `Split`
_AHEAD: Final = 2  # batches of each worker that are ready or being made
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
    together = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # processes of one run
    return max(0, min(_MOST_WORKERS, (cores or 1) // together - 1))


@final
class ImageMinibatches:
    """Images drawn with replacement, the same number from every domain: a `Sampler`.

    Worker processes, one pool for all domains, make batches ahead of the training step, no matter
    which of them or when. They start with the first batch and end with `close`, a `with` block, or
    this process, even if it is killed. A batch stays in memory that is shared with them until the
    next one is drawn: copy what is to last longer.
    """

    def __init__(
        self,
        reader: ImageReader,
        rows: Mapping[int, _Rows],
        batch_size: int,
        seed: int,
        augmentation: Augmentation | None,
        workers: int | None = None,  # 0: this process makes them; None: what suits the machine
    ) -> None:
        check_count(batch_size, "a batch size")
        self._workers = default_workers() if workers is None else workers
        check_count(self._workers, "workers", 0)
        if not rows:
            raise InputError("Expected one or more training domains, got none.")
        if empty := [domain for domain, chosen in rows.items() if len(chosen) == 0]:
            name = reader.data.domains[empty[0]].name
            raise InputError(f"Expected images to train on in every domain, {name!r} has none.")
        arrays = {domain: np.asarray(chosen, np.int64) for domain, chosen in rows.items()}
        # While a batch is in use, as many as the loader allows are asked for.
        places = _AHEAD * self._workers + 1
        self._processes, count = current_processes(), len(rows) * batch_size
        if self._processes is not None and count < self._processes.count:
            self._processes = None  # each computes all of so few
        own = slice(count) if self._processes is None else own_rows(count, self._processes)
        self._batches = _Batches(reader, arrays, batch_size, seed, augmentation, places, own)
        self._domain = torch.arange(len(rows)).repeat_interleave(batch_size)
        self._step = 0
        self._numbers = _Numbers()
        self._loader: DataLoader[Exception | None] | None = None
        self._ready: Iterator[Exception | None] = iter(())
        self._next: int | None = None  # what the loader has ready next
        self.processes: list[BaseProcess] = []
        weakref.finalize(self, _end, self.processes)

    def draw(self) -> Batch:
        """The next batch, for one forward pass of all domains; it lasts until the one after it."""
        number = self._step
        if self._loader is None:
            self._loader = self._load()
        with self._noticing_deaths(number):
            if number != self._next:
                self._seek(self._loader, number)
            self._next = None
            error = next(self._ready)
        if error is not None:
            raise error
        self._next = self._step = number + 1
        x, y = self._batches.place(number)
        if self._processes is not None:
            return Batch.shared(x, y, self._domain, self._processes)
        return Batch(x, y, self._domain)

    def state_dict(self) -> dict[str, Tensor]:
        """How many batches were drawn."""
        return {"step": torch.tensor(self._step)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a position."""
        self._step = int(state["step"])

    def close(self) -> None:
        """End the processes, as happens at the latest when this object is no longer used."""
        _end(self.processes)
        self._ready, self._loader, self._next = iter(()), None, None

    def __enter__(self) -> ImageMinibatches:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _load(self) -> DataLoader[Exception | None]:
        parallel = self._workers > 0
        with warnings.catch_warnings():  # more workers than cores were asked for, then
            warnings.filterwarnings("ignore", "This DataLoader will create")
            return DataLoader(
                self._batches,
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
        before, handler = multiprocessing.active_children(), signal.getsignal(signal.SIGCHLD)
        try:
            with holding_back_interrupts():
                self._ready = iter(loader)
        finally:  # it would have the death of a worker raise an error anywhere, not where we wait
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGCHLD, handler)
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
@dataclass(eq=False)
class _Numbers:
    """The numbers of the batches to make, in their order."""

    first: int = 0

    def __iter__(self) -> Iterator[int]:
        return count(self.first)


@final
@dataclass(eq=False)
class _Batches(Dataset["Exception | None"]):
    """The batches, by number, each in its place in shared memory; a worker gets a copy."""

    reader: ImageReader
    rows: Mapping[int, np.ndarray]
    batch_size: int
    seed: int
    augmentation: Augmentation | None
    places: int
    own: slice  # of a batch, the images that are made; all labels are

    def __post_init__(self) -> None:
        size = self.reader.size if self.augmentation is None else self.augmentation.size
        made = self.own.stop - (self.own.start or 0)
        self._x = torch.empty(self.places, made, 3, size, size).share_memory_()
        count = len(self.rows) * self.batch_size
        self._y = torch.empty(self.places, count, dtype=torch.int64).share_memory_()

    def place(self, number: int) -> tuple[Tensor, Tensor]:
        """Where the inputs and labels of a batch are."""
        place = number % len(self._x)
        return self._x[place], self._y[place]

    def __getitem__(self, number: int) -> Exception | None:
        """Make a batch; an error is handed over as it is: the loader would wrap its traceback."""
        try:
            self._fill(number, *self.place(number))
        except Exception as error:
            return portable(error)
        return None

    def _fill(self, number: int, x: Tensor, y: Tensor) -> None:
        generator = torch.Generator().manual_seed(seed_hash(self.seed, number))
        size, first, last = self.batch_size, self.own.start or 0, self.own.stop
        parts = zip(self.rows.items(), y.split(size), strict=True)
        for place, ((domain, rows), labels) in enumerate(parts):
            drawn = rows[torch.randint(len(rows), (size,), generator=generator).numpy()]
            labels[:] = self.reader.data.domains[domain].labels[drawn]
            start = place * size
            own = slice(*(min(max(row - start, 0), size) for row in (first, last)))
            inputs = x[max(start - first, 0) :][: own.stop - own.start]
            _prepare(self.reader, domain, drawn, self.augmentation, generator, inputs, own)


def _start(_: int) -> None:
    start_worker()


def _end(processes: list[BaseProcess]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.join()
    processes.clear()


@final
@dataclass(frozen=True, eq=False)
class ImageChunks:
    """Images of a domain, a few at a time, as an evaluation sees them; to be gone through again.

    Random changes follow from the seed, the domain and the place of the chunk.
    """

    reader: ImageReader
    domain: int
    rows: _Rows
    size: int
    augmentation: Augmentation | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_count(self.size, "images per chunk")

    def __len__(self) -> int:
        return -(-len(self.rows) // self.size)

    def __getitem__(self, number: int) -> Tensor:
        first = number * self.size
        generator = torch.Generator().manual_seed(seed_hash(self.seed, self.domain, first))
        part = np.asarray(self.rows[first : first + self.size], np.int64)
        return _prepare(self.reader, self.domain, part, self.augmentation, generator)

    def __iter__(self) -> Iterator[Tensor]:
        return map(self.__getitem__, range(len(self)))


def _prepare(
    reader: ImageReader,
    domain: int,
    rows: np.ndarray,
    augmentation: Augmentation | None,
    generator: torch.Generator,
    out: Tensor | None = None,
    own: slice = slice(None),
) -> Tensor:
    """Images as a network takes them, or some of them, changed at random or not."""
    chosen = rows[own]
    try:
        images = reader.read(domain, chosen)
    except ImageError as error:
        raise InputError(
            f"{error} `hessalign datasets check` lists all such images, and `hessalign datasets "
            "prepare` meets them before training does."
        ) from error
    if augmentation is not None:
        sizes, among = images.original_sizes, (len(rows), own)
        return augment(images.pixels, generator, augmentation, sizes, out, among)
    prepared = normalise(images.pixels)
    return prepared if out is None else out.copy_(prepared)
