r"""Coordinates in which the Hessian of a head is close to the identity.

The Hessian of a domain is mean S ⊗ z̃z̃ᵀ + λ I. With S replaced by its mean, and z̃z̃ᵀ by its mean
weighted with the trace of S, it becomes S̄ ⊗ C + λ I, which two small eigenproblems diagonalise.
That is exact for squared error (S = 1) and for a single logit (S a number), and a good
preconditioner for softmax cross-entropy.

Indices: n sample, k output, d feature (with the constant of the bias), b point.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from hessalign._shapes import Float
from hessalign.curvature import LinearHead
from hessalign.curvature.losses import CrossEntropy
from hessalign.curvature.products import chunk_rows
from hessalign.heads.samples import HeadSamples, Point, Points

_RANK = 1e-13  # eigenvalues below this share of the largest are rounding: the direction is flat


@final
@dataclass(frozen=True, eq=False)
class Whitening:
    r"""The change of coordinates x = Λ^{1/2} (U ⊗ V)ᵀ θ for the Hessian model (U ⊗ V) Λ (U ⊗ V)ᵀ.

    Flat directions, Λ = 0, have no coordinate: they are left where they are. Where the features are
    `spanning`, none is flat but, for softmax cross-entropy, shifts common to all classes.
    """

    left: Float[Tensor, "k k"]  # eigenvectors U of S̄
    right: Float[Tensor, "d d"]  # eigenvectors V of C
    scale: Float[Tensor, "k d"]  # Λ^{1/2}
    inverse: Float[Tensor, "k d"]  # Λ^{−1/2}, 0 for flat directions
    spanning: bool
    smallest: float  # eigenvalue of the Hessian itself, L2 term included: exact for every loss

    def parameters(self, x: Points) -> Points:
        """From coordinates to parameters, θ = (U ⊗ V) Λ^{−1/2} x."""
        matrices = x.view(-1, *self.scale.shape) * self.inverse
        return (self.left @ matrices @ self.right.T).flatten(1)

    def coordinates(self, theta: Points) -> Points:
        """From parameters, or their differences, to coordinates, x = Λ^{1/2} (U ⊗ V)ᵀ θ."""
        matrices = self.left.T @ theta.view(-1, *self.scale.shape) @ self.right
        return (matrices * self.scale).flatten(1)

    def slopes(self, gradients: Points) -> Points:
        """Derivatives in x from derivatives g in θ, Λ^{−1/2} (U ⊗ V)ᵀ g."""
        matrices = self.left.T @ gradients.view(-1, *self.scale.shape) @ self.right
        return (matrices * self.inverse).flatten(1)


def make_whitening(data: HeadSamples, point: Point, e: int) -> Whitening:
    """Whitening coordinates for one domain's Hessian at a point."""
    head = data.domain_statistics(point, e)
    z = head.features.z.double()
    weight = head.curvature.diagonal().sum(1)
    mean_weight = weight.mean().clamp_min(torch.finfo(torch.float64).tiny)
    moments = z.T @ (z * (weight / mean_weight / len(z)).unsqueeze(1))
    feature_values, right = _eigenpairs(moments)
    output_values, left = _eigenpairs(_mean_curvature(head))
    scale = (output_values.unsqueeze(1) * feature_values + data.l2).sqrt()
    # Softmax cross-entropy is flat along shifts common to all classes.
    flat = isinstance(data.loss, CrossEntropy)
    smallest = 0.0 if flat else float(output_values[0] * feature_values[0])
    return Whitening(
        left,
        right,
        scale,
        torch.where(scale > 0, 1 / scale, 0),
        bool(feature_values[0] > 0),
        smallest + data.l2,
    )


def _eigenpairs(matrix: Float[Tensor, "m m"]) -> tuple[Float[Tensor, " m"], Float[Tensor, "m m"]]:
    """Eigenvalues without what is rounding, and eigenvectors."""
    values, vectors = torch.linalg.eigh(matrix)
    return torch.where(values > _RANK * values[-1], values, 0), vectors


def _mean_curvature(head: LinearHead) -> Float[Tensor, "k k"]:
    samples, outputs = head.logits.shape
    identity = torch.eye(outputs, dtype=torch.float64, device=head.logits.device)
    rows = chunk_rows(outputs**2)
    total = torch.zeros_like(identity)
    for start in range(0, samples, rows):
        part = slice(start, min(samples, start + rows))
        size = part.stop - part.start
        total += head.curvature.apply(identity.expand(size, -1, -1), part).sum(0)
    return (total + total.T) / (2 * samples)
