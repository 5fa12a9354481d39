r"""Style-agnostic networks, SagNet (Nam et al., 2021).

Style is what the mean μ and the spread σ of a sample's features say, content what is left after
normalising. With a random other sample z' of the batch and α uniform in [0, 1] for each sample,

$$\text{SR}(z) = \hat\sigma\, \frac{z - \mu}{\sigma} + \hat\mu, \qquad
\hat\mu = \alpha \mu + (1 - \alpha) \mu', \quad \hat\sigma = \alpha \sigma + (1 - \alpha) \sigma',
\qquad \text{CR}(z) = \sigma\, \frac{z' - \mu'}{\sigma'} + \mu$$

Each step takes three, with optimisers of featurizer, head and style head:

1. content: featurizer and head minimise the risk of the head on SR(z);
2. style: the style head minimises its risk on CR(z), whose content is a constant;
3. adversary: the featurizer minimises $w$ times the cross-entropy of the style head on CR(z) with
   the uniform distribution, $-\text{mean}_n \frac1C \sum_c \log p_c$, to make style useless.

Each uses new features, a new order and (1) new α. The paper has this in the middle of a ResNet,
with statistics over pixels; here, as in DomainBed, they are over the d features of a sample, and
risks are means over domains. Predictions use the features as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, final

import torch
from torch import Tensor
from torch.optim import Optimizer

from hessalign._shapes import Float, Int
from hessalign.bench.algorithms.auxiliary import (
    class_logits,
    count_classes,
    draw_order,
    follow,
    fresh_copy,
)
from hessalign.bench.algorithms.kinds import MAIN, AbstractStepOwner, OptimizerSpec, Setting, Step
from hessalign.bench.algorithms.options import Fidelity, NonNegative, Options, Power, SearchSpace

_HEAD: Final = "head"
_STYLE: Final = "style"
_EPSILON: Final = 1e-5
"""Added to variances, so that their root can be divided by."""


@final
@dataclass(frozen=True)
class _SagNetConfig(Options):
    adversary_weight: NonNegative = 0.1
    # "paper" mixes standard deviations with divisor d. "domainbed" mixes variances with divisor
    # d − 1 (0 for a single feature).
    fidelity: Fidelity = "paper"


def _style(
    z: Float[Tensor, "n d"], fidelity: Fidelity = "paper"
) -> tuple[Float[Tensor, "n 1"], Float[Tensor, "n 1"]]:
    """Mean and variance of each sample's features."""
    correction = int(fidelity == "domainbed" and z.shape[1] > 1)
    variance = z.var(1, correction=correction, keepdim=True)
    return z.mean(1, keepdim=True), variance + _EPSILON


def _randomize_style(
    z: Float[Tensor, "n d"],
    share: Float[Tensor, "n 1"],
    order: Int[Tensor, " n"],
    fidelity: Fidelity = "paper",
) -> Float[Tensor, "n d"]:
    """Give each sample a mixture of its own style and another's."""
    mean, variance = _style(z, fidelity)
    content = (z - mean) / variance.sqrt()
    new_mean = share * mean + (1 - share) * mean[order]
    if fidelity == "paper":
        spread = share * variance.sqrt() + (1 - share) * variance.sqrt()[order]
    else:
        spread = (share * variance + (1 - share) * variance[order]).sqrt()
    return content * spread + new_mean


def _randomize_content(
    z: Float[Tensor, "n d"], order: Int[Tensor, " n"], fidelity: Fidelity = "paper"
) -> Float[Tensor, "n d"]:
    """Give each sample the content of another; no derivatives go through that."""
    mean, variance = _style(z, fidelity)
    content = ((z - mean) / variance.sqrt()).detach()
    return content[order] * variance.sqrt() + mean


@final
class SagNet(AbstractStepOwner):
    """Learn from content, and unlearn style."""

    config: _SagNetConfig = _SagNetConfig()
    search: ClassVar[SearchSpace] = {"adversary_weight": ("sag_w_adv", Power(10, -2, 1))}

    def __init__(self, config: _SagNetConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        count_classes(setting)  # refuses regression
        self.style_head = fresh_copy(self.network.head, setting.generator)

    def optimizers(self) -> Mapping[str, OptimizerSpec]:
        """One optimiser for each of the three parts."""
        return {
            MAIN: OptimizerSpec(self.network.featurizer.parameters()),
            _HEAD: OptimizerSpec(self.network.head.parameters()),
            _STYLE: OptimizerSpec(self.style_head.parameters()),
        }

    def _order(self, z: Tensor) -> Tensor:
        return torch.tensor(draw_order(len(z), self.generator), device=z.device)

    def _style_logits(self, step: Step) -> Float[Tensor, "n k"]:
        z = step.network.features(step.batch.x)
        logits: Tensor = self.style_head(
            _randomize_content(z, self._order(z), self.config.fidelity)
        )
        return logits

    def update(self, step: Step, optimizers: Mapping[str, Optimizer]) -> dict[str, float]:
        """Content, style and adversary, one after another."""
        z, generator = step.z, self.generator
        share = torch.rand(len(z), 1, generator=generator, device=generator.device).to(z)
        restyled = _randomize_style(z, share, self._order(z), self.config.fidelity)
        content = step.risks_of(step.network.head(restyled)).mean()
        risk = float(follow(content, optimizers, MAIN, _HEAD))
        style = step.risks_of(self._style_logits(step)).mean()
        style_risk = float(follow(style, optimizers, _STYLE))
        uniform = -class_logits(self._style_logits(step)).log_softmax(1).mean()
        adversary = float(follow(self.config.adversary_weight * uniform, optimizers, MAIN))
        return {"risk": risk, "style_risk": style_risk, "adversary": adversary, "loss": risk}
