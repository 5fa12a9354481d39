r"""Random changes of images for training, on whole batches, in torch alone.

The protocol's transform of a training image, as torchvision names its parts:
RandomResizedCrop(224, scale=(0.7, 1)), RandomHorizontalFlip, ColorJitter(0.3, 0.3, 0.3, 0.3),
RandomGrayscale(0.1), then division by 255 and normalisation with ImageNet's statistics. Every image
has draws of its own from one explicit generator, distributed as torchvision's for a Pillow image,
which it rounds to whole grey values after every part.

Images are changed one by one: the few pixels of one image stay in the processor's cache, and each
has the four changes of colour in an order of its own. Crops begin and end at whole pixels, and are
resized as Pillow does it: bilinear, with antialiasing where they shrink, rounded to whole grey
values if the image has them. Changes of colour are Pillow's. They work in place, on floats from 0
to 255, one channel after the other in memory, and pass over the pixels as few times as they can, in
operations that torch runs with vector instructions: on a CPU truth values, `where`, `gather` and
`%` take up to ten times as long. An image of one channel has no colours to change.

Indices: n image, c channel (three, or one), then rows and columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from hessalign._errors import InputError
from hessalign._protocol import IMAGENET_MEAN, IMAGENET_STD
from hessalign._shapes import Float, Int

_WHITE: Final = 255.0

_LUMA: Final = (0.299, 0.587, 0.114)  # red, green and blue in a grey value (ITU-R 601)
_ATTEMPTS: Final = 10  # draws of a crop before the largest central one is taken


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
            raise InputError(f"Expected a size of 1 or more pixels, got {self.size}.")
        for name, (low, high), top in (("scale", self.scale, 1), ("ratio", self.ratio, math.inf)):
            if not 0 < low <= high <= top:
                raise InputError(
                    f"Expected {name} as (least, largest) above 0 and up to {top:g}, got "
                    f"{(low, high)}."
                )
        for name in ("flip", "grayscale", "brightness", "contrast", "saturation", "hue"):
            value, most = getattr(self, name), 0.5 if name == "hue" else 1.0
            if not 0 <= value <= most:
                raise InputError(f"Expected {name} from 0 to {most:g}, got {value}.")


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
    _check_images(images)
    planes = images.contiguous()  # one channel after the other
    floats = planes.float() if images.dtype == torch.uint8 else planes * _WHITE
    return _normalised(floats, out=floats)


def augment(
    images: Tensor,
    generator: torch.Generator,
    settings: Augmentation | None = None,
    original_sizes: Int[Tensor, "n 2"] | None = None,
    out: Tensor | None = None,
    among: tuple[int, slice] | None = None,
) -> Float[Tensor, "n 3 s s"]:
    """Images with random changes, normalised.

    Args:
        images: Grey values: uint8 from 0 to 255, or floats from 0 to 1; [n, 3, h, w], on the CPU.
        generator: Source of all draws; it is advanced.
        settings: How much images change; the protocol's by default.
        original_sizes: Width and height of each image before it was resized to w × h. Crops are
            drawn in the original, whose pixels define the ratio, and taken from what is here.
        out: Where to put the result, if there is a place for it.
        among: If these are a part of a larger batch, how many that has and which of it they are:
            they change as they would with the others.

    Returns:
        A new batch, or `out`.

    Raises:
        InputError: If there is not one size for each image, or the images are elsewhere.

    Example:
        >>> images = torch.randint(256, (4, 3, 40, 40), dtype=torch.uint8)
        >>> generator = torch.Generator().manual_seed(0)
        >>> augment(images, generator).shape
        torch.Size([4, 3, 224, 224])
    """
    settings = settings or Augmentation()
    _check_images(images)
    if images.device.type != "cpu":
        raise InputError(
            f"Expected images on the CPU, got them on {images.device}: change them first, then "
            "move them."
        )
    count, _, height, width = images.shape
    if original_sizes is None:
        original_sizes = torch.tensor([[width, height]]).expand(count, 2)
    if original_sizes.shape != (count, 2):
        raise InputError(
            f"Expected the width and height of {count} images in original_sizes, got a tensor of "
            f"shape {list(original_sizes.shape)}."
        )
    total, rows = among or (count, slice(count))
    sizes = original_sizes.new_ones(total, 2)  # draws depend on the size of the same image alone
    sizes[rows] = original_sizes
    boxes = _draw_crops(sizes, generator, settings.scale, settings.ratio)[rows]
    flipped = torch.rand(total, generator=generator)[rows] < settings.flip
    # Of brightness, contrast and saturation around 1, of hue around 0.
    extent = [settings.brightness, settings.contrast, settings.saturation, settings.hue]
    drawn = (2 * torch.rand(total, 4, generator=generator)[rows] - 1) * torch.tensor(extent)
    factors = drawn + torch.tensor([1.0, 1.0, 1.0, 0.0])
    order = torch.rand(total, 4, generator=generator)[rows].argsort(dim=1)
    grey = torch.rand(total, generator=generator)[rows] < settings.grayscale
    if out is None:
        floats = torch.float32 if images.dtype == torch.uint8 else images.dtype
        out = torch.empty(count, 3, settings.size, settings.size, dtype=floats)
    room = out.new_empty(3, settings.size, settings.size)
    # Left, top, right and bottom in whole pixels of what is here; at least one pixel each.
    stored = torch.tensor([width, height])
    corner = torch.minimum((boxes[:, :2] * (stored / original_sizes)).round(), stored - 1)
    opposite = ((boxes[:, :2] + boxes[:, 2:]) * (stored / original_sizes)).round()
    places = torch.cat([corner, torch.maximum(opposite, corner + 1)], dim=1).long()
    draws = (places, flipped, factors, order, grey)
    for image, place, *own in zip(images, out, *(each.tolist() for each in draws), strict=True):
        box, flip, factor, kinds, without_colour = own
        crop = _resized_crop(image, box, settings.size, flip)
        if torch.equal(crop[0], crop[1]) and torch.equal(crop[1], crop[2]):
            crop = crop[:1]  # a drawing in black and white: a third of the work
        changed = room[: len(crop)].copy_(crop if crop.dtype == torch.uint8 else crop * _WHITE)
        for kind in kinds:
            _CHANGES[kind](changed, factor[kind])
        if without_colour:
            changed = _grey_values(changed)
        _normalised(changed, out=place)
    return out


def _check_images(images: Tensor) -> None:
    if images.ndim != 4 or images.shape[1] != 3:
        raise InputError(
            f"Expected colour images of shape [n, 3, height, width], got {list(images.shape)}."
        )
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise InputError(f"Expected images as uint8 or floats, got {images.dtype}.")


def _draw_crops(
    sizes: Int[Tensor, "n 2"],
    generator: torch.Generator,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> Float[Tensor, "n 4"]:
    """Draw left, top, width and height of one crop for each image, in whole pixels."""
    # The share of the area is uniform in `scale`, the logarithm of width / height uniform between
    # those of `ratio`, both sides are rounded to whole pixels, and the place is uniform among those
    # possible. What does not fit is drawn again, ten times in all; then the largest central crop
    # with an allowed ratio is taken.
    count, limits = len(sizes), sizes.double()
    share, aspect = torch.rand(2, count, _ATTEMPTS, generator=generator, dtype=torch.float64)
    area = limits.prod(dim=1, keepdim=True) * (scale[0] + (scale[1] - scale[0]) * share)
    low, high = torch.tensor(ratio, dtype=torch.float64).log()
    aspect = (low + (high - low) * aspect).exp()
    drawn = torch.stack([(area * aspect).sqrt().round(), (area / aspect).sqrt().round()], dim=2)
    fits = ((drawn > 0) & (drawn <= limits[:, None])).all(dim=2)
    first = fits.int().argmax(dim=1)
    side = drawn[torch.arange(count), first]
    free = (limits - side).clamp(min=0) + 1
    corner = (torch.rand(count, 2, generator=generator, dtype=torch.float64) * free).floor()
    width, height = limits.unbind(dim=1)
    w = torch.where(width / height > ratio[1], (height * ratio[1]).round(), width)
    h = torch.where(width / height < ratio[0], (width / ratio[0]).round(), height)
    central = torch.stack([(width - w).div(2).floor(), (height - h).div(2).floor(), w, h], dim=1)
    boxes = torch.where(fits.any(dim=1, keepdim=True), torch.cat([corner, side], dim=1), central)
    return boxes.float()


def _resized_crop(image: Tensor, box: Sequence[int], size: int, flip: bool) -> Tensor:
    """The crop left, top, right, bottom, resized to a square, perhaps flipped left to right."""
    # Fastest for uint8 with the channels of a pixel together in memory, as `ImageReader` gives.
    left, top, right, bottom = box
    crop = image.permute(1, 2, 0)[top:bottom, left:right].contiguous()
    batch = crop.unsqueeze(0).permute(0, 3, 1, 2)
    resized = interpolate(batch, (size, size), mode="bilinear", antialias=True)
    planes = resized[0].contiguous()
    return planes.flip(2) if flip else planes


def _normalised(images: Tensor, out: Tensor) -> Tensor:
    """Grey values from 0 to 255, with three channels or one, normalised for each of three."""
    for channel, (mean, std) in enumerate(zip(IMAGENET_MEAN, IMAGENET_STD, strict=True)):
        plane = images[..., min(channel, images.shape[-3] - 1), :, :]
        shift = out.new_tensor(-mean / std)
        torch.add(shift, plane, alpha=1 / (_WHITE * std), out=out[..., channel, :, :])
    return out


def _grey_values(image: Float[Tensor, "c h w"]) -> Float[Tensor, "1 h w"]:
    """An image without its colours: one channel, a new one if it has three."""
    if len(image) == 1:
        return image
    return (image.new_tensor([_LUMA]) @ image.flatten(1)).view(1, *image.shape[1:])


def _change_brightness(image: Float[Tensor, "c h w"], factor: float) -> None:
    """Make an image lighter or darker: 0 is black, 1 changes nothing."""
    image.mul_(factor)
    _cut_off(image, factor)


def _change_contrast(image: Float[Tensor, "c h w"], factor: float) -> None:
    """Move an image away from its mean grey value or towards it: 0 is that grey, 1 as it was."""
    grey = _grey_values(image.mean(dim=(1, 2), keepdim=True)).item()
    image.mul_(factor).add_((1 - factor) * grey)
    _cut_off(image, factor)


def _change_saturation(image: Float[Tensor, "c h w"], factor: float) -> None:
    """Give an image more or less colour: 0 is grey, 1 changes nothing."""
    if len(image) == 1:
        return
    grey = _grey_values(image).mul_(1 - factor)
    image.mul_(factor).add_(grey)
    _cut_off(image, factor)


def _turn_hue(image: Float[Tensor, "c h w"], turn: float) -> None:
    r"""Turn an image's colours around the colour circle, at equal saturation and value.

    Let $l$ and $v$ be a pixel's smallest and largest channel, $c = v - l$, and $h$ its hue in
    sixths of the circle, from $-3$ to $3$: red is at 0, green at 2, blue at $-2$. A turn by a
    third of the circle only exchanges channels, so what remains is to turn by $t$ sixths with
    $|t| \le 1$. With $y_k = c\,(h + t - h_k)$, at most $6c$ in size, the channel whose colour is at
    $h_k$ becomes

    $$l + c\,[2 - \mathrm{dist}(h + t, h_k)] = \min(v, \max(l,\; ||y_k| - 3c| + l - c)),$$

    where $[\cdot]$ is cut off at 0 and 1 and the distance goes around the circle. And $c\,h$ needs
    no division: for red $r$, green $g$ and blue $b$,

    $$c\,h = \mathrm{sign}(g - b)\,(c + \max(g, b) + \max(r, \min(g, b)) - 2r).$$
    """
    if len(image) == 1:
        return
    thirds = round(3 * turn)
    rest = 6 * turn - 2 * thirds
    red, green, blue = image
    high, low = torch.maximum(green, blue), torch.minimum(green, blue)
    value, least = torch.maximum(high, red), torch.minimum(low, red)
    chroma = value - least
    hue = torch.maximum(low, red).add_(high).sub_(red, alpha=2).add_(chroma)
    hue.copysign_(torch.sub(green, blue, out=low)).add_(chroma, alpha=rest)
    for channel, place in enumerate((0, 2, -2)):
        torch.sub(hue, chroma, alpha=place, out=image[(channel + thirds) % 3])
    image.abs_().sub_(torch.mul(chroma, 3, out=high)).abs_()
    image.add_(torch.sub(least, chroma, out=low))
    torch.minimum(torch.maximum(image, least, out=image), value, out=image)


_CHANGES: Final = (_change_brightness, _change_contrast, _change_saturation, _turn_hue)


def _cut_off(image: Tensor, factor: float) -> None:
    """Cut off at black and white what is beyond them, which only factors above 1 make."""
    if factor > 1:
        image.clamp_(0, _WHITE)
