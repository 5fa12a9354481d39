r"""Invariant risk minimisation, IRMv1 (Arjovsky et al., 2019).

A predictor is invariant if the same classifier is optimal in every domain. IRMv1 asks this of a
scalar factor w = 1 on the logits $a$:

$$\frac1E \sum_e \left(\frac{\partial}{\partial w} L_e(w \cdot a)\Big|_{w=1}\right)^2,
\qquad \frac{\partial}{\partial w} L_e = \text{mean}_{n \in e}\; r_n \cdot a_n$$

with $r$ the derivative of the loss in the logits, so no second backward pass is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final, get_args

import torch
from torch import Tensor

from hessalign._names import UnknownNameError
from hessalign._shapes import Float
from hessalign.algorithms.objective import ObjectiveTerms
from hessalign.curvature import LinearHead

Fidelity = Literal["paper", "domainbed"]


@final
@dataclass(frozen=True)
class IrmConfig:
    """Which estimate of the squared derivative.

    Attributes:
        fidelity: "paper" squares the derivative over all samples of a domain. "domainbed"
            multiplies the derivatives over its even and its odd samples, which is unbiased.
    """

    fidelity: Fidelity = "paper"

    def __post_init__(self) -> None:
        if self.fidelity not in get_args(Fidelity):
            raise UnknownNameError("fidelity", self.fidelity, get_args(Fidelity))


def invariance_penalty(statistics: LinearHead, split: bool = False) -> Float[Tensor, ""]:
    """The IRMv1 penalty.

    Args:
        statistics: The closed-form statistics of a head.
        split: Multiply the derivatives of even and odd samples instead of squaring.

    Returns:
        The mean over domains.

    Example:
        >>> from hessalign.curvature import linear_head
        >>> z, y = torch.ones(2, 1), torch.tensor([1, 0])
        >>> head = linear_head(z, torch.zeros(2), y, torch.tensor([0, 0]), loss="binary")
        >>> invariance_penalty(head)
        tensor(0., dtype=torch.float64)
    """
    slopes = (statistics.error * statistics.logits).sum(1)
    penalties = []
    for part in slopes.split(statistics.domains.sizes):
        if split:
            # A domain with a single sample has no odd one; its derivative is then 0.
            penalties.append(part[::2].mean() * part[1::2].sum() / max(1, len(part) // 2))
        else:
            penalties.append(part.mean().square())
    return torch.stack(penalties).mean()


@final
@dataclass(frozen=True)
class Irm:
    """Minimise the mean risk and the IRMv1 penalty.

    Args:
        config: Which estimate of the squared derivative.
    """

    config: IrmConfig

    def __call__(self, statistics: LinearHead) -> ObjectiveTerms:
        """Risk and penalty.

        Args:
            statistics: Statistics of the head on one batch.

        Returns:
            The terms.
        """
        penalty = invariance_penalty(statistics, split=self.config.fidelity == "domainbed")
        return ObjectiveTerms(statistics.risk.mean(), penalty)
