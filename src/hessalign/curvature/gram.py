r"""Gram matrices: inner products of all pairs of samples, in float64.

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

FEW_ROWS = 32
"""Blocks of a Gram matrix with fewer rows are not worth a product of their own."""

SHORT_ROWS = 512
"""Nor are blocks with shorter rows."""

CANCELLATION = 256
"""Sums of float32 rows that are smaller than their terms by more than this are float64."""


class _Gram(Function):
    """z zᵀ in float64; the symmetry makes backward one product instead of two."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's context has no public type
        z: Float[Tensor, "n d"],
    ) -> Float[Tensor, "n n"]:
        wide = z.to(accumulation_dtype(z.device))
        products = _symmetric_product(wide)
        ctx.save_for_backward(z, products)
        return products

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        *grad_outputs: Tensor,
    ) -> Tensor:
        z, products = ctx.saved_tensors
        weights = grad_outputs[0] + grad_outputs[0].T
        if z.dtype == products.dtype or _cancels(weights, products):
            return torch.mm(weights, z.to(products.dtype)).to(z.dtype)
        return torch.mm(weights.to(z.dtype), z)


def _symmetric_product(z: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
    """The product z zᵀ."""
    half = len(z) // 2
    if half < FEW_ROWS or z.shape[1] < SHORT_ROWS:
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


_gram: Callable[[Tensor], Tensor] = _Gram.apply


def gram(z: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
    r"""Inner products of all pairs of rows, $z_n \cdot z_m$, in float64.

    Args:
        z: Rows.

    Returns:
        The Gram matrix.

    Example:
        >>> gram(torch.tensor([[1.0, 1.0], [0.0, 2.0]]))
        tensor([[2., 2.],
                [2., 4.]], dtype=torch.float64)
    """
    return _gram(z)


def inner(rows: Float[Tensor, "n d"], block: slice) -> Float[Tensor, "b n"]:
    """Inner products of some rows with all rows, in float64.

    Args:
        rows: Rows.
        block: Which of them; all, or a part of them where all pairs are too many.

    Returns:
        Rows of the Gram matrix.
    """
    if block == slice(None):
        return gram(rows)
    dtype = accumulation_dtype(rows.device)
    return rows[block].to(dtype) @ rows.to(dtype).T
