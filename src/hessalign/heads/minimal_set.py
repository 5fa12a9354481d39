r"""The δ-minimal set of the source: all heads whose excess risk is at most δ_S (Definition 1).

It is convex, because the risk is. Points are differences from the source's minimiser, in the
coordinates that whiten its Hessian: there the set is close to a ball of radius √(2 δ_S), and for
squared error and vanishing δ_S it is one.

Indices: b point, n sample, k output, p parameter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from hessalign._shapes import Float
from hessalign.heads.ascent import ON_THE_BORDER, without_normal
from hessalign.heads.samples import CHUNK_LOGITS, HeadSamples
from hessalign.heads.whitening import Whitening

_MAX_HALVINGS = 60
_ROUNDING = 1e-14
"""Error of a risk in float64, relative; the border is approached up to this."""

_CLOSE = 1e-11
"""Share of the tolerance that a point drawn to the border may leave unused."""


@final
@dataclass(frozen=True, eq=False)
class MinimalSet:
    r"""The set $\{\theta : L_S(\theta) - L_S(\theta^*) \le \delta_S\}$, a `Region`.

    Attributes:
        data: The samples, float64.
        source: Position of the source domain.
        centre: Its minimiser θ*.
        tolerance: The excess risk δ_S that is allowed.
        metric: Whitening coordinates at the minimiser.
    """

    data: HeadSamples
    source: int
    centre: Float[Tensor, " p"]
    tolerance: float
    metric: Whitening

    @property
    def size(self) -> float:
        """The radius √(2 δ_S) that the set has if the risk is quadratic."""
        return float((2 * self.tolerance) ** 0.5)

    @cached_property
    def lowest(self) -> float:
        """The risk of the minimiser."""
        return float(self.data.risk(self.centre.unsqueeze(0), self.source))

    @cached_property
    def allowed(self) -> float:
        """The tolerance less rounding, so that points drawn to the border are inside for sure."""
        return self.tolerance - min(self.tolerance / 2, _ROUNDING * (1 + abs(self.lowest)))

    def heads(self, points: Float[Tensor, "b p"]) -> Float[Tensor, "b p"]:
        """The parameters at points, whitened differences from the minimiser."""
        return self.centre + self.metric.parameters(points)

    def points(self, heads: Float[Tensor, "b p"]) -> Float[Tensor, "b p"]:
        """The inverse of `heads`."""
        return self.metric.coordinates(heads - self.centre)

    def excess(self, points: Float[Tensor, "b p"]) -> Float[Tensor, " b"]:
        """Excess risk of the source at points; at most `tolerance` inside."""
        return self.data.risk(self.heads(points), self.source) - self.lowest

    def retract(self, points: Float[Tensor, "b p"]) -> Float[Tensor, "b p"]:
        """Draw points outside towards the minimiser until their excess risk is allowed."""
        outside = (~(self.excess(points) <= self.tolerance)).nonzero().squeeze(1)
        if len(outside) == 0:
            return points
        inside = points.clone()
        held = max(1, CHUNK_LOGITS // self._logits(self.centre).numel())
        for rows in outside.split(held):
            inside[rows] *= self._shares_inside(points[rows]).unsqueeze(1)
        return inside

    def _shares_inside(self, points: Float[Tensor, "b p"]) -> Float[Tensor, " b"]:
        """The largest t with excess(t · point) ≤ δ_S, approached from below."""
        # Along the ray the excess is convex, so the chord between a point inside and one outside
        # meets the level inside, and the tangent from outside meets it outside: the two close in
        # on the border quadratically, and the inner one is always allowed.
        along = self._excess_along(self.metric.parameters(points))
        inner = points.new_zeros(len(points))
        outer = torch.ones_like(inner)
        inner_value = torch.full_like(inner, -self.allowed)
        outer_value, outer_slope = (part[0] for part in along(outer.unsqueeze(0)))
        close = max(_CLOSE * self.allowed, _ROUNDING * (1 + abs(self.lowest)))
        for _ in range(_MAX_HALVINGS):
            # A point that rounding alone put outside is fine where it is.
            inner = torch.where(outer_value <= 0, outer, inner)
            if bool(((outer - inner <= _ROUNDING) | (inner_value >= -close)).all()):
                break
            chord = inner + (outer - inner) * inner_value / (inner_value - outer_value.clamp_min(0))
            newton = outer - outer_value / outer_slope
            useful = (newton > inner) & (newton < outer)
            trials = torch.stack([chord, torch.where(useful, newton, (inner + outer) / 2)])
            for t, value, slope in zip(trials, *along(trials), strict=True):
                lower, upper = (value <= 0) & (t > inner), (value > 0) & (t < outer)
                inner, inner_value = (
                    torch.where(lower, t, inner),
                    torch.where(lower, value, inner_value),
                )
                outer, outer_value = (
                    torch.where(upper, t, outer),
                    torch.where(upper, value, outer_value),
                )
                outer_slope = torch.where(upper, slope, outer_slope)
        return inner

    def _excess_along(
        self, moves: Float[Tensor, "b p"]
    ) -> Callable[[Float[Tensor, "m b"]], tuple[Float[Tensor, "m b"], Float[Tensor, "m b"]]]:
        """Excess risk less the allowed one, and its slope, at t times each move."""
        base, directions = self._logits(self.centre), self._logits(moves)
        y, loss, l2 = self.data.parts[self.source][1], self.data.loss, self.data.l2
        linear, square = l2 * (moves @ self.centre), l2 * moves.square().sum(1)
        level = self.lowest + self.allowed - l2 / 2 * float(self.centre.square().sum())

        def along(t: Tensor) -> tuple[Tensor, Tensor]:
            logits = (base.unsqueeze(1) + t.unsqueeze(-1) * directions.unsqueeze(1)).flatten(0, 2)
            repeated = y.repeat_interleave(t.numel(), dim=0)
            risk = loss.values(logits, repeated).view(-1, *t.shape).mean(0)
            error = loss.error(loss.predict(logits), logits, repeated)
            error = error.view(-1, *t.shape, self.data.outputs)
            slope = (error * directions.unsqueeze(1)).sum(-1).mean(0)
            return risk + t * linear + t.square() * square / 2 - level, slope + linear + t * square

        return along

    def _logits(self, heads: Float[Tensor, "*b p"]) -> Float[Tensor, "n b k"]:
        rows = heads.view(-1, self.data.shape[1])
        logits: Tensor = self.data.parts[self.source][0] @ rows.T
        return logits.view(len(logits), -1, self.data.outputs)

    def tangent(
        self, points: Float[Tensor, "b p"], directions: Float[Tensor, "b p"]
    ) -> Float[Tensor, "b p"]:
        """Take from directions at the border what climbs the source's risk."""
        risks, gradients = self.data.risk_and_gradient(self.heads(points), self.source)
        border = risks - self.lowest >= self.tolerance * (1 - ON_THE_BORDER)
        return without_normal(self.metric.slopes(gradients), directions, border)
