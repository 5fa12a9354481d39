r"""Inter-environmental gradient alignment, IGA (Koyama & Yamaguchi, 2020).

Align the gradients of the domains' risks in all parameters θ of the network: the penalty is the
trace of the covariance of the gradients over domains,

$$\frac1E \sum_e \|\nabla_\theta L_e - \nabla_\theta \bar L\|^2
= \frac1E \sum_{j<E} \Big\|\nabla_\theta \sum_e C_{je} L_e\Big\|^2, \qquad
\bar L = \frac1E \sum_e L_e$$

with orthonormal contrasts C, whose rows are orthogonal to (1, …, 1). There is one less of them than
of domains, so there is one less gradient to keep the graph of: half of the work for two domains.

Unlike `gradient`, which looks at the head alone, this needs a second backward pass through the
whole network. With one domain the penalty is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, final

import torch
from torch import Tensor

from hessalign._shapes import Float
from hessalign.bench.algorithms.kinds import AbstractObjective, ObjectiveTerms, Step
from hessalign.bench.algorithms.options import (
    Fidelity,
    NonNegative,
    PenaltyOptions,
    Power,
    SearchSpace,
)


@final
@dataclass(frozen=True)
class _IgaConfig(PenaltyOptions):
    penalty_weight: NonNegative = 1000.0
    # "domainbed" takes the sum over domains instead of the mean, and treats the mean gradient as a
    # constant. Since the deviations add up to 0, the constant changes no gradient, so it is E times
    # "paper".
    fidelity: Fidelity = "paper"


FEATURES_SEARCH: Final[SearchSpace] = {"penalty_weight": ("penalty", Power(10, -2.5, 1.5))}
"""For frozen features, where DomainBed's weights let nothing be learnt; by the rule of
`hessian.FEATURES_SEARCH`."""


def _contrasts(domains: int) -> Float[Tensor, "j e"]:
    """Orthonormal rows, orthogonal to the row of ones: each domain against those before it."""
    before = torch.arange(1, domains, dtype=torch.float64).unsqueeze(1)
    rows = torch.ones(domains - 1, domains, dtype=torch.float64).tril().neg()
    rows += torch.cat([torch.zeros(domains - 1, 1), torch.diag(before.squeeze(1))], dim=1)
    return rows / (before * (before + 1)).sqrt()


@final
class Iga(AbstractObjective):
    """Minimise the mean risk and the variance of its gradient over domains."""

    config: _IgaConfig = _IgaConfig()
    search: ClassVar[SearchSpace] = {"penalty_weight": ("penalty", Power(10, 1, 5))}

    def terms(self, step: Step) -> ObjectiveTerms:
        """Risk and penalty."""
        risk = step.statistics.risk
        parameters = [each for each in self.network.parameters() if each.requires_grad]
        total = risk.new_zeros(())
        for row in _contrasts(len(risk)).to(risk):
            gradient = torch.autograd.grad(row @ risk, parameters, create_graph=True)
            total = total + torch.stack([each.square().sum() for each in gradient]).sum()
        scale = 1 if self.config.fidelity == "domainbed" else len(risk)
        return ObjectiveTerms(risk.mean(), total / scale)
