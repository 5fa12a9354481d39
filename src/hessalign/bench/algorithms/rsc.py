r"""Representation self-challenging, RSC (Huang et al., 2020).

Mute the features on which the prediction relies most, and learn to do without them. For each
sample, with $s_y(z)$ the logit of its class (for one logit a: a if y = 1, −a if y = 0):

1. $g = \partial s_y(z) / \partial z$ (eq. 1)
2. mute the features with g at or above its (1 − f) quantile over the d features (eq. 2, 3)
3. of all samples of the batch, mute only those whose confidence $p_y$ falls by an amount at or
   above the (1 − b) quantile of all falls (section 3.3)
4. minimise the loss of the head on the muted features (eq. 4, 5)

Quantiles interpolate linearly. Masks are constants of the step. The risk is the mean over domains;
the quantile of the falls is over the whole batch. Predictions use all features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from hessalign._shapes import Bool, Float
from hessalign.bench.algorithms.auxiliary import class_logits, count_classes
from hessalign.bench.algorithms.kinds import AbstractObjective, Setting
from hessalign.bench.algorithms.options import Options, Share
from hessalign.bench.algorithms.search import SearchSpace, Uniform
from hessalign.bench.algorithms.step import ObjectiveTerms, Step


@final
@dataclass(frozen=True)
class _RscConfig(Options):
    """How much is muted.

    Attributes:
        feature_drop: Share f of the features.
        batch_drop: Share b of the samples.
    """

    feature_drop: Share = 1 / 3
    batch_drop: Share = 1 / 3


def _below_quantile(values: Float[Tensor, "*n d"], drop: float) -> Bool[Tensor, "*n d"]:
    """What lies below the (1 − drop) quantile of the last axis.

    Returns:
        True for what is kept; the greatest value is never kept.

    Example:
        >>> _below_quantile(torch.tensor([4.0, 1.0, 3.0]), 1 / 3)
        tensor([False,  True,  True])
    """
    # As `Tensor.quantile`, which refuses more than 2²⁴ values.
    position = (1 - drop) * (values.shape[-1] - 1)
    low, high = math.floor(position), math.ceil(position)
    ordered = values.sort(dim=-1).values
    below, above = ordered[..., low : low + 1], ordered[..., high : high + 1]
    return values < below.lerp(above, position - low)


def _label_scores(logits: Float[Tensor, "n k"], y: Tensor) -> Float[Tensor, " n"]:
    """The logit of each sample's class.

    Returns:
        One score per sample.

    Example:
        >>> _label_scores(torch.tensor([[2.0], [3.0]]), torch.tensor([1, 0]))
        tensor([ 2., -3.])
    """
    if logits.shape[1] == 1:
        return (2 * y.to(logits.dtype) - 1) * logits.squeeze(1)
    return logits.gather(1, y.long().unsqueeze(1)).squeeze(1)


def _confidence(logits: Float[Tensor, "n k"], y: Tensor) -> Float[Tensor, " n"]:
    """The probability of each sample's class."""
    return class_logits(logits).softmax(1).gather(1, y.long().unsqueeze(1)).squeeze(1)


def _muting_mask(
    head: nn.Module, z: Float[Tensor, "n d"], y: Tensor, config: _RscConfig
) -> Float[Tensor, "n d"]:
    """What of the features is kept."""
    with torch.enable_grad():
        z = z.detach().requires_grad_()
        logits = head(z)
        (gradient,) = torch.autograd.grad(_label_scores(logits, y).sum(), z)
    with torch.no_grad():
        keep = _below_quantile(gradient, config.feature_drop)
        fall = _confidence(logits, y) - _confidence(head(z * keep), y)
        spared = _below_quantile(fall, config.batch_drop)
        return (keep | spared.unsqueeze(1)).to(z.dtype)


@final
class Rsc(AbstractObjective):
    """Minimise the mean risk without the most telling features."""

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
