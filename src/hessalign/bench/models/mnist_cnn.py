"""DomainBed's network for 28×28 digits."""

from __future__ import annotations

from typing import Final

from torch import nn

WIDTHS: Final = (64, 128, 128, 128)
GROUPS: Final = 8


def make_mnist_cnn(channels: int) -> nn.Module:
    """Four 3×3 convolutions, each followed by a ReLU and group normalisation, then a mean.

    The second convolution has stride 2.

    Args:
        channels: Channels of the images.

    Returns:
        A module that maps images to 128 features.

    Example:
        >>> import torch
        >>> make_mnist_cnn(2)(torch.zeros(5, 2, 28, 28)).shape
        torch.Size([5, 128])
    """
    layers: list[nn.Module] = []
    for number, width in enumerate(WIDTHS):
        layers += [
            nn.Conv2d(channels, width, 3, stride=2 if number == 1 else 1, padding=1),
            nn.ReLU(),
            nn.GroupNorm(GROUPS, width),
        ]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
