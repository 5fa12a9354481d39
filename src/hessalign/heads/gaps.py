r"""The largest gap between any two domains near a head, on all samples, and what limits it.

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

Every ordered pair (i, j) is ascended from several starts at once, each step two matrix products per
domain. All starts get a few steps, the best starts of each pair some more, and the best pairs as
many as they need, if they beat what is known. A gap has many local maxima, with an activation very
many; so random starts follow, half of them beside the best maximum known.

Indices: e, i, j domain, q ordered pair, b start, p parameter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from hessalign._shapes import Float, Int
from hessalign.curvature.operators import hessian_difference
from hessalign.heads.ascent import ON_THE_BORDER, Ball, ascend
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


_TRIAL_STEPS = 8  # evaluations per start before only the best starts of each pair go on
_PAIR_STEPS = 15  # evaluations of these before only the best start of the leading pairs goes on
_LEADING_PAIRS = 3
_STEPS = 200

# Of the slope that is left; the value is right to about its square.
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-7}
# Of each pair, the head with the largest gap, and this gap.
_Found = tuple[Tensor, Tensor]


class _Effort(NamedTuple):
    """How much is tried beside the starts that the expansion suggests."""

    restarts: int  # unless the caller says how many
    starts: int  # of each of three kinds, for each pair, radius and restart
    leading: int  # starts of each pair that go on after their first steps
    near: float  # restarts but the first leave out pairs with less than this share of the largest


# A gap of convex losses has few local maxima, and these are not far from the largest.
_CONVEX = _Effort(restarts=2, starts=8, leading=2, near=0.8)
# Losses with an activation have very many.
_NON_CONVEX = _Effort(restarts=6, starts=32, leading=8, near=0.5)


def exact_attack(
    data: HeadSamples,
    radii: tuple[float, ...],
    gaps: Gaps,
    given: Float[Tensor, "r p"],
    restarts: int | None,
    generator: torch.Generator,
) -> tuple[Float[Tensor, "r q p"], Float[Tensor, "r q"]]:
    """For each ascending radius and ordered pair, the head with the largest gap found, and it."""
    # The first starts are both ways along the eigenvector of H_i − H_j, along the gradient and the
    # solution of the previous radius, and a given head; then, from the largest radius down, the
    # solution of the next larger one, drawn in. Each restart adds random ones for the pairs that
    # may still have the largest gap. What is found within a radius is a candidate for all larger
    # ones, so the maximum never falls as the radius grows. A restart depends only on those before
    # it, so it never falls as restarts are added either. Steps are in the precision of the
    # features, results in float64.
    centre, pairs = gaps.centre, gaps.pairs
    effort = _CONVEX if data.convex else _NON_CONVEX
    before: _Found = (centre.expand_as(gaps.gradient), gaps.gap)
    known: list[_Found] = []
    for radius, extra in zip(radii, given, strict=True):
        axis, slope = gaps.direction, gaps.gradient
        directions = torch.stack([axis, -axis, slope, before[0] - centre])
        same = (extra - centre).expand_as(slope).unsqueeze(0)
        starts = torch.cat([_on_sphere(directions, radius), same])
        found = _climb(data, centre, radius, starts, pairs, before[1])
        before = _best(gaps, before, found, extra.expand_as(found))
        known.append(before)
    for index in reversed(range(len(radii) - 1)):
        heads, values = known[index + 1]
        top = values.topk(min(_LEADING_PAIRS, len(pairs))).indices
        inwards = _on_sphere(heads[top] - centre, radii[index]).unsqueeze(0)
        found = known[index][0].clone()
        found[top] = _climb(data, centre, radii[index], inwards, pairs[top], known[index][1][top])
        known[index] = _best(gaps, known[index], found)
    _carry_outwards(gaps, known)
    for restart in range(effort.restarts if restarts is None else restarts):
        share = effort.near if restart else 0.5
        for index, radius in enumerate(radii):
            heads, values = known[index]
            near = _contenders(gaps.limits(radius, heads), values, share)
            if len(near) == 0:
                continue
            neighbours = [known[i][0][near] for i in (index - 1, index + 1) if 0 <= i < len(radii)]
            moves = torch.stack([heads[near], *neighbours]) - centre
            random = _random_starts(moves[0], radius, data.shape, effort.starts, generator)
            starts = torch.cat([random, _on_sphere(moves[1:], radius)])
            found = heads.clone()
            found[near] = _climb(data, centre, radius, starts, pairs[near], values[near])
            known[index] = _best(gaps, known[index], found)
        _carry_outwards(gaps, known)
    return torch.stack([heads for heads, _ in known]), torch.stack([gap for _, gap in known])


def _contenders(
    limits: Float[Tensor, " q"], gaps: Float[Tensor, " q"], near: float
) -> Int[Tensor, " c"]:
    """Pairs that may have the largest gap: none has been proved, and theirs comes near."""
    largest = float(gaps.max())
    possible = torch.tensor([not proved(largest, float(limit)) for limit in limits])
    return (possible.to(gaps.device) & (gaps >= near * largest)).nonzero().squeeze(1)


def _random_starts(
    moves: Float[Tensor, "q p"],
    radius: float,
    shape: tuple[int, int],
    count: int,
    generator: torch.Generator,
) -> Float[Tensor, "b q p"]:
    """Anywhere in the ball, away from given points, and from these with one output drawn anew."""
    pairs, outputs = len(moves), shape[0]

    def draw(make: Callable[..., Tensor], *sizes: int) -> Tensor:
        drawn = make(count, pairs, *sizes, generator=generator, device=generator.device)
        return drawn.to(moves)

    def anywhere(size: int) -> Tensor:
        return _on_sphere(draw(torch.randn, size), radius) * draw(torch.rand, 1).sqrt()

    renewed = moves.view(pairs, *shape).repeat(count, 1, 1, 1)
    output = (draw(torch.rand) * outputs).long().clamp_max(outputs - 1)
    start, pair = torch.meshgrid(
        *(torch.arange(n, device=moves.device) for n in output.shape), indexing="ij"
    )
    renewed[start, pair, output] = anywhere(shape[1])
    return torch.cat(
        [anywhere(moves.shape[1]), moves + anywhere(moves.shape[1]), renewed.flatten(2)]
    )


def _carry_outwards(gaps: Gaps, known: list[_Found]) -> None:
    """What is inside a radius is inside all larger ones."""
    for index in range(1, len(known)):
        known[index] = _best(gaps, known[index], known[index - 1][0])


def _on_sphere(directions: Float[Tensor, "*b p"], radius: float) -> Float[Tensor, "*b p"]:
    norms = directions.norm(dim=-1, keepdim=True)
    scaled: Tensor = radius * directions / norms.clamp_min(torch.finfo(norms.dtype).tiny)
    return scaled


def _best(gaps: Gaps, known: _Found, *others: Float[Tensor, "q p"]) -> _Found:
    """For each pair the head with the largest gap, of the best one known and others."""
    heads, best = known
    for candidate in others:
        values, _ = gaps.data.gap(candidate, gaps.pairs)
        better = values > best
        heads = torch.where(better.unsqueeze(1), candidate, heads)
        best = torch.where(better, values, best)
    return heads, best


def _climb(
    data: HeadSamples,
    centre: Tensor,
    radius: float,
    starts: Float[Tensor, "b q p"],
    pairs: Tensor,
    known: Float[Tensor, " q"],
) -> Float[Tensor, "q p"]:
    """Ascend all starts a little, the best further, and what beats the known to the end."""
    dtype = data.features.dtype
    origin, region = centre.to(dtype), Ball(radius)
    effort, tolerance = _CONVEX if data.convex else _NON_CONVEX, _TOLERANCE[dtype]

    def climb(points: Tensor, of: Tensor, steps: int) -> _Found:
        def gap(moves: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
            return data.gap(origin + moves, of[rows])

        return ascend(gap, region, points, steps=steps, tolerance=tolerance)

    def leading(found: _Found, count: int) -> Tensor:
        """The best points of each pair."""
        points, values = found
        best = values.view(-1, len(pairs)).topk(count, dim=0).indices
        every = torch.arange(len(pairs), device=best.device)
        return points.view(-1, *starts.shape[1:])[best, every]

    trial = climb(starts.flatten(0, 1).to(dtype), pairs.repeat(len(starts), 1), _TRIAL_STEPS)
    some = leading(trial, min(effort.leading, len(starts)))
    middle = climb(some.flatten(0, 1), pairs.repeat(len(some), 1), _PAIR_STEPS)
    points = leading(middle, 1)[0]
    values = middle[1].view(-1, len(pairs)).amax(0)
    top = values.topk(min(_LEADING_PAIRS, len(pairs))).indices
    top = top[values[top] > known[top]]
    if len(top):
        points[top], _ = climb(points[top], pairs[top], _STEPS)
    return centre + region.retract(points.to(centre.dtype))
