r"""Theorem 1 for pairs of domains: how bad a nearly optimal head of one can get on the other.

Indices: s source, t target.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import torch

from hessalign.curvature.losses import HeadLoss
from hessalign.diagnosis.crossing import SingleHeads
from hessalign.diagnosis.draw import Draw
from hessalign.heads.bound import bound_at, largest_third_derivative

ACCURACY: Final = 1e-3
"""Of the eigenvectors behind spectral norms."""


@final
@dataclass(frozen=True)
class PairBound:
    """The bound of the transfer measure from one domain to another.

    Attributes:
        source: Position of the source.
        target: Position of the target.
        value: The bound up to third order, the sum of the three terms.
        hessian_term: ½ δ² ‖H_T − H_S‖₂.
        gradient_term: δ ‖g_T − g_S‖.
        target_term: How far the source's head can be above the target's best within the radius.
        remainder: What higher orders can add at most.
    """

    source: int
    target: int
    value: float
    hessian_term: float
    gradient_term: float
    target_term: float
    remainder: float


@final
@dataclass(frozen=True)
class BoundReport:
    """Bounds of the transfer measure.

    Attributes:
        pairs: One entry per ordered pair.
        tolerance: The excess risk δ_S of a nearly optimal head of the source.
        radius: The radius δ = √(2 δ_S/μ) that follows, the largest of all sources.
        how: How they were computed.
    """

    pairs: tuple[PairBound, ...]
    tolerance: float
    radius: float
    how: str


def bound_report(
    draw: Draw, heads: SingleHeads, loss: HeadLoss, l2: float, tolerance: float
) -> BoundReport:
    """Theorem 1 for all ordered pairs of some domains.

    Args:
        draw: The samples.
        heads: Heads of single domains, each fitted to a half of its samples.
        loss: The loss of the heads.
        l2: The weight of the L2 term, which is the strong convexity μ.
        tolerance: The excess risk δ_S.

    Returns:
        The bounds.
    """
    seen = draw.part(0) & torch.isin(draw.domain, torch.tensor(heads.domains))
    data = draw.samples(seen, loss, l2).to(torch.float64)
    third = [largest_third_derivative(data, e) for e in range(len(heads.domains))]
    found, radius = [], 0.0
    for s, fitted in enumerate(heads.fits):
        for t in range(len(heads.fits)):
            if s == t:
                continue
            bends = third[s] + third[t]
            bound = bound_at(data, s, t, fitted, tolerance, bends, accuracy=ACCURACY)
            radius = max(radius, bound.radius)
            found.append(
                PairBound(
                    heads.domains[s],
                    heads.domains[t],
                    bound.value,
                    bound.hessian_term,
                    bound.gradient_term,
                    bound.target_term,
                    bound.remainder,
                )
            )
    how = (
        f"Theorem 1 (with the radius corrected) at the head fitted to a half of the source: every "
        f"head whose risk on the source is within {tolerance:g} of the best lies within δ = "
        f"√(2·{tolerance:g}/μ) of it, μ = {l2:g} the L2 weight. Bound = ½δ²‖H_T − H_S‖₂ + "
        "δ‖g_T − g_S‖ + target term, up to third order; the remainder bounds the rest. Spectral "
        "norm by Lanczos. An upper bound: the loss need not get that bad."
    )
    return BoundReport(tuple(found), tolerance, radius, how)
