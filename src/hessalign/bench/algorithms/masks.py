r"""AND-mask and SAND-mask: follow gradients only where the domains agree on them.

AND-mask (Parascandolo et al., 2021) asks that the domains' gradients agree in sign. For every
single parameter, with $g_e$ the gradient of the risk of domain e,

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
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor

from hessalign._shapes import Float
from hessalign.bench.algorithms.kinds import AbstractGradientRule
from hessalign.bench.algorithms.options import (
    Fidelity,
    Options,
    Power,
    Range,
    SearchSpace,
    Share,
    Uniform,
)


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
