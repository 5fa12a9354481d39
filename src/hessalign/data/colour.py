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

CIRCLE: Final = ((3.0, 2.0, 4.0), (1.0, -1.0, -1.0), (-1.0, 2.0, 2.0))
"""A hue's share of red, green and blue is s·|hue − c| + b, cut off at 0 and 1: c, s and b."""

TINY: Final = 1e-12
"""Least chroma that is divided by: without chroma there is no hue."""


def grey_values(images: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n 1 h w"]:
    """Images without their colours.

    Args:
        images: The images.

    Returns:
        One channel.
    """
    red, green, blue = images.split(1, dim=1)
    grey = torch.add(LUMA[0] * red, green, alpha=LUMA[1])
    return torch.add(grey, blue, alpha=LUMA[2])


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
    return (images * factor.reshape(-1, 1, 1, 1)).clamp_(0, 1)


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
    grey = grey_values(images.mean(dim=(2, 3), keepdim=True))
    factor = factor.reshape(-1, 1, 1, 1)
    return (images * factor).add_((1 - factor) * grey).clamp_(0, 1)


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
    return torch.lerp(grey_values(images), images, factor.reshape(-1, 1, 1, 1)).clamp_(0, 1)


def with_hue(
    images: Float[Tensor, "n 3 h w"], turn: Float[Tensor, " n"]
) -> Float[Tensor, "n 3 h w"]:
    r"""Images with their colours turned around the colour circle, at equal saturation and value.

    With the smallest channel $l$, chroma $c$ (largest less smallest) and the turned hue $h$ in
    sixths of the circle, red becomes $l + c\,[|h - 3| - 1]$, green $l + c\,[2 - |h - 2|]$ and blue
    $l + c\,[2 - |h - 4|]$, where $[\cdot]$ is cut off at 0 and 1.

    Which channel is the largest enters as factors of 0 and 1, and the remainder as a floor:
    truth values, `where`, `gather` and `%` take ten times as long on a CPU.

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
    red, green, blue = images.split(1, dim=1)
    value = torch.maximum(torch.maximum(red, green), blue)
    least = torch.minimum(torch.minimum(red, green), blue)
    chroma = value - least
    is_red = torch.ge(red, value, out=torch.empty_like(value))
    is_green = torch.ge(green, value, out=torch.empty_like(value))
    is_green.addcmul_(is_green, is_red, value=-1)
    is_blue = (1 - is_red).sub_(is_green)
    hue = (green - blue).mul_(is_red)
    hue.addcmul_(blue - red, is_green).addcmul_(red - green, is_blue)
    hue.div_(chroma.clamp(min=TINY))
    hue.add_(is_green, alpha=2).add_(is_blue, alpha=4).add_(6 * turn.reshape(-1, 1, 1, 1))
    hue.sub_((hue / 6).floor_(), alpha=6)
    centre, sign, shift = (images.new_tensor(each).reshape(3, 1, 1) for each in CIRCLE)
    share = (hue - centre).abs_().mul_(sign).add_(shift).clamp_(0, 1)
    turned: Tensor = share.mul_(chroma).add_(least)
    return turned
