"""Layers about the statistics of inputs and activations.

Images reach every network with ImageNet's mean and deviation (`data.normalise`). A backbone whose
weights were trained with others is wrapped in `Renormalised`, so that nothing else has to know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hessalign._protocol import IMAGENET_MEAN, IMAGENET_STD
from hessalign._shapes import Float


@final
class Renormalised(nn.Module):
    """A backbone that expects other statistics of its images than ImageNet's.

    Args:
        inner: The backbone.
        mean: The mean of each channel that it expects.
        std: The deviation of each channel that it expects.

    Example:
        >>> layer = Renormalised(nn.Identity(), mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
        >>> white = (1 - torch.tensor(IMAGENET_MEAN)) / torch.tensor(IMAGENET_STD)
        >>> layer(white.reshape(1, 3, 1, 1)).flatten().round(decimals=5).tolist()
        [1.0, 1.0, 1.0]
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, inner: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.inner = inner
        theirs, ours = torch.tensor(std), torch.tensor(IMAGENET_STD)
        self.register_buffer("scale", ours / theirs, persistent=False)
        shift = (torch.tensor(IMAGENET_MEAN) - torch.tensor(mean)) / theirs
        self.register_buffer("shift", shift, persistent=False)

    def forward(self, images: Float[Tensor, "n c h w"]) -> Tensor:
        """What the backbone makes of the images."""
        channel = torch.arange(images.shape[1], device=images.device) % len(self.scale)
        scale, shift = (each[channel].reshape(-1, 1, 1) for each in (self.scale, self.shift))
        features: Tensor = self.inner(images * scale + shift)
        return features


@final
class FrozenBatchNorm(nn.Module):
    """A backbone whose batch normalisation keeps its statistics in training, as DomainBed's does.

    All its batch normalisation stays in evaluation mode; the factors and shifts behind it are
    trained like other parameters.

    Args:
        inner: The backbone.

    Example:
        >>> layer = FrozenBatchNorm(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))).train()
        >>> [module.training for module in layer.inner]
        [True, False]
        >>> all(parameter.requires_grad for parameter in layer.parameters())
        True
    """

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        """What the backbone makes of its inputs."""
        features: Tensor = self.inner(x)
        return features

    def train(self, mode: bool = True) -> FrozenBatchNorm:
        """Enter or leave training mode, all but the batch normalisation."""
        super().train(mode)
        for module in self.inner.modules():
            if isinstance(module, _BatchNorm):
                module.eval()
        return self
