r"""Invariant risk minimisation, IRMv1 (Arjovsky et al., 2019).

A predictor is invariant if the same classifier is optimal in every domain. IRMv1 asks this of a
scalar factor w = 1 on the logits $a$:

$$\frac1E \sum_e \left(\frac{\partial}{\partial w} L_e(w \cdot a)\Big|_{w=1}\right)^2,
\qquad \frac{\partial}{\partial w} L_e = \text{mean}_{n \in e}\; r_n \cdot a_n$$

with $r$ the derivative of the loss in the logits, so no second backward pass is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch

from hessalign.bench.algorithms.kinds import AbstractObjective, ObjectiveTerms, Step
from hessalign.bench.algorithms.options import (
    AnnealedOptions,
    Fidelity,
    NonNegative,
    Power,
    SearchSpace,
)


@final
@dataclass(frozen=True)
class _IrmConfig(AnnealedOptions):
    penalty_weight: NonNegative = 100.0
    # "paper" squares the derivative over all samples of a domain. "domainbed" multiplies the
    # derivatives over its even and its odd samples, which is unbiased.
    fidelity: Fidelity = "paper"


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
        risk = step.statistics.risk.mean()
        slopes = (step.statistics.error * step.statistics.logits).sum(1)
        penalties = []
        for part in slopes.split(step.batch.sizes):
            if self.config.fidelity == "domainbed":
                # A domain with a single sample has no odd one; its derivative is then 0.
                penalties.append(part[::2].mean() * part[1::2].sum() / max(1, len(part) // 2))
            else:
                penalties.append(part.mean().square())
        return ObjectiveTerms(risk, torch.stack(penalties).mean())
