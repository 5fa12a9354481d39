r"""Distances between domains, with noise floors and bootstrap intervals.

A domain's samples are dealt at random into groups, so a mean over some of them is a mean over a
random part of the domain. All that halves and bootstrap replicates of Frobenius distances need are
the inner products between the groups' means; spectral ones look at the samples again.

Indices: e and f domain, n sample, g group, b replicate, k output, m direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import sqrt
from typing import Final, final

import numpy as np
import torch
from torch import Tensor

from hessalign._shapes import Float, Int
from hessalign.alignment import distances, squared_distances
from hessalign.curvature import LinearHead, linear_head
from hessalign.curvature.operators import hessian_difference
from hessalign.diagnosis.draw import Draw, explain

_REPLICATES: Final = 400
_SPLITS: Final = 100
_TAIL: Final = (1 - 0.95) / 2
EDGES: Final = (_TAIL, 1 - _TAIL)  # quantiles of replicates between which 95 % of them lie
_SPECTRAL_SAMPLES: Final = 1000  # of each domain, at most


@final
@dataclass(frozen=True, eq=False)
class Groups:
    """Which domain each group belongs to, contiguous, and how many samples it has."""

    domain: Int[Tensor, " g"]
    size: Float[Tensor, " g"]
    weights: Float[Tensor, "b g"]  # share of each group in the replicates' domain means
    halves: Float[Tensor, "s g"]  # by random split, 1 for groups of the first half, −1 for others

    @property
    def num_domains(self) -> int:
        """How many domains there are."""
        return int(self.domain.max()) + 1

    @property
    def shares(self) -> Float[Tensor, " g"]:
        """The share of each group in its domain."""
        return _normalised(self.size.unsqueeze(0), self.domain)[0]

    def averaged(
        self, inner: Float[Tensor, "g g"], shares: Float[Tensor, " g"]
    ) -> Float[Tensor, "e e"]:
        """Inner products between domains' means from those between groups', given their shares."""
        weighted = inner * shares * shares.unsqueeze(1)
        count = self.num_domains
        columns = inner.new_zeros(len(inner), count).index_add_(1, self.domain, weighted)
        return inner.new_zeros(count, count).index_add_(0, self.domain, columns)

    def replicates(self, inner: Float[Tensor, "g g"]) -> Float[Tensor, "b e e"]:
        """The same in every bootstrap replicate, for each row of `weights`."""
        count = self.num_domains
        result = inner.new_zeros(len(self.weights), count, count)
        for f in range(count):
            own = self.domain == f
            pulled = (self.weights[:, own] @ inner[own]) * self.weights
            result[:, :, f].index_add_(1, self.domain, pulled)
        return result


@final
@dataclass(frozen=True, eq=False)
class DistanceMatrix:
    """Distances between domains, with what sampling does to them.

    Attributes:
        measured: The distance of the domains' means as they are.
        noise: What the distance would be for want of samples if the domains did not differ.
        beyond: The distance less noise, √(measured² − noise²), 0 if noise explains it all.
        low: Lower end of the 95 % interval of the distance itself.
        high: Its upper end.
        halves: Per domain, the distance of two random halves of it (root mean square).
    """

    measured: Float[Tensor, "e e"]
    noise: Float[Tensor, "e e"]
    beyond: Float[Tensor, "e e"]
    low: Float[Tensor, "e e"]
    high: Float[Tensor, "e e"]
    halves: Float[Tensor, " e"]

    def typical(self) -> float:
        """Root mean square over pairs of distances beyond noise."""
        pairs = len(self.beyond) * (len(self.beyond) - 1)
        return sqrt(float(self.beyond.square().sum()) / pairs)

    def times_noise(self) -> float:
        """Root mean square of measured distances over pairs, in units of the noise."""
        noise = float(self.noise.square().sum() - self.noise.diagonal().square().sum())
        measured = float(self.measured.square().sum())
        return (measured / noise) ** 0.5 if noise > 0 else float("inf") if measured > 0 else 0.0


def make_groups(domain: Int[Tensor, " g"], size: Int[Tensor, " g"], seed: int) -> Groups:
    """Draw replicates and halves."""
    generator = torch.Generator().manual_seed(seed)
    counts, halves = [], []
    for many in domain.bincount().tolist():
        drawn = torch.randint(many, (_REPLICATES, many), generator=generator)
        empty = torch.zeros(_REPLICATES, many, dtype=torch.float64)
        counts.append(empty.scatter_add_(1, drawn, torch.ones_like(empty)))
        order = torch.rand(_SPLITS, many, generator=generator).argsort(1)
        halves.append(torch.where(order < many // 2, 1.0, -1.0).double())
    weights = _normalised(torch.cat(counts, dim=1) * size, domain)
    return Groups(domain, size.double(), weights, torch.cat(halves, dim=1))


def distance_matrix(inner: Float[Tensor, "g g"], groups: Groups) -> DistanceMatrix:
    """Distances with noise floor and intervals."""
    # The squared distance of two means, T = ‖M_e − M_f‖², is on average larger than that of what
    # they estimate, by the noise of both. Bootstrap replicates T* are larger than T by as much
    # again, so the interval from 2T − q_97.5(T*) to 2T − q_2.5(T*) is one for the distance without
    # noise. Two halves of a domain have four times the noise of its mean in T.
    gram = groups.averaged(inner, groups.shares)
    square = squared_distances(gram)
    drawn = groups.replicates(inner)
    norms = drawn.diagonal(dim1=1, dim2=2)
    replicates = norms.unsqueeze(1) + norms.unsqueeze(2) - drawn - drawn.mT
    halves, noise = _halves(inner, groups)
    floor = noise.unsqueeze(0) + noise.unsqueeze(1)
    floor.fill_diagonal_(0)
    lower, upper = torch.from_numpy(np.quantile(replicates.numpy(), EDGES, axis=0))
    return DistanceMatrix(
        distances(gram),
        floor.sqrt(),
        (square - floor).clamp_min(0).sqrt(),
        (2 * square - upper).clamp_min(0).sqrt(),
        (2 * square - lower).clamp_min(0).sqrt(),
        halves.sqrt(),
    )


def _halves(inner: Tensor, groups: Groups) -> tuple[Tensor, Tensor]:
    """Mean squared distance of halves, per domain, and the noise of a mean that follows from it."""
    squares, noise = [], []
    for e in range(groups.num_domains):
        own = groups.domain == e
        size, sides = groups.size[own], groups.halves[:, own]
        first = torch.where(sides > 0, size, 0)
        second = size - first
        a, b = first.sum(1, keepdim=True), second.sum(1, keepdim=True)
        weights = first / a - second / b
        square = ((weights @ inner[own][:, own]) * weights).sum(1).clamp_min(0)
        squares.append(square.mean())
        noise.append((square / (1 / a + 1 / b).squeeze(1)).mean() / size.sum())
    return torch.stack(squares), torch.stack(noise)


def _normalised(weights: Tensor, domain: Tensor) -> Tensor:
    weights = weights.double()
    totals = weights.new_zeros(len(weights), int(domain.max()) + 1)
    totals.index_add_(1, domain, weights)
    return weights / totals[:, domain]


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
    few = {}
    for e in domains:  # evenly from front to back, so that every group is there
        size = min(draw.sizes[e], _SPECTRAL_SAMPLES)
        few[e] = draw.of(e)[torch.arange(size) * draw.sizes[e] // size]
    sides = draw.half
    halves = {}
    for e, rows in few.items():
        halves[e], _ = _extremes(head, rows[sides[rows]], rows[~sides[rows]])
    found = []
    for e, f in combinations(domains, 2):
        norm, directions = _extremes(head, few[e], few[f])
        noise = (halves[e] ** 2 + halves[f] ** 2) ** 0.5 / 2
        replicates = _replicates(draw, head, groups, directions, (few[e], few[f]))
        lower, upper = np.quantile(replicates.numpy(), EDGES)
        beyond = max(0.0, norm**2 - noise**2) ** 0.5
        low, high = (max(0.0, beyond + norm - float(end)) for end in (upper, lower))
        found.append(SpectralDistance((e, f), norm, noise, low, high))
    most = max(len(rows) for rows in few.values())
    how = explain("spectral", most=most, replicates=len(groups.weights))
    return SpectralReport(tuple(found), halves, how)


def _extremes(head: LinearHead, first: Tensor, second: Tensor) -> tuple[float, Tensor]:
    """Spectral distance of two sets of samples, and the extreme eigenvectors of the difference."""
    z, logits = head.features.z, head.logits
    sides = [
        linear_head(
            z[rows], logits[rows], None, torch.zeros_like(rows), loss=head.loss, bias=head.bias
        )
        for rows in (first, second)
    ]
    values, directions = hessian_difference(*sides).extremes()
    return float(values.abs().max()), directions


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
        # Each sample's own Hessian as a form on the directions, u_iᵀ S u_j with u = V z̃.
        z = head.features.z[rows].double()
        if head.bias:
            z = torch.cat([z, torch.ones_like(z[:, :1])], dim=1)
        u = torch.einsum("nd,mkd->nmk", z, directions.unflatten(1, head.shape))
        curvature = head.loss.curvature(head.prediction[rows], head.logits[rows], None)
        bent = torch.einsum("nik,njk->nij", u, curvature.apply(u, slice(None))).flatten(1)
        group, position = torch.unique(draw.group[rows], return_inverse=True)
        sums = bent.new_zeros(len(group), count * count).index_add_(0, position, bent)
        size = position.bincount().double().unsqueeze(1)
        weights = groups.weights[:, group]
        means.append((weights @ (sums / size)).view(-1, count, count))
    values: Tensor = torch.linalg.eigvalsh(means[0] - means[1])
    return values.abs().amax(1)
