"""The inputs of a data set as training and evaluation ask for them: rows of tensors, or images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Protocol, final

import numpy as np
import torch
from torch import Tensor

from hessalign._errors import InputTypeError
from hessalign._protocol import seed_hash
from hessalign.bench.data import Augmentation, DomainDataset, ImageReader, cache_folder, open_images
from hessalign.bench.models import Network
from hessalign.bench.runs.machine import device_of
from hessalign.bench.runs.sampling import ImageMinibatches, Minibatches, Sampler, image_chunks

EVALUATION_BATCH: Final = 64
"""Samples at a time in evaluation, as in DomainBed: networks that adapt to a batch see so many."""


class Inputs(Protocol):
    """The inputs of all domains.

    Attributes:
        shape: Shape of one input.
    """

    shape: tuple[int, ...]

    def sampler(self, rows: Sequence[tuple[int, np.ndarray]], size: int, seed: int) -> Sampler:
        """Batches of `size` samples per domain, from the given rows of each training domain."""

    def chunks(self, domain: int, rows: np.ndarray, *, augmented: bool = False) -> Iterable[Tensor]:
        """Some inputs of a domain, `EVALUATION_BATCH` at a time, to be gone through repeatedly."""

    def close(self) -> None:
        """End what works in the background."""


@final
class TensorInputs:
    """Inputs that are in memory: features, or small images."""

    def __init__(self, data: DomainDataset) -> None:
        self.x: list[Tensor] = []
        for domain in data.domains:
            if not isinstance(domain.inputs, Tensor):
                raise InputTypeError(f"Expected tensors as inputs of {data.name}, got files.")
            self.x.append(domain.inputs.float())
        self.y = [domain.labels for domain in data.domains]
        self.shape = tuple(self.x[0].shape[1:])

    def sampler(self, rows: Sequence[tuple[int, np.ndarray]], size: int, seed: int) -> Sampler:
        """Batches drawn with replacement."""
        x = [self.x[domain][torch.from_numpy(chosen)] for domain, chosen in rows]
        y = [self.y[domain][torch.from_numpy(chosen)] for domain, chosen in rows]
        return Minibatches(x, y, size, seed)

    def chunks(self, domain: int, rows: np.ndarray, *, augmented: bool = False) -> Iterable[Tensor]:
        """Some inputs of a domain, a few at a time."""
        gathered: Tensor = self.x[domain][torch.from_numpy(rows)]
        return list(torch.split(gathered, EVALUATION_BATCH))

    def close(self) -> None:
        """Nothing works in the background."""


def _predicted_classes(logits: Tensor) -> Tensor:
    """The most likely class of each sample; a single logit tells the second of two classes."""
    return logits.argmax(1) if logits.shape[1] > 1 else (logits.squeeze(1) > 0).long()


def accuracy(network: Network, chunks: Iterable[Tensor], labels: Tensor) -> float:
    """How often a network in evaluation mode is right; NaN if there are no samples."""
    device = device_of(network)
    predicted = [_predicted_classes(network(x.to(device))).cpu() for x in chunks]
    if not predicted:
        return float("nan")
    return float((torch.cat(predicted) == labels).double().mean())


@final
class ImageInputs:
    """Images from their cache where there is one, else from their files."""

    def __init__(
        self,
        data: DomainDataset,
        size: int,
        seed: int,
        *,
        augment: bool = True,
        workers: int | None = None,
        warn: Callable[[str], None] = lambda message: None,
    ) -> None:
        if data.root is None:
            self.reader = ImageReader(data, size, None, allow_truncated=False)
            warn(
                f"{data.name} is read image by image. If it names the folder it comes from as its "
                "root, `hessalign datasets prepare` can keep decoded images beside that, which "
                "makes training several times faster."
            )
        else:
            self.reader = open_images(data, cache_folder(data.root, size), size, warn=warn)
            if not self.reader.cached:
                warn(
                    f"{data.name} is read image by image. `hessalign datasets prepare {data.root} "
                    f"--size {size}` decodes it once and makes training several times faster."
                )
        self.shape: tuple[int, ...] = (3, size, size)
        self.seed = seed
        self.augmentation = Augmentation(size=size)
        self.training = self.augmentation if augment else None
        self.workers = workers
        self._samplers: list[ImageMinibatches] = []

    def sampler(self, rows: Sequence[tuple[int, np.ndarray]], size: int, seed: int) -> Sampler:
        """Batches drawn with replacement, made ahead by one pool of workers."""
        made = ImageMinibatches(self.reader, dict(rows), size, seed, self.training, self.workers)
        self._samplers.append(made)
        return made

    def chunks(self, domain: int, rows: np.ndarray, *, augmented: bool = False) -> Iterable[Tensor]:
        """Some images of a domain, a few at a time."""
        augmentation = self.augmentation if augmented else None
        return _Chunks(self.reader, domain, rows, augmentation, seed_hash(self.seed, "evaluation"))

    def close(self) -> None:
        """End the workers."""
        for sampler in self._samplers:
            sampler.close()


@final
class _Chunks:
    """Chunks that can be gone through again."""

    def __init__(
        self,
        reader: ImageReader,
        domain: int,
        rows: np.ndarray,
        augmentation: Augmentation | None,
        seed: int,
    ) -> None:
        self._reader, self._domain, self._rows = reader, domain, rows
        self._augmentation, self._seed = augmentation, seed

    def __iter__(self) -> Iterator[Tensor]:
        chunks = image_chunks(
            self._reader,
            self._domain,
            self._rows,
            size=EVALUATION_BATCH,
            augmentation=self._augmentation,
            seed=self._seed,
        )
        for x, _ in chunks:
            yield x
