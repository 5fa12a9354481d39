r"""Methods of the gradients of the domains' risks in all parameters: IGA, masks and surgery.

Inter-environmental gradient alignment, IGA (Koyama & Yamaguchi, 2020), has as penalty the trace of
the covariance of the gradients over domains, in all parameters θ of the network:

$$\frac1E \sum_e \|\nabla_\theta L_e - \nabla_\theta \bar L\|^2
= \frac1E \sum_{j<E} \Big\|\nabla_\theta \sum_e C_{je} L_e\Big\|^2, \qquad
\bar L = \frac1E \sum_e L_e$$

with orthonormal contrasts C, whose rows are orthogonal to (1, …, 1). There is one less of them than
of domains, so there is one less gradient to keep the graph of: half of the work for two domains.
Unlike `gradient`, which looks at the head alone, this needs a second backward pass through the
whole network. With one domain the penalty is 0.

AND-mask (Parascandolo et al., 2021) follows gradients only where those of the domains agree in
sign. For every single parameter, with $g_e$ the gradient of the risk of domain e,

$$m = \mathbb 1\left[\frac1E \left|\sum_e \text{sign}(g_e)\right| \geq \tau\right],
\qquad \text{follow}\ m \odot \frac1E \sum_e g_e$$

A gradient of exactly 0 has sign 0. At τ = 1 all domains have to agree; at τ = 0, or with one
domain, this is plain gradient descent on the mean risk.

SAND-mask, the smoothed AND-mask (Shahtalebi et al., 2021), asks that they agree in size as well:

$$m = \max\left(0, \tanh\left(\frac{k}{\sigma^2} (a - \tau)\right)\right), \qquad
a = \frac1E \left|\sum_e \text{sign}(g_e)\right|, \qquad
\sigma^2 = \frac{1}{E-1} \sum_e (g_e - \bar g)^2$$

and the gradient to follow is $m \odot \bar g$, divided by the mean of m over the entries of each
parameter tensor (plus 10⁻¹⁰). Where the gradients are equal (σ = 0) the mask is its limit: 1 if
a > τ, else 0. With one domain it is 1.

Beware of τ = 1, DomainBed's default: a never exceeds it, the mask is 0 everywhere and nothing is
learned unless there is one domain. The random draws of a search are below 1.

Gradient surgery (Mansilla et al., 2021, arXiv 2108.01621) adds up the domains' gradients where all
agree in sign. Where they do not, Agr-Sum puts 0, and Agr-Rand a normal draw that does not let a
parameter die:

$$\sum_e g_e \quad \text{if } \Big|\sum_e \text{sign}(g_e)\Big| = E, \qquad
\text{else } 0 \text{ or } \sigma \varepsilon, \quad \varepsilon \sim \mathcal N(0, 1)$$

with σ the mean absolute value of the sums where all agree, over all parameters, as in the authors'
code; 0 if they agree nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor

from hessalign._shapes import Float
from hessalign.bench.algorithms.auxiliary import draw_normal
from hessalign.bench.algorithms.kinds import (
    AbstractGradientRule,
    AbstractObjective,
    ObjectiveTerms,
    Step,
)
from hessalign.bench.algorithms.options import (
    Fidelity,
    NonNegative,
    Options,
    PenaltyOptions,
    Power,
    Range,
    SearchSpace,
    Share,
    Uniform,
)


@final
@dataclass(frozen=True)
class _IgaConfig(PenaltyOptions):
    penalty_weight: NonNegative = 1000.0
    # "domainbed" takes the sum over domains instead of the mean, and treats the mean gradient as a
    # constant. Since the deviations add up to 0, the constant changes no gradient, so it is E times
    # "paper".
    fidelity: Fidelity = "paper"


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
    # With DomainBed's weights nothing is learnt there; the rule is that of Hessian alignment.
    search_features: ClassVar[SearchSpace] = {"penalty_weight": ("penalty", Power(10, -2.5, 1.5))}

    @classmethod
    def differentiates_twice(cls, config: _IgaConfig) -> bool:
        """It always does."""
        return True

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


def _sign_agreement(gradients: Float[Tensor, " e *p"]) -> Float[Tensor, "*p"]:
    """The absolute mean of the signs, 1 where all domains' gradients agree."""
    return gradients.sign().mean(0).abs()


def _masked_mean(
    gradients: Float[Tensor, " e *p"], mask: Float[Tensor, "*p"], rescale: bool
) -> Float[Tensor, "*p"]:
    """The mean gradient where the mask is open."""
    mean = mask * gradients.mean(0)
    return mean / (mask.mean() + 1e-10) if rescale else mean


@final
@dataclass(frozen=True)
class _AndMaskConfig(Options):
    tau: Share = 1.0
    # "domainbed" also divides the gradient of each parameter tensor by the share of its entries
    # that the mask keeps (plus 10⁻¹⁰).
    fidelity: Fidelity = "paper"


@final
class AndMask(AbstractGradientRule):
    """Descend the mean risk along the parameters in which all domains agree."""

    config: _AndMaskConfig = _AndMaskConfig()
    search: ClassVar[SearchSpace] = {"tau": ("tau", Uniform(0.5, 1))}

    def combine(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """The masked mean gradient."""
        rescale = self.config.fidelity == "domainbed"
        return [
            _masked_mean(each, (_sign_agreement(each) >= self.config.tau).to(each.dtype), rescale)
            for each in gradients
        ]


@final
@dataclass(frozen=True)
class _SandMaskConfig(Options):
    tau: Share = 1.0
    k: Annotated[float, Range(0, open_low=True)] = 10.0  # large values make an AND-mask of it


def _smooth_mask(gradients: Float[Tensor, " e *p"], tau: float, k: float) -> Float[Tensor, "*p"]:
    """The mask of one parameter tensor."""
    if len(gradients) == 1:
        return torch.ones_like(gradients[0])
    excess = _sign_agreement(gradients) - tau
    variance = gradients.var(0)
    smooth = (k * excess / variance).tanh().clamp(min=0)
    return torch.where(variance > 0, smooth, (excess > 0).to(smooth.dtype))


@final
class SandMask(AbstractGradientRule):
    """Descend the mean risk, each parameter as far as the domains agree on it."""

    config: _SandMaskConfig = _SandMaskConfig()
    search: ClassVar[SearchSpace] = {"tau": ("tau", Uniform(0, 1)), "k": ("k", Power(10, -3, 5))}

    def combine(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """The masked mean gradient."""
        return [
            _masked_mean(each, _smooth_mask(each, self.config.tau, self.config.k), rescale=True)
            for each in gradients
        ]


@final
@dataclass(frozen=True)
class SurgeryConfig(Options):
    """What is put where gradients disagree in sign."""

    random: bool = False  # a normal draw (Agr-Rand) instead of 0 (Agr-Sum)


@final
class Surgery(AbstractGradientRule):
    """Follow the sum of the domains' gradients where all agree in sign."""

    config: SurgeryConfig = SurgeryConfig()

    def combine(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """The sums where all agree; elsewhere 0, or noise of their mean size."""
        agree = [each.sign().sum(0).abs() == len(each) for each in gradients]
        sums = [each.sum(0) * kept for each, kept in zip(gradients, agree, strict=True)]
        if not self.config.random:
            return sums
        total = torch.stack([each.abs().sum() for each in sums]).sum()
        size = total / torch.stack([kept.sum() for kept in agree]).sum().clamp(min=1)
        return [
            torch.where(kept, each, size * draw_normal(each, self.generator))
            for each, kept in zip(sums, agree, strict=True)
        ]
