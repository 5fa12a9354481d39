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
from hessalign.diagnosis.distances import DistanceMatrix, Groups, distance_matrix
from hessalign.diagnosis.draw import Draw, explain
from hessalign.diagnosis.pair_sums import DERIVATIVES, PairSums, combine

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
    found = [distance_matrix(inner[name], groups) for name in DERIVATIVES]
    how = explain("distances", splits=len(groups.halves), replicates=len(groups.weights))
    return DistanceReport(found[0], found[1], how)


def attribute_report(
    sums: PairSums, groups: Groups, draw: Draw, head: LinearHead
) -> AttributeReport:
    """Distances in the attributes of Table 1."""
    size = groups.size
    means = torch.zeros_like(size).index_add_(0, draw.group, head.losses.double()) / size
    inner = {"loss": means.unsqueeze(1) * means, **sums.groups}
    own = {"loss": head.losses.double().square(), **sums.own}
    found, relative = {}, {}
    for name in TABLE_1:
        found[name] = distance_matrix(inner[name], groups)
        size_of_one = float(own[name].mean()) ** 0.5
        relative[name] = found[name].typical() / size_of_one if size_of_one > 0 else 0.0
    return AttributeReport(found, relative, explain("attributes"))


def contribution_report(
    sums: PairSums, draw: Draw, pairs: Sequence[tuple[int, int]]
) -> ContributionReport:
    """Which classes and samples the distances of some pairs come from."""
    # With Δ = H_e − H_f and M their mean, ‖Δ‖² is the sum over samples of e of ⟨h_n − M, Δ⟩ / n_e
    # and over samples of f of −⟨h_n − M, Δ⟩ / n_f.
    found = []
    for e, f in pairs:
        rows = torch.cat([draw.of(e), draw.of(f)])
        for name in DERIVATIVES:
            shares = _shares(sums.reach[name], draw, rows, e, f)
            classes = shares.new_zeros(len(draw.class_names))
            classes.index_add_(0, draw.y[rows], shares)
            top = shares.argsort(descending=True, stable=True)[:_TOP_SAMPLES]
            columns = (draw.domain[rows[top]], draw.row[rows[top]], draw.y[rows[top]], shares[top])
            samples = zip(*(column.tolist() for column in columns), strict=True)
            found.append(
                PairContributions((e, f), name, classes, tuple(SampleShare(*s) for s in samples))
            )
    return ContributionReport(tuple(found), explain("contributions"))


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


@final
@dataclass(frozen=True)
class ShiftShares:
    """What a squared distance is made of; the three add up to 1 unless one was below 0.

    Attributes:
        label: Share of different class frequencies.
        feature: Share of different samples within classes.
        noise: Share of sampling.
    """

    label: float
    feature: float
    noise: float


@final
@dataclass(frozen=True)
class PairShift:
    """Label shift against feature shift of one pair.

    Attributes:
        pair: Positions of the two domains.
        label_distance: Total variation distance of the class shares, from 0 to 1.
        hessian: What the Hessian distance is made of.
        gradient: What the gradient distance is made of.
    """

    pair: tuple[int, int]
    label_distance: float
    hessian: ShiftShares
    gradient: ShiftShares


@final
@dataclass(frozen=True)
class ShiftReport:
    """Label shift against feature shift.

    Attributes:
        pairs: One entry per pair.
        how: How it was computed.
    """

    pairs: tuple[PairShift, ...]
    how: str


def shift_report(sums: PairSums, draw: Draw, pairs: Sequence[tuple[int, int]]) -> ShiftReport:
    r"""Label shift against feature shift: how much of the distance of each pair they explain.

    With class shares $\pi_e(c)$ and class means $H_e^c$ of domain e,

    $$H_e - H_f =
    \underbrace{\sum_c (\pi_e - \pi_f)\, \tfrac12 (H_e^c + H_f^c)}_{\Delta_\text{label}}
    + \underbrace{\sum_c \tfrac12 (\pi_e + \pi_f) (H_e^c - H_f^c)}_{\Delta_\text{feature}}$$

    exactly. The first term is what different class shares do to equal classes, the second what
    different classes do at equal shares. Their parts in the squared distance are
    $\langle\Delta_\text{label}, \Delta\rangle$ and $\langle\Delta_\text{feature}, \Delta\rangle$,
    which add up to it. Both contain noise of sampling, whose expectation is known and taken out:

    - within classes, with $v_e^c$ the variance of samples of class c:
      $\sum_c \frac{\pi_e + \pi_f}2 (v_e^c/n_e + v_f^c/n_f)$ from the feature part, and
      $\sum_c \frac{\pi_e - \pi_f}2 (v_e^c/n_e - v_f^c/n_f)$ from the label part;
    - between classes, because shares are counts: $b_e/n_e + b_f/n_f$ from the label part, with
      $b_e$ the variance between classes.

    Where only one of the domains has a class, nothing is known about its samples in the other, and
    the whole difference is in the label part.

    Returns:
        The parts of each pair.
    """
    counts = torch.zeros(len(draw.sizes), len(draw.class_names), dtype=torch.float64)
    counts.index_put_((draw.domain, draw.y), torch.ones(()).double(), accumulate=True)
    priors = counts / counts.sum(1, keepdim=True)
    variances = {name: _variances(sums, draw, counts, name) for name in DERIVATIVES}
    found = []
    for e, f in pairs:
        variation = float((priors[e] - priors[f]).abs().sum() / 2)
        parts = {name: _split(sums, counts, variances[name], name, e, f) for name in DERIVATIVES}
        found.append(PairShift((e, f), variation, parts["hessian"], parts["gradient"]))
    return ShiftReport(tuple(found), explain("shift"))


def _variances(
    sums: PairSums, draw: Draw, counts: Tensor, name: str
) -> tuple[Float[Tensor, "e c"], Float[Tensor, " e"]]:
    """Variance of samples within each class, and between classes, of each domain."""
    domain, label = sums.cell_domain, sums.cell_class
    own = torch.zeros_like(counts)
    own.index_put_((draw.domain, draw.y), sums.own[name], accumulate=True)
    norms = torch.zeros_like(counts)
    norms[domain, label] = sums.cells[name].diagonal()
    several = counts > 1
    within = torch.where(several, (own - counts * norms) / (counts - 1).clamp_min(1), 0)
    within = within.clamp_min(0)
    sizes = counts.sum(1)
    totals = []
    for e, size in enumerate(sizes):
        cells = domain == e
        shares = counts[e, label[cells]] / size
        mean = shares @ sums.cells[name][cells][:, cells] @ shares
        totals.append((own[e].sum() - size * mean) / (size - 1))
    between = torch.stack(totals) - (counts / sizes.unsqueeze(1) * within).sum(1)
    return within, between.clamp_min(0)


def _split(
    sums: PairSums, counts: Tensor, variances: tuple[Tensor, Tensor], name: str, e: int, f: int
) -> ShiftShares:
    within, between = variances
    n, m = counts[e].sum(), counts[f].sum()
    first, second = counts[e] / n, counts[f] / m
    both = (counts[e] > 0) & (counts[f] > 0)
    mean = (first + second) / 2
    cells = (sums.cell_domain == e) | (sums.cell_domain == f)
    label, side = sums.cell_class[cells], sums.cell_domain[cells] == e
    inner = sums.cells[name][cells][:, cells]
    whole = torch.where(side, first[label], -second[label])
    feature = torch.where(both[label], torch.where(side, mean[label], -mean[label]), 0)
    pulled = inner @ whole
    square = float(whole @ pulled)
    if not square > 0:
        return ShiftShares(0.0, 0.0, 0.0)
    a, b = within[e] / n, within[f] / m
    noise_feature = float((mean * (a + b))[both].sum())
    total = float((first * within[e]).sum() / n + (second * within[f]).sum() / m)
    noise = total + float(between[e] / n + between[f] / m)
    by_feature = max(0.0, (float(feature @ pulled) - noise_feature) / square)
    by_label = float((whole - feature) @ pulled) - (noise - noise_feature)
    return ShiftShares(max(0.0, by_label / square), by_feature, min(1.0, noise / square))
