r"""Hessian dispersion in its named variants, as pure functions of a head's statistics.

| variant | what is compared between domains |
|---|---|
| full | the Hessians themselves, exactly |
| diagonal | their diagonals, exactly |
| sampled | Hutchinson's estimates of the diagonals (eq. 19, 20) |
| expected | the same in expectation over the probes, without sampling |
| product | Hessian-gradient products (eq. 17) |

Each domain is compared with a *target*. The paper's target is the mean of what is compared
(eq. 17, 20). The released code uses the corresponding quantity of the mean loss instead: for
`product` that is H̄ḡ, for `sampled` an estimate of diag H̄ from probes of its own.

Indices: e domain, p parameter of the head, m probe.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, final, get_args

import torch
from torch import Tensor

from hessalign._errors import InputError, check_name
from hessalign._shapes import Float
from hessalign.alignment.comparison import dispersion
from hessalign.alignment.metrics import (
    RIDGE,
    Metric,
    class_parts,
    mean_terms,
    metric_dispersions,
)
from hessalign.alignment.moments import Evaluation, inners
from hessalign.alignment.quantities import (
    inner_products,
    moment,
    quantity_dispersion,
    quantity_dispersions,
)
from hessalign.curvature import HeadStatistics, LinearHead, hutchinson_diagonal
from hessalign.curvature.hutchinson import pooled_diagonal

HessianKind = Literal["full", "diagonal", "sampled", "expected", "product"]
HESSIAN_KINDS: tuple[HessianKind, ...] = get_args(HessianKind)


def check_hessian(kind: object) -> None:
    """Raise unless something is a kind of Hessian term, or None for no such term."""
    check_name("hessian kind", kind, (*HESSIAN_KINDS, None))


@final
@dataclass(frozen=True)
class Target:
    """What each domain is compared with.

    Attributes:
        pooled: Compare with the quantity of the mean loss instead of the mean quantity.
        detach: Treat the target as a constant in backpropagation. With the mean as target this
            changes nothing: the deviations sum to zero.
    """

    pooled: bool = False
    detach: bool = False


MEAN = Target()
"""Eq. 17 and 20 as printed."""

POOLED = Target(pooled=True)
"""The released Colored MNIST scripts."""

POOLED_DETACHED = Target(pooled=True, detach=True)
"""The released DomainBed algorithms."""


def _deviation(values: Float[Tensor, "e p"], target: Float[Tensor, " p"]) -> Float[Tensor, ""]:
    r"""Mean squared distance to a common target, $\frac1E \sum_e \|v_e - t\|^2$.

    Returns:
        The deviation; the dispersion if the target is the mean.

    Example:
        >>> _deviation(torch.tensor([[0.0], [2.0]]), torch.tensor([1.0]))
        tensor(1.)
    """
    return (values - target).square().sum(1).mean()


def gradient_dispersion(
    statistics: HeadStatistics, evaluation: Evaluation = "auto"
) -> Float[Tensor, ""]:
    r"""Dispersion of the gradients, $\frac1E \sum_e \|g_e - \bar g\|^2$ (eq. 17 and 20).

    Args:
        statistics: Either backend.
        evaluation: How the closed form evaluates it.

    Returns:
        The dispersion.
    """
    return quantity_dispersion(statistics, "gradient", evaluation)


def product_dispersion(
    statistics: HeadStatistics, target: Target = MEAN, evaluation: Evaluation = "auto"
) -> Float[Tensor, ""]:
    r"""Dispersion of the Hessian-gradient products (eq. 17).

    $$\frac1E \sum_e \|H_e g_e - t\|^2, \qquad t = \overline{H g} \text{ or } \bar H \bar g$$

    Returns:
        The dispersion.
    """
    if not target.pooled:
        return quantity_dispersion(statistics, "hessian_gradient", evaluation)
    mean_gradient = statistics.gradient.mean(0, keepdim=True)
    goal = statistics.hvp(mean_gradient).mean(0)
    return _deviation(statistics.hgp, goal.detach() if target.detach else goal)


def sampled_dispersion(
    statistics: HeadStatistics,
    probes: int,
    *,
    shared: bool = False,
    generator: torch.Generator | None = None,
    target: Target = MEAN,
) -> Float[Tensor, ""]:
    r"""Dispersion of Hutchinson's diagonal estimates (eq. 19 and 20)."""
    estimates = hutchinson_diagonal(statistics, probes, shared=shared, generator=generator)
    if shared or not target.pooled:
        return _deviation(estimates, estimates.mean(0))
    goal = pooled_diagonal(statistics, probes, generator=generator)
    return _deviation(estimates, goal.detach() if target.detach else goal)


def _expectation(
    full: Float[Tensor, "e e"],
    diagonal: Float[Tensor, "e e"],
    probes: int,
    *,
    shared: bool,
    target: Target,
) -> Float[Tensor, ""]:
    """`expected_dispersion` from the inner products of the Hessians and of their diagonals."""
    off = full - diagonal
    if shared:
        extra = dispersion(off)
    elif target.pooled:
        of_mean = off.mean()
        extra = off.diagonal().mean() + (of_mean.detach() if target.detach else of_mean)
    else:
        extra = off.diagonal().mean() * (len(off) - 1) / len(off)
    return dispersion(diagonal) + extra / probes


def expected_dispersion(
    statistics: HeadStatistics,
    probes: int,
    *,
    shared: bool = False,
    target: Target = MEAN,
    evaluation: Evaluation = "auto",
) -> Float[Tensor, ""]:
    r"""Expectation of `sampled_dispersion` over its probes, in closed form.

    With off(H) = ‖H‖² − ‖diag H‖² it is the dispersion of the exact diagonals plus

    - (E−1)/E · mean_e off(H_e) / m for independent probes and the mean target,
    - mean_e (off(H_e) + off(H̄)) / m for independent probes and the pooled target,
    - mean_e off(H_e − H̄) / m for shared probes.

    Returns:
        The expectation, deterministic.
    """
    quantities = ("hessian", "hessian_diagonal")
    if isinstance(statistics, LinearHead):
        moments = [moment(statistics, each) for each in quantities]
        full, diagonal = inners(moments, evaluation, [shared, shared])
    else:
        full, diagonal = (
            inner_products(statistics, each, evaluation, centred=shared) for each in quantities
        )
    return _expectation(full, diagonal, probes, shared=shared, target=target)


def _expected_and_gradient(
    head: LinearHead,
    *,
    probes: int = 100,
    shared_probes: bool = False,
    target: Target,
    evaluation: Evaluation,
    **_: object,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Both dispersions from means that are formed in one pass over the features."""
    moments = [moment(head, each) for each in ("hessian", "hessian_diagonal", "gradient")]
    full, diagonal, gradients = inners(moments, evaluation, [shared_probes, shared_probes, True])
    expected = _expectation(full, diagonal, probes, shared=shared_probes, target=target)
    return expected, dispersion(gradients)


def hessian_dispersion(
    statistics: HeadStatistics,
    kind: HessianKind,
    *,
    probes: int = 100,
    shared_probes: bool = False,
    generator: torch.Generator | None = None,
    target: Target = MEAN,
    evaluation: Evaluation = "auto",
) -> Float[Tensor, ""]:
    """Dispersion of the Hessians in the variant named.

    Args:
        statistics: Either backend.
        kind: A name in `HESSIAN_KINDS`.
        probes: Probes per domain, for "sampled" and "expected".
        shared_probes: The same probes for all domains.
        generator: Source of the probes, for "sampled".
        target: What each domain is compared with, for the kinds the released code has.
        evaluation: How the closed form evaluates what has two evaluations.

    Returns:
        The dispersion.
    """
    if kind == "product":
        return product_dispersion(statistics, target, evaluation)
    if kind in _MOMENTS:
        return quantity_dispersion(statistics, _MOMENTS[kind], evaluation)
    if kind == "sampled":
        return sampled_dispersion(
            statistics, probes, shared=shared_probes, generator=generator, target=target
        )
    return expected_dispersion(
        statistics, probes, shared=shared_probes, target=target, evaluation=evaluation
    )


def _closed_form(statistics: HeadStatistics) -> LinearHead:
    """The statistics, if they are those of a linear head."""
    if not isinstance(statistics, LinearHead):
        raise InputError(
            "Expected a linear head for a metric other than 'euclidean' or terms conditional on "
            "the class, got another one."
        )
    return statistics


def _are_means(statistics: HeadStatistics, evaluation: Evaluation) -> bool:
    """Whether Hessians and gradients of a head are all compared by their means."""
    if not isinstance(statistics, LinearHead) or evaluation == "dual":
        return False
    compared = (moment(statistics, each) for each in ("hessian", "gradient"))
    return evaluation == "primal" or all(each.cheaper() == "primal" for each in compared)


_MOMENTS: dict[HessianKind, str] = {
    "full": "hessian",
    "diagonal": "hessian_diagonal",
    "product": "hessian_gradient",
}
"""The kinds that are one quantity of the head, compared with its mean."""


def alignment_dispersions(
    statistics: HeadStatistics,
    kind: HessianKind | None,  # None for a first term of 0
    *,
    metric: Metric = "euclidean",  # others for "full" and None, see `hessalign.alignment.metrics`
    ridge: float = RIDGE,  # of the metrics "whitened" and "exact"
    conditional: bool = False,  # the mean over classes of what is found among the samples of one
    unbiased: bool = False,  # without what finite samples add; for "full", "diagonal" and None
    target: Target = MEAN,
    evaluation: Evaluation = "auto",
    **options: Any,  # noqa: ANN401 - those of `hessian_dispersion`
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Dispersions of the Hessians, in the variant named, and of the gradients, in one go."""
    if metric != "euclidean":
        return metric_dispersions(
            _closed_form(statistics),
            metric,
            ridge,
            hessian=kind is not None,
            conditional=conditional,
            unbiased=unbiased,
            evaluation=evaluation,
        )
    if conditional:
        head = _closed_form(statistics)
        options |= {"unbiased": unbiased, "target": target, "evaluation": evaluation}
        parts = class_parts(head, least=1 + unbiased)
        return mean_terms([alignment_dispersions(part, kind, **options) for part, _ in parts], head)
    if kind is None:
        gradient = quantity_dispersions(statistics, ["gradient"], evaluation, unbiased=unbiased)[0]
        return torch.zeros_like(gradient), gradient
    if kind in _MOMENTS and not (kind == "product" and target.pooled):
        quantities = [_MOMENTS[kind], "gradient"]
        first, second = quantity_dispersions(statistics, quantities, evaluation, unbiased=unbiased)
        return first, second
    if kind == "expected" and _are_means(statistics, evaluation):
        options |= {"target": target, "evaluation": evaluation}
        return _expected_and_gradient(_closed_form(statistics), **options)
    hessian = hessian_dispersion(statistics, kind, target=target, evaluation=evaluation, **options)
    # After the Hessian, because the two share the Gram matrix of the features.
    return hessian, gradient_dispersion(statistics, evaluation)
