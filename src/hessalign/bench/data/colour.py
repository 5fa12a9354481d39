"""Changes of the colours of an image: brightness, contrast, saturation and hue, as Pillow's.

All of them work in place, on floats from 0 to 255, one channel after the other in memory. They
pass over the pixels as few times as they can, in operations that torch runs with vector
instructions: on a CPU truth values, `where`, `gather` and `%` take up to ten times as long. An
image may also have one channel, its grey values: then it has no colours to change.

Indices: c channel, three or one, then rows and columns.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from hessalign._shapes import Float

WHITE: Final = 255.0

LUMA: Final = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in the grey value of an image (ITU-R 601)."""


def grey_values(image: Float[Tensor, "c h w"]) -> Float[Tensor, "1 h w"]:
    """An image without its colours.

    Args:
        image: The image.

    Returns:
        One channel; a new one if the image has three.
    """
    if len(image) == 1:
        return image
    return (image.new_tensor([LUMA]) @ image.flatten(1)).view(1, *image.shape[1:])


def change_brightness(image: Float[Tensor, "c h w"], factor: float) -> None:
    """Make an image lighter or darker.

    Args:
        image: The image; it is changed, and cut off at white.
        factor: 0 is black, 1 changes nothing.
    """
    image.mul_(factor)
    _cut_off(image, factor)


def change_contrast(image: Float[Tensor, "c h w"], factor: float) -> None:
    """Move an image away from its mean grey value, or towards it.

    Args:
        image: The image; it is changed, and cut off at black and white.
        factor: 0 is that grey, 1 changes nothing.
    """
    grey = grey_values(image.mean(dim=(1, 2), keepdim=True)).item()
    image.mul_(factor).add_((1 - factor) * grey)
    _cut_off(image, factor)


def change_saturation(image: Float[Tensor, "c h w"], factor: float) -> None:
    """Give an image more or less colour.

    Args:
        image: The image; it is changed, and cut off at black and white.
        factor: 0 is grey, 1 changes nothing.
    """
    if len(image) == 1:
        return
    grey = grey_values(image).mul_(1 - factor)
    image.mul_(factor).add_(grey)
    _cut_off(image, factor)


def turn_hue(image: Float[Tensor, "c h w"], turn: float) -> None:
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

    Args:
        image: The image; it is changed.
        turn: The part of the circle: 1/3 makes red green, green blue, blue red.

    Example:
        >>> image = torch.tensor([1.0, 0.0, 0.0]).reshape(3, 1, 1)
        >>> turn_hue(image, 1 / 3)
        >>> image.flatten().tolist()
        [0.0, 1.0, 0.0]
        >>> turn_hue(image, 1 / 12)
        >>> image.flatten().tolist()
        [0.0, 1.0, 0.5]
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


def _cut_off(image: Tensor, factor: float) -> None:
    """Cut off at black and white what is beyond them, which only factors above 1 make."""
    if factor > 1:
        image.clamp_(0, WHITE)
