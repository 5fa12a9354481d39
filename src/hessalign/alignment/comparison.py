r"""How much domains differ, given the inner products of whatever is compared.

For quantities $M_e$ (gradients, Hessians, …) the matrix $G_{ef} = \langle M_e, M_f\rangle$ holds
all that distances and dispersions need, however large M is.

Indices: e and f domain.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hessalign._shapes import Float


def dispersion(inner: Float[Tensor, "e e"]) -> Float[Tensor, ""]:
    r"""Mean squared distance of the domains to their mean.

    $$\frac1E \sum_e \|M_e - \bar M\|^2 = \frac1E \sum_e G_{ee} - \frac1{E^2} \sum_{ef} G_{ef}$$

    This is the penalty of eq. 17 and 20 for $M = H g$, diag H or g, and the variance of Hessians
    of section 3.1 for $M = H$.

    Args:
        inner: Inner products G between the domains, in float64.

    Returns:
        The dispersion.

    Example:
        >>> M = torch.tensor([[0.0], [2.0]])
        >>> dispersion(M @ M.T)
        tensor(1.)
    """
    domains = len(inner)
    weights = torch.eye(domains, dtype=inner.dtype, device=inner.device) - 1 / domains
    return (inner * weights).sum() / domains


def squared_distances(inner: Float[Tensor, "e e"]) -> Float[Tensor, "e e"]:
    r"""Squared distances between all pairs, $G_{ee} + G_{ff} - 2 G_{ef}$.

    Args:
        inner: Inner products G between the domains, in float64.

    Returns:
        The squared distances, none below 0.

    Example:
        >>> M = torch.tensor([[0.0], [2.0]])
        >>> squared_distances(M @ M.T)
        tensor([[0., 4.],
                [4., 0.]])
    """
    norms = inner.diagonal()
    return (norms.unsqueeze(1) + norms.unsqueeze(0) - (inner + inner.T)).clamp(min=0)


def distances(inner: Float[Tensor, "e e"]) -> Float[Tensor, "e e"]:
    r"""Distances between all pairs, $\|M_e - M_f\|$.

    Args:
        inner: Inner products G between the domains, in float64.

    Returns:
        The distances; where one is 0, so is its derivative.
    """
    squares = squared_distances(inner)
    positive = squares > 0
    roots = torch.where(positive, squares, 1).sqrt()
    return torch.where(positive, roots, 0)
