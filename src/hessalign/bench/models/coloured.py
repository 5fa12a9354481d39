"""Images with a single lit channel, and layers that multiply only what is lit.

A coloured digit has zeros in every channel but one, and many pixels that are dark in every image.
Leaving out products with zero changes no result and saves more than half of the first layer.

Indices: n sample, c channel, q pixel, k output of the layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import final

import torch
from torch import Tensor, nn

from hessalign._shapes import Float, Int
from hessalign.bench.models.relu_layers import relu_layers


@final
@dataclass(frozen=True, eq=False)
class ColouredImages:
    """A batch of images, each with one lit channel; samples of one channel come in runs.

    Attributes:
        lit: Values of the lit channel at the pixels in `pixels`.
        pixels: Positions of the pixels that are lit in some image.
        runs: Channel and number of samples of each run, in order.
        shape: Channels and pixels of the whole image.
    """

    lit: Float[Tensor, "n q"]
    pixels: Int[Tensor, " q"]
    runs: tuple[tuple[int, int], ...]
    shape: tuple[int, int]

    def __len__(self) -> int:
        return len(self.lit)

    def split(self, sizes: tuple[int, ...]) -> list[ColouredImages]:
        """Consecutive parts, as `Tensor.split` gives them.

        Args:
            sizes: Images in each part; they add up to all.

        Returns:
            The parts, views of the same memory.
        """
        channels = torch.tensor([channel for channel, _ in self.runs])
        lengths = torch.tensor([length for _, length in self.runs])
        each = channels.repeat_interleave(lengths).split(sizes)
        return [
            ColouredImages(lit, self.pixels, _runs(channel), self.shape)
            for lit, channel in zip(self.lit.split(sizes), each, strict=True)
        ]

    def dense(self) -> Float[Tensor, "n c_q"]:
        """The images with all their zeros.

        Returns:
            One flattened image per row.
        """
        channels, size = self.shape
        dense = self.lit.new_zeros(len(self.lit), channels, size)
        start = 0
        for channel, length in self.runs:
            dense[start : start + length, channel, self.pixels] = self.lit[start : start + length]
            start += length
        return dense.flatten(1)


def make_coloured_images(
    grey: Float[Tensor, "n all"], channel: Int[Tensor, " n"], channels: int
) -> ColouredImages:
    """Compress images with one lit channel.

    Args:
        grey: The lit channel of each image, flattened.
        channel: Which channel that is; best sorted into few long runs.
        channels: How many there are.

    Returns:
        The same images, without what is always dark.

    Example:
        >>> images = make_coloured_images(torch.tensor([[0.0, 1.0]]), torch.tensor([1]), 2)
        >>> images.lit, images.dense()
        (tensor([[1.]]), tensor([[0., 0., 0., 1.]]))
    """
    pixels = (grey != 0).any(0).nonzero().squeeze(1)
    return ColouredImages(grey[:, pixels], pixels, _runs(channel), (channels, grey.shape[1]))


def _runs(channel: Int[Tensor, " n"]) -> tuple[tuple[int, int], ...]:
    return tuple((int(key), len(list(group))) for key, group in groupby(channel.tolist()))


@final
class ColouredLayers(nn.Module):
    """Two ReLU layers on flattened images; `ColouredImages` are multiplied only where lit.

    Args:
        channels: Channels of an image.
        size: Pixels of a channel.
        width: Units of each layer.
    """

    def __init__(self, channels: int, size: int, width: int) -> None:
        super().__init__()
        self.shape = (channels, size)
        self.first = nn.Linear(channels * size, width)
        self.second = nn.Linear(width, width)

    def forward(self, x: Tensor | ColouredImages) -> Float[Tensor, "n d"]:
        """The features of some images.

        Args:
            x: Dense images of any shape, or compressed ones.

        Returns:
            One row per image; the same function for both kinds of input.
        """
        if isinstance(x, Tensor):
            features: Tensor = self.second(self.first(x.flatten(1)).relu()).relu()
            return features
        weights = self.first.weight.view(-1, *self.shape)[:, :, x.pixels].transpose(0, 1)
        return relu_layers(
            x.lit, x.runs, weights, self.first.bias, self.second.weight, self.second.bias
        )
