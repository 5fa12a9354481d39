r"""The transfer measure of Definition 2, by ascent over the δ-minimal set of the source.

Indices: b start, k output, d feature (with the constant of the bias), p = (k, d) parameter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from hessalign._errors import InputError
from hessalign._numbers import check_count, check_positive
from hessalign._shapes import Float, Int
from hessalign.curvature import make_loss
from hessalign.curvature.operators import hessian_difference
from hessalign.heads.ascent import ascend
from hessalign.heads.fit import FittedHead, fit_domain
from hessalign.heads.minimal_set import MinimalSet
from hessalign.heads.samples import HeadSamples, make_samples
from hessalign.heads.whitening import make_whitening

_STEPS = 500
_TOLERANCE = 1e-7
_SHARED = 1e-6
"""Minimisers closer than this, relative to the size of the minimal set, count as the same."""

_ROUNDING = 1e-12
"""Directions shorter than this, relative to the same size, are rounding errors."""


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
    values: Float[Tensor, " b"]
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
    domain: Int[Tensor, " n"],
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
        domain: The domain of each sample, any integers.
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
    region = _minimal_set(data, s, best_source, tolerance)
    minimiser = best_target.parameters.flatten().unsqueeze(0)
    offset = region.points(minimiser)
    pair = torch.tensor([[t, s]], device=data.features.device)

    def gap(points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        values, gradients = data.gap(region.heads(points), pair.expand(len(rows), -1))
        return values, region.metric.slopes(gradients)

    def minus_target(points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        values, gradients = data.risk_and_gradient(region.heads(points), t)
        return -values, -region.metric.slopes(gradients)

    lowest = ascend(minus_target, region, offset, steps=_STEPS, tolerance=_TOLERANCE)
    starts = _starts(region, t, offset, restarts, generator)
    found = ascend(gap, region, starts, steps=_STEPS, tolerance=_TOLERANCE)
    target_lowest = -float(lowest.values)
    values = found.values - target_lowest + region.lowest
    # The minimiser itself is in the set too, and on a constant gap no start gets anywhere.
    candidates = torch.stack([found.points[values.argmax()], torch.zeros_like(region.centre)])
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


def _minimal_set(data: HeadSamples, s: int, fitted: FittedHead, tolerance: float) -> MinimalSet:
    centre = fitted.parameters.flatten()
    metric = make_whitening(data, centre, s)
    if data.l2 == 0 and not metric.spanning:
        raise InputError(
            f"Expected source features that span all {data.shape[1]} dimensions: without an L2 "
            "term the heads that fit the source equally well are unbounded, and the transfer "
            "measure can be infinite. Use l2 > 0."
        )
    return MinimalSet(data, s, centre, tolerance, metric)


def _starts(
    region: MinimalSet, t: int, offset: Tensor, restarts: int, generator: torch.Generator | None
) -> Float[Tensor, "b p"]:
    """Points of the border in promising directions and in random ones."""
    data, metric, centre = region.data, region.metric, region.centre
    heads = data.domain_statistics(centre, t), data.domain_statistics(centre, region.source)
    whitened = hessian_difference(*heads).between(metric.parameters, metric.slopes)
    _, vectors = whitened.extremes()
    slope = metric.slopes(data.risk_and_gradient(centre.unsqueeze(0), t)[1])
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    random = torch.randn(restarts, len(centre), generator=generator, dtype=torch.float64)
    # Both ways along the most curved and the steepest direction, and to the target's minimiser.
    directions = torch.cat(
        [vectors[1:], -vectors[1:], slope, -slope, offset, -offset, random.to(centre.device)]
    )
    norms = directions.norm(dim=1, keepdim=True)
    useful = norms.squeeze(1) > _ROUNDING * region.size
    return region.retract(2 * region.size * directions[useful] / norms[useful])
