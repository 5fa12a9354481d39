r"""CORAL (Sun & Saenko, 2016): align the covariances of the features.

$$\frac{2}{E(E-1)} \sum_{e<f} \frac{1}{4 d^2} \|C_e - C_f\|_F^2, \qquad
C_e = \frac{1}{n_e - 1} \sum_{n \in e} (z_n - \bar z_e)(z_n - \bar z_e)^\top$$

The paper has one source and one target; with several source domains it is the mean over their
pairs. A domain with one sample has covariance 0; with one domain the penalty is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from hessalign._shapes import Float
from hessalign.bench.algorithms.kinds import AbstractObjective, PenaltySchedule
from hessalign.bench.algorithms.options import NonNegative, Options
from hessalign.bench.algorithms.search import Power, SearchSpace
from hessalign.bench.algorithms.step import ObjectiveTerms, Step
from hessalign.curvature.gram import gram

_Fidelity = Literal["paper", "domainbed"]


@final
@dataclass(frozen=True)
class _CoralConfig(Options):
    """Weight and scale of the penalty.

    Attributes:
        penalty_weight: Weight of the penalty.
        fidelity: "paper" as above. "domainbed" for the mean of squared differences of the means'
            d entries plus that of the covariances' d² entries, averaged over pairs.
    """

    penalty_weight: NonNegative = 1.0
    fidelity: _Fidelity = "paper"

    @property
    def schedule(self) -> PenaltySchedule:
        """No annealing."""
        return PenaltySchedule(after=self.penalty_weight)


def _covariance(z: Float[Tensor, "n d"]) -> Float[Tensor, "d d"]:
    """Covariance of the features, unbiased.

    Returns:
        The covariance; 0 for a single sample.

    Example:
        >>> _covariance(torch.tensor([[1.0, 0.0], [3.0, 0.0]]))
        tensor([[2., 0.],
                [0., 0.]])
    """
    centred = z - z.mean(0)
    return centred.T @ centred / max(1, len(z) - 1)


def _mean_pair_distance(points: Float[Tensor, " e *p"]) -> Float[Tensor, ""]:
    r"""Mean over pairs of domains of the squared distance.

    $$\frac{2}{E(E-1)} \sum_{e<f} \|a_e - a_f\|^2 = \frac{2}{E-1} \sum_e \|a_e - \bar a\|^2$$

    Returns:
        The mean; 0 for a single domain.

    Example:
        >>> _mean_pair_distance(torch.tensor([0.0, 1.0, 3.0]))  # (1 + 9 + 4) / 3
        tensor(4.6667)
    """
    return 2 * (points - points.mean(0)).square().sum() / max(1, len(points) - 1)


def _covariance_distance(features: Sequence[Float[Tensor, "n d"]]) -> Float[Tensor, ""]:
    r"""Mean over pairs of domains of the squared distance of their covariances.

    With fewer samples than features the d×d covariances are never formed. For rows $a_n$, centred
    and divided by $\sqrt{n_e - 1}$, inner products are $\langle C_e, C_f \rangle =
    \sum_{n \in e, m \in f} (a_n \cdot a_m)^2$, and the mean over pairs is the sum over all pairs of
    samples of $\frac{2}{E-1} (\delta_{ef} - \frac1E) (a_n \cdot a_m)^2$.

    Returns:
        The mean; 0 for a single domain.

    Example:
        >>> wide = [torch.randn(3, 10, dtype=torch.float64) for _ in range(4)]
        >>> torch.allclose(
        ...     _covariance_distance(wide),
        ...     _mean_pair_distance(torch.stack([_covariance(z) for z in wide])),
        ... )
        True
    """
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
    features: Sequence[Float[Tensor, "n d"]], fidelity: _Fidelity = "paper"
) -> Float[Tensor, ""]:
    """Mean over pairs of domains of their distance.

    Returns:
        The penalty.

    Example:
        >>> a, b = torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [1.0]])
        >>> _coral_penalty([a, b]), _coral_penalty([a, b], "domainbed")
        (tensor(1.), tensor(4.))
    """
    width = features[0].shape[1]
    distance = _covariance_distance(features) / width**2
    if fidelity == "paper":
        return distance / 4
    return distance + _mean_pair_distance(torch.stack([z.mean(0) for z in features])) / width


@final
class Coral(AbstractObjective):
    """Minimise the mean risk and the distance of covariances."""

    config: _CoralConfig = _CoralConfig()
    search: ClassVar[SearchSpace] = {"penalty_weight": ("mmd_gamma", Power(10, -1, 1))}

    def terms(self, step: Step) -> ObjectiveTerms:
        """Risk and penalty."""
        penalty = _coral_penalty(step.features_by_domain(), self.config.fidelity)
        return ObjectiveTerms(step.statistics.risk.mean(), penalty)
