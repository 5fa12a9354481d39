r"""Rotated MNIST and Colored MNIST as DomainBed makes them, from all 70,000 images at 28×28 pixels.

The images are shuffled and dealt out: with $E$ domains, domain $e$ gets every $E$-th one from the
$e$-th on. DomainBed draws from torch's global generator, which it seeds with the job's seed just
before; here a generator with that seed draws, so the same seed gives the same data.

The Colored MNIST of the paper's section 5 is another one, of 14×14 pixels: see
`hessalign.bench.data.colored_mnist`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from hessalign._errors import MissingPackageError
from hessalign._names import check_name
from hessalign.bench.data.mnist import Mnist, load_mnist
from hessalign.bench.data.samples import DomainDataset, DomainSamples

ANGLES: Final = (0, 15, 30, 45, 60, 75)
COLOUR_NOISE: Final = {"+90%": 0.1, "+80%": 0.2, "-90%": 0.9}
LABEL_NOISE: Final = 0.25

Interpolation = Literal["bilinear", "bicubic"]


def make_rotated_mnist(
    folder: Path, seed: int, interpolation: Interpolation = "bilinear"
) -> DomainDataset:
    """Rotated MNIST: ten digits, each domain turned by an angle of its own, anticlockwise.

    Args:
        folder: Where the four MNIST files are, see `load_mnist`.
        seed: Seed of the shuffle; DomainBed's job seed for the same data.
        interpolation: How pixels are rotated; "bicubic" in older versions of DomainBed.

    Returns:
        Six domains, named by their angles, with images of one channel from 0 to 1.

    Raises:
        MissingPackageError: If Pillow is not installed.
    """
    check_name("interpolation", interpolation, get_args(Interpolation))
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingPackageError(
            "Rotating images needs Pillow: pip install 'hessalign[images]'."
        ) from error
    method = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}

    def rotated(images: Tensor, angle: int) -> Tensor:
        turned = [
            np.asarray(Image.fromarray(image).rotate(angle, method[interpolation], fillcolor=0))
            for image in images.numpy()
        ]
        return torch.from_numpy(np.stack(turned)).unsqueeze(1).float() / 255

    generator = torch.Generator().manual_seed(seed)
    parts = _dealt(load_mnist(folder), len(ANGLES), generator)
    domains = tuple(
        DomainSamples(str(angle), rotated(images, angle), digits)
        for angle, (images, digits) in zip(ANGLES, parts, strict=True)
    )
    return DomainDataset("RotatedMNIST", tuple(map(str, range(10))), domains)


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
    parts = _dealt(load_mnist(folder), len(COLOUR_NOISE), generator)
    for (name, noise), (images, digits) in zip(COLOUR_NOISE.items(), parts, strict=True):
        count = len(digits)
        label = (digits < 5).long() ^ (torch.rand(count, generator=generator) < LABEL_NOISE).long()
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
