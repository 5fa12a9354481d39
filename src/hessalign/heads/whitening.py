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
from hessalign.heads.samples import HeadSamples

_RANK = 1e-13
"""Eigenvalues below this share of the largest are rounding: the direction is flat."""


@final
@dataclass(frozen=True, eq=False)
class Whitening:
    r"""The change of coordinates x = Λ^{1/2} (U ⊗ V)ᵀ θ for the Hessian model (U ⊗ V) Λ (U ⊗ V)ᵀ.

    Flat directions, Λ = 0, have no coordinate: they are left where they are.

    Attributes:
        left: Eigenvectors U of S̄.
        right: Eigenvectors V of C.
        scale: Λ^{1/2}, one number per pair of eigenvectors.
        inverse: Λ^{−1/2}, 0 for flat directions.
        spanning: Whether the features span their space, so that no direction is flat but, for
            softmax cross-entropy, shifts common to all classes.
        smallest: The smallest eigenvalue of the Hessian itself, L2 term included; it is known
            exactly for every loss (see `_smallest_eigenvalue`).
    """

    left: Float[Tensor, "k k"]
    right: Float[Tensor, "d d"]
    scale: Float[Tensor, "k d"]
    inverse: Float[Tensor, "k d"]
    spanning: bool
    smallest: float

    def parameters(self, x: Float[Tensor, "b p"]) -> Float[Tensor, "b p"]:
        """From coordinates to parameters, θ = (U ⊗ V) Λ^{−1/2} x."""
        matrices = x.view(-1, *self.scale.shape) * self.inverse
        return (self.left @ matrices @ self.right.T).flatten(1)

    def coordinates(self, theta: Float[Tensor, "b p"]) -> Float[Tensor, "b p"]:
        """From parameters, or their differences, to coordinates, x = Λ^{1/2} (U ⊗ V)ᵀ θ."""
        matrices = self.left.T @ theta.view(-1, *self.scale.shape) @ self.right
        return (matrices * self.scale).flatten(1)

    def slopes(self, gradients: Float[Tensor, "b p"]) -> Float[Tensor, "b p"]:
        """Derivatives in x from derivatives g in θ, Λ^{−1/2} (U ⊗ V)ᵀ g."""
        matrices = self.left.T @ gradients.view(-1, *self.scale.shape) @ self.right
        return (matrices * self.inverse).flatten(1)


def make_whitening(data: HeadSamples, point: Float[Tensor, " p"], e: int) -> Whitening:
    """Whitening coordinates for one domain's Hessian at a point.

    Returns:
        The coordinates.

    Example:
        >>> from hessalign.curvature import make_loss
        >>> from hessalign.heads.samples import make_samples
        >>> z, y = torch.randn(9, 3, dtype=torch.float64), torch.randn(9, dtype=torch.float64)
        >>> data = make_samples(z, y, None, make_loss("squared"), l2=0.1)
        >>> w = make_whitening(data, torch.zeros(4, dtype=torch.float64), 0)
        >>> H = data.domain_statistics(torch.zeros(4), 0).hessian[0] + 0.1 * torch.eye(4)
        >>> torch.allclose(w.slopes(w.slopes(H).T), torch.eye(4, dtype=torch.float64))
        True
    """
    head = data.domain_statistics(point, e)
    z = head.features.z.double()
    weight = head.curvature.diagonal().sum(1)
    mean_weight = weight.mean().clamp_min(torch.finfo(torch.float64).tiny)
    moments = z.T @ (z * (weight / mean_weight / len(z)).unsqueeze(1))
    feature_values, right = torch.linalg.eigh(moments)
    output_values, left = torch.linalg.eigh(_mean_curvature(head))
    feature_values, output_values = (
        _without_rounding(feature_values),
        _without_rounding(output_values),
    )
    curvature = output_values.unsqueeze(1) * feature_values + data.l2
    scale = curvature.sqrt()
    return Whitening(
        left,
        right,
        scale,
        torch.where(scale > 0, 1 / scale, 0),
        bool(feature_values[0] > 0),
        _smallest_eigenvalue(data, output_values, feature_values),
    )


def _without_rounding(eigenvalues: Float[Tensor, " m"]) -> Float[Tensor, " m"]:
    return torch.where(eigenvalues > _RANK * eigenvalues[-1], eigenvalues, 0)


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


def _smallest_eigenvalue(
    data: HeadSamples, output_values: Float[Tensor, " k"], feature_values: Float[Tensor, " d"]
) -> float:
    """The smallest eigenvalue of a domain's Hessian with its L2 term, without forming either.

    Softmax cross-entropy is flat along shifts common to all classes, so there it is λ. Squared
    error and a single logit have the Hessian S̄ ⊗ C + λ I exactly.

    Returns:
        The eigenvalue.
    """
    if isinstance(data.loss, CrossEntropy):
        return data.l2
    return float(output_values[0] * feature_values[0]) + data.l2
