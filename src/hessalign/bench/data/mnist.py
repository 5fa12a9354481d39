r"""MNIST, from the package or from its four files, and the domains that DomainBed makes of it.

The MNIST database of handwritten digits is by Yann LeCun, Corinna Cortes and Christopher J. C.
Burges (LeCun, Bottou, Bengio and Haffner 1998, "Gradient-based learning applied to document
recognition"); licence: Creative Commons Attribution-ShareAlike 3.0 (CC BY-SA 3.0).

**At 14×14 pixels** its training set ships with the package, under the same licence. Changed: of
each of the 60,000 images every second row and column is kept, starting with the first; images and
labels are packed into one xz stream of 60,000 × 14 × 14 grey values, image by image and row by row,
then 60,000 digits, one byte each; order and grey values are untouched (`scripts/build_mnist14.py`).

**At 28×28 pixels** it is read from its four files, which are checked by the SHA-256 of what they
hold, not of the gzip files: mirrors compress the same MNIST differently. All 70,000 images are
shuffled and dealt out: with $E$ domains, domain $e$ gets every $E$-th one from the $e$-th on.
DomainBed draws from torch's global generator, which it seeds with the job's seed just before; here
a generator with that seed draws, so the same seed gives the same data.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Final, Literal, final, get_args

import numpy as np
import torch
from torch import Tensor

from hessalign._errors import InputError, MissingPackageError, check_name
from hessalign._shapes import Int
from hessalign.bench.data.images import import_pillow
from hessalign.bench.data.samples import DomainDataset, DomainSamples

_SHIPPED: Final = "mnist14.bin.xz"
_SHIPPED_SHA256: Final = "36975800581fb1687582601604a72d5ab48c4251ff41b20d4af06cfc21849d30"
_COUNT: Final = 60_000
_SMALL: Final = 14
_SIDE: Final = 28

_ANGLES: Final = (0, 15, 30, 45, 60, 75)
_COLOUR_NOISE: Final = {"+90%": 0.1, "+80%": 0.2, "-90%": 0.9}
_LABEL_NOISE: Final = 0.25

_Interpolation = Literal["bilinear", "bicubic"]

_UNSIGNED_BYTE: Final = 0x08
_REMEDY: Final = (
    "Obtain MNIST again, for example from https://ossci-datasets.s3.amazonaws.com/mnist/."
)


_FILES: Final = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
"""The four files, without `.gz`, and the SHA-256 of what they hold."""


@final
@dataclass(frozen=True, eq=False)
class Mnist:
    """Images of MNIST, in their original order; the training set comes before the test set.

    Attributes:
        images: Grey values 0 to 255 as uint8, [n, rows, columns]; 0 is the background.
        digits: The digit each image shows, 0 to 9, int64.
    """

    images: Tensor
    digits: Int[Tensor, " n"]


@lru_cache(maxsize=1)
def load_mnist14() -> Mnist:
    """Load the training images that ship with the package, at 14×14 pixels; no download.

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
    path = files("hessalign.bench.data").joinpath(_SHIPPED)
    remedy = "Reinstall hessalign (pip install --force-reinstall --no-deps hessalign)."
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise MissingPackageError(
            f"Expected the MNIST file {path}, found none. {remedy}"
        ) from error
    found = hashlib.sha256(content).hexdigest()
    if found != _SHIPPED_SHA256:
        raise MissingPackageError(
            f"The MNIST file {path} is damaged: expected SHA-256 {_SHIPPED_SHA256}, found {found}. "
            f"{remedy}"
        )
    raw = np.frombuffer(lzma.decompress(content), np.uint8)
    pixels = _COUNT * _SMALL * _SMALL
    return Mnist(
        images=torch.tensor(raw[:pixels]).reshape(_COUNT, _SMALL, _SMALL),
        digits=torch.tensor(raw[pixels:], dtype=torch.int64),
    )


def load_mnist(folder: Path) -> Mnist:
    """Load all of MNIST at 28×28 pixels from its four files.

    Args:
        folder: Where they are, compressed (`.gz`) or not; or a folder that holds them in
            `MNIST/raw`, as torchvision and DomainBed keep them.

    Returns:
        Training and test images together.
    """
    read = {}
    for name, sha256 in _FILES.items():
        count = 60_000 if name.startswith("train") else 10_000
        shape = (count, _SIDE, _SIDE) if "images" in name else (count,)
        read[name] = _read_idx(folder, name, shape, sha256)
    train_images, train_labels, test_images, test_labels = read.values()
    return Mnist(
        torch.tensor(np.concatenate([train_images, test_images])),
        torch.tensor(np.concatenate([train_labels, test_labels]).astype(np.int64)),
    )


def _read_idx(folder: Path, name: str, shape: tuple[int, ...], sha256: str) -> np.ndarray:
    """Read one idx file of unsigned bytes and check its header and content."""
    places = [folder, folder / "MNIST" / "raw", folder / "raw"]
    candidates = [p / f"{name}{end}" for p in places for end in (".gz", "")]
    path = next((candidate for candidate in candidates if candidate.is_file()), None)
    if path is None:
        raise FileNotFoundError(f"Expected {name}.gz in {folder}, found no such file. {_REMEDY}")
    header = bytes([0, 0, _UNSIGNED_BYTE, len(shape)])
    header += b"".join(length.to_bytes(4, "big") for length in shape)
    size = len(header) + math.prod(shape)
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        try:
            content = file.read(size + 1)  # however much it may grow to
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise InputError(f"{path} is not a complete gzip file: {error}. {_REMEDY}") from error
    if content[: len(header)] != header:
        raise InputError(
            f"{path}: expected the idx header {header.hex()} (unsigned bytes of shape "
            f"{shape}), found {content[: len(header)].hex()}. {_REMEDY}"
        )
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise InputError(f"{path}: expected content of SHA-256 {sha256}, found {found}. {_REMEDY}")
    return np.frombuffer(content, np.uint8, offset=len(header)).reshape(shape)


def make_rotated_mnist(
    folder: Path, seed: int, interpolation: _Interpolation = "bilinear"
) -> DomainDataset:
    """Rotated MNIST: ten digits, each domain turned by an angle of its own, anticlockwise.

    Args:
        folder: Where the four MNIST files are, see `load_mnist`.
        seed: Seed of the shuffle; DomainBed's job seed for the same data.
        interpolation: How pixels are rotated; "bicubic" in older versions of DomainBed.

    Returns:
        Six domains, named by their angles, with images of one channel from 0 to 1.
    """
    check_name("interpolation", interpolation, get_args(_Interpolation))
    pillow = import_pillow("Rotating")
    method = pillow.Resampling[interpolation.upper()]
    generator = torch.Generator().manual_seed(seed)
    domains = []
    parts = _dealt(load_mnist(folder), len(_ANGLES), generator)
    for angle, (images, digits) in zip(_ANGLES, parts, strict=True):
        grey = [pillow.fromarray(image) for image in images.numpy()]
        turned = np.stack([np.asarray(image.rotate(angle, method, fillcolor=0)) for image in grey])
        pixels = torch.from_numpy(turned).unsqueeze(1).float() / 255
        domains.append(DomainSamples(str(angle), pixels, digits))
    return DomainDataset("RotatedMNIST", tuple(map(str, range(10))), tuple(domains))


def make_domainbed_colored_mnist(folder: Path, seed: int) -> DomainDataset:
    r"""Colored MNIST with three domains, of which the last one's colours mislead.

    The label is 1 for digits below 5, flipped with probability 0.25; the colour differs from it
    with probability 0.1, 0.2 and 0.9.

    Args:
        folder: Where the four MNIST files are, see `load_mnist`.
        seed: Seed of the shuffle and the noise; DomainBed's job seed for the same data.

    Returns:
        The domains "+90%", "+80%" and "-90%", with images of two channels from 0 to 1: the image in
        the channel of its colour, zeros in the other.
    """
    generator = torch.Generator().manual_seed(seed)
    domains = []
    parts = _dealt(load_mnist(folder), len(_COLOUR_NOISE), generator)
    for (name, noise), (images, digits) in zip(_COLOUR_NOISE.items(), parts, strict=True):
        count = len(digits)
        label = (digits < 5).long() ^ (torch.rand(count, generator=generator) < _LABEL_NOISE).long()
        colour = label ^ (torch.rand(count, generator=generator) < noise).long()
        pixels = torch.zeros(count, 2, *images.shape[1:])
        pixels[torch.arange(count), colour] = images.float() / 255
        domains.append(DomainSamples(name, pixels, label))
    return DomainDataset("ColoredMNIST", ("5 to 9", "0 to 4"), tuple(domains))


def _dealt(
    mnist: Mnist, domains: int, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    order = torch.randperm(len(mnist.images), generator=generator)
    for first in range(domains):
        chosen = order[first::domains]
        yield mnist.images[chosen], mnist.digits[chosen]
