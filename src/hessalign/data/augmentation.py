r"""Random changes of images for training, on whole batches, in torch alone.

The protocol's transform of a training image, as torchvision names its parts:
RandomResizedCrop(224, scale=(0.7, 1)), RandomHorizontalFlip, ColorJitter(0.3, 0.3, 0.3, 0.3),
RandomGrayscale(0.1), then division by 255 and normalisation with ImageNet's statistics. Here every
image of a batch has draws of its own from one explicit generator, and the batch is changed at
once, on the device where it is. The distribution is that of torchvision's transforms of one Pillow
image; what differs is that torchvision rounds to whole grey values after every part.

A crop of $w$ pixels from $l$ on is resized to $S$ pixels, along each axis, by the weights

$$W_{ok} \propto \max\left(0, 1 - \frac{|k + \tfrac12 - c_o|}{\max(1, w/S)}\right), \qquad
c_o = l + (o + \tfrac12)\frac{w}{S}$$

over the pixels $k$ of the crop: bilinear, with antialiasing where it shrinks, as Pillow does it.
A batch is then two matrix products, rows and columns, and a flip is a reversal of $W$.

Indices: n image, three channels, then rows and columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Final, Literal, final

import torch
from torch import Tensor

from hessalign._imagenet import IMAGENET_MEAN, IMAGENET_STD
from hessalign._shapes import Bool, Float, Int
from hessalign.data.colour import (
    grey_values,
    with_brightness,
    with_contrast,
    with_hue,
    with_saturation,
)

ATTEMPTS: Final = 10
"""Draws of a crop before the largest central one is taken."""

FEW_PIXELS: Final = 200_000
"""Pixels changed at a time on a CPU: so few fit into its cache, which is faster."""

Part = Literal["inner", "outer"]


@final
@dataclass(frozen=True)
class Augmentation:
    """How much images change; the defaults are the protocol's.

    Attributes:
        size: Height and width of the result.
        scale: Least and largest share of the image's area in a crop.
        ratio: Least and largest width / height of a crop, in pixels of the original image.
        flip: Probability of a horizontal flip.
        brightness: Factor from 1 − this to 1 + this.
        contrast: Factor from 1 − this to 1 + this.
        saturation: Factor from 1 − this to 1 + this.
        hue: Turn of the colour circle from −this to this.
        grayscale: Probability that the colours are removed.
    """

    size: int = 224
    scale: tuple[float, float] = (0.7, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    brightness: float = 0.3
    contrast: float = 0.3
    saturation: float = 0.3
    hue: float = 0.3
    grayscale: float = 0.1

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"Expected a size of 1 or more pixels, got {self.size}.")
        for name, (low, high), most in (
            ("scale", self.scale, 1.0),
            ("ratio", self.ratio, float("inf")),
        ):
            if not 0 < low <= high <= most:
                raise ValueError(
                    f"Expected {name} as (least, largest) above 0 and up to {most:g}, got "
                    f"{(low, high)}."
                )
        for name, most in (
            ("flip", 1.0), ("grayscale", 1.0), ("brightness", 1.0), ("contrast", 1.0),
            ("saturation", 1.0), ("hue", 0.5),
        ):  # fmt: skip
            value = getattr(self, name)
            if not 0 <= value <= most:
                raise ValueError(f"Expected {name} from 0 to {most:g}, got {value}.")


def is_augmented(part: Part, *, test_domain: bool, strict: bool) -> bool:
    """Whether a part of a domain is seen with random changes.

    Args:
        part: "inner" for what is trained on, "outer" for what is held out.
        test_domain: Whether the domain is a test domain.
        strict: Follow DomainBed, which also changes what is held out of training domains, and so
            validates on other images each time.

    Returns:
        Whether to call `augment` rather than `normalise`.

    Example:
        >>> is_augmented("outer", test_domain=False, strict=False)
        False
        >>> is_augmented("outer", test_domain=False, strict=True)
        True
    """
    return not test_domain and (part == "inner" or strict)


def normalise(images: Tensor) -> Float[Tensor, "n 3 h w"]:
    """Images as a network of ImageNet expects them, without random changes.

    Args:
        images: Grey values: uint8 from 0 to 255, or floats from 0 to 1; [n, 3, h, w].

    Returns:
        Floats; mean 0 and deviation 1 over the pixels of ImageNet, channel by channel.

    Example:
        >>> white = torch.full((1, 3, 1, 1), 255, dtype=torch.uint8)
        >>> normalise(white).flatten()
        tensor([2.2489, 2.4286, 2.6400])
    """
    return _normalised(as_floats(images))


def augment(
    images: Tensor,
    generator: torch.Generator,
    settings: Augmentation | None = None,
    original_sizes: Int[Tensor, "n 2"] | None = None,
) -> Float[Tensor, "n 3 s s"]:
    """Images with random changes, normalised.

    Args:
        images: Grey values: uint8 from 0 to 255, or floats from 0 to 1; [n, 3, h, w].
        generator: Source of all draws, on the CPU; it is advanced.
        settings: How much images change; the protocol's by default.
        original_sizes: Width and height of each image before it was resized to w × h. Crops are
            drawn in the original, whose pixels define the ratio, and taken from what is here.

    Returns:
        A new batch on the device of the images.

    Raises:
        ValueError: If there is not one size for each image.

    Example:
        >>> images = torch.randint(256, (4, 3, 40, 40), dtype=torch.uint8)
        >>> generator = torch.Generator().manual_seed(0)
        >>> augment(images, generator).shape
        torch.Size([4, 3, 224, 224])
    """
    settings = settings or Augmentation()
    _check_images(images)
    count, _, height, width = images.shape
    if original_sizes is None:
        original_sizes = torch.tensor([[width, height]]).expand(count, 2)
    if original_sizes.shape != (count, 2):
        raise ValueError(
            f"Expected the width and height of {count} images in original_sizes, got a tensor of "
            f"shape {list(original_sizes.shape)}."
        )
    boxes = draw_crops(original_sizes, generator, settings.scale, settings.ratio)
    stored = torch.tensor([width, height, width, height]) / original_sizes.repeat(1, 2)
    draws = _Draws(
        boxes * stored,
        torch.rand(count, generator=generator) < settings.flip,
        _factors(count, generator, settings),
        torch.rand(count, 4, generator=generator).argsort(dim=1),
        torch.rand(count, generator=generator) < settings.grayscale,
    ).to(images.device)
    few = FEW_PIXELS // settings.size**2 if images.device.type == "cpu" else count
    pieces = [slice(i, i + max(1, few)) for i in range(0, max(1, count), max(1, few))]
    return torch.cat([_augmented(as_floats(images[p]), draws[p], settings.size) for p in pieces])


@final
@dataclass(frozen=True, eq=False)
class _Draws:
    """All that is random about a batch: one row per image."""

    boxes: Float[Tensor, "n 4"]
    flipped: Bool[Tensor, " n"]
    factors: Float[Tensor, "n 4"]
    order: Int[Tensor, "n 4"]
    grey: Bool[Tensor, " n"]

    def _map(self, change: Callable[[Tensor], Tensor]) -> _Draws:
        return _Draws(*(change(getattr(self, field.name)) for field in fields(self)))

    def __getitem__(self, rows: slice) -> _Draws:
        return self._map(lambda drawn: drawn[rows])

    def to(self, device: torch.device) -> _Draws:
        return self._map(lambda drawn: drawn.to(device))


def _augmented(images: Tensor, draws: _Draws, size: int) -> Tensor:
    cropped = resized_crops(images, draws.boxes, size, draws.flipped)
    coloured = _jittered(cropped, draws.factors.to(images), draws.order)
    return _normalised(
        torch.where(draws.grey[:, None, None, None], grey_values(coloured), coloured)
    )


def as_floats(images: Tensor) -> Float[Tensor, "n 3 h w"]:
    """Images with grey values from 0 to 1.

    Args:
        images: uint8 from 0 to 255, or floats, which are returned as they are; [n, 3, h, w].

    Returns:
        Floats, float32 if they were uint8.
    """
    _check_images(images)
    return images.float() / 255 if images.dtype == torch.uint8 else images


def _check_images(images: Tensor) -> None:
    if images.ndim != 4 or images.shape[1] != 3:
        raise ValueError(
            f"Expected colour images of shape [n, 3, height, width], got {list(images.shape)}."
        )
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise ValueError(f"Expected images as uint8 or floats, got {images.dtype}.")


def draw_crops(
    sizes: Int[Tensor, "n 2"],
    generator: torch.Generator,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> Float[Tensor, "n 4"]:
    r"""Draw one crop for each image.

    The share of the area is uniform in `scale`, the logarithm of width / height uniform between
    those of `ratio`, both sides are rounded to whole pixels, and the place is uniform among those
    possible. What does not fit is drawn again, ten times in all; then the largest central crop with
    an allowed ratio is taken.

    Args:
        sizes: Width and height of each image.
        generator: Source of the draws; it is advanced.
        scale: Least and largest share of the area.
        ratio: Least and largest width / height.

    Returns:
        Left, top, width and height of each crop, in whole pixels.

    Example:
        >>> boxes = draw_crops(torch.tensor([[9, 9]]), torch.Generator(), (1.0, 1.0), (1.0, 1.0))
        >>> boxes.tolist()
        [[0.0, 0.0, 9.0, 9.0]]
    """
    count = len(sizes)
    limits = sizes.double()
    share, aspect = torch.rand(2, count, ATTEMPTS, generator=generator, dtype=torch.float64)
    area = limits.prod(dim=1, keepdim=True) * (scale[0] + (scale[1] - scale[0]) * share)
    low, high = torch.tensor(ratio, dtype=torch.float64).log()
    aspect = (low + (high - low) * aspect).exp()
    drawn = torch.stack([(area * aspect).sqrt().round(), (area / aspect).sqrt().round()], dim=2)
    fits = ((drawn > 0) & (drawn <= limits[:, None])).all(dim=2)
    first = fits.int().argmax(dim=1)
    side = drawn[torch.arange(count), first]
    free = (limits - side).clamp(min=0) + 1
    corner = (torch.rand(count, 2, generator=generator, dtype=torch.float64) * free).floor()
    central = _central_crops(limits, ratio)
    boxes = torch.where(fits.any(dim=1, keepdim=True), torch.cat([corner, side], dim=1), central)
    return boxes.float()


def resized_crops(
    images: Float[Tensor, "n 3 h w"],
    boxes: Float[Tensor, "n 4"],
    size: int,
    flipped: Bool[Tensor, " n"],
) -> Float[Tensor, "n 3 s s"]:
    """Crops, resized to a square, some of them flipped left to right.

    Args:
        images: The images.
        boxes: Left, top, width and height of each crop, in pixels that need not be whole.
        size: Height and width of the result.
        flipped: Which ones to flip.

    Returns:
        A new batch.

    Example:
        >>> images = torch.arange(12.0).reshape(1, 3, 2, 2)
        >>> box = torch.tensor([[0.0, 0.0, 2.0, 1.0]])
        >>> resized_crops(images, box, 2, torch.tensor([True]))[0, 0].tolist()
        [[1.0, 0.0], [1.0, 0.0]]
    """
    left, top, width, height = boxes.to(images).unbind(dim=1)
    rows = _weights(top, height, images.shape[2], size)
    columns = _weights(left, width, images.shape[3], size)
    columns = torch.where(flipped.to(images.device)[:, None, None], columns.flip(1), columns)
    return rows.unsqueeze(1) @ images @ columns.mT.unsqueeze(1)


def _weights(start: Tensor, length: Tensor, pixels: int, size: int) -> Float[Tensor, "n s k"]:
    """Weights of an axis's pixels in each pixel of the result: the formula above."""
    step = length / size
    centre = start[:, None] + (torch.arange(size).to(start) + 0.5) * step[:, None]
    pixel = torch.arange(pixels).to(start)
    distance = (pixel + 0.5 - centre[:, :, None]).abs() / step.clamp(min=1)[:, None, None]
    inside = (pixel >= start[:, None].floor()) & (pixel < (start + length)[:, None].ceil())
    weights = (1 - distance).clamp(min=0) * inside[:, None]
    return weights / weights.sum(dim=2, keepdim=True)


def _central_crops(limits: Tensor, ratio: tuple[float, float]) -> Float[Tensor, "n 4"]:
    width, height = limits.unbind(dim=1)
    shape = width / height
    w = torch.where(shape > ratio[1], (height * ratio[1]).round(), width)
    h = torch.where(shape < ratio[0], (width / ratio[0]).round(), height)
    return torch.stack([(width - w).div(2).floor(), (height - h).div(2).floor(), w, h], dim=1)


def _normalised(floats: Tensor) -> Tensor:
    mean, std = (floats.new_tensor(v).reshape(3, 1, 1) for v in (IMAGENET_MEAN, IMAGENET_STD))
    return (floats - mean) / std


def _factors(count: int, generator: torch.Generator, settings: Augmentation) -> Tensor:
    """Of brightness, contrast and saturation around 1, of hue around 0."""
    extent = torch.tensor(
        [settings.brightness, settings.contrast, settings.saturation, settings.hue]
    )
    drawn = (2 * torch.rand(count, 4, generator=generator) - 1) * extent
    return drawn + torch.tensor([1.0, 1.0, 1.0, 0.0])


def _jittered(images: Tensor, factors: Tensor, order: Tensor) -> Tensor:
    """Brightness, contrast, saturation and hue, for every image in an order of its own."""
    changes = (with_brightness, with_contrast, with_saturation, with_hue)
    images = images.clone()
    for place in range(4):
        for kind, change in enumerate(changes):
            chosen = (order[:, place] == kind).nonzero().squeeze(1)
            if len(chosen) > 0:
                images[chosen] = change(images[chosen], factors[chosen, kind])
    return images
