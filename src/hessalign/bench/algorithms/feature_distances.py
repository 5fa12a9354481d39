r"""Methods that align the distribution of the features: CORAL and MMD.

CORAL (Sun & Saenko, 2016) aligns their covariances:

$$\frac{2}{E(E-1)} \sum_{e<f} \frac{1}{4 d^2} \|C_e - C_f\|_F^2, \qquad
C_e = \frac{1}{n_e - 1} \sum_{n \in e} (z_n - \bar z_e)(z_n - \bar z_e)^\top$$

The paper has one source and one target; with several source domains it is the mean over their
pairs. A domain with one sample has covariance 0. With fewer samples than features the d×d
covariances are never formed: for rows $a_n$, centred and divided by $\sqrt{n_e - 1}$, inner
products are $\langle C_e, C_f \rangle = \sum_{n \in e, m \in f} (a_n \cdot a_m)^2$, and the mean
over pairs is the sum over all pairs of samples of
$\frac{2}{E-1} (\delta_{ef} - \frac1E) (a_n \cdot a_m)^2$.

Maximum mean discrepancy, MMD (Gretton et al., 2012; for domains: Li et al., 2018, MMD-AAE), is the
squared distance of the domains' mean embeddings in the space of a kernel, averaged over pairs:

$$\frac{2}{E(E-1)} \sum_{e<f} \left(K_{ee} + K_{ff} - 2 K_{ef}\right), \qquad
K_{ef} = \text{mean}_{n \in e,\, m \in f}\; k(z_n, z_m), \qquad
k(z, z') = \sum_\gamma e^{-\gamma \|z - z'\|^2}$$

with γ from 10⁻³ to 10³ in powers of ten. $K_{ee}$ includes the pairs n = m (the biased estimate,
which is never below 0). Of the adversarial autoencoder of Li et al. only this term is taken, as in
DomainBed. With one domain both penalties are 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, final

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hessalign._shapes import Float, Int
from hessalign.alignment import squared_distances
from hessalign.bench.algorithms.kinds import AbstractObjective, ObjectiveTerms, Step
from hessalign.bench.algorithms.options import Fidelity, PenaltyOptions, Power, SearchSpace
from hessalign.curvature.domains import make_domains
from hessalign.curvature.gram import gram

_GAMMAS: Final = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)
"""Inverse squared widths of MMD's kernels."""

_KEPT_ENTRIES: Final = 2**22
"""Entries of the kernel that are held at a time."""

_SEARCH: Final[SearchSpace] = {"penalty_weight": ("mmd_gamma", Power(10, -1, 1))}


@final
@dataclass(frozen=True)
class _CoralConfig(PenaltyOptions):
    # "domainbed" for the mean of squared differences of the means' d entries plus that of the
    # covariances' d² entries, averaged over pairs.
    fidelity: Fidelity = "paper"


def _covariance(z: Float[Tensor, "n d"]) -> Float[Tensor, "d d"]:
    """Covariance of the features, unbiased; 0 for a single sample."""
    centred = z - z.mean(0)
    return centred.T @ centred / max(1, len(z) - 1)


def _mean_pair_distance(points: Float[Tensor, " e *p"]) -> Float[Tensor, ""]:
    """Mean over pairs of domains of the squared distance: 2 / (E − 1) Σ ‖a_e − ā‖²."""
    return 2 * (points - points.mean(0)).square().sum() / max(1, len(points) - 1)


def _covariance_distance(features: Sequence[Float[Tensor, "n d"]]) -> Float[Tensor, ""]:
    """Mean over pairs of domains of the squared distance of their covariances."""
    sizes = [len(z) for z in features]
    if sum(sizes) >= features[0].shape[1]:
        return _mean_pair_distance(torch.stack([_covariance(z) for z in features]))
    rows = torch.cat([(z - z.mean(0)) / max(1, len(z) - 1) ** 0.5 for z in features])
    squares = gram(rows).square()
    domain = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    same = (domain[:, None] == domain).to(squares)
    weights = 2 * (same - 1 / len(sizes)) / max(1, len(sizes) - 1)
    return (weights * squares).sum().to(rows.dtype)


def _coral_penalty(
    features: Sequence[Float[Tensor, "n d"]], fidelity: Fidelity = "paper"
) -> Float[Tensor, ""]:
    width = features[0].shape[1]
    distance = _covariance_distance(features) / width**2
    if fidelity == "paper":
        return distance / 4
    return distance + _mean_pair_distance(torch.stack([z.mean(0) for z in features])) / width


@final
class Coral(AbstractObjective):
    """Minimise the mean risk and the distance of covariances."""

    config: _CoralConfig = _CoralConfig()
    search: ClassVar[SearchSpace] = _SEARCH

    def terms(self, step: Step) -> ObjectiveTerms:
        """Risk and penalty."""
        penalty = _coral_penalty(step.features_by_domain(), self.config.fidelity)
        return ObjectiveTerms(step.statistics.risk.mean(), penalty)


def _kernel(a: Float[Tensor, "n d"], b: Float[Tensor, "m d"]) -> Float[Tensor, "n m"]:
    """The sum of Gaussian kernels between samples."""
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
    averaging = make_domains(domain).averaging
    if len(averaging) == 1:
        return z.new_zeros(()) * z.sum()
    inner = _mean_kernels(z.to(averaging.dtype), averaging)
    pairs = len(averaging) * (len(averaging) - 1)
    return squared_distances(inner).sum() / pairs


@final
class Mmd(AbstractObjective):
    """Minimise the mean risk and the discrepancy of the features."""

    config: PenaltyOptions = PenaltyOptions()
    search: ClassVar[SearchSpace] = _SEARCH

    def terms(self, step: Step) -> ObjectiveTerms:
        """Risk and penalty."""
        penalty = _mmd_penalty(step.z, step.batch.domain)
        return ObjectiveTerms(step.statistics.risk.mean(), penalty)
