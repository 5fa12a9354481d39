r"""Distances between the domains' Hessians, and where they come from (Table 1, measured).

Indices: e and f domain, n sample, d feature, p parameter of the head.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar, cast, final, get_args

import torch
from torch import Tensor

from hessalign._errors import InputError, check_name
from hessalign._shapes import Float
from hessalign.alignment.comparison import dispersion, distances
from hessalign.alignment.moments import Evaluation, Moment
from hessalign.alignment.quantities import TABLE_1, inner_products, moment
from hessalign.curvature import linear_head
from hessalign.curvature.activations import Activation, Elementwise
from hessalign.curvature.domains import DomainLike, accumulation_dtype
from hessalign.curvature.fused import is_traced
from hessalign.curvature.linear import LinearHead
from hessalign.curvature.losses import LossLike
from hessalign.curvature.operators import hessian_difference

_Norm = Literal["fro", "spectral"]
_Given = TypeVar("_Given")


def hessian_distance(
    z: Float[Tensor, "n d"],
    logits: Tensor,
    domain: DomainLike,
    norm: _Norm = "fro",
    *,
    y: Tensor | None = None,
    loss: LossLike = "cross_entropy",
    activation: str | Elementwise | Activation = "identity",
    bias: bool = True,
    evaluation: Evaluation = "auto",
    weight: Float[Tensor, " n"] | None = None,
) -> Float[Tensor, "e e"]:
    r"""Distance between the head's Hessians of all pairs of domains, $\|H_e - H_f\|$.

    The Frobenius norm is exact and differentiable. The spectral norm, which bounds the transfer
    measure in Theorem 1, comes from Lanczos iterations on Hessian-vector products of the
    difference; it is not differentiable.

    Args:
        z: Features that enter the head.
        logits: What the head made of them.
        domain: The domain of each sample, any integers; or a layout, see `domain_layout`.
        norm: "fro" or "spectral".
        y: Targets; needed where the curvature depends on them, as with an activation, class
            weights or a loss of one's own.
        loss: "cross_entropy", "binary", "squared", "multilabel", a loss object or a function; see
            `hessalign.curvature.make_loss`.
        activation: The activation of a head with squared error.
        bias: Whether the head has a bias.
        evaluation: How the Frobenius norm is evaluated.
        weight: What each sample counts in the mean of its domain.

    Returns:
        Symmetric distances in float64, domains ordered by id. An unknown norm is refused.

    Raises:
        InputError: If the spectral norm is asked for in a graph, or where there are no values.

    Example:
        >>> z, logits = torch.tensor([[1.0], [2.0]]), torch.zeros(2)
        >>> hessian_distance(z, logits, torch.tensor([0, 1]), loss="binary", bias=False)
        tensor([[0.0000, 0.7500],
                [0.7500, 0.0000]], dtype=torch.float64)
    """
    check_name("norm", norm, get_args(_Norm))
    make = partial(linear_head, loss=loss, activation=activation, bias=bias)
    if norm == "fro":
        head = make(z, logits, y, domain, weight=weight)
        return distances(inner_products(head, "hessian", evaluation, centred=True))
    if isinstance(z, Tensor) and is_traced(z):
        raise InputError(
            'Expected norm="fro" in a graph, under torch.func and without values, got "spectral", '
            "whose iterations look at values."
        )
    with torch.no_grad():
        wide = _with_float64(z)
        wide = wide.double() if isinstance(z, Tensor) and z.is_floating_point() else z
        given = _with_float64(logits), _with_float64(y), _with_float64(domain)
        return _spectral_distances(make(wide, *given, weight=_with_float64(weight)))


def _with_float64(given: _Given) -> _Given:
    """What is given, on the processor if its device has no float64, which the iterations need."""
    if isinstance(given, Tensor) and accumulation_dtype(given.device) != torch.float64:
        return cast(_Given, given.cpu())
    return given


def _spectral_distances(head: LinearHead) -> Float[Tensor, "e e"]:
    """Spectral norm of the difference of Hessians, for all pairs of domains."""
    domains = [head.domain(index) for index in range(len(head.domains))]
    result = torch.zeros(len(domains), len(domains), dtype=torch.float64)
    for e, first in enumerate(domains):
        for f, second in enumerate(domains[:e]):
            result[e, f] = result[f, e] = hessian_difference(first, second).spectral_norm()
    return result


def attribute_distances(
    z: Float[Tensor, "n d"],
    logits: Tensor,
    y: Tensor,
    domain: DomainLike,
    *,
    loss: LossLike = "cross_entropy",
    activation: str | Elementwise | Activation = "identity",
    evaluation: Evaluation = "auto",
    weight: Float[Tensor, " n"] | None = None,
) -> dict[str, Float[Tensor, "e e"]]:
    r"""Table 1, measured: how far apart the domains are in each attribute.

    The attributes of the Hessian add up to it, and those of the gradient to that:
    ‖H_e − H_f‖² = logit_covariance² + 2·logit_feature² + logit², and
    ‖g_e − g_f‖² = error_feature² + error².

    Args:
        z: Features that enter the head.
        logits: What the head made of them.
        y: Targets.
        domain: The domain of each sample, any integers; or a layout, see `domain_layout`.
        loss: "cross_entropy", "binary", "squared", "multilabel", a loss object or a function; see
            `hessalign.curvature.make_loss`.
        activation: The activation of a head with squared error.
        evaluation: How the moments are evaluated.
        weight: What each sample counts in the mean of its domain.

    Returns:
        Frobenius distances between all pairs of domains, by attribute: "loss", "feature",
        "covariance" (not centred, as in the paper), "error", "error_feature", "logit",
        "logit_feature", "logit_covariance".

    Example:
        >>> z, y = torch.tensor([[1.0], [2.0]]), torch.tensor([1, 1])
        >>> result = attribute_distances(z, torch.zeros(2), y, torch.tensor([0, 1]), loss="binary")
        >>> for name, value in result.items():
        ...     print(f"{name:16} {value[0, 1]:.2f}")
        loss             0.00
        feature          1.00
        covariance       3.00
        error            0.00
        error_feature    0.50
        logit            0.00
        logit_feature    0.25
        logit_covariance 0.75
    """
    head = linear_head(z, logits, y, domain, loss=loss, activation=activation, weight=weight)
    return {
        name: distances(inner_products(head, name, evaluation, centred=True)) for name in TABLE_1
    }


@final
@dataclass(frozen=True)
class AttributeDispersion:
    """How much the domains differ in an attribute of Table 1, and how much of that is chance.

    An attribute has a value m for each sample, for example r ⊗ z, and a mean for each domain. The
    dispersion of the means has the units of the attribute squared, so it shrinks with the features
    whether or not domains come closer. Divided by the mean squared norm of m it has none. (The
    squared norm of the means would not do: at the optimum of the mean risk the mean error is 0, and
    of what is left all is dispersion.)

    Attributes:
        dispersion: Mean squared distance of the domains' means to their mean.
        mean_square: Mean over domains of the mean squared norm over samples.
        chance: What finite samples add to the dispersion on average, see `Moment.chance`; not a
            number if a domain has one sample.
    """

    dispersion: float
    mean_square: float
    chance: float

    @property
    def relative(self) -> float:
        """The share of the attribute's second moment that lies between domains, from 0 to 1."""
        return self.dispersion / self.mean_square if self.mean_square > 0 else 0.0


def attribute_dispersions(
    z: Float[Tensor, "n d"],
    logits: Tensor,
    y: Tensor,
    domain: DomainLike,
    *,
    loss: LossLike = "cross_entropy",
) -> dict[str, AttributeDispersion]:
    """All attributes of Table 1, of samples as `attribute_distances` takes them.

    Returns:
        By attribute, in the order of Table 1.

    Example:
        >>> z, y = torch.tensor([[1.0], [1.0], [3.0], [3.0]]), torch.tensor([0, 1, 0, 1])
        >>> domain = torch.tensor([0, 0, 1, 1])
        >>> found = attribute_dispersions(z, torch.zeros(4), y, domain, loss="binary")
        >>> found["feature"]
        AttributeDispersion(dispersion=1.0, mean_square=5.0, chance=0.0)
        >>> found["feature"].relative
        0.2
    """
    with torch.no_grad():
        head = linear_head(z, logits, y, domain, loss=loss)
        return {name: _measure(moment(head, name)) for name in TABLE_1}


def _measure(attribute: Moment) -> AttributeDispersion:
    squares = attribute.domains.weights.averaging @ attribute.squared_norms()
    return AttributeDispersion(
        max(0.0, float(dispersion(attribute.inner()))),
        float(squares.mean()),
        float(attribute.chance().clamp(min=0)),
    )
