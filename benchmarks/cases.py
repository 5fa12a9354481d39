"""Random batches of the shapes that are measured.

Indices: e domain, n sample of one domain, d feature, c class.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn import functional


@final
@dataclass(frozen=True)
class Batch:
    """Features after a ReLU, a linear head and what it makes of them.

    Attributes:
        z: Features, domains contiguous; a leaf that requires grad.
        weight: Weights of the head; a leaf that requires grad.
        bias: Bias of the head; a leaf that requires grad.
        logits: What the head makes of the features; a leaf of its own that requires grad.
        y: Class indices.
        domain: Domain ids.
        sizes: Samples per domain.
    """

    z: Tensor
    weight: Tensor
    bias: Tensor
    logits: Tensor
    y: Tensor
    domain: Tensor
    sizes: tuple[int, ...]

    @property
    def parameters(self) -> tuple[Tensor, Tensor]:
        """Weights and bias of the head."""
        return self.weight, self.bias

    def per_domain(self) -> list[tuple[Tensor, Tensor]]:
        """Features and labels of each domain."""
        return list(zip(self.z.split(self.sizes), self.y.split(self.sizes), strict=True))


@final
@dataclass(frozen=True)
class Case:
    """The size of a head and of the batch it sees.

    Attributes:
        features: Inputs d of the head.
        classes: Outputs C of the head.
        domains: Domains E.
        samples: Samples n per domain.
    """

    features: int
    classes: int
    domains: int = 3
    samples: int = 32

    @property
    def name(self) -> str:
        """Features × classes."""
        return f"{self.features}×{self.classes}"

    @property
    def parameters(self) -> int:
        """Weights and biases of the head."""
        return self.classes * (self.features + 1)

    def batch(self, dtype: torch.dtype = torch.float32, seed: int = 0) -> Batch:
        """Draw a batch.

        Args:
            dtype: Precision of features and head.
            seed: Determines it.

        Returns:
            The batch.
        """
        generator = torch.Generator().manual_seed(seed)
        total = self.domains * self.samples

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=dtype)

        z = normal(total, self.features).relu()
        weight = normal(self.classes, self.features) / math.sqrt(self.features)
        bias = normal(self.classes) / 10
        return Batch(
            z=z.requires_grad_(),
            weight=weight.requires_grad_(),
            bias=bias.requires_grad_(),
            logits=functional.linear(z, weight, bias).detach().requires_grad_(),
            y=torch.randint(self.classes, (total,), generator=generator),
            domain=torch.arange(self.domains).repeat_interleave(self.samples),
            sizes=(self.samples,) * self.domains,
        )
