r"""What can be compared between domains, each as a moment (Proposition 1 and Table 1).

| name | left ⊗ right | equation |
|---|---|---|
| loss | ℓ ⊗ 1 | 1 |
| feature | 1 ⊗ z | |
| covariance | 1 ⊗ z zᵀ (not centred, as in Table 1) | |
| error | r ⊗ 1 | 12 |
| error_feature | r ⊗ z | 13 |
| logit | S ⊗ 1 | 14 |
| logit_feature | S ⊗ z | 15 |
| logit_covariance | S ⊗ z zᵀ | 16 |
| gradient | r ⊗ z̃ | 12, 13 |
| hessian | S ⊗ z̃ z̃ᵀ | 14, 15, 16 |
| hessian_diagonal | diag S ⊗ z̃² | 16 at p=u, q=v |
| hessian_gradient | S G_e z̃ ⊗ z̃ | 18 |

With a bias z̃ = [z, 1], so gradient = error and error_feature, and hessian = logit, twice
logit_feature and logit_covariance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from hessalign._errors import InputError, check_name
from hessalign._shapes import Float
from hessalign.alignment.comparison import dispersion
from hessalign.alignment.moments import (
    LARGE_MOMENT,
    Evaluation,
    Moment,
    check_evaluation,
    dispersions,
    softmax_cost,
)
from hessalign.curvature import HeadStatistics, LinearHead
from hessalign.curvature.domains import ONE_ALONE, PAIR_ELEMENTS
from hessalign.curvature.factors import (
    Constant,
    Cost,
    Features,
    LeftFactor,
    Linear,
    Outer,
    RightFactor,
    Rows,
    SoftmaxCurvature,
)
from hessalign.curvature.linear import MOST_BYTES
from hessalign.curvature.losses import CrossEntropy
from hessalign.curvature.softmax import Compared, softmax_sums

_Factors = tuple[LeftFactor, RightFactor]


QUANTITIES: dict[str, Callable[[LinearHead], _Factors]] = {
    "loss": lambda head: (Rows(head.losses.unsqueeze(1)), Constant(head.logits)),
    "feature": lambda head: (Rows(head.counts), Linear(head.features, bias=False)),
    "covariance": lambda head: (Rows(head.counts), Outer(head.features, bias=False)),
    "error": lambda head: (Rows(head.error), Constant(head.logits)),
    "error_feature": lambda head: (Rows(head.error), Linear(head.features, bias=False)),
    "logit": lambda head: (head.curvature, Constant(head.logits)),
    "logit_feature": lambda head: (head.curvature, Linear(head.features, bias=False)),
    "logit_covariance": lambda head: (head.curvature, Outer(head.features, bias=False)),
    "gradient": lambda head: (Rows(head.error), Linear(head.features, head.bias)),
    "hessian": lambda head: (head.curvature, Outer(head.features, head.bias)),
    "hessian_diagonal": lambda head: (
        Rows(head.curvature.diagonal()),
        Linear(head.features, head.bias, squared=True),
    ),
    "hessian_gradient": lambda head: (
        Rows(head.curvature.apply(head.gradient_logits, slice(None))),
        Linear(head.gradient_features, head.bias),
    ),
}

TABLE_1 = tuple(QUANTITIES)[:8]
"""The attributes of Table 1, in its order."""

_FIELDS: dict[str, Callable[[HeadStatistics], Tensor]] = {
    "loss": lambda head: head.risk,
    "gradient": lambda head: head.gradient,
    "hessian": lambda head: head.hessian,
    "hessian_diagonal": lambda head: head.diagonal,
    "hessian_gradient": lambda head: head.hgp,
}


def moment(head: LinearHead, quantity: str) -> Moment:
    """One quantity of a linear head, by its name in `QUANTITIES`, ready to be compared."""
    check_name("quantity", quantity, QUANTITIES)
    left, right = QUANTITIES[quantity](head)
    return Moment(left, right, head.domains)


def _together(head: LinearHead, quantities: Sequence[str]) -> list[Moment]:
    """Some quantities as moments of the same features."""
    moments = [moment(head, quantity) for quantity in quantities]
    if "hessian_gradient" not in quantities:
        return moments
    return [
        each
        if isinstance(each.right, Constant)
        else replace(each, right=replace(each.right, features=head.gradient_features))
        for each in moments
    ]


def inner_products(
    statistics: HeadStatistics,
    quantity: str,
    evaluation: Evaluation = "auto",
    *,
    centred: bool = False,
) -> Float[Tensor, "e e"]:
    """Inner products of one quantity between all pairs of domains.

    Args:
        statistics: The closed-form backend (any quantity), or another one (those that are
            derivatives of the risk).
        quantity: A name in `QUANTITIES`.
        evaluation: "primal", "dual" or "auto", for the closed form.
        centred: Of the deviations from the mean over domains, which is what distances need.

    Returns:
        The Gram matrix of the domains, in float64. What the backend does not know is refused by an
        UnknownNameError.

    Example:
        >>> from hessalign.curvature import linear_head
        >>> z = torch.tensor([[1.0], [3.0]])
        >>> head = linear_head(z, torch.zeros(2), None, torch.tensor([0, 1]), loss="binary")
        >>> inner_products(head, "feature")
        tensor([[1., 3.],
                [3., 9.]], dtype=torch.float64)
    """
    if isinstance(statistics, LinearHead):
        return moment(statistics, quantity).inner(evaluation, centred=centred)
    check_name("quantity of a head without closed form", quantity, _FIELDS)
    values = _FIELDS[quantity](statistics).reshape(len(statistics.domains), -1)
    if centred:
        values = values - values.mean(0)
    return values @ values.T


def quantity_dispersions(
    statistics: HeadStatistics,
    quantities: Sequence[str],  # names in `QUANTITIES`
    evaluation: Evaluation = "auto",  # for the closed form
    *,
    unbiased: bool = False,  # without what finite samples add on average, for the closed form
) -> list[Float[Tensor, ""]]:
    """Mean squared distance of each of some quantities of the domains to its mean.

    Returns:
        The dispersions, in float64.

    Raises:
        InputError: If an unbiased one is asked for that is not there.

    Example:
        >>> from hessalign.curvature import linear_head
        >>> z = torch.tensor([[1.0], [3.0]])
        >>> head = linear_head(z, torch.zeros(2), None, torch.tensor([0, 1]), loss="binary")
        >>> quantity_dispersions(head, ["feature"])
        [tensor(1., dtype=torch.float64)]
    """
    check_evaluation(evaluation)
    if isinstance(statistics, LinearHead):
        if not unbiased and _are_softmax_sums(statistics, tuple(quantities), evaluation):
            return _softmax_dispersions(statistics, _COMPARED.get(quantities[0]))
        moments = _together(statistics, quantities)
        return moment_dispersions(statistics, moments, evaluation, unbiased=unbiased)
    if unbiased:
        raise InputError("Expected a linear head for an unbiased dispersion, got another one.")
    return [
        dispersion(inner_products(statistics, quantity, evaluation, centred=True))
        for quantity in quantities
    ]


_COMPARED: dict[str, Compared] = {"hessian": "full", "hessian_gradient": "product"}
"""Quantities beside whose dispersion softmax heads have that of the gradient from one function."""


def _are_softmax_sums(
    head: LinearHead, quantities: tuple[str, ...], evaluation: Evaluation
) -> bool:
    """Whether some dispersions are best made by the one function that softmax heads have."""
    plain = isinstance(head.loss, CrossEntropy) and head.loss.plain and head.weight is None
    if not plain or head.y is None or head.y.is_floating_point() or evaluation == "primal":
        return False
    *others, last = quantities
    if last != "gradient" or len(others) > 1 or not _COMPARED.keys() >= set(others):
        return False
    samples, width = head.features.z.shape
    if samples**2 > PAIR_ELEMENTS or head.features.known(bias=head.bias) is not None:
        return False
    classes = head.given.shape[1]
    if torch.compiler.is_compiling():  # a choice that serves batches of all sizes
        return evaluation == "dual" or classes * width > LARGE_MOMENT
    shape = samples, width, classes, len(head.domains)
    return evaluation == "dual" or _pairs_are_cheaper(quantities, shape, head.bias)


@lru_cache(maxsize=64)
def _pairs_are_cheaper(
    quantities: tuple[str, ...], shape: tuple[int, int, int, int], bias: bool
) -> bool:
    """Whether `softmax_sums` takes less time than the domains' means of each quantity."""
    samples, width, classes, domains = shape
    rows = torch.empty(samples, classes, device="meta")
    features = Features(torch.empty(samples, width, device="meta"))
    linear = Linear(features, bias).mean_cost(classes, domains)
    costs = {
        "hessian": Outer(features, bias).mean_cost(SoftmaxCurvature(rows).size, domains),
        "hessian_gradient": Cost(2.5 * linear.time, linear.memory),  # the gradients' logits, first
        "gradient": linear,
    }
    means = [costs[each] for each in quantities]
    time, memory = sum(cost.time for cost in means), max(cost.memory for cost in means)
    compared = _COMPARED.get(quantities[0])
    return memory > MOST_BYTES or softmax_cost(compared, samples, width, classes) <= time


def _softmax_dispersions(head: LinearHead, compared: Compared | None) -> list[Float[Tensor, ""]]:
    """Dispersions of Hessians or their products with gradients, if asked for, and of gradients."""
    assert head.y is not None
    z, weights = head.features.z, head.domains.weights
    return list(softmax_sums(z, head.given, head.y, weights, compared, bias=head.bias))


def moment_dispersions(
    head: LinearHead, moments: Sequence[Moment], evaluation: Evaluation, *, unbiased: bool
) -> list[Float[Tensor, ""]]:
    """`dispersions` of a head's moments, whose samples may count differently."""
    if not unbiased or head.weight is None:
        return dispersions(moments, evaluation, unbiased=unbiased)
    found = dispersions(moments, evaluation)
    norms = [each.inner(evaluation).diagonal() for each in moments]
    squares = [each.squared_norms() for each in moments]
    return [value - chance(head, *each) for value, *each in zip(found, squares, norms, strict=True)]


def squared_shares(head: LinearHead) -> Float[Tensor, " e"]:
    """Σ u² of the weights u of each domain's mean, which add up to 1."""
    return torch.mv(head.domains.weights.averaging.square(), head.counts.square().squeeze(1))


def chance(
    head: LinearHead, squares: Float[Tensor, " n"], norms: Float[Tensor, " e"]
) -> Float[Tensor, ""]:
    r"""What finite samples add to a dispersion on average if they may count differently.

    With the weights $u_n$ of a domain's mean, which add up to 1, it is $\frac{E-1}{E^2} \sum_e
    \frac{\sum u_n^2 \|m_n\|^2 - \|M_e\|^2 \sum u_n^2}{1 - \sum u_n^2}$; see `Moment.chance`.

    Args:
        head: The head that the samples are of.
        squares: The squared norm of each sample, weighted.
        norms: The squared norm of each domain's mean.

    Returns:
        The share of chance; not a number if one sample is all that counts in a domain.
    """
    averaging, count = head.domains.weights.averaging, len(head.domains)
    own = squared_shares(head)
    others = torch.where(1 - own > ONE_ALONE, 1 - own, torch.nan)
    within = (torch.mv(averaging.square(), squares) - own * norms) / others
    return (count - 1) / count**2 * within.sum()


def quantity_dispersion(
    statistics: HeadStatistics, quantity: str, evaluation: Evaluation = "auto"
) -> Float[Tensor, ""]:
    """Mean squared distance of one quantity of the domains to its mean."""
    return quantity_dispersions(statistics, [quantity], evaluation)[0]
