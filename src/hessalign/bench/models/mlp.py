"""The network of Colored MNIST, initialised as the IRM setup does."""

from __future__ import annotations

import torch
from torch import nn

from hessalign.bench.models.coloured import ColouredLayers
from hessalign.bench.models.network import Network


def make_coloured_mlp(
    channels: int, size: int, width: int, generator: torch.Generator, head_factor: int = 1
) -> Network:
    """Two hidden ReLU layers and one logit; the hidden layers are the featurizer.

    Weights are drawn uniformly after Glorot and Bengio (2010), biases start at 0.

    Args:
        channels: Channels of an image.
        size: Pixels of a channel.
        width: Width of both hidden layers.
        generator: Source of the initial weights.
        head_factor: How many times the features the head receives.

    Returns:
        The network, for dense images or `ColouredImages`.

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
