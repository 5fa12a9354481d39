r"""Align how much the losses of single samples vary inside each domain.

$$\frac1E \sum_e (v_e - \bar v)^2, \qquad v_e = \text{mean}_{n \in e}\, (\ell_n - L_e)^2$$
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch

from hessalign.bench.algorithms import (
    AbstractObjective,
    NonNegative,
    ObjectiveTerms,
    Options,
    PenaltySchedule,
    Power,
    SearchSpace,
    Step,
    Whole,
)
from hessalign.curvature import make_loss


@final
@dataclass(frozen=True)
class SpreadConfig(Options):
    """Weight of the penalty.

    Attributes:
        penalty_weight: Weight of the penalty after annealing; before it is 0.
        anneal_steps: Steps before the penalty sets in.
    """

    penalty_weight: NonNegative = 1.0
    anneal_steps: Whole = 10

    @property
    def schedule(self) -> PenaltySchedule:
        """How the weight of the penalty changes."""
        return PenaltySchedule(0.0, self.penalty_weight, self.anneal_steps)


@final
class Spread(AbstractObjective):
    """Minimise the mean risk and the dispersion of the variances of the loss."""

    config: SpreadConfig = SpreadConfig()
    search: ClassVar[SearchSpace] = {"penalty_weight": Power(10, -1, 2)}

    def terms(self, step: Step) -> ObjectiveTerms:
        """Risk and penalty."""
        losses = make_loss(step.loss).values(step.logits, step.batch.y)
        parts = losses.split(step.batch.sizes)  # one for each domain
        variances = torch.stack([part.var(correction=0) for part in parts])
        penalty = (variances - variances.mean()).square().mean()
        return ObjectiveTerms(step.statistics.risk.mean(), penalty)
