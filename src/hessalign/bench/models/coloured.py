"""The network of Colored MNIST: two hidden ReLU layers that multiply only what is lit.

A coloured digit has zeros in every channel but one, and many pixels that are dark in every image.
Leaving out products with zero changes no result and saves more than half of the first layer. The
layers look at a batch once, when they first meet it, so this pays for full batches, which come
again at every step; nobody else need know of it.

Indices: n sample, c channel, q pixel that is lit somewhere, k unit.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import Final, final

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from hessalign._shapes import Float, Int
from hessalign.bench.models.network import Network
from hessalign.bench.models.relu_layers import relu_layers

_LEAST_RUN: Final = 64
"""Samples of one channel in a row, on average, below which it does not pay to go run by run."""


@final
@dataclass(frozen=True, eq=False)
class _LitImages:
    """A batch of images, each with one lit channel; samples of one channel come in runs."""

    lit: Float[Tensor, "n q"]
    pixels: Int[Tensor, " q"]
    runs: tuple[tuple[int, int], ...]  # channel and number of samples


def _lit_images(images: Float[Tensor, "n c all"]) -> _LitImages | None:
    """The same images without what is dark; None if that is not how they are lit.

    Returns:
        The lit channel of each image, at the pixels that are lit in some image.

    Example:
        >>> images = torch.zeros(64, 2, 3)
        >>> images[:, 1, 2] = 1.0
        >>> _lit_images(images).runs, _lit_images(images).lit.shape
        (((1, 64),), torch.Size([64, 1]))
    """
    lit = images.ne(0)
    by_channel = lit.any(2)
    if int(by_channel.sum(1).max()) > 1:
        return None
    channel = by_channel.int().argmax(1)
    runs = tuple((int(key), len(list(group))) for key, group in groupby(channel.tolist()))
    if len(images) < _LEAST_RUN * len(runs):
        return None
    pixels = lit.any(1).any(0).nonzero().squeeze(1)
    grey = images[torch.arange(len(images)), channel]
    return _LitImages(grey[:, pixels], pixels, runs)


@final
class ColouredLayers(nn.Module):
    """Two ReLU layers on flattened images."""

    def __init__(self, channels: int, size: int, width: int) -> None:
        super().__init__()
        self.shape = (channels, size)
        self.first = nn.Linear(channels * size, width)
        self.second = nn.Linear(width, width)
        self._met = WeakIdKeyDictionary()

    def __getstate__(self) -> dict[str, object]:  # copies meet their own batches
        return {**self.__dict__, "_met": WeakIdKeyDictionary()}

    def forward(self, x: Float[Tensor, "n ..."]) -> Float[Tensor, "n d"]:
        """The features of some images of any shape."""
        lit = self._lit(x)
        if lit is None:
            features: Tensor = self.second(self.first(x.flatten(1)).relu()).relu()
            return features
        weights = self.first.weight.view(-1, *self.shape)[:, :, lit.pixels].transpose(0, 1)
        return relu_layers(
            lit.lit, lit.runs, weights, self.first.bias, self.second.weight, self.second.bias
        )

    def _lit(self, x: Tensor) -> _LitImages | None:
        """What is lit in a batch, found when it is first met; changed batches are met anew."""
        plain = type(x) is Tensor and x.device.type == "cpu" and not x.requires_grad
        if not plain or len(x) < _LEAST_RUN or prod(x.shape[1:]) != prod(self.shape):
            return None
        version: int
        lit: _LitImages | None
        version, lit = self._met.get(x, (-1, None))
        if version != x._version:
            lit = _lit_images(x.detach().reshape(len(x), *self.shape))
            self._met[x] = (x._version, lit)
        return lit


def make_coloured_mlp(
    channels: int, size: int, width: int, generator: torch.Generator, head_factor: int = 1
) -> Network:
    """Two hidden ReLU layers and one logit; the hidden layers are the featurizer.

    Weights are drawn uniformly after Glorot and Bengio (2010), biases start at 0, as in the IRM
    setup.

    Args:
        channels: Channels of an image.
        size: Pixels of a channel.
        width: Width of both hidden layers.
        generator: Source of the initial weights.
        head_factor: How many times the features the head receives.

    Returns:
        The network.

    Example:
        >>> network = make_coloured_mlp(2, 14 * 14, 390, torch.Generator().manual_seed(0))
        >>> sum(parameter.numel() for parameter in network.parameters())
        306151
    """
    featurizer = ColouredLayers(channels, size, width)
    head = nn.Linear(head_factor * width, 1)
    for layer in (featurizer.first, featurizer.second, head):
        nn.init.xavier_uniform_(layer.weight, generator=generator)
        nn.init.zeros_(layer.bias)
    return Network(featurizer, head)
