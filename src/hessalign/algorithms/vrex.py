r"""Variance risk extrapolation, V-REx (Krueger et al., 2021): align the risks.

$$\frac1E \sum_e (L_e - \bar L)^2$$
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final, get_args

from torch import Tensor

from hessalign._names import UnknownNameError
from hessalign._shapes import Float
from hessalign.algorithms.objective import ObjectiveTerms
from hessalign.curvature import HeadStatistics

Fidelity = Literal["paper", "released"]


@final
@dataclass(frozen=True)
class VrexConfig:
    """Scale of the penalty.

    Attributes:
        fidelity: "paper" for the variance. "released" for the Colored MNIST scripts, which take
            the squared difference of the two risks: E² times the variance.
    """

    fidelity: Fidelity = "paper"

    def __post_init__(self) -> None:
        if self.fidelity not in get_args(Fidelity):
            raise UnknownNameError("fidelity", self.fidelity, get_args(Fidelity))


def risk_variance(risk: Float[Tensor, " e"]) -> Float[Tensor, ""]:
    """Variance of the risks over domains.

    Args:
        risk: Mean loss of each domain.

    Returns:
        The mean squared deviation from their mean.
    """
    return (risk - risk.mean()).square().mean()


@final
@dataclass(frozen=True)
class Vrex:
    """Minimise the mean risk and its variance over domains.

    Args:
        config: Scale of the penalty.
    """

    config: VrexConfig

    def __call__(self, statistics: HeadStatistics) -> ObjectiveTerms:
        """Risk and penalty.

        Args:
            statistics: Statistics of the head on one batch.

        Returns:
            The terms.
        """
        scale = len(statistics.domains) ** 2 if self.config.fidelity == "released" else 1
        return ObjectiveTerms(statistics.risk.mean(), scale * risk_variance(statistics.risk))
