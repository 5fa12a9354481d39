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
A crop that shrinks is two matrix products, rows and columns. One that does not, as all crops of an
image that is stored at the size of the result, has two weights at most in each row of $W$, and
gathers. A flip is a reversal.

On a CPU large images are changed one by one: so few pixels stay in its cache, and each image has
the four changes of colour in its own order.

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

FEW_PIXELS: Final = 60_000
"""Pixels changed at a time on a CPU: so few fit into its cache, which is faster."""

ATTEMPTS: Final = 10
"""Draws of a crop before the largest central one is taken."""

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
    floats = as_floats(images)
    scale, shift = _normalisation(floats)
    return (floats * scale).add_(shift)


def augment(
    images: Tensor,
    generator: torch.Generator,
    settings: Augmentation | None = None,
    original_sizes: Int[Tensor, "n 2"] | None = None,
    out: Tensor | None = None,
) -> Float[Tensor, "n 3 s s"]:
    """Images with random changes, normalised.

    Args:
        images: Grey values: uint8 from 0 to 255, or floats from 0 to 1; [n, 3, h, w].
        generator: Source of all draws, on the CPU; it is advanced.
        settings: How much images change; the protocol's by default.
        original_sizes: Width and height of each image before it was resized to w × h. Crops are
            drawn in the original, whose pixels define the ratio, and taken from what is here.
        out: Where to put the result, if there is a place for it.

    Returns:
        A new batch on the device of the images, or `out`.

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
    at_once = max(1, few)
    if out is None:
        floats = torch.float32 if images.dtype == torch.uint8 else images.dtype
        shape = (count, 3, settings.size, settings.size)
        out = torch.empty(shape, dtype=floats, device=images.device)
    scale, shift = _normalisation(out)
    crops = _make_crops(draws.boxes.to(out), draws.flipped, (height, width), settings.size)
    for first in range(0, count, at_once):
        piece = slice(first, first + at_once)
        changed = _augmented(as_floats(images[piece]), crops[piece], draws[piece])
        torch.mul(changed, scale, out=out[piece]).add_(shift)
    return out


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


def _augmented(images: Tensor, crops: _Crops, draws: _Draws) -> Tensor:
    coloured = _jittered(crops.of(images), draws.factors.to(images), draws.order)
    if bool(draws.grey.any()):
        chosen = draws.grey.nonzero().squeeze(1)
        coloured[chosen] = grey_values(coloured[chosen]).expand(-1, 3, -1, -1)
    return coloured


def as_floats(images: Tensor) -> Float[Tensor, "n 3 h w"]:
    """Images with grey values from 0 to 1.

    Args:
        images: uint8 from 0 to 255, or floats, which are returned as they are; [n, 3, h, w].

    Returns:
        Floats, float32 if they were uint8.
    """
    _check_images(images)
    return images.float().div_(255) if images.dtype == torch.uint8 else images


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
    shape = (images.shape[2], images.shape[3])
    return _make_crops(boxes.to(images), flipped.to(images.device), shape, size).of(images)


@final
@dataclass(frozen=True, eq=False)
class _Axis:
    """The two pixels of an axis around each pixel of the result, and the weight of the second."""

    lower: Int[Tensor, "n s"]
    upper: Int[Tensor, "n s"]
    weight: Float[Tensor, "n s"]

    def __getitem__(self, rows: slice) -> _Axis:
        return _Axis(self.lower[rows], self.upper[rows], self.weight[rows])


@final
@dataclass(frozen=True, eq=False)
class _Crops:
    """How to resize crops: where nothing shrinks by neighbours, else by matrices of weights."""

    rows: _Axis | Float[Tensor, "n s h"]
    columns: _Axis | Float[Tensor, "n s w"]

    def __getitem__(self, rows: slice) -> _Crops:
        return _Crops(self.rows[rows], self.columns[rows])

    def of(self, images: Tensor) -> Tensor:
        if isinstance(self.rows, _Axis) and isinstance(self.columns, _Axis):
            return _between_columns(_between_rows(images, self.rows), self.columns)
        assert isinstance(self.rows, Tensor)
        assert isinstance(self.columns, Tensor)
        return self.rows.unsqueeze(1) @ images @ self.columns.mT.unsqueeze(1)


def _make_crops(boxes: Tensor, flipped: Tensor, shape: tuple[int, int], size: int) -> _Crops:
    left, top, width, height = boxes.unbind(dim=1)
    if bool((boxes[:, 2:] > size).any()):
        columns = _weights(left, width, shape[1], size)
        columns = torch.where(flipped[:, None, None], columns.flip(1), columns)
        return _Crops(_weights(top, height, shape[0], size), columns)
    return _Crops(
        _neighbours(top, height, shape[0], size, torch.zeros_like(flipped)),
        _neighbours(left, width, shape[1], size, flipped),
    )


def _weights(start: Tensor, length: Tensor, pixels: int, size: int) -> Float[Tensor, "n s k"]:
    """Weights of an axis's pixels in each pixel of the result: the formula above."""
    step = length / size
    centre = start[:, None] + (torch.arange(size).to(start) + 0.5) * step[:, None]
    pixel = torch.arange(pixels).to(start)
    distance = (pixel + 0.5 - centre[:, :, None]).abs() / step.clamp(min=1)[:, None, None]
    inside = (pixel >= start[:, None].floor()) & (pixel < (start + length)[:, None].ceil())
    weights = (1 - distance).clamp(min=0) * inside[:, None]
    return weights / weights.sum(dim=2, keepdim=True)


def _neighbours(start: Tensor, length: Tensor, pixels: int, size: int, flipped: Tensor) -> _Axis:
    """The same formula where nothing shrinks: beyond its first and last pixel a crop repeats it."""
    order = torch.arange(size).to(start).expand(len(start), size)
    order = torch.where(flipped[:, None], size - 1 - order, order)
    place = start[:, None] - 0.5 + (order + 0.5) * (length / size)[:, None]
    before = place.floor()
    first = start[:, None].floor()
    last = ((start + length)[:, None].ceil() - 1).clamp(max=pixels - 1)
    lower, upper = (torch.clamp(each, first, last).long() for each in (before, before + 1))
    return _Axis(lower, upper, place - before)


def _between_rows(images: Tensor, axis: _Axis) -> Tensor:
    """Images with rows between two of their own; rows are contiguous, so whole ones are copied."""
    count, channels, height, width = images.shape
    flat = images.reshape(count * channels * height, width)
    starts = height * torch.arange(count * channels, device=images.device).reshape(-1, channels, 1)

    def chosen(rows: Tensor) -> Tensor:
        index = (starts + rows[:, None]).flatten()
        return flat.index_select(0, index).reshape(count, channels, -1, width)

    return torch.lerp(chosen(axis.lower), chosen(axis.upper), axis.weight[:, None, :, None])


def _between_columns(images: Tensor, axis: _Axis) -> Tensor:
    """Images with columns between two of their own."""
    shape = (*images.shape[:3], axis.lower.shape[1])
    near, far = (
        images.gather(3, each[:, None, None].expand(shape)) for each in (axis.lower, axis.upper)
    )
    return torch.lerp(near, far, axis.weight[:, None, None])


def _central_crops(limits: Tensor, ratio: tuple[float, float]) -> Float[Tensor, "n 4"]:
    width, height = limits.unbind(dim=1)
    shape = width / height
    w = torch.where(shape > ratio[1], (height * ratio[1]).round(), width)
    h = torch.where(shape < ratio[0], (width / ratio[0]).round(), height)
    return torch.stack([(width - w).div(2).floor(), (height - h).div(2).floor(), w, h], dim=1)


def _normalisation(like: Tensor) -> tuple[Tensor, Tensor]:
    """By what to multiply, and what to add then."""
    mean, std = (like.new_tensor(v).reshape(3, 1, 1) for v in (IMAGENET_MEAN, IMAGENET_STD))
    return 1 / std, -mean / std


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
    if len(images) == 1:
        for kind in order[0].tolist():
            images = changes[kind](images, factors[:, kind])
        return images
    images = images.clone()
    for place in range(4):
        for kind, change in enumerate(changes):
            chosen = (order[:, place] == kind).nonzero().squeeze(1)
            if len(chosen) > 0:
                images[chosen] = change(images[chosen], factors[chosen, kind])
    return images
