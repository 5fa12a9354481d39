r"""Maximum mean discrepancy, MMD (Gretton et al., 2012; for domains: Li et al., 2018, MMD-AAE).

The squared distance of the domains' mean embeddings in the space of a kernel, averaged over pairs:

$$\frac{2}{E(E-1)} \sum_{e<f} \left(K_{ee} + K_{ff} - 2 K_{ef}\right), \qquad
K_{ef} = \text{mean}_{n \in e,\, m \in f}\; k(z_n, z_m), \qquad
k(z, z') = \sum_\gamma e^{-\gamma \|z - z'\|^2}$$

with γ from 10⁻³ to 10³ in powers of ten. $K_{ee}$ includes the pairs n = m (the biased estimate,
which is never below 0). Of the adversarial autoencoder of Li et al. only this term is taken, as in
DomainBed. With one domain the penalty is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, final

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hessalign._shapes import Float, Int
from hessalign.alignment import squared_distances
from hessalign.bench.algorithms.kinds import AbstractObjective, PenaltySchedule
from hessalign.bench.algorithms.options import NonNegative, Options
from hessalign.bench.algorithms.search import Power, SearchSpace
from hessalign.bench.algorithms.step import ObjectiveTerms, Step
from hessalign.curvature.domains import make_domains

_GAMMAS: Final = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)
"""Inverse squared widths of the kernels."""

_KEPT_ENTRIES: Final = 2**22
"""Entries of the kernel that are held at a time."""


@final
@dataclass(frozen=True)
class _MmdConfig(Options):
    """Weight of the penalty.

    Attributes:
        penalty_weight: Weight of the penalty.
    """

    penalty_weight: NonNegative = 1.0

    @property
    def schedule(self) -> PenaltySchedule:
        """No annealing."""
        return PenaltySchedule(after=self.penalty_weight)


def _kernel(a: Float[Tensor, "n d"], b: Float[Tensor, "m d"]) -> Float[Tensor, "n m"]:
    """The sum of Gaussian kernels between samples.

    Returns:
        One value per pair.

    Example:
        >>> _kernel(torch.zeros(1, 2), torch.zeros(1, 2))
        tensor([[7.]])
    """
    norms = a.square().sum(1).unsqueeze(1) + b.square().sum(1)
    squares = (norms - 2 * a @ b.T).clamp(min=0)
    return torch.stack([torch.exp(-gamma * squares) for gamma in _GAMMAS]).sum(0)


def _mean_kernels(z: Float[Tensor, "n d"], averaging: Float[Tensor, "e n"]) -> Float[Tensor, "e e"]:
    r"""Means $K_{ef}$ of the kernel over the samples of two domains."""
    z = z - z.detach().mean(0)  # leaves distances as they are and keeps their digits

    def part(rows: Tensor, weights: Tensor) -> Tensor:
        return weights @ _kernel(rows, z) @ averaging.T

    rows = max(1, _KEPT_ENTRIES // len(z))
    parts = list(zip(z.split(rows), averaging.split(rows, dim=1), strict=True))
    if len(parts) == 1:
        return part(*parts[0])
    means: list[Tensor] = [checkpoint(part, *each, use_reentrant=False) for each in parts]
    return torch.stack(means).sum(0)


def _mmd_penalty(z: Float[Tensor, "n d"], domain: Int[Tensor, " n"]) -> Float[Tensor, ""]:
    """Mean over pairs of domains of their squared maximum mean discrepancy.

    Returns:
        The penalty, in the accumulation precision.

    Example:
        >>> z = torch.tensor([[0.0], [100.0]])
        >>> round(float(_mmd_penalty(z, torch.tensor([0, 1]))), 3)  # e⁻¹⁰ is the least _kernel left
        14.0
    """
    averaging = make_domains(domain).weights.averaging
    if len(averaging) == 1:
        return z.new_zeros(()) * z.sum()
    inner = _mean_kernels(z.to(averaging.dtype), averaging)
    pairs = len(averaging) * (len(averaging) - 1)
    return squared_distances(inner).sum() / pairs


@final
class Mmd(AbstractObjective):
    """Minimise the mean risk and the discrepancy of the features."""

    config: _MmdConfig = _MmdConfig()
    search: ClassVar[SearchSpace] = {"penalty_weight": ("mmd_gamma", Power(10, -1, 1))}

    def terms(self, step: Step) -> ObjectiveTerms:
        """Risk and penalty."""
        penalty = _mmd_penalty(step.z, step.batch.domain)
        return ObjectiveTerms(step.statistics.risk.mean(), penalty)
