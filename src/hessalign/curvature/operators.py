r"""Symmetric matrices that are known by their products with vectors: Hessians, and differences.

The Hessian of a head with many parameters is never formed. What is asked about it, or about
$H_e - H_f$, needs its products only: eigenvalues at the ends of the spectrum by SciPy's Lanczos
iterations, solutions of linear equations by conjugate gradients.

Indices: b vector, p parameter of the head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
import torch
from torch import Tensor

from hessalign._shapes import Float
from hessalign.curvature.hutchinson import HeadStatistics

_Product = Callable[[Float[Tensor, "b p"]], Float[Tensor, "b p"]]
"""From vectors, one per row, to a matrix's products with them, or to other coordinates."""

_DENSE_PARAMETERS = 64
"""Matrices with up to this many rows are formed to get their eigenvalues."""

_MAX_PRODUCTS = 1000
"""Of conjugate gradients."""


@final
@dataclass(frozen=True, eq=False)
class SymmetricOperator:
    """A symmetric matrix A, by its products."""

    product: _Product  # from vectors, one per row, to products with them
    size: int  # its number of rows
    device: torch.device  # where the products are computed

    def __call__(self, vectors: Float[Tensor, "b p"]) -> Float[Tensor, "b p"]:
        """The products with some vectors, one per row."""
        return self.product(vectors)

    def __sub__(self, other: SymmetricOperator) -> SymmetricOperator:
        """The difference of two matrices."""
        return SymmetricOperator(lambda v: self(v) - other(v), self.size, self.device)

    def shifted(self, number: float) -> SymmetricOperator:
        """A + c I, such as a Hessian with the L2 term of weight c."""
        return SymmetricOperator(lambda v: self(v) + number * v, self.size, self.device)

    def between(self, into: _Product, back: _Product) -> SymmetricOperator:
        """The matrix in other coordinates, Bᵀ A B, given x ↦ B x and v ↦ Bᵀ v."""
        return SymmetricOperator(lambda x: back(self(into(x))), self.size, self.device)

    def extremes(self, accuracy: float = 1e-4) -> tuple[Float[Tensor, " 2"], Float[Tensor, "2 p"]]:
        """Smallest and largest eigenvalue with their unit eigenvectors.

        Returns:
            The two eigenvalues, ascending, and the eigenvectors as rows, float64.

        Example:
            >>> diagonal = torch.tensor([3.0, -1.0, 2.0], dtype=torch.float64)
            >>> A = SymmetricOperator(lambda v: v * diagonal, 3, torch.device("cpu"))
            >>> A.extremes()[0]
            tensor([-1.,  3.], dtype=torch.float64)
        """
        if self.size <= _DENSE_PARAMETERS:
            values, vectors = torch.linalg.eigh(self._dense())
            return values[[0, -1]], vectors.T[[0, -1]]
        return self._lanczos("BE", accuracy)

    def spectral_norm(self, accuracy: float = 0.0) -> float:
        r"""The largest absolute eigenvalue, $\|A\|_2$.

        Returns:
            The norm.

        Example:
            >>> diagonal = torch.tensor([3.0, -4.0, 2.0, 0.0], dtype=torch.float64)
            >>> SymmetricOperator(lambda v: v * diagonal, 4, torch.device("cpu")).spectral_norm()
            4.0
        """
        if self.size <= _DENSE_PARAMETERS:
            return float(torch.linalg.eigvalsh(self._dense()).abs().max())
        return float(self._lanczos("LM", accuracy)[0].abs())

    def solve(self, right: Float[Tensor, " p"], accuracy: float) -> Float[Tensor, " p"]:
        """Solve A x = b by conjugate gradients, for a positive semi-definite A.

        Returns:
            The solution of least norm.

        Example:
            >>> A = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
            >>> operator = SymmetricOperator(lambda v: v @ A, 2, torch.device("cpu"))
            >>> torch.allclose(operator.solve(torch.tensor([3.0, 4.0]), 1e-6), torch.ones(2))
            True
        """
        x, residual = torch.zeros_like(right), right.clone()
        direction, square = residual.clone(), float(residual @ residual)
        goal = accuracy**2 * square
        for _ in range(_MAX_PRODUCTS):
            if square <= goal:
                break
            bent = self(direction.unsqueeze(0))[0]
            curvature = float(direction @ bent)
            if curvature <= 0:
                break
            length = square / curvature
            x = x + length * direction
            residual = residual - length * bent
            previous, square = square, float(residual @ residual)
            direction = residual + (square / previous) * direction
        return x

    def _dense(self) -> Float[Tensor, "p p"]:
        return self(torch.eye(self.size, dtype=torch.float64, device=self.device)).double()

    def _lanczos(
        self, which: Literal["LM", "BE"], accuracy: float
    ) -> tuple[Float[Tensor, " b"], Float[Tensor, "b p"]]:
        """The eigenvalue of largest size (LM), or those at both ends (BE), with eigenvectors."""
        from scipy.sparse.linalg import LinearOperator, eigsh

        def matvec(vector: np.ndarray) -> np.ndarray:
            row = torch.from_numpy(vector.reshape(1, -1).astype(np.float64)).to(self.device)
            result: np.ndarray = self(row)[0].double().cpu().numpy()
            return result

        count = 1 if which == "LM" else 2
        # The same start every time, so that the result is determined.
        start = np.random.default_rng(0).standard_normal(self.size)
        if not matvec(start).any():  # the matrix is zero, where the iterations would break down
            basis = torch.eye(count, self.size, dtype=torch.float64, device=self.device)
            return torch.zeros(count, dtype=torch.float64, device=self.device), basis
        operator = LinearOperator((self.size, self.size), matvec=matvec, dtype=np.float64)
        values, columns = eigsh(operator, k=count, which=which, v0=start, tol=accuracy)
        order = np.argsort(values)
        vectors = torch.from_numpy(columns.T[order].copy()).to(self.device)
        return torch.from_numpy(values[order]).to(self.device), vectors


def hessian_operator(head: HeadStatistics) -> SymmetricOperator:
    """The Hessian H_e of a head's risk, for statistics of a single domain."""
    device = head.domains.ids.device
    return SymmetricOperator(
        lambda v: head.hvp(v.unsqueeze(1)).squeeze(1), head.num_parameters, device
    )


def hessian_difference(first: HeadStatistics, second: HeadStatistics) -> SymmetricOperator:
    """The difference H_e − H_f of two domains' Hessians.

    Returns:
        The operator.

    Example:
        >>> from hessalign.curvature import linear_head
        >>> z, domain = torch.tensor([[1.0], [2.0]], dtype=torch.float64), torch.tensor([0, 1])
        >>> head = linear_head(z, torch.zeros(2), None, domain, loss="binary", bias=False)
        >>> hessian_difference(head.domain(0), head.domain(1)).spectral_norm()  # (2² − 1²) / 4
        0.75
    """
    return hessian_operator(first) - hessian_operator(second)
