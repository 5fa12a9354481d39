r"""Spectral distances between Hessians, with noise floor and intervals.

Indices: e and f domain, n sample, k output, m direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np
import torch
from torch import Tensor

from hessalign._shapes import Float
from hessalign.curvature import LinearHead, linear_head
from hessalign.curvature.operators import hessian_difference
from hessalign.diagnosis.draw import Draw
from hessalign.diagnosis.resampling import LEVEL, Groups

_SAMPLES: Final = 1000
"""Samples of each domain, at most."""


@final
@dataclass(frozen=True)
class SpectralDistance:
    """The spectral norm of the difference of two domains' Hessians.

    Attributes:
        pair: Positions of the two domains.
        measured: ‖H_e − H_f‖₂ of the samples.
        noise: What it would be for want of samples if the domains did not differ.
        low: Lower end of the 95 % interval.
        high: Its upper end.
    """

    pair: tuple[int, int]
    measured: float
    noise: float
    low: float
    high: float


@final
@dataclass(frozen=True)
class SpectralReport:
    """Spectral distances of some pairs.

    Attributes:
        distances: One per pair.
        halves: By position of the domain, the distance of two random halves of it.
        how: How they were computed.
    """

    distances: tuple[SpectralDistance, ...]
    halves: dict[int, float]
    how: str


def spectral_report(
    draw: Draw, head: LinearHead, groups: Groups, domains: Sequence[int]
) -> SpectralReport:
    """Spectral distances of all pairs of some domains."""
    few = {e: _some(draw, e) for e in domains}
    sides = draw.part(0)
    halves = {}
    for e, rows in few.items():
        first, second = rows[sides[rows]], rows[~sides[rows]]
        values, _ = hessian_difference(
            _statistics(head, first), _statistics(head, second)
        ).extremes()
        halves[e] = float(values.abs().max())
    alone = {e: _statistics(head, rows) for e, rows in few.items()}
    found = []
    for index, e in enumerate(domains):
        for f in domains[index + 1 :]:
            values, directions = hessian_difference(alone[e], alone[f]).extremes()
            norm = float(values.abs().max())
            noise = (halves[e] ** 2 + halves[f] ** 2) ** 0.5 / 2
            replicates = _replicates(draw, head, groups, directions, (few[e], few[f]))
            edge = (1 - LEVEL) / 2
            upper, lower = np.quantile(replicates.numpy(), [1 - edge, edge])
            beyond = max(0.0, norm**2 - noise**2) ** 0.5
            low, high = (max(0.0, beyond + norm - float(end)) for end in (upper, lower))
            found.append(SpectralDistance((e, f), norm, noise, low, high))
    most = max(len(rows) for rows in few.values())
    how = (
        f"Largest absolute eigenvalue of H_e − H_f by Lanczos on Hessian-vector products, on up to "
        f"{most:,} samples of each domain. Noise: half the root of the summed squares of what two "
        f"random halves of either domain show. Interval: {len(groups.weights)} bootstrap "
        "replicates over groups of samples, within the span of the two extreme eigenvectors, head "
        "fixed, around √(measured² − noise²)."
    )
    return SpectralReport(tuple(found), halves, how)


def _some(draw: Draw, e: int) -> Tensor:
    rows = (draw.domain == e).nonzero().squeeze(1)
    if len(rows) <= _SAMPLES:
        return rows
    # Evenly from front to back, so that every group is there.
    return rows[torch.arange(_SAMPLES) * len(rows) // _SAMPLES]


def _statistics(head: LinearHead, rows: Tensor) -> LinearHead:
    one = torch.zeros(len(rows), dtype=torch.long)
    return linear_head(
        head.features.z[rows], head.logits[rows], None, one, loss=head.loss, bias=head.bias
    )


def _replicates(
    draw: Draw,
    head: LinearHead,
    groups: Groups,
    directions: Float[Tensor, "m p"],
    sides: tuple[Tensor, Tensor],
) -> Float[Tensor, " b"]:
    """Bootstrap replicates of the spectral norm in the span of some directions."""
    count = len(directions)
    means = []
    for rows in sides:
        bent = _quadratic_forms(head, directions, rows)
        group, position = torch.unique(draw.group[rows], return_inverse=True)
        sums = bent.new_zeros(len(group), count * count).index_add_(0, position, bent)
        size = position.bincount().double().unsqueeze(1)
        weights = groups.weights[:, group]
        means.append((weights @ (sums / size)).view(-1, count, count))
    values: Tensor = torch.linalg.eigvalsh(means[0] - means[1])
    return values.abs().amax(1)


def _quadratic_forms(
    head: LinearHead, directions: Float[Tensor, "m p"], rows: Tensor
) -> Float[Tensor, "n mm"]:
    """Each sample's own Hessian as a form on the directions, u_i^T S u_j with u = V z̃."""
    z = head.features.z[rows].double()
    if head.bias:
        z = torch.cat([z, torch.ones_like(z[:, :1])], dim=1)
    matrices = directions.unflatten(1, head.shape)
    moved = torch.einsum("nd,mkd->nmk", z, matrices)
    p = head.prediction[rows]
    curvature = head.loss.curvature(p, head.logits[rows], None)
    bent = curvature.apply(moved, slice(None))
    return torch.einsum("nik,njk->nij", moved, bent).flatten(1)
