r"""The largest gap between any two domains near a head, on all samples.

Every ordered pair (i, j) is ascended from several starts at once, each step two matrix products per
domain. All starts get a few steps, the best start of each pair some more, and the best pairs as
many as they need.

Indices: e, i, j domain, q ordered pair, b start, p parameter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from hessalign._shapes import Float, Int
from hessalign.transfer.ascent import Ascent, Ball, ascend
from hessalign.transfer.extreme_eigenpairs import extreme_eigenpairs
from hessalign.transfer.head_data import HeadData

TRIAL_STEPS = 6
"""Evaluations per start before only the best start of each pair goes on."""

PAIR_STEPS = 15
"""Evaluations per pair before only the leading pairs go on."""

LEADING_PAIRS = 3
STEPS = 200
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-7}
"""Of the slope that is left; the value is right to about its square."""


@final
@dataclass(frozen=True, eq=False)
class Expansion:
    r"""The gaps of all ordered pairs up to second order around a head.

    Attributes:
        pairs: The ordered pairs (i, j).
        gap: L_i − L_j at the head.
        gradient: Its gradient, g_i − g_j.
        curvature: The largest absolute eigenvalue of H_i − H_j.
        direction: The unit eigenvector of its largest eigenvalue.
    """

    pairs: Int[Tensor, "q 2"]
    gap: Float[Tensor, " q"]
    gradient: Float[Tensor, "q p"]
    curvature: Float[Tensor, " q"]
    direction: Float[Tensor, "q p"]

    def bound(self, radius: float) -> Float[Tensor, " q"]:
        r"""Theorem 1's prediction, $L_i - L_j + \delta\|g_i - g_j\| + ½\delta^2\|H_i - H_j\|_2$.

        Args:
            radius: δ.

        Returns:
            The largest gap within the radius, to second order at most.
        """
        slopes: Tensor = self.gradient.norm(dim=1)
        return self.gap + radius * slopes + radius**2 / 2 * self.curvature


def expand(data: HeadData, centre: Float[Tensor, " p"]) -> Expansion:
    """Second-order expansion of all gaps around a head.

    Args:
        data: The samples, float64.
        centre: The head.

    Returns:
        The expansion.
    """
    every = range(len(data.ids))
    pairs = torch.tensor([(i, j) for i in every for j in every if i != j], device=centre.device)
    heads = [data.statistics(centre, e) for e in every]
    curvature = torch.zeros(len(data.ids), len(data.ids), dtype=torch.float64)
    directions: dict[tuple[int, int], Tensor] = {}
    for i in every:
        for j in range(i):

            def product(rows: Tensor, i: int = i, j: int = j) -> Tensor:
                v = rows.unsqueeze(1)
                return (heads[i].hvp(v) - heads[j].hvp(v)).squeeze(1)

            values, vectors = extreme_eigenpairs(product, centre)
            curvature[i, j] = curvature[j, i] = values.abs().max()
            directions[i, j], directions[j, i] = vectors[1], vectors[0]
    gap, gradient = data.gap(centre.expand(len(pairs), -1), pairs)
    ordered = [(int(i), int(j)) for i, j in pairs.tolist()]
    bends = torch.stack([curvature[pair] for pair in ordered]).to(centre.device)
    return Expansion(pairs, gap, gradient, bends, torch.stack([directions[p] for p in ordered]))


def exact_attack(
    data: HeadData,
    centre: Float[Tensor, " p"],
    radii: tuple[float, ...],
    expansion: Expansion,
    given: Float[Tensor, "r p"],
    restarts: int,
    generator: torch.Generator,
) -> tuple[Float[Tensor, "r q p"], Float[Tensor, "r q"]]:
    r"""For each radius and ordered pair, the head with the largest gap found.

    The starts are both ways along the eigenvector of H_i − H_j, along the gradient, along the
    solution of the previous radius and in random directions, and a given head. Then, from the
    largest radius down, each radius is tried once more from the solution of the next larger one,
    drawn in. What is found within a radius is a candidate for all larger ones, so the maximum
    never falls as the radius grows.

    Args:
        data: The samples; steps are in the precision of their features, results in float64.
        centre: The head θ* under attack, float64.
        radii: The radii δ, ascending.
        expansion: The gaps' expansion around it.
        given: One more start for each radius, inside it.
        restarts: Random starts for each pair and radius.
        generator: Draws them.

    Returns:
        The heads, and their gaps.
    """
    wide, pairs = data.to(torch.float64), expansion.pairs
    known = [(centre.expand_as(expansion.gradient), expansion.gap)]
    for radius, extra in zip(radii, given, strict=True):
        before = known[-1][0]
        random = torch.randn(
            restarts, *before.shape, generator=generator, device=generator.device
        ).to(before)
        axis, slope = expansion.direction, expansion.gradient
        directions = torch.stack([axis, -axis, slope, before - centre, *random])
        same = (extra - centre).expand_as(slope).unsqueeze(0)
        found = _climb(
            data, centre, radius, torch.cat([_on_sphere(directions, radius), same]), pairs
        )
        known.append(_best(wide, pairs, known[-1], found, extra.expand_as(found)))
    solutions = known[1:]
    for index in reversed(range(len(radii) - 1)):
        heads, gaps = solutions[index + 1]
        top = gaps.topk(min(LEADING_PAIRS, len(pairs))).indices
        inwards = _on_sphere(heads[top] - centre, radii[index]).unsqueeze(0)
        found = solutions[index][0].clone()
        found[top] = _climb(data, centre, radii[index], inwards, pairs[top])
        solutions[index] = _best(wide, pairs, solutions[index], found)
    for index in range(1, len(radii)):
        solutions[index] = _best(wide, pairs, solutions[index], solutions[index - 1][0])
    return torch.stack([heads for heads, _ in solutions]), torch.stack([g for _, g in solutions])


def _on_sphere(directions: Float[Tensor, "*b p"], radius: float) -> Float[Tensor, "*b p"]:
    norms = directions.norm(dim=-1, keepdim=True)
    scaled: Tensor = radius * directions / norms.clamp_min(torch.finfo(norms.dtype).tiny)
    return scaled


def _best(
    data: HeadData, pairs: Tensor, known: tuple[Tensor, Tensor], *others: Float[Tensor, "q p"]
) -> tuple[Float[Tensor, "q p"], Float[Tensor, " q"]]:
    """For each pair the head with the largest gap, of the best one known and others."""
    heads, gaps = known
    for candidate in others:
        values = data.gap_values(candidate, pairs)
        better = values > gaps
        heads = torch.where(better.unsqueeze(1), candidate, heads)
        gaps = torch.where(better, values, gaps)
    return heads, gaps


def _climb(
    data: HeadData, centre: Tensor, radius: float, starts: Float[Tensor, "b q p"], pairs: Tensor
) -> Float[Tensor, "q p"]:
    """Ascend all starts a little, the best of each pair further, the best pairs to the end."""
    dtype = data.features[0].dtype
    origin, region = centre.to(dtype), Ball(radius)
    tolerance = TOLERANCE[dtype]

    def climb(points: Tensor, of: Tensor, steps: int) -> Ascent:
        def gap(moves: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
            return data.gap(origin + moves, of[rows])

        return ascend(gap, region, points, steps=steps, tolerance=tolerance)

    every = climb(starts.flatten(0, 1).to(dtype), pairs.repeat(len(starts), 1), TRIAL_STEPS)
    chosen = every.values.view(len(starts), -1).argmax(0)
    leading = every.points.view(starts.shape)[
        chosen, torch.arange(len(pairs), device=chosen.device)
    ]
    middle = climb(leading, pairs, PAIR_STEPS)
    final = middle.points.clone()
    top = middle.values.topk(min(LEADING_PAIRS, len(pairs))).indices
    final[top] = climb(final[top], pairs[top], STEPS).points
    return centre + region.retract(final.to(centre.dtype))
