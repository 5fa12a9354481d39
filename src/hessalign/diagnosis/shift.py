r"""Label shift against feature shift: how much of a distance each explains.

With class shares $\pi_e(c)$ and class means $H_e^c$ of domain e,

$$H_e - H_f = \underbrace{\sum_c (\pi_e - \pi_f)\, \tfrac12 (H_e^c + H_f^c)}_{\Delta_\text{label}}
+ \underbrace{\sum_c \tfrac12 (\pi_e + \pi_f) (H_e^c - H_f^c)}_{\Delta_\text{feature}}$$

exactly. The first term is what different class shares do to equal classes, the second what
different classes do at equal shares. Their parts in the squared distance are
$\langle\Delta_\text{label}, \Delta\rangle$ and $\langle\Delta_\text{feature}, \Delta\rangle$, which
add up to it. Both contain noise of sampling, whose expectation is known and taken out:

- within classes, with $v_e^c$ the variance of samples of class c:
  $\sum_c \frac{\pi_e + \pi_f}2 (v_e^c/n_e + v_f^c/n_f)$ from the feature part, and
  $\sum_c \frac{\pi_e - \pi_f}2 (v_e^c/n_e - v_f^c/n_f)$ from the label part;
- between classes, because shares are counts: $b_e/n_e + b_f/n_f$ from the label part, with
  $b_e$ the variance between classes.

Where only one of the domains has a class, nothing is known about its samples in the other, and the
whole difference is in the label part.

Indices: e and f domain, n sample, c class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from hessalign._shapes import Float
from hessalign.diagnosis.draw import Draw
from hessalign.diagnosis.pair_sums import DERIVATIVES, PairSums


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
    """Split the distances of some pairs into label shift, feature shift and noise."""
    counts = torch.zeros(len(draw.sizes), len(draw.class_names), dtype=torch.float64)
    counts[sums.cell_domain, sums.cell_class] = sums.cell_size.double()
    priors = counts / counts.sum(1, keepdim=True)
    variances = {name: _variances(sums, draw, counts, name) for name in DERIVATIVES}
    found = []
    for e, f in pairs:
        variation = float((priors[e] - priors[f]).abs().sum() / 2)
        parts = {name: _split(sums, counts, variances[name], name, e, f) for name in DERIVATIVES}
        found.append(PairShift((e, f), variation, parts["hessian"], parts["gradient"]))
    how = (
        "Class shares: total variation distance, half the sum of absolute differences. The "
        "difference of two domains' means is Σ_c (π_e − π_f)(H_e^c + H_f^c)/2 (label) plus "
        "Σ_c (π_e + π_f)/2 (H_e^c − H_f^c) (feature), exactly; shares are inner products of each "
        "with the whole, by the squared distance, less the expected noise of sampling. A class "
        "that one of the two lacks counts as label shift."
    )
    return ShiftReport(tuple(found), how)


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
        cells = (domain == e).nonzero().squeeze(1)
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
    cells = ((sums.cell_domain == e) | (sums.cell_domain == f)).nonzero().squeeze(1)
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
