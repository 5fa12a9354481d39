r"""Fishr (Ramé et al., 2022): align the variances of the gradients of single samples.

With $g_n = r_n \otimes \tilde z_n$ the gradient of one sample's loss in the head,

$$v_e = \text{mean}_{n \in e}\; (g_n - g_e)^2, \qquad \frac1E \sum_e \|v_e - \bar v\|^2$$

with squares taken per parameter. In closed form $v_e = \text{mean}\, r_n^2 \otimes \tilde z_n^2 -
g_e^2$, so single samples' gradients are never formed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final, get_args

from torch import Tensor

from hessalign._names import UnknownNameError
from hessalign._shapes import Float
from hessalign.algorithms.objective import ObjectiveTerms
from hessalign.curvature import LinearHead

Fidelity = Literal["paper", "released"]


@final
@dataclass(frozen=True)
class FishrConfig:
    """Scale of the penalty.

    Attributes:
        fidelity: "paper" for the mean over domains. "released" for the Colored MNIST scripts,
            which sum over domains.
    """

    fidelity: Fidelity = "paper"

    def __post_init__(self) -> None:
        if self.fidelity not in get_args(Fidelity):
            raise UnknownNameError("fidelity", self.fidelity, get_args(Fidelity))


def variance_dispersion(variances: Float[Tensor, "e p"]) -> Float[Tensor, ""]:
    """Mean squared distance of the domains' variances to their mean.

    Args:
        variances: One vector per domain.

    Returns:
        The dispersion.
    """
    return (variances - variances.mean(0)).square().sum(1).mean()


@final
@dataclass(frozen=True)
class Fishr:
    """Minimise the mean risk and the dispersion of gradient variances.

    Args:
        config: Scale of the penalty.
    """

    config: FishrConfig

    def __call__(self, statistics: LinearHead) -> ObjectiveTerms:
        """Risk and penalty.

        Args:
            statistics: Statistics of the head on one batch.

        Returns:
            The terms.
        """
        scale = len(statistics.domains) if self.config.fidelity == "released" else 1
        penalty = scale * variance_dispersion(statistics.gradient_variance)
        return ObjectiveTerms(statistics.risk.mean(), penalty)
