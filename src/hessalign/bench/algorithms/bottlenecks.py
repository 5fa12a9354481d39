r"""Methods that let features carry less: IB-ERM, IB-IRM, CAD and CondCAD.

The information bottleneck (Ahuja et al., 2021, arXiv 2106.06607) makes the entropy of the features
small, for which their variance stands: IB-ERM adds

$$\frac1E \sum_e \frac1d \sum_j \mathrm{var}_{n \in e}\, z_{nj}$$

to the mean risk (divisors $n_e - 1$; 0 for a single sample), IB-IRM both this and IRMv1's penalty
(`hessalign.bench.algorithms.risks`), each with a weight that sets in when it is time.

The contrastive adversarial domain bottleneck, CAD (Ruan et al., 2022, arXiv 2201.00057, section
4.2), makes the domain hard to tell by the features. There is no discriminator to be trained: what
tells the domain of a sample is how similar it is to others of the batch,

$$p_n = \frac{\sum_{m \in e(n),\, m \neq n} e^{z_n \cdot z_m / T}}
{\sum_{m \neq n} e^{z_n \cdot z_m / T}}, \qquad
\text{"paper"}: \text{mean}_n \log p_n, \qquad
\text{"domainbed"}: -\frac{T}{0.07}\, \text{mean}_n \log(1 - p_n)$$

CondCAD (its appendix C.4) does so among the samples of one class: all m have $y_m = y_n$. Samples
for which the logarithm is of 0 are left out; so are for CAD in DomainBed those that have no other
sample of their class in the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, final

import torch
from torch import Tensor

from hessalign._shapes import Float
from hessalign.bench.algorithms.auxiliary import count_classes, sum_over_rows
from hessalign.bench.algorithms.kinds import AbstractObjective, ObjectiveTerms, Setting, Step
from hessalign.bench.algorithms.options import (
    AnnealedOptions,
    Choice,
    Fidelity,
    NonNegative,
    Options,
    PenaltyOptions,
    PenaltySchedule,
    Power,
    Range,
    SearchSpace,
    Whole,
)
from hessalign.bench.algorithms.risks import irm_penalty

_WEIGHTS: Final = Power(10, -1, 5)
_STEPS: Final = Power(10, 0, 4, integer=True)


def _feature_variance(step: Step) -> Float[Tensor, ""]:
    """Mean over domains and features of the variance within a domain."""
    variances = [
        (z - z.mean(0)).square().sum(0).mean() / max(1, len(z) - 1)
        for z in step.features_by_domain()
    ]
    return torch.stack(variances).mean()


@final
@dataclass(frozen=True)
class _IbErmConfig(AnnealedOptions):
    before = 0.0
    penalty_weight: NonNegative = 100.0


@final
class IbErm(AbstractObjective):
    """Minimise the mean risk and the variance of the features."""

    config: _IbErmConfig = _IbErmConfig()
    search: ClassVar[SearchSpace] = {
        "penalty_weight": ("ib_lambda", _WEIGHTS),
        "anneal_steps": ("ib_penalty_anneal_iters", _STEPS),
    }

    def terms(self, step: Step) -> ObjectiveTerms:
        """Risk and penalty."""
        return ObjectiveTerms(step.statistics.risk.mean(), _feature_variance(step))


@final
@dataclass(frozen=True)
class _IbIrmConfig(Options):
    irm_weight: NonNegative = 100.0
    irm_anneal_steps: Whole = 500  # with the weight 1
    ib_weight: NonNegative = 100.0
    ib_anneal_steps: Whole = 500  # with the weight 0
    fidelity: Fidelity = "paper"  # of IRM's penalty

    @property
    def schedule(self) -> PenaltySchedule:
        """The sum has the weight 1; the optimiser starts afresh when either term sets in."""
        return PenaltySchedule(resets=(self.irm_anneal_steps, self.ib_anneal_steps))


@final
class IbIrm(AbstractObjective):
    """Minimise the mean risk, the IRMv1 penalty and the variance of the features."""

    config: _IbIrmConfig = _IbIrmConfig()
    search: ClassVar[SearchSpace] = {
        "irm_weight": ("irm_lambda", _WEIGHTS),
        "irm_anneal_steps": ("irm_penalty_anneal_iters", _STEPS),
        "ib_weight": ("ib_lambda", _WEIGHTS),
        "ib_anneal_steps": ("ib_penalty_anneal_iters", _STEPS),
    }

    def terms(self, step: Step) -> ObjectiveTerms:
        """Risk and penalty."""
        config = self.config
        parts = {"irm": irm_penalty(step, config.fidelity), "ib": _feature_variance(step)}
        weights = (
            PenaltySchedule(1.0, config.irm_weight, config.irm_anneal_steps),
            PenaltySchedule(0.0, config.ib_weight, config.ib_anneal_steps),
        )
        irm, ib = (each.weight(step.number) for each in weights)
        penalty = irm * parts["irm"] + ib * parts["ib"]
        return ObjectiveTerms(step.statistics.risk.mean(), penalty, parts)


@final
@dataclass(frozen=True)
class CadConfig(PenaltyOptions):
    """The bottleneck's weight λ, and how similarity is measured."""

    penalty_weight: NonNegative = 0.1
    temperature: Annotated[float, Range(0, open_low=True)] = 0.1  # T
    conditional: bool = False  # whether among the samples of one class (CondCAD)
    # "domainbed" for the authors' own code there, for which default and range of the weight were
    # made, and which they found more stable. "paper" for the logarithm of p itself, which has no
    # lower bound. DomainBed's is_normalized, is_project and is_flipped are those of its draws:
    # neither of the first two, and the last.
    fidelity: Fidelity = "domainbed"


@final
class Cad(AbstractObjective):
    """Minimise the mean risk and how well the batch tells a sample's domain."""

    config: CadConfig = CadConfig()
    search: ClassVar[SearchSpace] = {
        "penalty_weight": ("lmbda", Choice((1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2))),
        "temperature": ("temperature", Choice((0.05, 0.1))),
    }

    def __init__(self, config: CadConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        if config.conditional or config.fidelity == "domainbed":
            count_classes(setting)  # refuses a loss without classes

    def _bottleneck(self, z: Float[Tensor, "n d"], y: Tensor, domain: Tensor) -> Tensor:
        """The penalty of a batch."""
        config, place = self.config, torch.arange(len(z), device=z.device)
        domainbed = config.fidelity == "domainbed"

        def part(rows: Tensor, labels: Tensor, domains: Tensor, places: Tensor) -> Tensor:
            scores = rows @ z.T / config.temperature
            others = places.unsqueeze(1) != place
            alike = others & (labels.unsqueeze(1) == y)
            among = alike if config.conditional else others
            at_home = domains.unsqueeze(1) == domain
            wanted = among & (~at_home if domainbed else at_home)
            counted = (wanted.any(1) & alike.any(1)) if domainbed else wanted.any(1)
            # Rows that do not count are not masked, so that they stay finite.
            sums = [
                scores.masked_fill(~mask & counted.unsqueeze(1), -torch.inf).logsumexp(1)
                for mask in (wanted, among)
            ]
            return torch.stack([((sums[0] - sums[1]) * counted).sum(), counted.sum().to(scores)])

        total, count = sum_over_rows(part, z, y, domain, place)
        mean: Tensor = total / count.clamp(min=1)
        return -config.temperature / 0.07 * mean if domainbed else mean

    def terms(self, step: Step) -> ObjectiveTerms:
        """Risk and penalty."""
        penalty = self._bottleneck(step.z, step.batch.y, step.batch.domain)
        return ObjectiveTerms(step.statistics.risk.mean(), penalty)
