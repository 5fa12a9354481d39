r"""Methods of the distribution of risks: EQRM over domains, RDM over samples.

Empirical quantile risk minimisation, EQRM (Eastwood et al., 2022, arXiv 2207.09944, algorithm 1),
takes the domains' risks for draws from a distribution and minimises its quantile α: a new domain's
risk is below it with probability α. The distribution is a Gaussian kernel density estimate, so the
quantile q solves

$$\frac1E \sum_e \Phi\left(\frac{q - L_e}{h}\right) = \alpha, \qquad h = 1.06\, E^{-1/5}\, s$$

with the risks' standard deviation s (divisor E − 1). The mean risk is minimised for some steps
first. With one domain the quantile is its risk.

Where they deviate. The quantile is found by halving the interval from $\min_e L_e + h\,
\Phi^{-1}(\alpha)$ to $\max_e L_e + h\, \Phi^{-1}(\alpha)$. In DomainBed it is then differentiated
as a fixed point between these two ends, so the gradient knows no domains but the best and the
worst, and h; ours is the derivative of the quantile. And DomainBed draws the number of first steps
as a fraction, starts the optimiser afresh with a learning rate of its own only if the count of
steps is equal to that, and so never does except with the default.

Risk distribution matching, RDM (Nguyen et al., 2024, arXiv 2310.18598), compares the losses
$\ell_n$ of the samples of the worst domain w with those of all domains, by MMD with γ from 10⁻⁴ to
10³ in powers of ten; its DomainBed code adds their variances (divisors one less than the samples):

$$\lambda\, \mathrm{MMD}^2\big(\{\ell\}_w, \{\ell\}\big) + v \left(\mathrm{var}\,\{\ell\}
+ \mathrm{var}\,\{\ell\}_w\right), \qquad w = \arg\max_e L_e$$

In the MMD each domain has the same share of all. Both terms set in after some steps, with an
optimiser that starts afresh and a learning rate of its own; a variance weight of 0 is the paper's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Annotated, ClassVar, Final, final

import torch
from torch import Tensor

from hessalign._shapes import Float
from hessalign.bench.algorithms.feature_distributions import squared_discrepancy
from hessalign.bench.algorithms.kinds import AbstractObjective, ObjectiveTerms, Step
from hessalign.bench.algorithms.options import (
    Fidelity,
    Fixed,
    Hyper,
    NonNegative,
    Options,
    PenaltySchedule,
    Power,
    Range,
    SearchSpace,
    Uniform,
    Whole,
)

_HALVINGS: Final = 32  # how often the interval that holds a quantile is halved
_GAMMAS: Final = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)
"""Inverse squared widths of RDM's kernels."""


@final
@dataclass(frozen=True)
class _EqrmConfig(Options):
    quantile: Annotated[float, Range(0, 1, open_low=True, open_high=True)] = 0.75  # α
    burn_in_steps: NonNegative = 2500  # with the mean risk; a fraction is the next whole number
    late_lr: NonNegative | None = 1e-6  # learning rate after these; None leaves it as it is
    # "domainbed" for its derivative of the quantile, and for its optimiser, which goes on as before
    # if the number of first steps is a fraction, as all its random draws are.
    fidelity: Fidelity = "paper"

    @property
    def schedule(self) -> PenaltySchedule:
        """When the optimiser starts afresh, with which learning rate; there is no penalty."""
        jump = math.ceil(self.burn_in_steps)
        afresh = self.fidelity == "paper" or jump == self.burn_in_steps
        return PenaltySchedule(jump=jump, reset=afresh, rate=self.late_lr if afresh else None)


def _quantile(
    risks: Float[Tensor, " e"], alpha: float, fidelity: Fidelity = "paper"
) -> Float[Tensor, ""]:
    """The quantile α of the kernel density estimate of some risks."""
    if len(risks) == 1:
        return risks.sum()
    # The tiny number leaves the derivative of the root finite where all risks are equal.
    width: Tensor = 1.06 * len(risks) ** -0.2 * (risks.var() + 1e-24).sqrt()
    reach = width * NormalDist().inv_cdf(alpha)
    low, high = risks.min() + reach, risks.max() + reach
    with torch.no_grad():
        left, right = torch.zeros_like(low), torch.ones_like(low)
        for _ in range(_HALVINGS):
            middle = (left + right) / 2
            point = low + middle * (high - low)
            above = torch.special.ndtr((point - risks) / width).mean() > alpha
            left, right = torch.where(above, left, middle), torch.where(above, middle, right)
        share = (left + right) / 2
    if fidelity == "domainbed":
        return low + share * (high - low)
    # A step of Newton's method from there has the quantile's own derivative.
    point = (low + share * (high - low)).detach()
    scaled = (point - risks) / width
    density = (torch.exp(-scaled.square() / 2) / (width * math.sqrt(2 * math.pi))).mean().detach()
    below: Tensor = torch.special.ndtr(scaled).mean()
    return point - (below - alpha) / density


@final
class Eqrm(AbstractObjective):
    """Minimise the mean risk at first, then a quantile of the risks."""

    config: _EqrmConfig = _EqrmConfig()
    search: ClassVar[SearchSpace] = {
        "quantile": ("eqrm_quantile", Uniform(0.5, 0.99)),
        "burn_in_steps": ("eqrm_burnin_iters", Power(10, 2.5, 3.5)),
        "late_lr": ("eqrm_lr", Power(10, -7, -5)),
    }

    def terms(self, step: Step) -> ObjectiveTerms:
        """The mean risk or the quantile."""
        risk, config = step.statistics.risk, self.config
        if step.number < config.burn_in_steps:
            return ObjectiveTerms(risk.mean())
        return ObjectiveTerms(_quantile(risk, config.quantile, config.fidelity))


@final
@dataclass(frozen=True)
class _RdmConfig(Options):
    matching_weight: NonNegative = 5.0  # λ
    variance_weight: NonNegative = 0.004  # v
    anneal_steps: Whole = 1500  # without both
    late_lr: NonNegative | None = 1.5e-5  # learning rate after these; None leaves it as it is

    @property
    def schedule(self) -> PenaltySchedule:
        """When both terms set in."""
        return PenaltySchedule(0.0, 1.0, self.anneal_steps, reset=True, rate=self.late_lr)


def _variance(values: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    """The unbiased variance, 0 of a single value."""
    return (values - values.mean()).square().sum() / max(1, len(values) - 1)


_NO_VARIANCE: Final = {"variance_weight": Hyper(0.0, Fixed(0.0))}
_LARGE_MATCHING: Final = {"rdm_lambda": Hyper(5.0, Uniform(1, 10))}
_SMALLER_BATCH: Final = {"batch_size": Hyper(40, Uniform(30, 60, integer=True))}


@final
class Rdm(AbstractObjective):
    """Minimise the mean risk, and how the worst domain's losses differ from those of all."""

    config: _RdmConfig = _RdmConfig()
    search: ClassVar[SearchSpace] = {
        "matching_weight": ("rdm_lambda", Uniform(0.1, 10)),
        "anneal_steps": ("rdm_penalty_anneal_iters", Uniform(800, 2700, integer=True)),
        "variance_weight": ("variance_weight", Uniform(0.001, 0.007)),
        "late_lr": ("rdm_lr", Uniform(8e-6, 2e-5)),
    }
    by_dataset: ClassVar[Mapping[str, Mapping[str, Hyper]]] = {
        "PACS": _LARGE_MATCHING,
        "OfficeHome": _NO_VARIANCE,
        "TerraIncognita": {**_LARGE_MATCHING, **_NO_VARIANCE, **_SMALLER_BATCH},
        "DomainNet": {
            "rdm_lambda": Hyper(0.5, Uniform(0.1, 1)),
            "rdm_penalty_anneal_iters": Hyper(2400, Uniform(1500, 3000, integer=True)),
            **_NO_VARIANCE,
            **_SMALLER_BATCH,
        },
    }

    def terms(self, step: Step) -> ObjectiveTerms:
        """Risk and penalty."""
        risk, losses, config = step.statistics.risk, step.losses, self.config
        worst = risk.argmax().unsqueeze(0)
        averaging = step.batch.domains.weights.averaging
        two = torch.cat([averaging.index_select(0, worst), averaging.mean(0, keepdim=True)])
        by_domain = torch.stack([_variance(part) for part in losses.split(step.batch.sizes)])
        parts = {
            "matching": squared_discrepancy(losses.unsqueeze(1), two, _GAMMAS),
            "variance": _variance(losses) + by_domain.index_select(0, worst).sum(),
        }
        penalty = config.matching_weight * parts["matching"]
        penalty = penalty + config.variance_weight * parts["variance"]
        return ObjectiveTerms(risk.mean(), penalty, parts)
