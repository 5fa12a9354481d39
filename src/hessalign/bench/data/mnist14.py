"""The MNIST training set at 14×14 pixels, shipped with the package.

Source: the MNIST database of handwritten digits by Yann LeCun, Corinna Cortes and Christopher
J. C. Burges (LeCun, Bottou, Bengio and Haffner 1998, "Gradient-based learning applied to document
recognition"). Licence of MNIST and of the shipped file: Creative Commons Attribution-ShareAlike
3.0 (CC BY-SA 3.0). Changed: of each of the 60,000 training images every second row and column is
kept, starting with the first; images and labels are packed into one file. Order and grey values
are untouched; the 10,000 images of the MNIST test set are not included.

Format: one xz stream holding 60,000 × 14 × 14 grey values, image by image and row by row, then
60,000 digits, one byte each. `scripts/build_mnist14.py` writes it.
"""

from __future__ import annotations

import hashlib
import lzma
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Final, final

import numpy as np
import torch
from torch import Tensor

from hessalign._errors import MissingPackageError
from hessalign._shapes import Int

FILE: Final = "mnist14.bin.xz"
SHA256: Final = "36975800581fb1687582601604a72d5ab48c4251ff41b20d4af06cfc21849d30"
COUNT: Final = 60_000
SIDE: Final = 14


@final
@dataclass(frozen=True, eq=False)
class Mnist14:
    """The 60,000 MNIST training images at 14×14 pixels, in their original order.

    Attributes:
        images: Grey values 0 to 255 as uint8, [60000, 14, 14]; 0 is the background.
        digits: The digit each image shows, 0 to 9, int64.
    """

    images: Tensor
    digits: Int[Tensor, " 60000"]


@lru_cache(maxsize=1)
def load_mnist14() -> Mnist14:
    """Load the shipped MNIST images; no download, about a quarter of a second.

    The result is cached: every call returns the same tensors, so copy before writing to them.

    Returns:
        All 60,000 training images with their digits.

    Raises:
        MissingPackageError: If the file in the package is missing or damaged.

    Example:
        >>> mnist = load_mnist14()
        >>> mnist.images.shape, mnist.images.dtype
        (torch.Size([60000, 14, 14]), torch.uint8)
        >>> mnist.digits[:5].tolist()
        [5, 0, 4, 1, 9]
    """
    path = files("hessalign.bench.data").joinpath(FILE)
    remedy = "Reinstall hessalign (pip install --force-reinstall --no-deps hessalign)."
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise MissingPackageError(
            f"Expected the MNIST file {path}, found none. {remedy}"
        ) from error
    found = hashlib.sha256(content).hexdigest()
    if found != SHA256:
        raise MissingPackageError(
            f"The MNIST file {path} is damaged: expected SHA-256 {SHA256}, found {found}. {remedy}"
        )
    raw = np.frombuffer(lzma.decompress(content), np.uint8)
    pixels = COUNT * SIDE * SIDE
    return Mnist14(
        images=torch.tensor(raw[:pixels]).reshape(COUNT, SIDE, SIDE),
        digits=torch.tensor(raw[pixels:], dtype=torch.int64),
    )
