"""The inputs of a data set as a run asks for them: batches to train on, and all of a part in turn.

Every source of batches can be put back to where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol, final

import numpy as np
import torch
from torch import Tensor

from hessalign._errors import InputError, InputTypeError
from hessalign._numbers import check_count
from hessalign._protocol import seed_hash
from hessalign.bench.algorithms import Batch
from hessalign.bench.data import Augmentation, DomainDataset, ImageReader, cache_folder, open_images
from hessalign.bench.models import Network
from hessalign.bench.runs.image_batches import ImageChunks, ImageMinibatches
from hessalign.bench.runs.machine import device_of

EVALUATION_BATCH: Final = 64
"""Samples at a time in evaluation, as in DomainBed: networks that adapt to a batch see so many."""

_Warn = Callable[[str], None]


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
        check_count(batch_size, "a batch size")
        if empty := [index for index, labels in enumerate(y) if len(labels) == 0]:
            raise InputError(f"Expected samples in every domain, domain {empty[0]} has none.")
        self.x, self.y, self.batch_size = x, y, batch_size
        self.generator = torch.Generator().manual_seed(seed)
        self.domain = torch.arange(len(y)).repeat_interleave(batch_size)

    def draw(self) -> Batch:
        """The next batch, one forward pass for all domains."""
        size, generator = (self.batch_size,), self.generator
        rows = [torch.randint(len(labels), size, generator=generator) for labels in self.y]
        x, y = (
            torch.cat([values[index] for values, index in zip(part, rows, strict=True)])
            for part in (self.x, self.y)
        )
        return Batch(x, y, self.domain)

    def state_dict(self) -> dict[str, Tensor]:
        """The state of the generator."""
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a position."""
        self.generator.set_state(state["generator"])


@final
class TensorInputs:
    """Inputs of all domains that are in memory: features, or small images."""

    def __init__(self, data: DomainDataset) -> None:
        self.x: list[Tensor] = []
        for domain in data.domains:
            if not isinstance(domain.inputs, Tensor):
                raise InputTypeError(f"Expected tensors as inputs of {data.name}, got files.")
            self.x.append(domain.inputs.float())
        self.y = [domain.labels for domain in data.domains]

    def sampler(self, rows: Mapping[int, np.ndarray], size: int, seed: int) -> Sampler:
        """Batches of `size` samples per domain, from the given rows of each training domain."""
        chosen = [(domain, torch.from_numpy(each)) for domain, each in rows.items()]
        x, y = ([part[domain][each] for domain, each in chosen] for part in (self.x, self.y))
        return Minibatches(x, y, size, seed)

    def chunks(self, domain: int, rows: np.ndarray, *, augmented: bool = False) -> Iterable[Tensor]:
        """Some inputs of a domain, `EVALUATION_BATCH` at a time, to be gone through repeatedly."""
        return torch.split(self.x[domain][torch.from_numpy(rows)], EVALUATION_BATCH)


@final
class ImageInputs:
    """Images from their cache where there is one, else from their files; see `TensorInputs`."""

    def __init__(
        self, data: DomainDataset, size: int, seed: int, *, augment: bool, warn: _Warn
    ) -> None:
        if data.root is None:
            self.reader = ImageReader(data, size, None, allow_truncated=False)
            remedy = (
                "If it names the folder it comes from as its root, `hessalign datasets prepare` "
                "can keep decoded images beside that, which makes training several times faster."
            )
        else:
            self.reader = open_images(data, cache_folder(data.root, size), size, warn=warn)
            remedy = (
                f"`hessalign datasets prepare {data.root} --size {size}` decodes it once and makes "
                "training several times faster."
            )
        if not self.reader.cached:
            warn(f"{data.name} is read image by image. {remedy}")
        self.seed, self.augment, self.augmentation = seed, augment, Augmentation(size=size)

    def sampler(self, rows: Mapping[int, np.ndarray], size: int, seed: int) -> Sampler:
        """Batches made ahead by one pool of workers, to be closed."""
        change = self.augmentation if self.augment else None
        return ImageMinibatches(self.reader, rows, size, seed, change)

    def chunks(self, domain: int, rows: np.ndarray, *, augmented: bool = False) -> Iterable[Tensor]:
        """Some images of a domain."""
        change, seed = self.augmentation if augmented else None, seed_hash(self.seed, "evaluation")
        return ImageChunks(self.reader, domain, rows, EVALUATION_BATCH, change, seed)


Inputs = TensorInputs | ImageInputs
"""The inputs of all domains."""


def accuracy(network: Network, chunks: Iterable[Tensor], labels: Tensor) -> float:
    """How often a network in evaluation mode is right; NaN if there are no samples."""
    device = device_of(network)
    made = [network(x.to(device)).cpu() for x in chunks]
    if not made:
        return float("nan")
    logits = torch.cat(made)  # a single one tells the second of two classes
    predicted = logits.argmax(1) if logits.shape[1] > 1 else logits.squeeze(1) > 0
    return float((predicted == labels).double().mean())
