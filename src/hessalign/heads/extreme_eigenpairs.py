"""Both ends of a symmetric matrix's spectrum, from its products with vectors."""

from __future__ import annotations

import torch
from torch import Tensor

from hessalign._shapes import Float
from hessalign.alignment.distance import DENSE_PARAMETERS
from hessalign.alignment.lanczos import Product, lanczos

ACCURACY = 1e-4
"""Of the eigenvectors; the eigenvalues are right to about its square."""


def extreme_eigenpairs(
    product: Product, like: Float[Tensor, " p"]
) -> tuple[Float[Tensor, " 2"], Float[Tensor, "2 p"]]:
    """Smallest and largest eigenvalue with their unit eigenvectors.

    Args:
        product: From vectors, one per row, to the matrix's products with them.
        like: A vector of the right size and device.

    Returns:
        The two eigenvalues, ascending, and the eigenvectors as rows, float64.

    Example:
        >>> diagonal = torch.tensor([3.0, -1.0, 2.0], dtype=torch.float64)
        >>> values, vectors = extreme_eigenpairs(lambda v: v * diagonal, diagonal)
        >>> values
        tensor([-1.,  3.], dtype=torch.float64)
    """
    size = len(like)
    if size <= DENSE_PARAMETERS:
        identity = torch.eye(size, dtype=torch.float64, device=like.device)
        values, vectors = torch.linalg.eigh(product(identity))
        return values[[0, -1]], vectors.T[[0, -1]]
    return lanczos(product, size, like.device, which="both ends", accuracy=ACCURACY)
