"""Will it hold on a site that it has not seen: plain models of all others, with replicates.

Indices: n sample, d feature, r fit (the first) and its replicates, c class.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, final

import torch
from torch import Tensor

from hessalign._shapes import Float, Int
from hessalign.diagnosis.draw import explain
from hessalign.diagnosis.preparation import Preparation, first_copies, fit_preparation
from hessalign.diagnosis.scores import Estimate, Scores, judge, mean_scores, scores
from hessalign.heads.logistic import fit_logistic, probabilities

_RECIPE: Final = (  # the same model in scikit-learn
    'make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler(), '
    "LogisticRegression({}tol=1e-8, max_iter=10_000))"
)
NUMBERS: Final = 24_000_000  # features of all samples together that are looked at, at most
_SAMPLES: Final = 1 << 17  # and samples
_FEW: Final = 50  # samples that a site keeps, if it has them
_PRECISE: Final = 1 << 21  # up to this many numbers fits are in float64
_REPLICATES: Final = (6, 32)  # of a fit, fewest and most
_ELEMENTS: Final = 1 << 20  # outputs of all replicates together
_AT_A_TIME: Final = 1 << 22  # outputs of replicates that are fitted together
# Newton steps from the fit to one of its replicates.
_REFIT_STEPS: Final = {torch.float64: 3, torch.float32: 1}
_FOLDS: Final = 5
_FEWER: Final = 3  # folds of a site with more numbers than the next
_LARGE: Final = 1 << 22
_LEAST: Final = 10  # samples of a site for a model of its own


@final
@dataclass(frozen=True)
class SiteTransfer:
    """What a model does on a site, having seen it or not.

    Attributes:
        domain: Position of the site.
        samples: How many of its samples were tested on.
        unseen: By metric, a model of all other sites; a metric that does not exist there, such as
            the AUC of one class, is missing.
        within: By metric, a model of the site itself, cross-validated; None if it is too small.
        drop: By metric, how much worse the unseen model is than the one of the site itself, in
            pairs: positive is worse, for every metric. None without the latter.
        majority: Accuracy of always saying the site's commonest class.
        guess: Log loss of the class shares of the training sites.
    """

    domain: int
    samples: int
    unseen: dict[str, Estimate]
    within: dict[str, Estimate] | None
    drop: dict[str, Estimate] | None
    majority: float
    guess: float


@final
@dataclass(frozen=True)
class TransferReport:
    """Will it hold on a site that it has not seen?

    Attributes:
        sites: One entry per site that was left out.
        mean: By metric, the mean over these sites of the unseen models.
        mean_within: The same of the models of the sites themselves; None if there are none.
        mean_drop: The mean of the drops; None if there are none.
        chance: Balanced accuracy of any constant answer, 1 / classes.
        how: How it was computed, with what refits it by hand.
    """

    sites: tuple[SiteTransfer, ...]
    mean: dict[str, Estimate]
    mean_within: dict[str, Estimate] | None
    mean_drop: dict[str, Estimate] | None
    chance: float
    how: str


@final
@dataclass(frozen=True, eq=False)
class Model:
    """Linear heads of the classes among some samples, with how features are made ready for them."""

    preparation: Preparation
    shares: Float[Tensor, " c"]  # of the classes among its samples
    heads: Float[Tensor, "r k d"] | None = None  # the fit and its replicates; None for one class
    count: int = 1  # how many these are

    @cached_property
    def seen(self) -> Int[Tensor, " _"]:
        """The classes among its samples, which the heads tell apart."""
        return self.shares.nonzero().squeeze(1)

    def alone(self) -> Model:
        """The model without its replicates."""
        return replace(self, heads=None if self.heads is None else self.heads[:1], count=1)

    def columns(self, z: Float[Tensor, "n d"]) -> Float[Tensor, "n w"]:
        """What heads see of samples: features, marks of what is missing, a constant."""
        x = self.preparation.apply(z)
        return torch.cat([x, x.new_ones(len(x), 1)], dim=1)

    def answer(self, z: Float[Tensor, "n d"]) -> Float[Tensor, "r n c"]:
        """Probabilities of all classes, 0 for those it has not seen."""
        if self.heads is None:
            return self.shares.expand(self.count, len(z), -1).clone()
        said = probabilities(self.columns(z).to(self.heads.dtype), self.heads)
        found = said.new_zeros(*said.shape[:2], len(self.shares))
        found[:, :, self.seen] = said
        return found


@final
@dataclass(frozen=True, eq=False)
class Sites:
    """Samples of several sites, as they came: NaN where a value is missing."""

    z: Float[Tensor, "n d"]
    y: Int[Tensor, " n"]
    domain: Int[Tensor, " n"]  # the site of each sample
    classes: int
    l2: float | None = None  # of models; by default 1 / samples, which is scikit-learn's C = 1
    seed: int = 0  # of replicates and folds

    @cached_property
    def count(self) -> int:
        """How many sites there are."""
        return int(self.domain.max()) + 1

    @cached_property
    def complete(self) -> bool:
        """Whether no value is missing."""
        return not bool(self.z.isnan().any())

    @cached_property
    def _first(self) -> Int[Tensor, " n"]:
        return first_copies(self.z, self.y, self.domain)

    @cached_property
    def weights(self) -> Float[Tensor, "n r"]:
        """Of each sample in each replicate: a Bayesian bootstrap (Rubin, 1981), site by site."""
        least, most = _REPLICATES
        outputs = 1 if self.classes == 2 else self.classes
        count = max(least, min(most, _ELEMENTS // (len(self.y) * outputs)))
        generator = torch.Generator().manual_seed(self.seed)
        return torch.empty(len(self.y), count).exponential_(generator=generator)

    def fewer(self, numbers: int) -> Sites:
        """The same sites with so many numbers at most: of every site the same share."""
        share = min(1.0, min(_SAMPLES, numbers // max(1, self.z.shape[1])) / len(self.y))
        if share == 1:
            return self
        sizes = self.domain.bincount()
        keep = (sizes * share).round().long().clamp_min(_FEW)
        generator = torch.Generator().manual_seed(self.seed)
        rows = [
            self.rows([e])[torch.randperm(size, generator=generator)[:count]]
            for e, (size, count) in enumerate(zip(sizes.tolist(), keep.tolist(), strict=True))
        ]
        return self.part(torch.cat(rows).sort().values)

    def part(self, rows: Int[Tensor, " _"]) -> Sites:
        """Some samples alone."""
        return replace(self, z=self.z[rows], y=self.y[rows], domain=self.domain[rows])

    def rows(self, sites: Iterable[int]) -> Int[Tensor, " _"]:
        """Samples of some sites, by position."""
        return torch.isin(self.domain, torch.tensor(list(sites))).nonzero().squeeze(1)

    def others(self, *left_out: int) -> Int[Tensor, " _"]:
        """Samples of all sites but some."""
        return self.rows(set(range(self.count)) - set(left_out))

    @cached_property
    def _models(self) -> dict[tuple[frozenset[int], bool], Model]:
        return {}

    def unseen(self, *left_out: int, replicates: bool = True) -> Model:
        """A model of all sites but some; it is fitted once."""
        key = frozenset(left_out), replicates
        if key not in self._models:
            self._models[key] = self._fit(self.others(*left_out), replicates)
        return self._models[key]

    def blank(self, rows: Int[Tensor, " _"]) -> Model:
        """A model of some samples before its heads are fitted."""
        shares = self.y[rows].bincount(minlength=self.classes).double() / len(rows)
        return Model(fit_preparation(self.z[rows], complete=self.complete), shares)

    def _fit(self, rows: Int[Tensor, " _"], replicates: bool = True) -> Model:
        """The plain model of some samples."""
        model = self.blank(rows)
        classes, count = len(model.seen), 1 + self.weights.shape[1] if replicates else 1
        if classes < 2:
            return replace(model, count=count)
        x = model.columns(self.z[rows])
        x = x.to(torch.float64 if x.numel() <= _PRECISE else torch.float32)
        y = torch.searchsorted(model.seen, self.y[rows])
        l2 = 1 / len(y) if self.l2 is None else self.l2
        heads = fit_logistic(x, y, classes, l2)
        if replicates:
            drawn = self.weights[rows].to(x.dtype)
            for e in self.domain[rows].unique():  # sites keep their sizes
                mine = self.domain[rows] == e
                drawn[mine] /= drawn[mine].mean(0)
            some = max(1, _AT_A_TIME // (len(x) * heads.shape[1]))
            start, steps = heads[0], _REFIT_STEPS[x.dtype]
            again = [
                fit_logistic(x, y, classes, l2, weights=part, start=start, steps=steps)
                for part in drawn.split(some, dim=1)
            ]
            heads = torch.cat([heads, *again])
        return replace(model, heads=heads, count=count)

    def cross_validated(self, rows: Int[Tensor, " _"], folds: int) -> Float[Tensor, "r n c"]:
        """What models of the other folds say of each of some samples."""
        fold = stratified_folds(self.y[rows], folds, self.seed)
        fold = fold[torch.searchsorted(rows, self._first[rows])]  # copies stay together
        shape = (1 + self.weights.shape[1], len(rows), self.classes)
        found = torch.zeros(shape, dtype=torch.float64)
        for number in range(folds):
            test = fold == number
            found[:, test] = self._fit(rows[~test]).answer(self.z[rows[test]])
        return found


def stratified_folds(y: Int[Tensor, " n"], folds: int, seed: int = 0) -> Int[Tensor, " n"]:
    """The fold of each sample, at random, every class dealt out evenly."""
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    order = order[y[order].argsort(stable=True)]
    fold = torch.empty_like(y)
    fold[order] = torch.arange(len(y)) % folds
    return fold


def transfer_report(data: Sites, sites: Sequence[int] | None = None) -> TransferReport:
    """How a plain model does on each site, fitted to all others, and fitted to the site itself.

    Args:
        data: The samples.
        sites: Sites to leave out in turn, all by default; all others train.

    Returns:
        The report.

    Example:
        >>> y, domain = torch.arange(60) % 2, torch.arange(60) // 20
        >>> z = torch.stack([y + torch.linspace(-0.4, 0.4, 60), domain * 1.0], dim=1)
        >>> report = transfer_report(Sites(z, y, domain, classes=2))
        >>> [entry.unseen["accuracy"].value for entry in report.sites]
        [1.0, 1.0, 1.0]
    """
    generator = torch.Generator().manual_seed(data.seed)
    chosen = range(data.count) if sites is None else sites
    entries, unseen, own = zip(*(_leave_out(data, e, generator) for e in chosen), strict=True)
    within = [each for each in own if each is not None]
    drops = [b.less(a) for a, b in zip(unseen, own, strict=True) if b is not None]
    how = explain(
        "transfer",
        recipe=_RECIPE.format("" if data.l2 is None else f"C=1 / ({data.l2:g} * len(y)), "),
        l2=data.l2,
        folds=_FOLDS,
        replicates=data.weights.shape[1],
        least=_LEAST,
    )
    return TransferReport(
        entries,
        mean_scores(unseen).estimates(),
        mean_scores(within).estimates() if within else None,
        mean_scores(drops).estimates(difference=True) if drops else None,
        1 / data.classes,
        how,
    )


def _leave_out(
    data: Sites, e: int, generator: torch.Generator
) -> tuple[SiteTransfer, Scores, Scores | None]:
    """What there is to say of a site, and the scores behind it."""
    rows = data.rows([e])
    y, model = data.y[rows], data.unseen(e)
    state = generator.get_state()
    unseen, within = judge(model.answer(data.z[rows]), y, generator), None
    if folds := _folds(y, data.z.shape[1]):
        # The same replicates of the test samples judge both models.
        again = torch.Generator().set_state(state)
        within = judge(data.cross_validated(rows, folds), y, again)
    guess = scores(model.shares.expand(1, len(y), -1), y)["log_loss"]
    entry = SiteTransfer(
        e,
        len(y),
        unseen.estimates(),
        within and within.estimates(),
        within and within.less(unseen).estimates(difference=True),
        float(y.bincount().max()) / len(y),
        float(guess),
    )
    return entry, unseen, within


def _folds(y: Int[Tensor, " n"], features: int) -> int:
    """How many folds a site's samples allow: every one has both of its commonest classes."""
    second = int(y.bincount(minlength=2).sort(descending=True).values[1])
    most = _FOLDS if len(y) * features <= _LARGE else _FEWER
    return min(most, second) if len(y) >= _LEAST and second > 1 else 0
