"""Changes of the colours of an image: brightness, contrast, saturation and hue, as Pillow's.

Every function passes over the pixels as few times as it can, in operations that torch runs with
vector instructions: on a CPU truth values, `where`, `gather` and `%` take up to ten times as long.

Indices: three channels, then rows and columns.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from hessalign._shapes import Float

LUMA: Final = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in the grey value of an image (ITU-R 601)."""


def grey_values(image: Float[Tensor, "3 h w"]) -> Float[Tensor, "1 h w"]:
    """An image without its colours.

    Args:
        image: The image.

    Returns:
        One channel.
    """
    return (image.new_tensor([LUMA]) @ image.flatten(1)).view(1, *image.shape[1:])


def with_brightness(image: Float[Tensor, "3 h w"], factor: float) -> Float[Tensor, "3 h w"]:
    """An image lighter or darker.

    Args:
        image: Grey values from 0 to 1.
        factor: 0 is black, 1 changes nothing.

    Returns:
        A new image, cut off at 1.
    """
    return _within_bounds(image * factor, factor)


def with_contrast(image: Float[Tensor, "3 h w"], factor: float) -> Float[Tensor, "3 h w"]:
    """An image further from its mean grey value, or nearer to it.

    Args:
        image: Grey values from 0 to 1.
        factor: 0 is that grey, 1 changes nothing.

    Returns:
        A new image, cut off at 0 and 1.
    """
    grey = grey_values(image.mean(dim=(1, 2), keepdim=True)).item()
    return _within_bounds((image * factor).add_((1 - factor) * grey), factor)


def with_saturation(image: Float[Tensor, "3 h w"], factor: float) -> Float[Tensor, "3 h w"]:
    """An image with more or less colour.

    Args:
        image: Grey values from 0 to 1.
        factor: 0 is grey, 1 changes nothing.

    Returns:
        A new image, cut off at 0 and 1.
    """
    return _within_bounds(torch.lerp(grey_values(image), image, factor), factor)


def with_hue(image: Float[Tensor, "3 h w"], turn: float) -> Float[Tensor, "3 h w"]:
    r"""An image with its colours turned around the colour circle, at equal saturation and value.

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
        image: Grey values from 0 to 1.
        turn: The part of the circle: 1/3 makes red green, green blue, blue red.

    Returns:
        A new image.

    Example:
        >>> red = torch.tensor([1.0, 0.0, 0.0]).reshape(3, 1, 1)
        >>> with_hue(red, 1 / 3).flatten().tolist()
        [0.0, 1.0, 0.0]
        >>> with_hue(red, 1 / 12).flatten().tolist()
        [1.0, 0.5, 0.0]
    """
    thirds = round(3 * turn)
    rest = 6 * turn - 2 * thirds
    red, green, blue = image
    high, low = torch.maximum(green, blue), torch.minimum(green, blue)
    value, least = torch.maximum(high, red), torch.minimum(low, red)
    chroma = value - least
    hue = torch.maximum(low, red).add_(high).sub_(red, alpha=2).add_(chroma)
    hue.copysign_(green - blue).add_(chroma, alpha=rest)
    turned = torch.empty_like(image)
    for channel, place in enumerate((0, 2, -2)):
        torch.sub(hue, chroma, alpha=place, out=turned[(channel + thirds) % 3])
    turned.abs_().sub_(3 * chroma).abs_().add_(least - chroma)
    return torch.minimum(torch.maximum(turned, least, out=turned), value, out=turned)


def _within_bounds(image: Tensor, factor: float) -> Tensor:
    """Cut off at 0 and 1 what is beyond them, which only factors above 1 make."""
    return image.clamp_(0, 1) if factor > 1 else image
