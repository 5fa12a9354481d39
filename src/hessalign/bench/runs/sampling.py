"""Where the batches of a run come from; every source can be put back to where it was.

Batch k of images is a function of the run's seed and k alone: which images, and every random change
of them, come from a generator with the seed `seed_hash(seed, k)`. So batches may be made ahead, by
any process, and a run that is continued meets the very images it would have met.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, final

import numpy as np
import torch
from torch import Tensor

from hessalign._errors import InputError
from hessalign._protocol import seed_hash
from hessalign.bench.algorithms import Batch
from hessalign.bench.data import (
    Augmentation,
    ImageBatch,
    ImageError,
    ImageReader,
    augment,
    normalise,
)
from hessalign.bench.runs.batch_workers import BatchWorkers, default_workers


class Sampler(Protocol):
    """A source of batches."""

    def draw(self) -> Batch:
        """The next batch."""

    def state_dict(self) -> dict[str, Tensor]:
        """Its position."""

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go back to a position, which `state_dict` gave."""


@final
class FullBatch:
    """All samples at every step.

    Args:
        batch: The samples.
    """

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def draw(self) -> Batch:
        """All samples."""
        return self.batch

    def state_dict(self) -> dict[str, Tensor]:
        """Nothing: there is one batch only."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Nothing to do."""


@final
class Minibatches:
    """Samples drawn with replacement, the same number from every domain.

    Args:
        x: Inputs of each domain.
        y: Labels of each domain.
        batch_size: Samples per domain and step.
        seed: Determines the draws.

    Raises:
        InputError: If a domain is empty or the batch size is not positive.

    Example:
        >>> x, y = [torch.zeros(5, 2), torch.ones(7, 2)], [torch.zeros(5), torch.ones(7)]
        >>> batch = Minibatches(x, y, batch_size=3, seed=0).draw()
        >>> batch.x.shape, batch.domain.tolist()
        (torch.Size([6, 2]), [0, 0, 0, 1, 1, 1])
    """

    def __init__(
        self, x: Sequence[Tensor], y: Sequence[Tensor], batch_size: int, seed: int
    ) -> None:
        if batch_size < 1:
            raise InputError(f"Expected a batch size of 1 or more, got {batch_size}.")
        for index, labels in enumerate(y):
            if len(labels) == 0:
                raise InputError(f"Expected samples in every domain, domain {index} has none.")
        self.x, self.y, self.batch_size = x, y, batch_size
        self.generator = torch.Generator().manual_seed(seed)
        self.domain = torch.arange(len(y)).repeat_interleave(batch_size)

    def draw(self) -> Batch:
        """The next batch, one forward pass for all domains."""
        rows = [
            torch.randint(len(labels), (self.batch_size,), generator=self.generator)
            for labels in self.y
        ]
        x = torch.cat([inputs[index] for inputs, index in zip(self.x, rows, strict=True)])
        y = torch.cat([labels[index] for labels, index in zip(self.y, rows, strict=True)])
        return Batch(x, y, self.domain)

    def state_dict(self) -> dict[str, Tensor]:
        """The state of the generator."""
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a position."""
        self.generator.set_state(state["generator"])


_Rows = Sequence[int] | np.ndarray
"""Samples of a domain, for example a part of its `Split`."""


@final
@dataclass(frozen=True, eq=False)
class _Recipe:
    """All that determines the batches of a run; a worker gets a copy."""

    reader: ImageReader
    rows: Mapping[int, np.ndarray]
    batch_size: int
    seed: int
    augmentation: Augmentation | None

    def __call__(self, number: int, x: Tensor, y: Tensor) -> None:
        """Fill in the inputs and labels of a batch."""
        generator = torch.Generator().manual_seed(seed_hash(self.seed, number))
        for place, (domain, rows) in enumerate(self.rows.items()):
            part = slice(place * self.batch_size, (place + 1) * self.batch_size)
            drawn = torch.randint(len(rows), (self.batch_size,), generator=generator).numpy()
            images = _read(self.reader, domain, rows[drawn])
            y[part] = self.reader.data.domains[domain].labels[rows[drawn]]
            if self.augmentation is None:
                x[part] = normalise(images.pixels)
            else:
                sizes = images.original_sizes
                augment(images.pixels, generator, self.augmentation, sizes, out=x[part])


@final
class ImageMinibatches:
    """Images drawn with replacement, the same number from every domain: a `Sampler`.

    Worker processes, one pool for all domains, make batches ahead of the training step; `close`, or
    leaving a `with` block, ends them. A batch stays in memory that is shared with them until the
    next one is drawn: copy what is to last longer.

    Args:
        reader: The images, see `open_images`.
        rows: For each training domain, by its number, the samples to train on.
        batch_size: Images per domain and step.
        seed: Determines which images are drawn and how they change.
        augmentation: How they change; None for not at all.
        workers: How many processes make batches; 0: this one; None: what suits the machine.

    Raises:
        InputError: If there is no domain, a domain has no rows, or a number is out of range.

    Example:
        ```python
        rows = {0: split_domain(len(data.domains[0]), trial_seed, 0).inner, ...}
        with ImageMinibatches(reader, rows, 32, seed, Augmentation()) as sampler:
            train(algorithm, sampler, evaluate, config, generator)
        ```
    """

    def __init__(
        self,
        reader: ImageReader,
        rows: Mapping[int, _Rows],
        batch_size: int,
        seed: int,
        augmentation: Augmentation | None,
        workers: int | None = None,
    ) -> None:
        if batch_size < 1:
            raise InputError(f"Expected a batch size of 1 or more, got {batch_size}.")
        workers = default_workers() if workers is None else workers
        if workers < 0:
            raise InputError(f"Expected 0 or more workers, got {workers}.")
        if not rows:
            raise InputError("Expected one or more training domains, got none.")
        for domain, chosen in rows.items():
            if len(chosen) == 0:
                name = reader.data.domains[domain].name
                raise InputError(f"Expected images to train on in every domain, {name!r} has none.")
        arrays = {domain: np.asarray(chosen, np.int64) for domain, chosen in rows.items()}
        recipe = _Recipe(reader, arrays, batch_size, seed, augmentation)
        self._domain = torch.arange(len(rows)).repeat_interleave(batch_size)
        size = reader.size if augmentation is None else augmentation.size
        x = torch.empty(len(self._domain), 3, size, size, device="meta")
        y = torch.empty_like(self._domain, device="meta")
        self._batches = BatchWorkers(recipe, x, y, workers)
        self._step = 0

    def draw(self) -> Batch:
        """The next batch, for one forward pass of all domains; it lasts until the one after it."""
        x, y = self._batches.get(self._step)
        self._step += 1
        return Batch(x, y, self._domain)

    def state_dict(self) -> dict[str, Tensor]:
        """How many batches were drawn."""
        return {"step": torch.tensor(self._step)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a position."""
        self._step = int(state["step"])

    def close(self) -> None:
        """End the worker processes."""
        self._batches.close()

    def __enter__(self) -> ImageMinibatches:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def image_chunks(
    reader: ImageReader,
    domain: int,
    rows: _Rows,
    *,
    size: int = 64,
    augmentation: Augmentation | None = None,
    seed: int = 0,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Images of a domain, a few at a time, as an evaluation sees them.

    Random changes follow from the seed, the domain and the place of the chunk.

    Yields:
        Normalised images and their labels.

    Raises:
        InputError: If the size is not positive.
    """
    if size < 1:
        raise InputError(f"Expected chunks of 1 or more images, got {size}.")
    chosen = np.asarray(rows, np.int64)
    for first in range(0, len(chosen), size):
        part = chosen[first : first + size]
        batch = _read(reader, domain, part)
        generator = torch.Generator().manual_seed(seed_hash(seed, domain, first))
        if augmentation is None:
            x = normalise(batch.pixels)
        else:
            x = augment(batch.pixels, generator, augmentation, batch.original_sizes)
        yield x, reader.data.domains[domain].labels[part]


def _read(reader: ImageReader, domain: int, rows: np.ndarray) -> ImageBatch:
    try:
        return reader.read(domain, rows)
    except ImageError as error:
        raise InputError(
            f"{error} `hessalign datasets check` lists all such images, and `hessalign datasets "
            "prepare` meets them before training does."
        ) from error
