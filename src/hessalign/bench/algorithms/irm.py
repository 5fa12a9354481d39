r"""Invariant risk minimisation, IRMv1 (Arjovsky et al., 2019).

A predictor is invariant if the same classifier is optimal in every domain. IRMv1 asks this of a
scalar factor w = 1 on the logits $a$:

$$\frac1E \sum_e \left(\frac{\partial}{\partial w} L_e(w \cdot a)\Big|_{w=1}\right)^2,
\qquad \frac{\partial}{\partial w} L_e = \text{mean}_{n \in e}\; r_n \cdot a_n$$

with $r$ the derivative of the loss in the logits, so no second backward pass is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from hessalign._shapes import Float
from hessalign.bench.algorithms.kinds import AbstractObjective, PenaltySchedule
from hessalign.bench.algorithms.options import NonNegative, Options, Whole
from hessalign.bench.algorithms.search import Power, SearchSpace
from hessalign.bench.algorithms.step import ObjectiveTerms, Step
from hessalign.curvature import HeadStatistics

_Fidelity = Literal["paper", "domainbed"]


@final
@dataclass(frozen=True)
class _IrmConfig(Options):
    """Weight of the penalty and which estimate of the squared derivative.

    Attributes:
        penalty_weight: Weight of the penalty after annealing; before it is 1.
        anneal_steps: Steps before the weight jumps.
        fidelity: "paper" squares the derivative over all samples of a domain. "domainbed"
            multiplies the derivatives over its even and its odd samples, which is unbiased.
    """

    penalty_weight: NonNegative = 100.0
    anneal_steps: Whole = 500
    fidelity: _Fidelity = "paper"

    @property
    def schedule(self) -> PenaltySchedule:
        """How the weight of the penalty changes."""
        return PenaltySchedule(1.0, self.penalty_weight, self.anneal_steps, reset=True)


def _invariance_penalty(statistics: HeadStatistics, split: bool = False) -> Float[Tensor, ""]:
    """The IRMv1 penalty.

    Returns:
        The mean over domains.

    Example:
        >>> from hessalign.curvature import linear_head
        >>> z, y = torch.ones(2, 1), torch.tensor([1, 0])
        >>> head = linear_head(z, torch.zeros(2), y, torch.tensor([0, 0]), loss="binary")
        >>> _invariance_penalty(head)
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
class Irm(AbstractObjective):
    """Minimise the mean risk and the IRMv1 penalty."""

    config: _IrmConfig = _IrmConfig()
    search: ClassVar[SearchSpace] = {
        "penalty_weight": ("irm_lambda", Power(10, -1, 5)),
        "anneal_steps": ("irm_penalty_anneal_iters", Power(10, 0, 4, integer=True)),
    }

    def terms(self, step: Step) -> ObjectiveTerms:
        """Risk and penalty."""
        split = self.config.fidelity == "domainbed"
        return ObjectiveTerms(
            step.statistics.risk.mean(), _invariance_penalty(step.statistics, split)
        )
