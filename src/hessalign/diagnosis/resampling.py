r"""Noise floors and bootstrap intervals from inner products between groups.

A domain's samples are dealt at random into groups, so a mean over some of them is a mean over a
random part of the domain. All that halves and bootstrap replicates need are the inner products
between the groups' means.

Indices: e and f domain, g group, b replicate.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Final, final

import numpy as np
import torch
from torch import Tensor

from hessalign._shapes import Float, Int
from hessalign.alignment import distances, squared_distances

REPLICATES: Final = 400
SPLITS: Final = 100
LEVEL: Final = 0.95


@final
@dataclass(frozen=True, eq=False)
class Groups:
    """Which domain each group belongs to, and how many samples it has.

    Attributes:
        domain: The domain of each group, contiguous.
        size: Samples of each group.
        weights: Share of each group in the replicates' domain means, one row per replicate.
        halves: 1 for groups of the first half, −1 for the second, one row per random split.
    """

    domain: Int[Tensor, " g"]
    size: Float[Tensor, " g"]
    weights: Float[Tensor, "b g"]
    halves: Float[Tensor, "s g"]

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
    """Draw replicates and halves.

    Returns:
        The groups.

    Example:
        >>> groups = make_groups(torch.tensor([0, 0, 1, 1]), torch.tensor([2, 2, 3, 3]), seed=0)
        >>> groups.shares
        tensor([0.5000, 0.5000, 0.5000, 0.5000], dtype=torch.float64)
        >>> groups.halves[0].abs()
        tensor([1., 1., 1., 1.], dtype=torch.float64)
    """
    generator = torch.Generator().manual_seed(seed)
    counts, halves = [], []
    for many in domain.bincount().tolist():
        drawn = torch.randint(many, (REPLICATES, many), generator=generator)
        empty = torch.zeros(REPLICATES, many, dtype=torch.float64)
        counts.append(empty.scatter_add_(1, drawn, torch.ones_like(empty)))
        order = torch.rand(SPLITS, many, generator=generator).argsort(1)
        halves.append(torch.where(order < many // 2, 1.0, -1.0).double())
    weights = _normalised(torch.cat(counts, dim=1) * size, domain)
    return Groups(domain, size.double(), weights, torch.cat(halves, dim=1))


def distance_matrix(inner: Float[Tensor, "g g"], groups: Groups) -> DistanceMatrix:
    r"""Distances with noise floor and intervals.

    The squared distance of two means, $T = \|M_e - M_f\|^2$, is on average larger than that of what
    they estimate, by the noise of both. Bootstrap replicates $T^*$ are larger than T by as much
    again, so the interval from $2T - q_{97.5}(T^*)$ to $2T - q_{2.5}(T^*)$ is one for the distance
    without noise. Two halves of a domain have four times the noise of its mean in T.

    Returns:
        The distances.
    """
    gram = groups.averaged(inner, groups.shares)
    square = squared_distances(gram)
    replicates = _squares(groups.replicates(inner))
    halves, noise = _halves(inner, groups)
    floor = noise.unsqueeze(0) + noise.unsqueeze(1)
    floor.fill_diagonal_(0)
    edge = (1 - LEVEL) / 2
    upper, lower = torch.from_numpy(np.quantile(replicates.numpy(), [1 - edge, edge], axis=0))
    return DistanceMatrix(
        distances(gram),
        floor.sqrt(),
        (square - floor).clamp_min(0).sqrt(),
        (2 * square - upper).clamp_min(0).sqrt(),
        (2 * square - lower).clamp_min(0).sqrt(),
        halves.sqrt(),
    )


def _squares(inner: Float[Tensor, "b e e"]) -> Float[Tensor, "b e e"]:
    norms = inner.diagonal(dim1=1, dim2=2)
    return norms.unsqueeze(1) + norms.unsqueeze(2) - inner - inner.mT


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
