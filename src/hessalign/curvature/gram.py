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


class _Gram(Function):
    """z zᵀ in float64; the symmetry makes backward one product instead of two."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        z: Float[Tensor, "n d"],
    ) -> Float[Tensor, "n n"]:
        wide = z.to(accumulation_dtype(z.device))
        ctx.save_for_backward(wide)
        ctx.dtype = z.dtype
        half = len(z) // 2
        if half < FEW_ROWS or z.shape[1] < SHORT_ROWS:
            return wide @ wide.T
        # The lower left quarter mirrors the upper right one.
        upper = wide[:half] @ wide.T
        lower = torch.cat([upper[:, half:].T, wide[half:] @ wide[half:].T], dim=1)
        return torch.cat([upper, lower])

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        *grad_outputs: Tensor,
    ) -> Tensor:
        (wide,) = ctx.saved_tensors
        (grad,) = grad_outputs
        slope: Tensor = (grad + grad.T) @ wide
        return slope.to(ctx.dtype)


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
