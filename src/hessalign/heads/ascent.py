r"""Ascent inside a region, for many points at once.

Spectral (Barzilai-Borwein) steps along the gradient; at the border of the region along the part of
the gradient that does not leave it. A step that leaves the region is drawn back towards the centre.
A step is kept if it beats the worst of the last few values (Grippo, Lampariello and Lucidi, 1986),
otherwise shortened; the best point seen is returned, so the result is never below the start.

Indices: b point, p parameter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, final, runtime_checkable

import torch
from torch import Tensor

from hessalign._shapes import Int
from hessalign.heads.samples import Points, Values

# From points [b, p] and their row numbers [b] to values [b] and gradients [b, p].
_Objective = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
_MEMORY = 5  # how many past values a step is compared with
_PATIENCE = 10  # a row that gains less than rounding in this many evaluations is done
ON_THE_BORDER = 1e-6  # closer to the border than this share of the region's size counts as on it


@runtime_checkable
class _Region(Protocol):
    """A set that contains, with any point, the segment from it to the centre 0.

    Its size is a typical distance from the centre to the border. `retract` draws points outside
    towards the centre until they are inside; `tangent` takes from directions at the border what
    points straight out.
    """

    @property
    def size(self) -> float: ...

    def retract(self, points: Tensor) -> Tensor: ...

    def tangent(self, points: Tensor, directions: Tensor) -> Tensor: ...


@final
@dataclass(frozen=True)
class Ball:
    """All points of norm at most `size`."""

    size: float

    def retract(self, points: Points) -> Points:
        """Scale points outside to the radius."""
        norms = points.norm(dim=1, keepdim=True)
        drawn: Tensor = points * (self.size / norms.clamp_min(self.size))
        return drawn

    def tangent(self, points: Points, directions: Points) -> Points:
        """Take away the radial part of directions that point outwards on the sphere."""
        norms = points.norm(dim=1)
        return without_normal(points, directions, norms >= self.size * (1 - ON_THE_BORDER))


def without_normal(normals: Points, directions: Points, border: Tensor) -> Points:
    """Take from directions at the border what points along the outward normals, of any length."""
    squares = normals.square().sum(1)
    outward = (normals * directions).sum(1).clamp_min(0)
    share = torch.where(border & (squares > 0), outward / squares, 0)
    return directions - share.unsqueeze(1) * normals


def ascend(
    objective: _Objective, region: _Region, starts: Points, *, steps: int, tolerance: float
) -> tuple[Points, Values]:
    """The best point that a climb from each start finds in so many evaluations, and its value."""
    # A row is done where moving across the region along the slope that is left would bring less
    # than a share `tolerance` of its value.
    x = region.retract(starts)
    rows = torch.arange(len(x), device=x.device)
    value, gradient = objective(x, rows)
    slope = region.tangent(x, gradient)
    best, best_value = x.clone(), value.clone()
    milestone = value.clone()
    past = value.unsqueeze(1).repeat(1, _MEMORY)
    tiny = torch.finfo(x.dtype).tiny
    length = 0.5 * region.size / slope.norm(dim=1).clamp_min(tiny)
    for count in range(1, steps):
        gain = slope.norm(dim=1) * region.size
        moving = length * gain > torch.finfo(x.dtype).eps * region.size**2
        if count > _PATIENCE and count % _PATIENCE == 0:
            stalled = best_value - milestone <= tolerance**2 * best_value.abs()
            length[stalled], milestone = 0, best_value.clone()
        a = rows[(gain > tolerance * value.abs() + tiny) & moving]
        if len(a) == 0:
            break
        trial = region.retract(x[a] + length[a].unsqueeze(1) * slope[a])
        trial_value, trial_gradient = objective(trial, a)
        trial_slope = region.tangent(trial, trial_gradient)
        move, bend = trial - x[a], trial_slope - slope[a]
        kept = trial_value > past[a].amin(1)
        # Barzilai and Borwein's step, |s|²/|s·y|, at most ten times the last one.
        product = (move * bend).sum(1).abs().clamp_min(1e-30)
        spectral = torch.minimum(move.square().sum(1) / product, 10 * length[a])
        length[a] = torch.where(kept, spectral, length[a] / 4)
        _update(kept, a, ((x, trial), (value, trial_value), (slope, trial_slope)))
        past[a[kept], count % _MEMORY] = trial_value[kept]
        better = trial_value > best_value[a]
        _update(better, a, ((best, trial), (best_value, trial_value)))
    return best, best_value


def _update(
    chosen: Tensor, rows: Int[Tensor, " b"], pairs: tuple[tuple[Tensor, Tensor], ...]
) -> None:
    for target, source in pairs:
        target[rows[chosen]] = source[chosen]
