"""The MNIST database of handwritten digits at its full 28×28 pixels, from its four files.

The package does not contain it (see `hessalign.bench.data.mnist14` for what ships). Source: LeCun,
Cortes and Burges; licence: Creative Commons Attribution-ShareAlike 3.0. The files are checked by
the SHA-256 of what they hold, not of the gzip files: mirrors compress the same MNIST differently.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import numpy as np
import torch
from torch import Tensor

from hessalign._errors import InputError
from hessalign._shapes import Int

SIDE: Final = 28
_UNSIGNED_BYTE: Final = 0x08
_REMEDY: Final = (
    "Obtain MNIST again, for example from https://ossci-datasets.s3.amazonaws.com/mnist/."
)


@final
@dataclass(frozen=True)
class IdxFile:
    """One of the four files, and what it must hold.

    Attributes:
        name: Its name, without `.gz`.
        shape: Length of every axis.
        sha256: Hexadecimal SHA-256 of the decompressed file, header included.
    """

    name: str
    shape: tuple[int, ...]
    sha256: str


FILES: Final = (
    IdxFile(
        "train-images-idx3-ubyte",
        (60_000, SIDE, SIDE),
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    IdxFile(
        "train-labels-idx1-ubyte",
        (60_000,),
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    IdxFile(
        "t10k-images-idx3-ubyte",
        (10_000, SIDE, SIDE),
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    ),
    IdxFile(
        "t10k-labels-idx1-ubyte",
        (10_000,),
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
)


@final
@dataclass(frozen=True, eq=False)
class Mnist:
    """All 70,000 images of MNIST, the training set before the test set.

    Attributes:
        images: Grey values 0 to 255 as uint8, [70000, 28, 28]; 0 is the background.
        digits: The digit each image shows, 0 to 9, int64.
    """

    images: Tensor
    digits: Int[Tensor, " n"]


def load_mnist(folder: Path) -> Mnist:
    """Load MNIST from its four files.

    Args:
        folder: Where they are, compressed (`.gz`) or not; or a folder that holds them in
            `MNIST/raw`, as torchvision and DomainBed keep them.

    Returns:
        Training and test images together.
    """
    train_images, train_labels, test_images, test_labels = (read_idx(folder, f) for f in FILES)
    return Mnist(
        torch.tensor(np.concatenate([train_images, test_images])),
        torch.tensor(np.concatenate([train_labels, test_labels]).astype(np.int64)),
    )


def read_idx(folder: Path, expected: IdxFile) -> np.ndarray:
    """Read one idx file of unsigned bytes and check its header and content.

    Args:
        folder: Where it is, see `load_mnist`.
        expected: Name, shape and digest of the file.

    Returns:
        The bytes of the file in the expected shape.

    Raises:
        FileNotFoundError: If the file is not there.
        InputError: If it is damaged or another one.
    """
    places = [folder, folder / "MNIST" / "raw", folder / "raw"]
    candidates = [p / f"{expected.name}{end}" for p in places for end in (".gz", "")]
    path = next((candidate for candidate in candidates if candidate.is_file()), None)
    if path is None:
        raise FileNotFoundError(
            f"Expected {expected.name}.gz in {folder}, found no such file. {_REMEDY}"
        )
    content = path.read_bytes()
    if path.suffix == ".gz":
        try:
            content = gzip.decompress(content)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise InputError(f"{path} is not a complete gzip file: {error}. {_REMEDY}") from error
    header = bytes([0, 0, _UNSIGNED_BYTE, len(expected.shape)])
    header += b"".join(length.to_bytes(4, "big") for length in expected.shape)
    if content[: len(header)] != header:
        raise InputError(
            f"{path}: expected the idx header {header.hex()} (unsigned bytes of shape "
            f"{expected.shape}), found {content[: len(header)].hex()}. {_REMEDY}"
        )
    found = hashlib.sha256(content).hexdigest()
    if found != expected.sha256:
        raise InputError(
            f"{path}: expected content of SHA-256 {expected.sha256}, found {found}. {_REMEDY}"
        )
    return np.frombuffer(content, np.uint8, offset=len(header)).reshape(expected.shape)
