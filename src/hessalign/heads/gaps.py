r"""The gaps of all ordered pairs of domains around a head: to second order, and what limits them.

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

Indices: e, i, j domain, q ordered pair, p parameter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from hessalign._shapes import Float, Int
from hessalign.curvature.operators import hessian_difference
from hessalign.heads.ascent import ON_THE_BORDER
from hessalign.heads.bound import largest_third_derivative
from hessalign.heads.samples import HeadSamples, Point

# Of a head whose limits are looked for: they need all eigenvalues of its Hessians.
_MOST_PARAMETERS = 512
_HALVINGS = 100

_PROVED = 1e-4  # a gap that is short of what none can exceed by this share at most is the largest


def proved(gap: float, limit: float) -> bool:
    """Whether a gap comes up to what none can exceed, to a share of `_PROVED`."""
    return limit <= gap + _PROVED * abs(gap)


@final
@dataclass(frozen=True, eq=False)
class Gaps:
    """The gaps L_i − L_j of all ordered pairs around a head, for samples in float64."""

    data: HeadSamples
    centre: Point
    pairs: Int[Tensor, "q 2"]
    gap: Float[Tensor, " q"]
    gradient: Float[Tensor, "q p"]
    curvature: Float[Tensor, " q"]  # the largest absolute eigenvalue of H_i − H_j
    direction: Float[Tensor, "q p"]  # the unit eigenvector of its largest eigenvalue
    third: Float[Tensor, " q"]  # the bound M; infinite where none is known
    eigenvalues: Float[Tensor, "q p"]  # all of H_i − H_j, ascending; 0 where M is infinite
    slopes: Float[Tensor, "q p"]  # the gradient along the eigenvectors

    def predicted(self, radius: float) -> Float[Tensor, " q"]:
        r"""Theorem 1's prediction, $L_i - L_j + \delta\|g_i - g_j\| + ½\delta^2\|H_i - H_j\|_2$."""
        slopes: Tensor = self.gradient.norm(dim=1)
        return self.gap + radius * slopes + radius**2 / 2 * self.curvature

    def limits(self, radius: float, heads: Float[Tensor, "q p"]) -> Float[Tensor, " q"]:
        """What no pair exceeds within a radius: the smaller of both bounds, tight at good heads."""
        if bool(self.third.isinf().all()):
            return self.third
        return torch.minimum(self._limit_around_centre(radius), self._limit_around(radius, heads))

    def _limit_around_centre(self, radius: float) -> Float[Tensor, " q"]:
        top = self.eigenvalues[:, -1].clamp_min(0)
        # With this ν the slope of the dual in ν is positive; it falls towards the top.
        low, high = top, top + self.slopes.norm(dim=1) / radius
        best = self._dual(high, radius)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            best = torch.minimum(best, self._dual(middle, radius))
            falling = self._shares(middle).square().sum(1) > radius**2
            low, high = torch.where(falling, middle, low), torch.where(falling, high, middle)
        return self.gap + best + radius**3 / 6 * self.third

    def _shares(self, nu: Float[Tensor, " q"]) -> Float[Tensor, "q p"]:
        """(νI − H)⁻¹ g along the eigenvectors; infinite where ν is an eigenvalue."""
        room = nu.unsqueeze(1) - self.eigenvalues
        return torch.where(self.slopes == 0, 0, self.slopes / room.clamp_min(0))

    def _dual(self, nu: Float[Tensor, " q"], radius: float) -> Float[Tensor, " q"]:
        inner = torch.where(self.slopes == 0, 0, self._shares(nu) * self.slopes).sum(1)
        return nu * radius**2 / 2 + inner / 2

    def _limit_around(self, radius: float, heads: Float[Tensor, "q p"]) -> Float[Tensor, " q"]:
        move = heads - self.centre
        value, slope = self.data.gap(heads, self.pairs)
        square = move.square().sum(1)
        border = square >= (radius * (1 - ON_THE_BORDER)) ** 2
        outward = (move * slope).sum(1) / square.clamp_min(torch.finfo(square.dtype).tiny)
        mu = torch.where(border, outward, 0).clamp_min(0)
        rest = (slope - mu.unsqueeze(1) * move).norm(dim=1)
        far = radius + square.sqrt()
        bend = self.eigenvalues[:, -1] + radius * self.third - mu
        # The largest of rest · t + bend · t² / 2 for 0 ≤ t ≤ far.
        inside = (bend < 0) & (rest < -bend * far)
        most = torch.where(inside, -(rest**2) / (2 * bend), rest * far + bend * far**2 / 2)
        return value + mu / 2 * (radius**2 - square).clamp_min(0) + most


def make_gaps(data: HeadSamples, centre: Point) -> Gaps:
    """The gaps around a head; without limits if it is large, or M unknown."""
    every = range(len(data.ids))
    ordered = [(i, j) for i in every for j in every if i != j]
    pairs = torch.tensor(ordered, device=centre.device)
    gap, gradient = data.gap(centre.expand(len(pairs), -1), pairs)
    heads = [data.domain_statistics(centre, e) for e in every]
    curvature: dict[tuple[int, int], Tensor] = {}
    direction: dict[tuple[int, int], Tensor] = {}
    for i in every:
        for j in range(i):
            values, vectors = hessian_difference(heads[i], heads[j]).extremes()
            curvature[i, j] = curvature[j, i] = values.abs().max().to(centre.device)
            direction[i, j], direction[j, i] = vectors[1], vectors[0]
    thirds = [largest_third_derivative(data, e) for e in every]
    third = gradient.new_tensor([thirds[i] + thirds[j] for i, j in ordered])
    eigenvalues, slopes = torch.zeros_like(gradient), torch.zeros_like(gradient)
    if data.num_parameters > _MOST_PARAMETERS or bool(third.isinf().all()):
        third += torch.inf
    else:
        hessians = [head.hessian[0] for head in heads]
        for row, (i, j) in enumerate(ordered):
            eigenvalues[row], vectors = torch.linalg.eigh(hessians[i] - hessians[j])
            slopes[row] = gradient[row] @ vectors
    return Gaps(
        data,
        centre,
        pairs,
        gap,
        gradient,
        torch.stack([curvature[pair] for pair in ordered]),
        torch.stack([direction[pair] for pair in ordered]),
        third,
        eigenvalues,
        slopes,
    )
