"""Eigenvalues at the ends of a symmetric matrix's spectrum, by SciPy's Lanczos iterations.

Indices: b vector, p parameter of the head.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from hessalign._shapes import Float

Product = Callable[[Float[Tensor, "b p"]], Float[Tensor, "b p"]]
"""From vectors, one per row, to a symmetric matrix's products with them."""


def lanczos(
    product: Product,
    size: int,
    device: torch.device,
    *,
    which: Literal["largest", "both ends"],
    accuracy: float,
) -> tuple[Float[Tensor, " b"], Float[Tensor, "b p"]]:
    """The eigenvalue of largest size, or the smallest and the largest, with unit eigenvectors.

    The iterations start from the same vector every time, so the result is determined.

    Args:
        product: The matrix, by its products with single vectors.
        size: Its number of rows, 3 or more.
        device: Where the products are computed.
        which: Which eigenvalues.
        accuracy: Of the eigenvectors, relative; eigenvalues are right to about its square. 0 is as
            accurate as rounding allows.

    Returns:
        The eigenvalues, ascending, and the eigenvectors as rows, float64.

    Example:
        >>> diagonal = torch.tensor([3.0, -4.0, 2.0, 0.0], dtype=torch.float64)
        >>> cpu = torch.device("cpu")
        >>> lanczos(lambda v: v * diagonal, 4, cpu, which="largest", accuracy=0.0)[0]
        tensor([-4.], dtype=torch.float64)
    """
    from scipy.sparse.linalg import LinearOperator, eigsh

    def matvec(vector: np.ndarray) -> np.ndarray:
        row = torch.from_numpy(vector.reshape(1, -1).astype(np.float64)).to(device)
        result: np.ndarray = product(row)[0].cpu().numpy()
        return result

    count, name = (1, "LM") if which == "largest" else (2, "BE")
    start = np.random.default_rng(0).standard_normal(size)
    if not matvec(start).any():  # the matrix is zero, where the iterations would break down
        basis = torch.eye(count, size, dtype=torch.float64, device=device)
        return torch.zeros(count, dtype=torch.float64, device=device), basis
    operator = LinearOperator((size, size), matvec=matvec, dtype=np.float64)
    values, columns = eigsh(operator, k=count, which=name, v0=start, tol=accuracy)
    order = np.argsort(values)
    vectors = torch.from_numpy(columns.T[order].copy()).to(device)
    return torch.from_numpy(values[order]).to(device), vectors
