r"""What no gap between two domains can exceed within a radius: the proof that a maximum is global.

A gap $f = L_i - L_j$ is a difference of convex functions at best, so that no ascent knows whether
its maximum is the largest. Two bounds hold for all moves x with ‖x‖ ≤ δ, given a bound M of the
third derivative along unit directions:

- Around the head, by Taylor and Lagrange duality: for any $\nu \ge \max(\lambda_{\max}, 0)$ of
  $H = H_i - H_j$,
  $f(x) \le f(0) + ½ν δ^2 + ½ g^\top (νI - H)^{-1} g + M δ^3 / 6$.
- Around a point x* with slope $\nabla f = \mu x^* + r$, $\mu \ge 0$: curvature is at most
  $\Lambda = \lambda_{\max} + M δ$ in the ball, and
  $x^{*\top}(x - x^*) = ½(‖x‖^2 - ‖x^*‖^2 - ‖x - x^*‖^2)$, so
  $f(x) \le f(x^*) + ½μ(δ^2 - ‖x^*‖^2) + ½(\Lambda - \mu) ‖x - x^*‖^2 + ‖r‖ ‖x - x^*‖$.

For squared error M = 0, and the first one is attained. For cross-entropy the second one is attained
where the slope outweighs the curvature, as it does for a small radius.

Indices: q ordered pair, p parameter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from hessalign._shapes import Float, Int
from hessalign.heads.ascent import ON_THE_BORDER
from hessalign.heads.bound import largest_third_derivative
from hessalign.heads.samples import HeadSamples

_MOST_PARAMETERS = 512
"""Of a head whose limits are looked for: they need all eigenvalues of its Hessians."""

_HALVINGS = 100


@final
@dataclass(frozen=True, eq=False)
class GapLimits:
    r"""Upper bounds of the gaps of all ordered pairs around a head.

    Attributes:
        data: The samples, float64.
        centre: The head θ*.
        pairs: The ordered pairs (i, j).
        gap: L_i − L_j at the head.
        third: The bound M of the third derivative; infinite where none is known.
        curvatures: Eigenvalues of H_i − H_j, ascending.
        slopes: g_i − g_j along its eigenvectors.
    """

    data: HeadSamples
    centre: Float[Tensor, " p"]
    pairs: Int[Tensor, "q 2"]
    gap: Float[Tensor, " q"]
    third: Float[Tensor, " q"]
    curvatures: Float[Tensor, "q p"]
    slopes: Float[Tensor, "q p"]

    def within(self, radius: float, heads: Float[Tensor, "q p"]) -> Float[Tensor, " q"]:
        """What no pair exceeds within a radius: the smaller of both bounds, tight at good heads."""
        if bool(self.third.isinf().all()):
            return self.third
        return torch.minimum(self._around_centre(radius), self._around(radius, heads))

    def _around_centre(self, radius: float) -> Float[Tensor, " q"]:
        top = self.curvatures[:, -1].clamp_min(0)
        # With this ν the slope of the dual in ν is positive; it falls towards the top.
        low, high = top, top + self.slopes.norm(dim=1) / radius
        best = self._dual(high, radius)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            best = torch.minimum(best, self._dual(middle, radius))
            shares = self._shares(middle)
            falling = shares.square().sum(1) > radius**2
            low, high = torch.where(falling, middle, low), torch.where(falling, high, middle)
        return self.gap + best + radius**3 / 6 * self.third

    def _shares(self, nu: Float[Tensor, " q"]) -> Float[Tensor, "q p"]:
        """(νI − H)⁻¹ g along the eigenvectors; infinite where ν is an eigenvalue."""
        room = nu.unsqueeze(1) - self.curvatures
        return torch.where(self.slopes == 0, 0, self.slopes / room.clamp_min(0))

    def _dual(self, nu: Float[Tensor, " q"], radius: float) -> Float[Tensor, " q"]:
        inner = torch.where(self.slopes == 0, 0, self._shares(nu) * self.slopes).sum(1)
        return nu * radius**2 / 2 + inner / 2

    def _around(self, radius: float, heads: Float[Tensor, "q p"]) -> Float[Tensor, " q"]:
        move = heads - self.centre
        value, slope = self.data.gap(heads, self.pairs)
        square = move.square().sum(1)
        border = square >= (radius * (1 - ON_THE_BORDER)) ** 2
        outward = (move * slope).sum(1) / square.clamp_min(torch.finfo(square.dtype).tiny)
        mu = torch.where(border, outward, 0).clamp_min(0)
        rest = (slope - mu.unsqueeze(1) * move).norm(dim=1)
        far = radius + square.sqrt()
        bend = self.curvatures[:, -1] + radius * self.third - mu
        # The largest of rest · t + bend · t² / 2 for 0 ≤ t ≤ far.
        inside = (bend < 0) & (rest < -bend * far)
        most = torch.where(inside, -(rest**2) / (2 * bend), rest * far + bend * far**2 / 2)
        return value + mu / 2 * (radius**2 - square).clamp_min(0) + most


def gap_limits(
    data: HeadSamples, centre: Float[Tensor, " p"], pairs: Int[Tensor, "q 2"]
) -> GapLimits:
    """What is needed to bound the gaps around a head.

    Returns:
        The limits; infinite for a head with many parameters, or a loss whose third derivative has
        no known bound.
    """
    gap, gradient = data.gap(centre.expand(len(pairs), -1), pairs)
    thirds = [largest_third_derivative(data, e) for e in range(len(data.ids))]
    third = gradient.new_tensor([thirds[i] + thirds[j] for i, j in pairs.tolist()])
    if data.num_parameters > _MOST_PARAMETERS or bool(third.isinf().all()):
        nothing = torch.zeros_like(gradient)
        return GapLimits(data, centre, pairs, gap, third + torch.inf, nothing, nothing)
    hessians = [data.domain_statistics(centre, e).hessian[0] for e in range(len(data.ids))]
    curvatures, slopes = [], []
    for (i, j), slope in zip(pairs.tolist(), gradient, strict=True):
        values, vectors = torch.linalg.eigh(hessians[i] - hessians[j])
        curvatures.append(values)
        slopes.append(slope @ vectors)
    return GapLimits(data, centre, pairs, gap, third, torch.stack(curvatures), torch.stack(slopes))
