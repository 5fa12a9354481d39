"""Sections of a diagnosis that follow from one pass over pairs of samples.

Distances, attributes, contributions of classes and samples, and label against feature shift.

Indices: e and f domain, n sample, c class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor

from hessalign._shapes import Float
from hessalign.alignment import TABLE_1
from hessalign.curvature import LinearHead
from hessalign.diagnosis.draw import Draw
from hessalign.diagnosis.pair_sums import DERIVATIVES, PairSums, combine
from hessalign.diagnosis.resampling import (
    REPLICATES,
    SPLITS,
    DistanceMatrix,
    Groups,
    distance_matrix,
)

_TOP_SAMPLES: Final = 5


@final
@dataclass(frozen=True, eq=False)
class DistanceReport:
    """Frobenius distances between the domains' Hessians and gradients.

    Attributes:
        hessian: ‖H_e − H_f‖.
        gradient: ‖g_e − g_f‖.
        how: How they were computed.
    """

    hessian: DistanceMatrix
    gradient: DistanceMatrix
    how: str


@final
@dataclass(frozen=True, eq=False)
class AttributeReport:
    """Distances in each attribute of Table 1.

    Attributes:
        distances: By attribute, in the order of Table 1.
        relative: Root mean square over pairs of the distance beyond noise, as a share of the root
            mean square size of the attribute of a single sample.
        how: How they were computed.
    """

    distances: dict[str, DistanceMatrix]
    relative: dict[str, float]
    how: str


@final
@dataclass(frozen=True)
class SampleShare:
    """One sample's part in a distance.

    Attributes:
        domain: Position of its domain.
        row: Its position among the samples of the domain, from 0.
        label: Its class.
        share: Its part of the squared distance.
    """

    domain: int
    row: int
    label: int
    share: float


@final
@dataclass(frozen=True, eq=False)
class PairContributions:
    """Which classes and samples a distance comes from.

    Attributes:
        pair: Positions of the two domains.
        quantity: "hessian" or "gradient".
        classes: Share of each class in the squared distance; they add up to 1.
        samples: The samples with the largest shares.
    """

    pair: tuple[int, int]
    quantity: str
    classes: Float[Tensor, " c"]
    samples: tuple[SampleShare, ...]


@final
@dataclass(frozen=True)
class ContributionReport:
    """Contributions of classes and samples to the distances.

    Attributes:
        pairs: One entry per pair and quantity.
        how: How they were computed.
    """

    pairs: tuple[PairContributions, ...]
    how: str


def distance_report(sums: PairSums, groups: Groups, bias: bool) -> DistanceReport:
    """Distances of Hessians and gradients of all pairs of domains."""
    inner = combine(sums.groups, bias=bias)
    how = (
        "Exact Frobenius norms of the differences of the domains' Hessians and mean gradients at "
        "the head, from inner products of all pairs of samples. Halves: root mean square over "
        f"{SPLITS} random splits of a domain. Noise: what two domains that do not differ would "
        "show with these many samples, √(h_e² + h_f²)/2 with h the distance of halves. Interval: "
        f"95 %, of the distance without noise, from {REPLICATES} bootstrap replicates over groups "
        "of samples, head fixed. Beyond noise: √(measured² − noise²)."
    )
    found = [distance_matrix(inner[name], groups) for name in DERIVATIVES]
    return DistanceReport(found[0], found[1], how)


def attribute_report(
    sums: PairSums, groups: Groups, draw: Draw, head: LinearHead
) -> AttributeReport:
    """Distances in the attributes of Table 1."""
    size = groups.size
    means = torch.zeros_like(size).index_add_(0, draw.group, head.losses.double()) / size
    inner = {"loss": means.unsqueeze(1) * means, **sums.groups}
    how = (
        "Frobenius distances of the domains' means of each attribute, as in Table 1 of the paper: "
        "error r = p − y, logit S = diag(p) − p pᵀ, feature z, and products. Covariance is not "
        "centred. Squared Hessian distance = logit×covariance² + 2·logit×feature² + logit²; "
        "squared gradient distance = error×feature² + error². Relative: root mean square over "
        "pairs of the distance beyond noise, by the root mean square size of the attribute of a "
        "single sample. Of the noise: root mean square of measured distances by that of noise."
    )
    found = {name: distance_matrix(inner[name], groups) for name in TABLE_1}
    own = {"loss": head.losses.double().square(), **sums.own}
    sizes = {name: float(own[name].mean()) ** 0.5 for name in TABLE_1}
    relative = {
        name: matrix.typical() / sizes[name] if sizes[name] > 0 else 0.0
        for name, matrix in found.items()
    }
    return AttributeReport(found, relative, how)


def contribution_report(
    sums: PairSums, draw: Draw, pairs: Sequence[tuple[int, int]]
) -> ContributionReport:
    r"""Which classes and samples the distances of some pairs come from.

    With Δ = H_e − H_f and M their mean, $\|Δ\|^2$ is the sum over samples of e of
    $\langle h_n - M, Δ\rangle / n_e$ and over samples of f of $-\langle h_n - M, Δ\rangle / n_f$.

    Returns:
        The contributions to Hessian and gradient distances.
    """
    found = []
    for e, f in pairs:
        rows = ((draw.domain == e) | (draw.domain == f)).nonzero().squeeze(1)
        for name in DERIVATIVES:
            shares = _shares(sums.reach[name], draw, rows, e, f)
            classes = shares.new_zeros(len(draw.class_names))
            classes.index_add_(0, draw.y[rows], shares)
            top = shares.argsort(descending=True, stable=True)[:_TOP_SAMPLES]
            samples = tuple(
                SampleShare(
                    int(draw.domain[rows[i]]),
                    int(draw.row[rows[i]]),
                    int(draw.y[rows[i]]),
                    float(shares[i]),
                )
                for i in top
            )
            found.append(PairContributions((e, f), name, classes, samples))
    how = (
        "A sample's share of the squared distance ‖Δ‖² of two domains is ⟨h − M, Δ⟩/(n‖Δ‖²), with "
        "h its own Hessian (or gradient), M the mean of the two domains' and the sign of its side; "
        "shares of all samples add up to 100 %, and a class's share is the sum over its samples. "
        "Negative: without it the domains would be further apart. Samples are numbered from 0 in "
        "the order in which their domain lists them."
    )
    return ContributionReport(tuple(found), how)


def _shares(reach: Tensor, draw: Draw, rows: Tensor, e: int, f: int) -> Tensor:
    towards = reach[rows, e] - reach[rows, f]
    first = draw.domain[rows] == e
    mean_first, mean_second = towards[first].mean(), towards[~first].mean()
    square = mean_first - mean_second
    if not float(square) > 0:
        return torch.zeros_like(towards)
    middle = (mean_first + mean_second) / 2
    count = torch.where(first, int(first.sum()), int((~first).sum()))
    return torch.where(first, 1.0, -1.0) * (towards - middle) / count / square
