"""Both ends of a symmetric matrix's spectrum, from its products with vectors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from hessalign._shapes import Float
from hessalign.alignment.distance import DENSE_PARAMETERS

ACCURACY = 1e-4
"""Of the eigenvectors; the eigenvalues are right to about its square."""


def extreme_eigenpairs(
    product: Callable[[Float[Tensor, "b p"]], Float[Tensor, "b p"]], like: Float[Tensor, " p"]
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
    from scipy.sparse.linalg import LinearOperator, eigsh

    size = len(like)
    if size <= DENSE_PARAMETERS:
        identity = torch.eye(size, dtype=torch.float64, device=like.device)
        values, vectors = torch.linalg.eigh(product(identity))
        return values[[0, -1]], vectors.T[[0, -1]]

    def matvec(vector: np.ndarray) -> np.ndarray:
        row = torch.from_numpy(vector.reshape(1, -1).astype(np.float64)).to(like.device)
        result: np.ndarray = product(row)[0].cpu().numpy()
        return result

    start = np.random.default_rng(0).standard_normal(size)
    if not matvec(start).any():
        basis = torch.eye(2, size, dtype=torch.float64, device=like.device)
        return torch.zeros(2, dtype=torch.float64, device=like.device), basis
    operator = LinearOperator((size, size), matvec=matvec, dtype=np.float64)
    found, columns = eigsh(operator, k=2, which="BE", v0=start, tol=ACCURACY)
    order = np.argsort(found)
    values = torch.from_numpy(found[order]).to(like.device)
    return values, torch.from_numpy(columns.T[order].copy()).to(like.device)
