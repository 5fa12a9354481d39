"""Plain models of some sites, fitted anew on features as they came, with replicates of the fit.

Indices: n sample, d feature, r replicate, c class.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, final

import torch
from torch import Tensor

from hessalign._shapes import Float, Int
from hessalign.diagnosis.preparation import Preparation, fit_preparation
from hessalign.heads.logistic import fit_logistic, probabilities

RECIPE: Final = (
    'make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler(), '
    "LogisticRegression({}tol=1e-8, max_iter=10_000))"
)
"""The same model in scikit-learn."""

NUMBERS: Final = 24_000_000  # features of all samples together that are looked at, at most
SAMPLES: Final = 1 << 17  # and samples
_FEW: Final = 50  # samples that a site keeps, if it has them
_PRECISE: Final = 1 << 21  # up to this many numbers fits are in float64
_REPLICATES: Final = (6, 32)  # of a fit, fewest and most
_ELEMENTS: Final = 1 << 20  # outputs of all replicates together
_AT_A_TIME: Final = 1 << 22  # outputs of replicates that are fitted together
# Newton steps from the fit to one of its replicates.
_REFIT_STEPS: Final = {torch.float64: 3, torch.float32: 1}


def sample_sites(
    domain: Int[Tensor, " n"], features: int, numbers: int = NUMBERS, seed: int = 0
) -> Int[Tensor, " _"] | None:
    """Which samples to look at, if there are too many: of every site the same share.

    Args:
        domain: The site of each sample.
        features: How many features there are.
        numbers: How many numbers can be afforded.
        seed: Of the draw.

    Returns:
        Their positions in order; None if all are.
    """
    sizes = domain.bincount()
    share = min(1.0, min(SAMPLES, numbers // max(1, features)) / len(domain))
    if share == 1:
        return None
    keep = (sizes * share).round().long().clamp_min(_FEW)
    generator = torch.Generator().manual_seed(seed)
    rows = [
        (domain == e).nonzero().squeeze(1)[torch.randperm(size, generator=generator)[:count]]
        for e, (size, count) in enumerate(zip(sizes.tolist(), keep.tolist(), strict=True))
    ]
    return torch.cat(rows).sort().values


@final
@dataclass(frozen=True, eq=False)
class Model:
    """A plain model with its replicates, of the classes that it has seen."""

    preparation: Preparation
    seen: Int[Tensor, " _"]
    heads: Float[Tensor, "r k d"] | None  # the fit, then its replicates; None for a single class
    shares: Float[Tensor, " c"]  # of the classes among its samples
    count: int  # the fit and its replicates

    def alone(self) -> Model:
        """The model without its replicates."""
        return replace(self, heads=None if self.heads is None else self.heads[:1], count=1)

    def answer(self, z: Float[Tensor, "n d"]) -> Float[Tensor, "r n c"]:
        """Probabilities of all classes, 0 for those it has not seen."""
        if self.heads is None:
            return self.shares.expand(self.count, len(z), -1).clone()
        x = _with_constant(self.preparation.apply(z)).to(self.heads.dtype)
        said = probabilities(x, self.heads)
        found = said.new_zeros(*said.shape[:2], len(self.shares))
        found[:, :, self.seen] = said
        return found


@final
@dataclass(frozen=True, eq=False)
class Sites:
    """Samples of several sites, as they came: NaN where a value is missing.

    Attributes:
        z: Features.
        y: Labels.
        domain: The site of each sample.
        classes: How many classes there are.
        l2: Weight of the L2 term; by default 1 / samples, which is scikit-learn's C = 1.
        seed: Of replicates and folds.
    """

    z: Float[Tensor, "n d"]
    y: Int[Tensor, " n"]
    domain: Int[Tensor, " n"]
    classes: int
    l2: float | None = None
    seed: int = 0

    @cached_property
    def count(self) -> int:
        """How many sites there are."""
        return int(self.domain.max()) + 1

    @cached_property
    def _models(self) -> dict[frozenset[int], Model]:
        return {}

    def unseen(self, *left_out: int) -> Model:
        """A model of all sites but some, with replicates; it is fitted once."""
        key = frozenset(left_out)
        if key not in self._models:
            self._models[key] = self.model(self.others(*left_out))
        return self._models[key]

    def fewer(self, numbers: int) -> Sites:
        """The same sites with so many numbers at most."""
        rows = sample_sites(self.domain, self.z.shape[1], numbers, self.seed)
        return self if rows is None else self.part(rows)

    def part(self, rows: Int[Tensor, " _"]) -> Sites:
        """Some samples alone."""
        return replace(self, z=self.z[rows], y=self.y[rows], domain=self.domain[rows])

    @cached_property
    def complete(self) -> bool:
        """Whether no value is missing."""
        return not bool(self.z.isnan().any())

    @cached_property
    def weights(self) -> Float[Tensor, "n r"]:
        """Of each sample in each replicate: a Bayesian bootstrap (Rubin, 1981), site by site."""
        least, most = _REPLICATES
        outputs = 1 if self.classes == 2 else self.classes
        count = max(least, min(most, _ELEMENTS // (len(self.y) * outputs)))
        generator = torch.Generator().manual_seed(self.seed)
        return torch.empty(len(self.y), count).exponential_(generator=generator)

    def rows(self, sites: Iterable[int]) -> Int[Tensor, " _"]:
        """Samples of some sites, by position."""
        return torch.isin(self.domain, torch.tensor(list(sites))).nonzero().squeeze(1)

    def others(self, *left_out: int) -> Int[Tensor, " _"]:
        """Samples of all sites but some."""
        return self.rows(set(range(self.count)) - set(left_out))

    def model(self, rows: Int[Tensor, " _"], *, replicates: bool = True) -> Model:
        """Fit the plain model to some samples."""
        z, y = self.z[rows], self.y[rows]
        preparation = fit_preparation(z, complete=self.complete)
        shares = y.bincount(minlength=self.classes).double() / len(y)
        seen = shares.nonzero().squeeze(1)
        count = 1 + (self.weights.shape[1] if replicates else 0)
        if len(seen) < 2:
            return Model(preparation, seen, None, shares, count)
        x = _with_constant(preparation.apply(z))
        x = x.to(torch.float64 if x.numel() <= _PRECISE else torch.float32)
        labels = torch.searchsorted(seen, y)
        l2 = 1 / len(y) if self.l2 is None else self.l2
        heads = fit_logistic(x, labels, len(seen), l2)
        if replicates:
            drawn = self.weights[rows].to(x.dtype)
            for e in self.domain[rows].unique():  # sites keep their sizes
                mine = self.domain[rows] == e
                drawn[mine] /= drawn[mine].mean(0)
            some = max(1, _AT_A_TIME // (len(x) * heads.shape[1]))
            again = [
                fit_logistic(
                    x,
                    labels,
                    len(seen),
                    l2,
                    weights=part,
                    start=heads[0],
                    steps=_REFIT_STEPS[x.dtype],
                )
                for part in drawn.split(some, dim=1)
            ]
            heads = torch.cat([heads, *again])
        return Model(preparation, seen, heads, shares, count)

    def cross_validated(self, rows: Int[Tensor, " _"], folds: int) -> Float[Tensor, "r n c"]:
        """What models of the other folds say of each of some samples."""
        fold = stratified_folds(self.y[rows], folds, self.seed)
        shape = (1 + self.weights.shape[1], len(rows), self.classes)
        found = torch.zeros(shape, dtype=torch.float64)
        for number in range(folds):
            test = fold == number
            found[:, test] = self.model(rows[~test]).answer(self.z[rows[test]])
        return found


def stratified_folds(y: Int[Tensor, " n"], folds: int, seed: int = 0) -> Int[Tensor, " n"]:
    """The fold of each sample, at random, every class dealt out evenly."""
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    order = order[y[order].argsort(stable=True)]
    fold = torch.empty_like(y)
    fold[order] = torch.arange(len(y)) % folds
    return fold


def _with_constant(x: Tensor) -> Tensor:
    return torch.cat([x, x.new_ones(len(x), 1)], dim=1)
