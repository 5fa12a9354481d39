r"""The samples of a head, features fixed: checked, arranged by domain, and its risks on them.

A point is the head's parameters as one row, output by output, weights before bias; several points
are evaluated with the same two matrix products as one.

Indices: e domain, n sample, b point, k output of the head, d feature (with the constant of the
bias), p = (k, d) parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, final

import torch
from torch import Tensor, nn

from hessalign._errors import InputError, InputTypeError
from hessalign._numbers import HUGE, check_count, number, shown
from hessalign._shapes import Bool, Float, Int
from hessalign.curvature import LinearHead
from hessalign.curvature.activations import ACTIVATIONS
from hessalign.curvature.domains import DomainLike, Domains, sample_weights
from hessalign.curvature.factors import Features
from hessalign.curvature.inputs import (
    check_dense,
    check_features,
    check_finite,
    check_is_tensor,
    check_targets,
    read_domains,
)
from hessalign.curvature.linear import arranged_head
from hessalign.curvature.losses import (
    Binary,
    CrossEntropy,
    HeadLoss,
    Squared,
    check_label_loss,
)
from hessalign.curvature.operators import SymmetricOperator, hessian_difference

Point = Float[Tensor, " p"]
Points = Float[Tensor, "b p"]
Values = Float[Tensor, " b"]  # of some points

CHUNK_LOGITS = 1 << 22  # logits of all points that are held at a time


@final
@dataclass(frozen=True, eq=False)
class HeadSamples:
    r"""Samples of one or more domains, as a head sees them; build it with `make_samples`.

    The risk of domain e is $L_e(\Theta) = \frac1{n_e} \sum_n \ell(\Theta \tilde z_n, y_n)
    + \frac\lambda2 \|\Theta\|^2$. Features z̃ have domains contiguous, and a constant last if there
    is a bias; `free_bias` says that the L2 term spares the last column of the head. `weight`, 1 on
    average in each domain, is what `statistics` multiply each sample's loss by; None if by 1.
    """

    features: Float[Tensor, "n d"]
    targets: Tensor
    domains: Domains
    loss: HeadLoss
    outputs: int
    l2: float = 0.0
    free_bias: bool = False
    weight: Float[Tensor, "n 1"] | None = None

    @property
    def ids(self) -> tuple[int, ...]:
        """The integer id of each domain."""
        return tuple(self.domains.ids.tolist())

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs k, and parameters of each, the bias included."""
        return self.outputs, self.features.shape[1]

    @property
    def num_parameters(self) -> int:
        """Parameters of the head, p."""
        return self.outputs * self.features.shape[1]

    @property
    def convex(self) -> bool:
        """Whether the risks are convex in the head, as those without an activation are."""
        loss = self.loss
        return not isinstance(loss, Squared) or loss.activation is ACTIVATIONS["identity"]

    @cached_property
    def parts(self) -> tuple[tuple[Float[Tensor, "_ d"], Tensor], ...]:
        """Features and targets of each domain."""
        sizes = self.domains.sizes
        return tuple(zip(self.features.split(sizes), self.targets.split(sizes), strict=True))

    def risk(self, points: Points, e: int) -> Values:
        """The risk of one domain at each point, in float64."""
        return self.risk_and_gradient(points, e, slopes=False)[0]

    def risk_and_gradient(
        self, points: Points, e: int, *, slopes: bool = True
    ) -> tuple[Values, Points]:
        """The risk of one domain in float64, and its gradient mean r ⊗ z̃ + λ θ, at each point."""
        (z, y), count = self.parts[e], len(points)
        points = points.to(z.dtype)
        weights = points.reshape(-1, z.shape[1])
        total = points.new_zeros(count, dtype=torch.float64)
        slope = torch.zeros_like(weights)
        rows = max(1, CHUNK_LOGITS // max(1, len(weights)))
        for features, targets in zip(z.split(rows), y.split(rows), strict=True):
            logits = (features @ weights.T).view(-1, self.outputs)
            repeated = targets.repeat_interleave(count, dim=0)
            losses = self.loss.values(logits, repeated)
            total += losses.view(-1, count).sum(0, dtype=torch.float64)
            if slopes:
                error = self.loss.error(self.loss.predict(logits), logits, repeated)
                slope += error.view(len(features), -1).T @ features
        held = self.held(points)
        total = total / len(z) + self.l2 / 2 * held.double().square().sum(1)
        return total, (slope / len(z)).view_as(points) + self.l2 * held

    def held(self, points: Points) -> Points:
        """The parameters that the L2 term is over: all, or with 0 in place of the biases."""
        if not self.free_bias:
            return points
        kept = points.clone().view(-1, *self.shape)
        kept[..., -1] = 0
        return kept.view_as(points)

    def gap(self, points: Points, pairs: Int[Tensor, "b 2"]) -> tuple[Values, Points]:
        """The gap L_i − L_j with its gradient, each point with a pair (i, j) of its own."""
        values = points.new_zeros(len(points), dtype=torch.float64)
        gradients = torch.zeros_like(points)
        for e in range(len(self.domains)):
            signs = (pairs[:, 0] == e).long() - (pairs[:, 1] == e).long()
            rows = signs.nonzero().squeeze(1)
            if len(rows):
                risks, slopes = self.risk_and_gradient(points[rows], e)
                values[rows] += signs[rows] * risks
                gradients[rows] += signs[rows].unsqueeze(1) * slopes.to(points.dtype)
        return values, gradients

    def accuracy(self, point: Point) -> Float[Tensor, " e"] | None:
        """The share of samples a classifier gets right, per domain; None for regression."""
        if not isinstance(self.loss, CrossEntropy | Binary):
            return None
        logits = self.features @ point.to(self.features.dtype).view(self.shape).T
        binary = isinstance(self.loss, Binary)
        truth = (self.targets.flatten() > 0.5).long() if binary else self.targets
        right = predicted(logits, self.loss) == truth
        return torch.stack([part.double().mean() for part in right.split(self.domains.sizes)])

    @cached_property
    def _factor(self) -> Features:
        """The features with their Gram matrix, which statistics at all heads share."""
        return Features(self.features)

    def statistics(self, logits: Float[Tensor, "n k"]) -> LinearHead:
        """Derivatives of every domain's mean loss, without L2 term, given a head's logits."""
        return LinearHead(
            self._factor, logits, self.targets, self.domains, self.loss, False, self.weight
        )

    def domain_statistics(self, point: Point, e: int) -> LinearHead:
        """The same for one domain alone, at a head."""
        z, y = self.parts[e]
        logits = z @ point.to(z.dtype).view(self.shape).T
        check_finite(logits, "logits")
        alone = Domains(self.domains.ids[e : e + 1], (len(z),), None)
        return arranged_head(z, logits, y, alone, self.loss, bias=False)

    def hessian_difference(self, point: Point, i: int, j: int) -> SymmetricOperator:
        """The difference H_i − H_j of two domains' Hessians at a head."""
        return hessian_difference(*(self.domain_statistics(point, e) for e in (i, j)))

    @cached_property
    def typical_gradient(self) -> float:
        """The mean gradient norm of single samples at a head of zeros, which sets the scale."""
        zero = self.features.new_zeros(len(self.features), self.outputs, dtype=torch.float64)
        error = self.loss.error(self.loss.predict(zero), zero, self.targets)
        if self.weight is not None:
            error = self.weight * error
        return float((error.norm(dim=1) * self.features.double().norm(dim=1)).mean())

    def batch(self, size: int, generator: torch.Generator) -> HeadSamples:
        """So many samples of each domain, drawn with replacement."""
        chosen = []
        for z, y in self.parts:
            rows = torch.randint(len(z), (size,), generator=generator, device=generator.device)
            chosen.append((z[rows.to(z.device)], y[rows.to(z.device)]))
        features, targets = (torch.cat(part) for part in zip(*chosen, strict=True))
        domains = Domains(self.domains.ids, (size,) * len(self.domains), None)
        return replace(self, features=features, targets=targets, domains=domains)

    def to(self, dtype: torch.dtype) -> HeadSamples:
        """The same samples with features in another precision."""
        if self.features.dtype == dtype:
            return self
        return replace(self, features=self.features.to(dtype))

    def positions(self, source: int, target: int) -> tuple[int, int]:
        """Where two different domains, given by their ids, are in `ids`."""
        ids = self.ids
        check_several(ids)
        for role, wanted in (("source", source), ("target", target)):
            if wanted not in ids:
                found = ", ".join(map(str, ids))
                raise InputError(
                    f"Expected the {role} to be one of the domains {found}, got {wanted}."
                )
        if source == target:
            raise InputError(
                f"Expected two different domains as source and target, got {source} for both."
            )
        return ids.index(source), ids.index(target)


def make_samples(
    z: Float[Tensor, "n d"],
    y: Tensor,
    domain: DomainLike | None,
    loss: HeadLoss,
    *,
    outputs: int | None = None,
    bias: bool = True,
    l2: float = 0.0,
    free_bias: bool = False,
    weight: Float[Tensor, " n"] | None = None,
) -> HeadSamples:
    """Check samples and arrange them by domain; `outputs` is by default what the targets need."""
    check_features(z)
    domains = read_domains((len(z),) if domain is None else domain, z)
    check_is_tensor(y)
    check_label_loss(loss, y)
    l2 = check_l2(l2)
    if outputs is not None:
        check_count(outputs, "outputs")
    count = _needed_outputs(y, loss) if outputs is None else outputs
    check_targets(y, z.new_zeros(len(z), count), loss)
    z = domains.arrange(z.detach() if z.dtype == torch.float64 else z.detach().float())
    if bias:
        z = torch.cat([z, torch.ones_like(z[:, :1])], dim=1)
    y = domains.arrange(y.detach())
    arranged = replace(domains, order=None)
    counted = sample_weights(None if weight is None else domains.arrange(weight), None, arranged)
    return HeadSamples(z, y, arranged, loss, count, l2, bias and free_bias, counted)


_MOST_CLASSES: Final = 2**20


def class_count(y: Int[Tensor, " n"]) -> int:
    """How many classes labels from 0 are of; raise if it is a number of something else."""
    count = int(y.max()) + 1
    if count > _MOST_CLASSES:
        raise InputError(
            f"Expected labels numbered from 0, got the label {count - 1}, for which a head would "
            f"need {count:,} outputs. Number the classes anew."
        )
    return count


def _needed_outputs(y: Tensor, loss: HeadLoss) -> int:
    """Outputs a head needs: 1 for binary labels, at least 2 classes, or the targets' columns."""
    if isinstance(loss, Binary) or y.numel() == 0:
        return 1
    if isinstance(loss, CrossEntropy):
        return max(2, class_count(y))
    return y.shape[1] if y.ndim == 2 else 1


def check_l2(l2: object) -> float:
    """The weight of an L2 term; raise an InputError if it is negative, not finite, or no number."""
    found = number(l2)
    if not 0 <= found <= HUGE:
        raise InputError(f"Expected an L2 weight of 0 or more, got {shown(l2)}")
    return found


def check_several(ids: Sequence[object]) -> None:
    """Raise an InputError unless there are two domains, given by number or name."""
    if len(ids) < 2:
        raise InputError(
            f"Expected samples of at least 2 domains, got only domain {ids[0]}: a gap is between "
            "two. Check which domain each sample is given."
        )


def predicted(logits: Float[Tensor, "n k"], loss: HeadLoss) -> Int[Tensor, " n"]:
    """The class that a classifier's outputs stand for."""
    return (logits[:, 0] > 0).long() if isinstance(loss, Binary) else logits.argmax(1)


def head_matrix(head: Tensor | nn.Linear, features: int) -> tuple[Float[Tensor, "k d"], bool]:
    """A layer, or its matrix, as one matrix in float64; and whether its last column is a bias."""
    if isinstance(head, nn.Linear):
        if head.in_features != features:
            raise InputError(
                f"Expected a head for the {features} features of z, got one for "
                f"{head.in_features}. Use the layer that follows z."
            )
        parts = [head.weight] if head.bias is None else [head.weight, head.bias.unsqueeze(1)]
        head = torch.cat(parts, dim=1)
    check_dense(head, "head")
    if not isinstance(head, Tensor) or not head.is_floating_point():
        found = head.dtype if isinstance(head, Tensor) else type(head).__name__
        raise InputTypeError(f"Expected the head as a torch.nn.Linear or its matrix, got {found}.")
    matrix = head.detach().double()
    if matrix.ndim != 2 or matrix.shape[1] not in {features, features + 1}:
        raise InputError(
            f"Expected a head of shape [outputs, {features}], or [outputs, {features + 1}] with "
            f"its bias in the last column, to match z; got {list(matrix.shape)}."
        )
    if not bool(matrix.isfinite().all()):
        raise InputError("Expected finite parameters of the head, found NaN or infinity.")
    return matrix, matrix.shape[1] == features + 1


def feature_scales(
    z: Float[Tensor, "n d"],
) -> tuple[Float[Tensor, " d"], Float[Tensor, " d"], Bool[Tensor, " d"]]:
    """Mean of every feature, standard deviation (1 for constants), and which are constant."""
    # Differences to the first sample are exactly 0 for a constant, and keep the digits of a feature
    # that varies little for its size, such as a time stamp; sums of the features would do neither.
    moved = z - z[:1]
    spread = moved.std(0, correction=0)
    constant = spread <= torch.finfo(z.dtype).eps * z.abs().amax(0)
    return z[0] + moved.mean(0), torch.where(constant, 1.0, spread), constant
