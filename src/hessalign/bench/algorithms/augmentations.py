"""Methods that train on altered samples."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hessalign._shapes import Bool, Float, Int
from hessalign.bench.algorithms.auxiliary import (
    class_logits,
    count_classes,
    draw_beta,
    draw_order,
    draw_uniform,
    follow,
    fresh_copy,
)
from hessalign.bench.algorithms.kinds import (
    MAIN,
    AbstractObjective,
    AbstractStepOwner,
    Batch,
    ObjectiveTerms,
    OptimizerSpec,
    Setting,
    Step,
    Terms,
)
from hessalign.bench.algorithms.options import (
    Fidelity,
    NonNegative,
    Options,
    Power,
    Range,
    SearchSpace,
    Share,
    Uniform,
)
from hessalign.curvature.losses import make_loss


@dataclass(frozen=True)
class _MixupConfig(Options):
    # The parameter a of the Beta distribution; small values hardly mix.
    alpha: Annotated[float, Range(0, open_low=True)] = 0.2
    # "paper" mixes every sample of i with a sample of j drawn at random. "domainbed" mixes the
    # first sample of i with the first of j and so on, and leaves out those that the larger of the
    # two domains has more.
    fidelity: Fidelity = "paper"


@final
class Mixup(AbstractObjective):
    r"""Minimise the mean risk on convex combinations of samples of two domains.

    $$x = \lambda x_i + (1 - \lambda) x_j, \qquad
    \lambda\, \ell(f(x), y_i) + (1 - \lambda)\, \ell(f(x), y_j), \qquad
    \lambda \sim \text{Beta}(a, a)$$

    The domains are put in a random order and each is mixed with the next one, the last with the
    first, so every domain is i once and j once. One λ is drawn per pair of domains. The risk is the
    mean over the E pairs of the mean over their samples. With one domain it is mixed with itself.
    """

    aligns = "nothing; mixtures of two domains"
    reference = "Zhang et al., 2018; Yan et al., 2020"
    config: _MixupConfig = _MixupConfig()
    # As DomainBed has it since January 2023; until then the exponent lay between −1 and −1.
    search: ClassVar[SearchSpace] = {"alpha": ("mixup_alpha", Power(10, -1, 1))}
    search_released: ClassVar[SearchSpace] = {"alpha": ("mixup_alpha", Power(10, -1, -1))}

    def _partners(self, first: Batch, second: Batch) -> Tensor:
        """Which samples of the second domain the first ones of the first are mixed with."""
        sizes, generator = (len(first.y), len(second.y)), self.generator
        if self.config.fidelity == "domainbed":
            return torch.arange(min(sizes), device=first.y.device)
        drawn = torch.randint(sizes[1], sizes[:1], generator=generator, device=generator.device)
        return drawn.to(first.y.device)

    def terms(self, step: Step) -> ObjectiveTerms:
        """The mean risk on mixtures."""
        domains, loss = step.batch.parts, make_loss(step.loss)
        order = draw_order(len(domains), self.generator)
        risks = []
        for i, j in zip(order, order[1:] + order[:1], strict=True):
            share = draw_beta(self.config.alpha, self.generator)
            partners = self._partners(domains[i], domains[j])
            x, y = domains[i].x[: len(partners)], domains[i].y[: len(partners)]
            other_x, other_y = domains[j].x[partners], domains[j].y[partners]
            logits = step.network(share * x + (1 - share) * other_x)
            values = share * loss.values(logits, y) + (1 - share) * loss.values(logits, other_y)
            risks.append(values.mean())
        return ObjectiveTerms(torch.stack(risks).mean())


@dataclass(frozen=True)
class _RscConfig(Options):
    feature_drop: Share = 1 / 3  # f
    batch_drop: Share = 1 / 3  # b


def _below_quantile(values: Float[Tensor, "*n d"], drop: float) -> Bool[Tensor, "*n d"]:
    """What lies below the (1 − drop) quantile of the last axis; the greatest value never does."""
    # As `Tensor.quantile`, which refuses more than 2²⁴ values.
    position = (1 - drop) * (values.shape[-1] - 1)
    low, high = math.floor(position), math.ceil(position)
    ordered = values.sort(dim=-1).values
    below, above = ordered[..., low : low + 1], ordered[..., high : high + 1]
    return values < below.lerp(above, position - low)


def _of_label(columns: Float[Tensor, "n k"], y: Tensor) -> Float[Tensor, " n"]:
    """The column of each sample's class; of a single one its negative for class 0."""
    if columns.shape[1] == 1:
        return (2 * y.to(columns.dtype) - 1) * columns.squeeze(1)
    return columns.gather(1, y.long().unsqueeze(1)).squeeze(1)


def _confidence(logits: Float[Tensor, "n k"], y: Tensor) -> Float[Tensor, " n"]:
    """The probability of each sample's class."""
    return _of_label(class_logits(logits).softmax(1), y)


def _muting_mask(
    head: nn.Module, z: Float[Tensor, "n d"], y: Tensor, config: _RscConfig
) -> Float[Tensor, "n d"]:
    """What of the features is kept."""
    with torch.enable_grad():
        z = z.detach().requires_grad_()
        logits = head(z)
        (gradient,) = torch.autograd.grad(_of_label(logits, y).sum(), z)
    with torch.no_grad():
        keep = _below_quantile(gradient, config.feature_drop)
        fall = _confidence(logits, y) - _confidence(head(z * keep), y)
        spared = _below_quantile(fall, config.batch_drop)
        return (keep | spared.unsqueeze(1)).to(z.dtype)


@final
class Rsc(AbstractObjective):
    r"""Representation self-challenging: learn to do without the most telling features.

    For each sample, with $s_y(z)$ the logit of its class (for one logit a: a if y = 1, −a if
    y = 0):

    1. $g = \partial s_y(z) / \partial z$ (eq. 1)
    2. mute the features with g at or above its (1 − f) quantile over the d features (eq. 2, 3)
    3. of all samples of the batch, mute only those whose confidence $p_y$ falls by an amount at or
       above the (1 − b) quantile of all falls (section 3.3)
    4. minimise the loss of the head on the muted features (eq. 4, 5)

    Quantiles interpolate linearly. Masks are constants of the step. The risk is the mean over
    domains; the quantile of the falls is over the whole batch. Predictions use all features.
    """

    aligns = "nothing; telling features are muted"
    reference = "Huang et al., 2020"
    config: _RscConfig = _RscConfig()
    search: ClassVar[SearchSpace] = {
        "feature_drop": ("rsc_f_drop_factor", Uniform(0, 0.5)),
        "batch_drop": ("rsc_b_drop_factor", Uniform(0, 0.5)),
    }

    def __init__(self, config: _RscConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        count_classes(setting)  # refuses regression

    def terms(self, step: Step) -> ObjectiveTerms:
        """The mean risk on muted features."""
        head = step.network.head
        mask = _muting_mask(head, step.z, step.batch.y, self.config)
        return ObjectiveTerms(step.risks_of(head(step.z * mask)).mean())


_HEAD: Final = "head"
_STYLE: Final = "style"
_EPSILON: Final = 1e-5  # added to variances, so that their root can be divided by


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
    r"""Style-agnostic networks: learn from content, and unlearn style.

    Style is what the mean μ and the spread σ of a sample's features say, content what is left after
    normalising. With a random other sample z' of the batch and α uniform in [0, 1] for each sample,

    $$\text{SR}(z) = \hat\sigma\, \frac{z - \mu}{\sigma} + \hat\mu, \qquad
    \text{CR}(z) = \sigma\, \frac{z' - \mu'}{\sigma'} + \mu$$
    $$(\hat\mu, \hat\sigma) = \alpha (\mu, \sigma) + (1 - \alpha) (\mu', \sigma')$$

    Each step takes three, with optimisers of featurizer, head and style head:

    1. content: featurizer and head minimise the risk of the head on SR(z);
    2. style: the style head minimises its risk on CR(z), whose content is a constant;
    3. adversary: the featurizer minimises $w$ times the cross-entropy of the style head on CR(z)
       with the uniform distribution, $-\text{mean}_n \frac1C \sum_c \log p_c$, to make it useless.

    Each uses new features, a new order and (1) new α. The paper has this in the middle of a ResNet,
    with statistics over pixels; here, as in DomainBed, they are over the d features of a sample,
    and risks are means over domains. Predictions use the features as they are.
    """

    aligns = "nothing; the style of features is randomised"
    reference = "Nam et al., 2021"
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
        restored = _randomize_content(z, self._order(z), self.config.fidelity)
        logits: Tensor = self.style_head(restored)
        return logits

    def update(self, step: Step, optimizers: Mapping[str, Optimizer]) -> Terms:
        """Content, style and adversary, one after another."""
        z = step.z
        share = draw_uniform(self.generator, len(z), 1).to(z)
        restyled = _randomize_style(z, share, self._order(z), self.config.fidelity)
        content = step.risks_of(step.network.head(restyled)).mean()
        risk = follow(content, optimizers, MAIN, _HEAD)
        style = step.risks_of(self._style_logits(step)).mean()
        style_risk = follow(style, optimizers, _STYLE)
        uniform = -class_logits(self._style_logits(step)).log_softmax(1).mean()
        adversary = follow(self.config.adversary_weight * uniform, optimizers, MAIN)
        return {"risk": risk, "style_risk": style_risk, "adversary": adversary, "loss": risk}
