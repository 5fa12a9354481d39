"""The inputs of a data set of images, as training and evaluation ask for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from torch import Tensor

from hessalign.data import Augmentation, ImageReader
from hessalign.training.image_sampling import ImageMinibatches, image_chunks
from hessalign.training.inputs import EVALUATION_BATCH


@final
class ImageInputs:
    """Images that are read when they are needed: `Inputs` that are not in memory.

    Args:
        reader: The images, see `open_images`.
        augmentation: How training images change; None for not at all.
        workers: How many processes make training batches, see `ImageMinibatches`.
    """

    def __init__(
        self, reader: ImageReader, augmentation: Augmentation | None, workers: int | None = None
    ) -> None:
        self.reader = reader
        self.augmentation = augmentation
        self.workers = workers
        size = reader.size if augmentation is None else augmentation.size
        if size != reader.size:
            raise ValueError(
                f"Expected training images of {reader.size} pixels, as those of evaluation, got an "
                f"augmentation to {size}."
            )
        self.shape = (3, size, size)

    def sampler(
        self, rows: Sequence[tuple[int, np.ndarray]], size: int, seed: int
    ) -> ImageMinibatches:
        """Batches drawn with replacement and changed at random.

        Args:
            rows: The training domains, each with the samples to draw from.
            size: Images per domain and step.
            seed: Determines the draws and the changes.

        Returns:
            The source.
        """
        return ImageMinibatches(
            self.reader, dict(rows), size, seed, self.augmentation, self.workers
        )

    def chunks(
        self,
        domain: int,
        rows: np.ndarray,
        augmentation: Augmentation | None = None,
        seed: int = 0,
    ) -> Iterable[Tensor]:
        """Some images of a domain as evaluation sees them, a few at a time.

        Args:
            domain: The number of the domain.
            rows: Which of its samples.
            augmentation: Random changes, where `is_augmented` says so; None for none.
            seed: Determines them.

        Returns:
            `EVALUATION_BATCH` images at a time, the last time perhaps fewer; read anew each time.
        """
        return _Chunks(self.reader, domain, rows, augmentation, seed)


@final
@dataclass(frozen=True, eq=False)
class _Chunks:
    reader: ImageReader
    domain: int
    rows: np.ndarray
    augmentation: Augmentation | None
    seed: int

    def __iter__(self) -> Iterator[Tensor]:
        for x, _ in image_chunks(
            self.reader,
            self.domain,
            self.rows,
            size=EVALUATION_BATCH,
            augmentation=self.augmentation,
            seed=self.seed,
        ):
            yield x
