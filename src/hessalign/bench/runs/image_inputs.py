"""Images of a data set as training and evaluation ask for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import final

import numpy as np
from torch import Tensor

from hessalign._seeds import seed_hash
from hessalign.bench.data import Augmentation, DomainDataset, ImageReader, cache_folder, open_images
from hessalign.bench.runs.image_sampling import ImageMinibatches, image_chunks
from hessalign.bench.runs.inputs import EVALUATION_BATCH
from hessalign.bench.runs.sampling import Sampler


@final
class ImageInputs:
    """Images from their cache where there is one, else from their files.

    Args:
        data: The data set; its inputs are files.
        size: Height and width of the images.
        seed: Determines random changes in evaluation.
        augment: Whether training batches are changed at random.
        workers: Processes that make batches ahead; None for what suits the machine.
        warn: Called with what the user should know but need not act on.
    """

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
