r"""Fishr (Ramé et al., 2022): align the variances of the gradients of single samples.

With $g_n = r_n \otimes \tilde z_n$ the gradient of one sample's loss in the head,

$$v_e = \text{mean}_{n \in e}\; (g_n - g_e)^2, \qquad \frac1E \sum_e \|v_e - \bar v\|^2$$

with squares taken per parameter. In closed form $v_e = \text{mean}\, r_n^2 \otimes \tilde z_n^2 -
g_e^2$, so single samples' gradients are never formed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, final

import torch
from torch import Tensor

from hessalign._shapes import Float
from hessalign.bench.algorithms.kinds import AbstractObjective, ObjectiveTerms, Setting, Step
from hessalign.bench.algorithms.options import (
    AnnealedOptions,
    NonNegative,
    Power,
    Range,
    SearchSpace,
    Uniform,
    Whole,
)


@final
@dataclass(frozen=True)
class _FishrConfig(AnnealedOptions):
    before = 0.0
    penalty_weight: NonNegative = 1000.0
    anneal_steps: Whole = 1500
    # Share of the past in a moving average of the variances; 0 uses each batch alone.
    ema: Annotated[float, Range(0, 1, open_high=True)] = 0.95
    # "domainbed" for the mean over domains and over the parameters of the head: the authors' own
    # code on DomainBed, for which default and range of the weight were made. "paper" for the mean
    # over domains of the squared distance. "released" for the Colored MNIST scripts: the sum.
    fidelity: Literal["paper", "released", "domainbed"] = "domainbed"


@final
class Fishr(AbstractObjective):
    """Minimise the mean risk and the dispersion of gradient variances."""

    config: _FishrConfig = _FishrConfig()
    search: ClassVar[SearchSpace] = {
        "penalty_weight": ("lambda", Power(10, 1, 4)),
        "anneal_steps": ("penalty_anneal_iters", Uniform(0, 5000, integer=True)),
        "ema": ("ema", Uniform(0.90, 0.99)),
    }
    average: Tensor

    def __init__(self, config: _FishrConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        parameters = sum(p.numel() for p in self.network.head.parameters())
        shape = (setting.domains, parameters if config.ema else 0)
        self.register_buffer("average", torch.zeros(shape, dtype=torch.float64))

    def _smoothed(self, variances: Float[Tensor, "e p"]) -> Float[Tensor, "e p"]:
        """Moving average over steps, from zero on, differentiable in this batch alone."""
        ema = self.config.ema
        if ema == 0:
            return variances
        average = ema * self.average + (1 - ema) * variances
        self.average = average.detach()
        # As in the method's own code, so that the gradient of the variances does not depend on it.
        return average / (1 - ema)

    def terms(self, step: Step) -> ObjectiveTerms:
        """Risk and penalty."""
        variances = self._smoothed(step.statistics.gradient_variance)
        domains, parameters = variances.shape
        scale = {"paper": 1.0, "released": float(domains), "domainbed": 1 / parameters}
        dispersion = (variances - variances.mean(0)).square().sum(1).mean()
        penalty = scale[self.config.fidelity] * dispersion
        return ObjectiveTerms(step.statistics.risk.mean(), penalty)
