"""Linear equations with a positive semi-definite matrix that is known by its products."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hessalign._shapes import Float

MAX_PRODUCTS = 1000


def conjugate_gradients(
    product: Callable[[Tensor], Tensor], right: Float[Tensor, " p"], accuracy: float
) -> Float[Tensor, " p"]:
    """Solve A x = b for a positive semi-definite A given by its products.

    Args:
        product: x ↦ A x.
        right: b, in the range of A.
        accuracy: Residual to reach, as a share of ‖b‖.

    Returns:
        The solution of least norm.

    Example:
        >>> A = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
        >>> x = conjugate_gradients(lambda x: A @ x, torch.tensor([3.0, 4.0]), 1e-6)
        >>> torch.allclose(x, torch.ones(2))
        True
    """
    x, residual = torch.zeros_like(right), right.clone()
    direction, square = residual.clone(), float(residual @ residual)
    goal = accuracy**2 * square
    for _ in range(MAX_PRODUCTS):
        if square <= goal:
            break
        bent = product(direction)
        curvature = float(direction @ bent)
        if curvature <= 0:
            break
        length = square / curvature
        x = x + length * direction
        residual = residual - length * bent
        previous, square = square, float(residual @ residual)
        direction = residual + (square / previous) * direction
    return x
