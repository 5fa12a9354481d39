r"""Distances between the domains' Hessians, and where they come from (Table 1, measured).

Indices: e and f domain, n sample, d feature, p parameter of the head.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from hessalign._names import UnknownNameError
from hessalign._shapes import Float
from hessalign.alignment.comparison import distances
from hessalign.alignment.moments import Evaluation
from hessalign.alignment.quantities import TABLE_1, inner_products
from hessalign.curvature import linear_head
from hessalign.curvature.activations import Activation, Elementwise
from hessalign.curvature.domains import DomainLike
from hessalign.curvature.linear import LinearHead
from hessalign.curvature.losses import LossLike
from hessalign.curvature.operators import hessian_difference

_Norm = Literal["fro", "spectral"]


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
        Symmetric distances in float64, domains ordered by id.

    Raises:
        UnknownNameError: If the norm is unknown.

    Example:
        >>> z, logits = torch.tensor([[1.0], [2.0]]), torch.zeros(2)
        >>> hessian_distance(z, logits, torch.tensor([0, 1]), loss="binary", bias=False)
        tensor([[0.0000, 0.7500],
                [0.7500, 0.0000]], dtype=torch.float64)
    """
    if norm not in get_args(_Norm):
        raise UnknownNameError("norm", norm, get_args(_Norm))

    def head(features: Tensor) -> LinearHead:
        given = (features, logits, y, domain)
        return linear_head(*given, loss=loss, activation=activation, bias=bias, weight=weight)

    if norm == "fro":
        return distances(inner_products(head(z), "hessian", evaluation, centred=True))
    with torch.no_grad():
        wide = z.double() if isinstance(z, Tensor) and z.is_floating_point() else z
        return _spectral_distances(head(wide))


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
