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
from hessalign.bench.algorithms.kinds import AbstractObjective, ObjectiveTerms, Setting, Step
from hessalign.bench.algorithms.options import Options, SearchSpace, Share, Uniform


@final
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
