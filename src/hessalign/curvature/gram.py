r"""Gram matrices: inner products of all pairs of samples, as float64.

Indices: n and m sample, d feature.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from hessalign._shapes import Float
from hessalign.curvature.products import accumulation_dtype

_FEW_ROWS = 32
"""Blocks of a Gram matrix with fewer rows are not worth a product of their own."""

_SHORT_ROWS = 512
"""Nor are blocks with shorter rows."""

CANCELLATION = 256
"""Sums that are smaller than their terms by more than this are made of float64 products."""


class _Gram(Function):
    """z zᵀ as float64; the symmetry makes backward one product instead of two."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's context has no public type
        z: Float[Tensor, "n d"],
        exact: bool,
    ) -> Float[Tensor, "n n"]:
        wide = accumulation_dtype(z.device)
        products = _symmetric_product(z.to(wide) if exact else z).to(wide)
        ctx.save_for_backward(z, products)
        return products

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        *grad_outputs: Tensor,
    ) -> tuple[Tensor, None]:
        z, products = ctx.saved_tensors
        weights = grad_outputs[0] + grad_outputs[0].T
        if z.dtype == products.dtype or _cancels(weights, products):
            return torch.mm(weights, z.to(products.dtype)).to(z.dtype), None
        return torch.mm(weights.to(z.dtype), z), None


def _symmetric_product(z: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
    """The product z zᵀ."""
    half = len(z) // 2
    if half < _FEW_ROWS or z.shape[1] < _SHORT_ROWS:
        return z @ z.T
    # The lower left quarter mirrors the upper right one.
    upper = z[:half] @ z.T
    lower = torch.cat([upper[:, half:].T, z[half:] @ z[half:].T], dim=1)
    return torch.cat([upper, lower])


def _cancels(weights: Float[Tensor, "n n"], products: Float[Tensor, "n n"]) -> bool:
    """Whether the sums w z are so much smaller than their terms that float32 will not do."""
    # They are near alignment, where the parts of the domains cancel. The Gram matrix knows the size
    # of the sums before they are formed: ‖w z‖² = ⟨w z zᵀ, w⟩.
    sums = ((weights @ products) * weights).sum()
    terms = (weights.abs() @ products.diagonal().sqrt()).square().sum()
    return not bool(terms <= CANCELLATION**2 * sums)


_gram: Callable[[Tensor, bool], Tensor] = _Gram.apply


def gram(z: Float[Tensor, "n d"], *, exact: bool = True) -> Float[Tensor, "n n"]:
    r"""Inner products of all pairs of rows, $z_n \cdot z_m$, as float64.

    Returns:
        The Gram matrix.

    Example:
        >>> gram(torch.tensor([[1.0, 1.0], [0.0, 2.0]]))
        tensor([[2., 2.],
                [2., 4.]], dtype=torch.float64)
    """
    return _gram(z, exact)


class _PairSum(Function):
    """The sum over pairs of w L (K + b)ᵖ: one node instead of many small ones."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        left: Float[Tensor, "n n"],
        products: Float[Tensor, "n n"],
        weights: Float[Tensor, "n n"],
        bias: bool,
        power: int,
    ) -> Float[Tensor, ""]:
        right, weighted = _weigh(products, weights, bias, power)
        ctx.save_for_backward(left, products, weights, right, weighted)
        ctx.bias, ctx.power = bias, power
        return torch.dot(weighted.view(-1), left.reshape(-1))

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        *grad_outputs: Tensor,
    ) -> tuple[Tensor | None, ...]:
        left, products, weights, right, weighted = ctx.saved_tensors
        if torch.is_grad_enabled():  # a graph of the gradient is wanted
            right, weighted = _weigh(products, weights, ctx.bias, ctx.power)
        slope = grad_outputs[0]
        d_left = slope * weighted if ctx.needs_input_grad[0] else None
        d_products = (ctx.power * slope) * weights * left
        return d_left, d_products if ctx.power == 1 else d_products * right, None, None, None


def _weigh(products: Tensor, weights: Tensor, bias: bool, power: int) -> tuple[Tensor, Tensor]:
    """K + b and w (K + b)ᵖ."""
    right = products + 1 if bias else products
    return right, weights * right if power == 1 else weights * right * right


_pair_sum: Callable[..., Tensor] = _PairSum.apply


def pair_sum(
    left: Float[Tensor, "n n"],
    products: Float[Tensor, "n n"],
    weights: Float[Tensor, "n n"],
    *,
    bias: bool,
    power: int,
) -> Float[Tensor, ""]:
    """Sum over all pairs of samples of $w_{nm} L_{nm} (K_{nm} + b)^p$.

    Returns:
        The sum.

    Example:
        >>> ones, products = torch.ones(2, 2), torch.tensor([[1.0, 2.0], [2.0, 4.0]])
        >>> pair_sum(ones, products, ones, bias=True, power=2)
        tensor(47.)
    """
    return _pair_sum(left, products, weights, bias, power)


def inner(rows: Float[Tensor, "n d"], block: slice) -> Float[Tensor, "b n"]:
    """Rows of the Gram matrix, in float64: all, or a block where all pairs are too many."""
    if block == slice(None):
        return gram(rows)
    dtype = accumulation_dtype(rows.device)
    return rows[block].to(dtype) @ rows.to(dtype).T
