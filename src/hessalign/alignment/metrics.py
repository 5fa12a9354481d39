r"""Dispersions in metrics that shrinking features or sure predictions cannot lower.

The plain distance between Hessians has the units of the features to the fourth power times those of
the curvature, so small features and sure predictions make it small whatever the domains are. Here
it is measured against what it is made of, all inside of the graph; "Metrics" in the documentation
derives these and says which changes of the features leave them as they are.

- *relative*: the mean over blocks (logit, logit × feature, logit × covariance) of the dispersion
  over the squared norm of the mean; for gradients that of error and error × feature over the mean
  squared norm of single samples.
- *whitened*: with $P = \bar S \otimes C$ for Hessians $\frac1E \sum_e \|P^{-1/2} (H_e - \bar H)
  P^{-1/2}\|^2$, for gradients $\frac1{2E} \sum_e (g_e - \bar g)^\top P^{-1} (g_e - \bar g)$.
- *exact*: the same with $P = \bar H$. The gradient term is what a Newton step of its own would gain
  a domain, in units of the loss.

C is the covariance of the features over all domains beside 1 for the bias (for a head without one,
their second moment), S̄ the mean curvature. Features are first centred (if there is a bias) and
divided by the root of their mean variance; the ridge λ is then added to C, and λ tr(S̄)/k to S̄ or
H̄. So it has no units, and features can be moved, rotated and multiplied by a number without
consequence. Any other invertible linear change has none in the limit of small λ.

Indices: e domain, n sample, k output, d feature, p = (k, d) parameter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from hessalign._errors import InputError
from hessalign._shapes import Float, Int
from hessalign.alignment.moments import Evaluation, Moment, inners
from hessalign.alignment.quantities import (
    chance,
    moment,
    moment_dispersions,
    quantity_dispersions,
)
from hessalign.curvature import LinearHead
from hessalign.curvature.domains import Domains
from hessalign.curvature.factors import (
    DenseCurvature,
    Features,
    Linear,
    LogitCurvature,
    Outer,
    Rows,
    ScaledCurvature,
)
from hessalign.curvature.fused import has_no_values
from hessalign.curvature.linear import arranged_head
from hessalign.curvature.losses import Binary, CrossEntropy
from hessalign.curvature.products import mean_outer, mean_second_moments

Metric = Literal["euclidean", "relative", "whitened", "exact"]
METRICS: Final[tuple[Metric, ...]] = get_args(Metric)

RIDGE: Final = 0.1
"""The share of the mean eigenvalue that is added to all of them by default."""

_SMALLEST: Final = 1e-12
"""What mean curvatures and mean squares are at least, so that nothing is divided by 0."""

_Terms = tuple[Float[Tensor, ""], Float[Tensor, ""]]
_Compare = Callable[[LinearHead, Int[Tensor, " n"]], _Terms]
"""From some samples of a head, and which ones they are, to the terms of Hessians and gradients."""


class _Wanted(NamedTuple):
    """What is to be compared, as `metric_dispersions` takes it."""

    hessian: bool
    unbiased: bool
    evaluation: Evaluation


def metric_dispersions(
    head: LinearHead,
    metric: Literal["relative", "whitened", "exact"],
    ridge: float = RIDGE,
    *,
    hessian: bool = True,  # whether the first term is wanted; it is 0 if not
    conditional: bool = False,
    unbiased: bool = False,  # without what finite samples add on average, given the metric
    evaluation: Evaluation = "auto",
) -> _Terms:
    r"""Dispersions of Hessians and gradients in a metric made of the same samples.

    Conditional ones are the mean over classes of the dispersion among the samples of a class, see
    `class_parts`, in the metric of all samples, but for "relative".

    Returns:
        The two terms, in float64.

    Example:
        >>> from hessalign.curvature import linear_head
        >>> z, y = torch.tensor([[1.0], [3.0], [2.0], [0.0]]), torch.tensor([0, 1, 1, 0])
        >>> def terms(scale):
        ...     head = linear_head(scale * z, z, y, torch.tensor([0, 0, 1, 1]), loss="binary")
        ...     return torch.stack(metric_dispersions(head, "whitened"))
        >>> torch.allclose(terms(1.0), terms(0.01))
        True
    """
    compare = _COMPARISONS[metric](head, ridge, _Wanted(hessian, unbiased, evaluation))
    if not conditional:
        return compare(head, torch.arange(len(head.given), device=head.given.device))
    found = [compare(*each) for each in class_parts(head, least=1 + unbiased)]
    return mean_terms(found, head)


def class_parts(head: LinearHead, *, least: int = 1) -> list[tuple[LinearHead, Int[Tensor, " n"]]]:
    """A head seen from the samples of each class alone, and which samples these are.

    A domain of which a class has fewer than `least` samples is not among those of the class; a
    class with fewer than two domains is left out.

    Returns:
        Heads and rows, by class.

    Raises:
        InputError: If the loss has no classes, or labels have no values, as in a graph.
    """
    single = isinstance(head.loss, Binary) and head.given.shape[1] == 1
    labels = isinstance(head.loss, CrossEntropy) and head.y is not None and head.y.ndim == 1
    if head.y is None or not (single or labels):
        raise InputError(
            "Expected one class for each sample (loss cross_entropy or binary) for terms that are "
            f"conditional on the class, got the loss {head.loss.name!r} or no class numbers."
        )
    if has_no_values(head.y):
        raise InputError(
            "Expected labels with values for terms that are conditional on the class, which are "
            "compared class by class, got those of a graph, a fake or the meta device. Leave the "
            "penalty outside of the graph, or use conditional=False."
        )
    y, sizes = head.y.reshape(len(head.given)), torch.tensor(head.domains.sizes)
    number = torch.repeat_interleave(sizes.to(y.device))
    parts = []
    for label in y.unique():
        of_class = y == label
        if head.weight is not None:
            of_class = of_class & (head.counts.squeeze(1) > 0)
        counts = torch.bincount(number[of_class], minlength=len(sizes))
        kept = counts >= least
        if int(kept.sum()) < 2:
            continue
        rows = (of_class & kept[number]).nonzero().squeeze(1)
        domains = Domains(head.domains.ids[kept], tuple(counts[kept].tolist()), None)
        weight = None if head.weight is None else head.weight[rows].squeeze(1)
        samples = (head.features.z[rows], head.given[rows], head.y[rows])
        part = arranged_head(*samples, domains, head.loss, bias=head.bias, weight=weight)
        parts.append((part, rows))
    return parts


def mean_terms(found: list[_Terms], head: LinearHead) -> _Terms:
    """The mean of the terms of several classes; 0 if no class is in two domains."""
    if not found:
        zero = 0 * head.logits.sum()
        return zero, zero
    hessian, gradient = (torch.stack(each).mean(0) for each in zip(*found, strict=True))
    return hessian, gradient


def _relative(head: LinearHead, ridge: float, wanted: _Wanted) -> _Compare:
    """Each block against its own mean, or for gradients, whose mean is 0 at the optimum, size."""

    def compare(part: LinearHead, rows: Tensor) -> _Terms:
        def shares(quantities: list[str], sizes: list[Tensor]) -> Tensor:
            values = quantity_dispersions(
                part, quantities, wanted.evaluation, unbiased=wanted.unbiased
            )
            # Far down: the square of z zᵀ has the features four times.
            sizes = [size.clamp_min(_SMALLEST**8) for size in sizes]
            return torch.stack([x / size for x, size in zip(values, sizes, strict=True)]).mean()

        errors = ["error", "error_feature"][0 if part.bias else 1 :]
        # A sample's weight is in its norm twice, and should be once.
        averaging = part.domains.weights.averaging / part.counts.T.clamp_min(_SMALLEST)
        squares = [(averaging @ moment(part, each).squared_norms()).mean() for each in errors]
        gradient = shares(errors, squares)
        if not wanted.hessian:
            return torch.zeros_like(gradient), gradient
        blocks = ["logit", "logit_feature", "logit_covariance"][0 if part.bias else 2 :]
        moments = [moment(part, each) for each in blocks]
        grams = inners(moments, wanted.evaluation, [False] * len(blocks))
        return shares(blocks, [gram.mean() for gram in grams]), gradient

    return compare


def _whitened(head: LinearHead, ridge: float, wanted: _Wanted) -> _Compare:
    """Comparison of S ⊗ z̃z̃ᵀ and r ⊗ z̃ with features and logits whitened."""
    hessian, unbiased, evaluation = wanted
    pooled, scale = head.domains.weights.averaging.mean(0), _curvature_scale(head)
    outputs, z = head.given.shape[1], _standardised(head)
    mean = torch.tensordot(pooled, head.curvature.matrix(), 1)
    inverse = _inverse_root(mean + ridge * scale * _identity(mean))
    few = len(z) < z.shape[1]  # fewer samples than features: in the dual form
    if few:
        gram = z.to(pooled.dtype) @ z.to(pooled.dtype).T
        share = pooled * head.counts.squeeze(1)
        # Its eigenvalues are at least the ridge: there is nothing to look at.
        whitened = torch.linalg.solve_ex(gram * share + ridge * _identity(gram), gram)[0]
    else:
        moments = mean_second_moments(head.counts, z, head.domains).mean((0, 1))
        root = _inverse_root(moments + ridge * _identity(moments))
        whitened = z @ root.T.to(z.dtype)

    def bent(curvature: LogitCurvature) -> LogitCurvature:
        if outputs > 1:
            return DenseCurvature(inverse @ curvature.matrix() @ inverse.T)
        return ScaledCurvature(curvature, inverse.square().expand(len(curvature.diagonal()), 1))

    def compare(part: LinearHead, rows: Tensor) -> _Terms:
        lefts = [bent(part.curvature)] * hessian + [Rows(part.error @ inverse.T)]
        if few:
            products = whitened[rows][:, rows] + part.bias
            powers = [2] * hessian + [1]
            found = [
                _over_pairs(part, left.inner(slice(None)) * products**power, unbiased)
                for left, power in zip(lefts, powers, strict=True)
            ]
        else:
            features = Features(whitened[rows])
            rights = [Outer(features, part.bias)] * hessian + [Linear(features, part.bias)]
            moments = [
                Moment(left, right, part.domains) for left, right in zip(lefts, rights, strict=True)
            ]
            found = moment_dispersions(part, moments, evaluation, unbiased=unbiased)
        return (found[0] if hessian else torch.zeros_like(found[0])), found[-1] / 2

    return compare


def _exact(head: LinearHead, ridge: float, wanted: _Wanted) -> _Compare:
    """Comparison of dense Hessians and gradients in the metric of the mean Hessian."""
    hessian, unbiased, _ = wanted
    z = _standardised(head)
    whole = replace(head, features=Features(z))
    mean = whole.hessian.mean(0)
    root = _inverse_root(mean + ridge * _curvature_scale(head) * _identity(mean))

    def compare(part: LinearHead, rows: Tensor) -> _Terms:
        part = replace(part, features=Features(z[rows]))
        values = [part.gradient @ root.T]
        if hessian:
            values.insert(0, (root @ part.hessian @ root.T).flatten(1))
        found = [(each - each.mean(0)).square().sum(1).mean() for each in values]
        if unbiased:
            squares = _squared_norms(part, root, hessian)
            norms = [each.square().sum(1) for each in values]
            found = [
                value - chance(part, *each)
                for value, *each in zip(found, squares, norms, strict=True)
            ]
        return (found[0] if hessian else torch.zeros_like(found[0])), found[-1] / 2

    return compare


def _squared_norms(
    part: LinearHead, root: Float[Tensor, "p p"], hessian: bool
) -> list[Float[Tensor, " n"]]:
    """The squared norms of single samples' Hessians, if wanted, and gradients in the metric."""
    # With B = z̃ᵀ P⁻¹ z̃, k × k, they are tr(S B S B) and rᵀ B r.
    z = part.features.z.to(root.dtype)
    z = torch.cat([z, torch.ones_like(z[:, :1])], dim=1) if part.bias else z
    spread = torch.einsum("pkd,nd->npk", root.unflatten(1, part.shape), z)
    inverse = spread.mT @ spread
    error = part.error.unsqueeze(2)
    found = [(error * (inverse @ error)).sum((1, 2))]
    if hessian:
        turned = part.curvature.matrix() @ inverse
        found.insert(0, (turned * turned.mT).sum((1, 2)))
    return found


def _over_pairs(head: LinearHead, gram: Float[Tensor, "n n"], unbiased: bool) -> Float[Tensor, ""]:
    """The dispersion of means, given the inner products of all pairs of samples."""
    weights = head.domains.weights
    found = (weights.dispersing * gram).sum()
    if not unbiased:
        return found
    norms = (weights.averaging @ gram @ weights.averaging.T).diagonal()
    return found - chance(head, gram.diagonal(), norms)


def _standardised(head: LinearHead) -> Float[Tensor, "n d"]:
    """Features less their mean, if there is a bias, over the root of their mean variance."""
    z, counts, domains = head.features.z, head.counts, head.domains
    if head.bias:
        z = z - mean_outer(counts, z, domains, bias=False).mean((0, 1)).to(z.dtype)
    variance = mean_outer(counts, z, domains, bias=False, squared=True).mean()
    return z / variance.clamp_min(_SMALLEST**2).sqrt().to(z.dtype)


def _curvature_scale(head: LinearHead) -> Float[Tensor, ""]:
    """The mean second derivative of the loss in a logit, tr(S̄)/k."""
    scale = (head.domains.weights.averaging @ head.curvature.diagonal()).mean()
    return scale.clamp_min(_SMALLEST)


def _inverse_root(matrix: Float[Tensor, "m m"]) -> Float[Tensor, "m m"]:
    """R with Rᵀ R = A⁻¹: the inverse of the Cholesky factor of A."""
    # Where there is none it is an error on a processor; elsewhere, where to look is to wait, it is
    # not a number.
    if matrix.device.type == "cpu" and not has_no_values(matrix):
        try:
            factor = torch.linalg.cholesky(matrix)
        except RuntimeError:  # of which torch's LinAlgError is one
            raise InputError(
                "Expected a mean curvature that is positive definite with its ridge, found one "
                'that is not. Use a convex loss, a larger ridge, or metric="relative".'
            ) from None
    else:
        factor, failed = torch.linalg.cholesky_ex(matrix)
        factor = torch.where(failed == 0, factor, torch.nan)
    root: Tensor = torch.linalg.solve_triangular(factor, _identity(matrix), upper=False)
    return root


def _identity(like: Float[Tensor, "m m"]) -> Float[Tensor, "m m"]:
    """The identity of the size of a matrix, made where that is."""
    return torch.eye(len(like), dtype=like.dtype, device=like.device)


_COMPARISONS: Final = {"relative": _relative, "whitened": _whitened, "exact": _exact}
