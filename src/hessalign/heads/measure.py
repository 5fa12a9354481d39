r"""The transfer measure of Definition 2, by ascent over the δ-minimal set of the source.

Indices: b start, n sample, k output, d feature (with the constant of the bias), p = (k, d)
parameter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from hessalign._errors import InputError
from hessalign._numbers import check_count, check_positive
from hessalign._shapes import Float
from hessalign.curvature import make_loss
from hessalign.curvature.domains import DomainLike
from hessalign.heads.ascent import ON_THE_BORDER, ascend, without_normal
from hessalign.heads.fit import FittedHead, fit_domain
from hessalign.heads.samples import CHUNK_LOGITS, HeadSamples, Point, Points, Values, make_samples
from hessalign.heads.whitening import Whitening, make_whitening

_STEPS = 500
_TOLERANCE = 1e-7
# Minimisers closer than this, relative to the size of the minimal set, count as the same.
_SHARED = 1e-6
_SHORT = 1e-12  # directions shorter than this, relative to the same size, are rounding errors
_MAX_HALVINGS = 60
_ROUNDING = 1e-14  # error of a risk in float64, relative; the border is approached up to this
_CLOSE = 1e-11  # share of the tolerance that a point drawn to the border may leave unused


@final
@dataclass(frozen=True, eq=False)
class TransferMeasure:
    r"""The transfer measure $T_\Gamma(S \| T)$ with the head that attains it.

    The value is what this head proves: a lower bound of the supremum, which it reaches if one of
    the restarts found the global maximum. `spread` says how far apart the restarts ended.

    Attributes:
        value: The transfer measure, `target_excess` − `source_excess`.
        maximiser: The head that attains it, one row per output, weights before bias.
        source_excess: Its excess risk on the source; the constraint is `source_excess` ≤
            `tolerance`.
        target_excess: Its excess risk on the target, over the best head of the minimal set.
        tolerance: The excess risk δ_S that defines the minimal set.
        values: What each restart reached.
        source: The source's minimiser, with the gradient norm reached.
        target: The target's minimiser.
        target_lowest: The lowest target risk in the minimal set.
        same_minimiser: Whether source and target share their minimiser, as Theorem 1 assumes.
    """

    value: float
    maximiser: Float[Tensor, "k d"]
    source_excess: float
    target_excess: float
    tolerance: float
    values: Values
    source: FittedHead
    target: FittedHead
    target_lowest: float
    same_minimiser: bool

    @property
    def feasible(self) -> bool:
        """The certificate: the maximiser is in the minimal set."""
        return self.source_excess <= self.tolerance

    @property
    def restarts(self) -> int:
        """The number of starts."""
        return len(self.values)

    @property
    def spread(self) -> float:
        """Best minus worst value over the restarts."""
        return float(self.values.max() - self.values.min())


def transfer_measure(
    z: Float[Tensor, "n d"],
    y: Tensor,
    domain: DomainLike,
    *,
    source: int,
    target: int,
    tolerance: float,
    l2: float,
    loss: str = "cross_entropy",
    bias: bool = True,
    outputs: int | None = None,
    restarts: int = 4,
    generator: torch.Generator | None = None,
) -> TransferMeasure:
    r"""How much worse a near-optimal head of the source can be on the target (eq. 2).

    $$T_\Gamma(S \| T) = \sup_{\theta \in \Gamma} \; [L_T(\theta) - L_T^*] - [L_S(\theta) - L_S^*],
    \qquad \Gamma = \{\theta : L_S(\theta) \le L_S^* + \delta_S\}$$

    with $L_D^* = \inf_\Gamma L_D$, over heads on fixed features, on all samples. Both risks contain
    the L2 term. Source and target need not have the same minimiser.

    Args:
        z: Features that enter the head.
        y: Targets.
        domain: The domain of each sample, any integers; or what `domain_layout` takes or gives.
        source: Id of the source domain S.
        target: Id of the target domain T.
        tolerance: The excess risk δ_S.
        l2: The weight λ of the L2 term λ/2 ‖θ‖² over all parameters.
        loss: "cross_entropy", "binary" or "squared" (without activation: the risk must be convex).
        bias: Whether the head has a bias.
        outputs: Outputs of the head; by default what the targets of both domains need.
        restarts: Random starts, on top of those that the quadratic model suggests.
        generator: Draws them; by default one with seed 0.

    Returns:
        The value, the maximiser, and the certificate that it is in Γ.

    Raises:
        InputError: If the source's features do not span their space, and there is no L2 term.

    Example:
        >>> z = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
        >>> y, domain = torch.zeros(2, dtype=torch.float64), torch.tensor([0, 1])
        >>> result = transfer_measure(z, y, domain, source=0, target=1, tolerance=0.1, l2=0.0,
        ...                           loss="squared", bias=False)
        >>> round(result.value, 6), result.feasible  # (h − μ) δ_S / μ with μ = 1, h = 4
        (0.3, True)
    """
    check_positive(tolerance, "tolerance")
    check_count(restarts, "restarts", least=0)
    data = make_samples(z, y, domain, make_loss(loss), outputs=outputs, bias=bias, l2=l2)
    data, (s, t) = data.to(torch.float64), data.positions(source, target)
    best_source, best_target = fit_domain(data, s), fit_domain(data, t)
    centre = best_source.parameters.flatten()
    metric = make_whitening(data, centre, s)
    if data.l2 == 0 and not metric.spanning:
        raise InputError(
            f"Expected source features that span all {data.shape[1]} dimensions: without an L2 "
            "term the heads that fit the source equally well are unbounded, and the transfer "
            "measure can be infinite. Use l2 > 0."
        )
    region = MinimalSet(data, s, centre, float(tolerance), metric)
    shift = best_target.parameters - best_source.parameters
    offset = metric.coordinates(shift.flatten().unsqueeze(0))
    pair = torch.tensor([[t, s]], device=data.features.device)

    def gap(points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        values, gradients = data.gap(region.heads(points), pair.expand(len(rows), -1))
        return values, metric.slopes(gradients)

    def minus_target(points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        values, gradients = data.risk_and_gradient(region.heads(points), t)
        return -values, -metric.slopes(gradients)

    _, lowest = ascend(minus_target, region, offset, steps=_STEPS, tolerance=_TOLERANCE)
    starts = _starts(region, t, offset, restarts, generator)
    points, values = ascend(gap, region, starts, steps=_STEPS, tolerance=_TOLERANCE)
    target_lowest = -float(lowest)
    values = values - target_lowest + region.lowest
    # The minimiser itself is in the set too, and on a constant gap no start gets anywhere.
    candidates = torch.stack([points[values.argmax()], torch.zeros_like(region.centre)])
    point = region.retract(candidates[gap(candidates, candidates[:, 0])[0].argmax()].unsqueeze(0))
    source_excess = float(region.excess(point))
    target_excess = float(data.risk(region.heads(point), t)) - target_lowest
    return TransferMeasure(
        target_excess - source_excess,
        region.heads(point)[0].view(data.shape),
        source_excess,
        target_excess,
        tolerance,
        values,
        best_source,
        best_target,
        target_lowest,
        bool(offset.norm() <= _SHARED * region.size),
    )


@final
@dataclass(frozen=True, eq=False)
class MinimalSet:
    r"""The δ-minimal set of the source, $\{\theta : L_S(\theta) - L_S(\theta^*) \le \delta_S\}$.

    That is Definition 1. It is convex, because the risk is. Points are differences from the
    source's minimiser θ*, the centre, in the coordinates that whiten its Hessian: there the set is
    close to a ball of radius √(2 δ_S), and for squared error and vanishing δ_S it is one.
    """

    data: HeadSamples
    source: int
    centre: Point
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

    def heads(self, points: Points) -> Points:
        """The parameters at points, whitened differences from the minimiser."""
        return self.centre + self.metric.parameters(points)

    def excess(self, points: Points) -> Values:
        """Excess risk of the source at points; at most `tolerance` inside."""
        return self.data.risk(self.heads(points), self.source) - self.lowest

    def retract(self, points: Points) -> Points:
        """Draw points outside towards the minimiser until their excess risk is allowed."""
        outside = (~(self.excess(points) <= self.tolerance)).nonzero().squeeze(1)
        if len(outside) == 0:
            return points
        inside = points.clone()
        held = max(1, CHUNK_LOGITS // self._logits(self.centre).numel())
        for rows in outside.split(held):
            inside[rows] *= self._shares_inside(points[rows]).unsqueeze(1)
        return inside

    def _shares_inside(self, points: Points) -> Values:
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
                inner = torch.where(lower, t, inner)
                inner_value = torch.where(lower, value, inner_value)
                outer = torch.where(upper, t, outer)
                outer_value = torch.where(upper, value, outer_value)
                outer_slope = torch.where(upper, slope, outer_slope)
        return inner

    def _excess_along(
        self, moves: Points
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

    def tangent(self, points: Points, directions: Points) -> Points:
        """Take from directions at the border what climbs the source's risk."""
        risks, gradients = self.data.risk_and_gradient(self.heads(points), self.source)
        border = risks - self.lowest >= self.tolerance * (1 - ON_THE_BORDER)
        return without_normal(self.metric.slopes(gradients), directions, border)


def _starts(
    region: MinimalSet, t: int, offset: Tensor, restarts: int, generator: torch.Generator | None
) -> Points:
    """Points of the border in promising directions and in random ones."""
    data, metric, centre = region.data, region.metric, region.centre
    difference = data.hessian_difference(centre, t, region.source)
    _, vectors = difference.between(metric.parameters, metric.slopes).extremes()
    slope = metric.slopes(data.risk_and_gradient(centre.unsqueeze(0), t)[1])
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    random = torch.randn(restarts, len(centre), generator=generator, dtype=torch.float64)
    # Both ways along the most curved and the steepest direction, and to the target's minimiser.
    directions = torch.cat(
        [vectors[1:], -vectors[1:], slope, -slope, offset, -offset, random.to(centre.device)]
    )
    norms = directions.norm(dim=1, keepdim=True)
    useful = norms.squeeze(1) > _SHORT * region.size
    return region.retract(2 * region.size * directions[useful] / norms[useful])
