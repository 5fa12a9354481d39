"""Changes of the colours of images: brightness, contrast, saturation and hue, as Pillow makes them.

Indices: n image, three channels, then rows and columns.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from hessalign._shapes import Float

LUMA: Final = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in the grey value of an image (ITU-R 601)."""


def grey_values(images: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n 1 h w"]:
    """Images without their colours.

    Args:
        images: The images.

    Returns:
        One channel.
    """
    return (images * images.new_tensor(LUMA).reshape(3, 1, 1)).sum(1, keepdim=True)


def _blend(images: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    return (other + factor.reshape(-1, 1, 1, 1) * (images - other)).clamp(0, 1)


def with_brightness(
    images: Float[Tensor, "n 3 h w"], factor: Float[Tensor, " n"]
) -> Float[Tensor, "n 3 h w"]:
    """Images lighter or darker: 0 is black, 1 changes nothing.

    Args:
        images: Grey values from 0 to 1.
        factor: One for each image.

    Returns:
        A new batch, cut off at 0 and 1.
    """
    return _blend(images, torch.zeros_like(images), factor)


def with_contrast(
    images: Float[Tensor, "n 3 h w"], factor: Float[Tensor, " n"]
) -> Float[Tensor, "n 3 h w"]:
    """Images further from their mean grey value: 0 is that grey, 1 changes nothing.

    Args:
        images: Grey values from 0 to 1.
        factor: One for each image.

    Returns:
        A new batch, cut off at 0 and 1.
    """
    return _blend(images, grey_values(images).mean(dim=(2, 3), keepdim=True), factor)


def with_saturation(
    images: Float[Tensor, "n 3 h w"], factor: Float[Tensor, " n"]
) -> Float[Tensor, "n 3 h w"]:
    """Images with more or less colour: 0 is grey, 1 changes nothing.

    Args:
        images: Grey values from 0 to 1.
        factor: One for each image.

    Returns:
        A new batch, cut off at 0 and 1.
    """
    return _blend(images, grey_values(images), factor)


def with_hue(
    images: Float[Tensor, "n 3 h w"], turn: Float[Tensor, " n"]
) -> Float[Tensor, "n 3 h w"]:
    r"""Images with their colours turned around the colour circle, at equal saturation and value.

    With value $v$ (the largest channel), chroma $c$ (largest less smallest) and the hue $h$ in
    sixths of the circle, channel $i$ becomes $v - c\,\max(0, \min(k, 4 - k, 1))$ with
    $k = (o_i + h) \bmod 6$ and $o = (5, 3, 1)$ for red, green and blue.

    Args:
        images: Grey values from 0 to 1.
        turn: The part of the circle for each image: 1/3 makes red green, green blue, blue red.

    Returns:
        A new batch.

    Example:
        >>> red = torch.tensor([1.0, 0.0, 0.0]).reshape(1, 3, 1, 1)
        >>> with_hue(red, torch.tensor([1 / 3])).flatten().round(decimals=5).abs().tolist()
        [0.0, 1.0, 0.0]
    """
    value, brightest = images.max(dim=1, keepdim=True)
    chroma = value - images.min(dim=1, keepdim=True).values
    red, green, blue = images.split(1, dim=1)
    numerator = torch.cat([green - blue, blue - red, red - green], dim=1).gather(1, brightest)
    hue = 2 * brightest + numerator / torch.where(chroma > 0, chroma, 1.0)
    offset = images.new_tensor([5.0, 3.0, 1.0]).reshape(3, 1, 1)
    k = (offset + hue + 6 * turn.reshape(-1, 1, 1, 1)) % 6
    return value - chroma * torch.minimum(k, 4 - k).clamp(0, 1)
