"""What helps: remedies tried on sites left out in turn, each compared with doing nothing.

Whatever a remedy has to choose, it chooses from the training sites alone.

Indices: n sample, d feature, r fit (the first) and its replicates, c class.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, final

import torch
from torch import Tensor

from hessalign._shapes import Float, Int
from hessalign.curvature.losses import Binary, CrossEntropy
from hessalign.diagnosis.answers import REMEDIES, Estimate, Remedy, RemedyReport, Trial
from hessalign.diagnosis.draw import explain
from hessalign.diagnosis.head import quick_fit
from hessalign.diagnosis.preparation import Preparation, fit_preparation
from hessalign.diagnosis.refits import Sites
from hessalign.diagnosis.scores import scores
from hessalign.heads.aligned_objective import FULL_COMPONENTS, AlignedObjective
from hessalign.heads.fit import FittedHead, minimise
from hessalign.heads.logistic import probabilities
from hessalign.heads.samples import feature_scales, make_samples
from hessalign.heads.strengths import strength_path, weights_of

STRENGTHS: Final = (0.0, 0.1, 1.0, 10.0)
_FIXED: Final = 2  # position of the strength where there are too few sites to choose one
_NORMAL: Final = 1.96
_ONE_SIDED: Final = 1.28  # 90 %
_LEAST: Final = 0.005  # gain that is named, at least
_SURE: Final = 2.0  # standard errors by which leaving a site out must help inside
_LIKELY: Final = 1.0  # and by which aligning must
_SPREAD: Final = 0.5  # standard errors, spread between sites included, of a gain that is named
_CLOSE: Final = 0.005  # of two remedies whose accuracies are that close the simpler is named
_CANDIDATES: Final = 6  # sites that are tried to be left out, the worst, at most
_ALL_SITES: Final = 5  # up to this many sites all training sites judge a strength
_JUDGES: Final = 6  # training sites that judge a choice, at most
_INNER: Final = 1 << 22  # numbers of the samples by which choices are made
_ALIGNED: Final = 1 << 20  # numbers of the samples that are aligned
_AMPLE: Final = 20  # of them there must be, for every feature, where not all samples are aligned
_FULL: Final = 1 << 22  # numbers of the form by which whole Hessians are aligned
_REPLICATES: Final = 6  # of an aligned head
_ACCURACY: Final = 1e-4  # of aligned heads: what they get right does not change any more
_STEPS: Final = 60
_FEW_STEPS: Final = 10  # from an aligned head to a replicate
_EM_STEPS: Final = 500


def remedy_report(
    z: Float[Tensor, "n d"],
    y: Int[Tensor, " n"],
    domain: Int[Tensor, " n"],
    *,
    classes: int,
    l2: float | None = None,
    seed: int = 0,
    sites: Sequence[int] | None = None,
) -> RemedyReport:
    """Try every remedy on each site left out, and recommend one if its gain is not luck.

    Args:
        z: Features as they came, NaN where missing.
        y: Labels from 0.
        domain: The site of each sample, from 0.
        classes: How many classes there are.
        l2: The weight of the L2 term over the mean loss; by default 1 / samples.
        seed: Of replicates.
        sites: Sites to leave out in turn, all by default; all others train.

    Returns:
        The report.

    Example:
        >>> y, domain = torch.arange(90) % 2, torch.arange(90) // 30
        >>> moved = (y + domain * 3.0 + torch.linspace(-0.4, 0.4, 90)).unsqueeze(1)
        >>> remedy_report(moved, y, domain, classes=2).recommended
        'standardise'
    """
    return report_remedies(Sites(z, y, domain, classes, l2, seed), sites)


def report_remedies(data: Sites, sites: Sequence[int] | None = None) -> RemedyReport:
    """The same for sites whose models others use, too."""
    chosen = tuple(range(data.count) if sites is None else sites)
    tests = [data.rows([e]) for e in chosen]
    labels = [data.y[rows] for rows in tests]
    nothing = [data.unseen(e).answer(data.z[rows]) for e, rows in zip(chosen, tests, strict=True)]
    level = replace(data, z=standardised(data.z, data.domain))
    said: dict[Remedy, list[Tensor]] = {
        "nothing": nothing,
        "standardise": [
            level.unseen(e).answer(level.z[rows]) for e, rows in zip(chosen, tests, strict=True)
        ],
        "weights": [
            reweighted(p, data.unseen(e).shares) for e, p in zip(chosen, nothing, strict=True)
        ],
    }
    removed: tuple[int | None, ...] = ()
    if data.count > 3:
        inner = _Removal(data.fewer(_INNER))
        removed = tuple(inner.choose(e) for e in chosen)
        said["leave_out"] = [
            p if s is None else data.unseen(e, s).answer(data.z[rows])
            for e, s, rows, p in zip(chosen, removed, tests, nothing, strict=True)
        ]
    plain = [p[0] for p in nothing]
    found = []
    for remedy, answers in said.items():
        fits = [
            (_right(p[1:], y) - _right(q[1:], y)).mean(1)
            for p, q, y in zip(answers, nothing, labels, strict=True)
        ]
        choices = removed if remedy == "leave_out" else ()
        found.append(_trial(remedy, labels, [p[0] for p in answers], plain, fits, choices))
    few = data.fewer(_ALIGNED)
    too_large = few is not data and len(few.y) < _AMPLE * data.z.shape[1]
    if data.count > 2 and not too_large:
        found.append(_align(data, few, chosen, labels, plain))
    trials, errors = zip(*found, strict=True)
    recommended = recommend(trials, errors)
    often = Counter(s for s in removed if s is not None).most_common(1)
    left_out = often[0][0] if recommended == "leave_out" else None
    how = explain(
        "remedies",
        count=data.count,
        strengths=STRENGTHS,
        fixed=STRENGTHS[_FIXED],
        replicates=data.weights.shape[1],
        aligned=len(few.y),
        too_large=too_large,
        samples=len(data.y),
        sure=_SURE,
    )
    return RemedyReport(trials, recommended, left_out, how)


def recommend(trials: Sequence[Trial], errors: Sequence[float]) -> Remedy:
    """The remedy to name, "nothing" if no gain is more than luck.

    A gain counts if it is half a point or more, above 0 by 1.28 standard errors of fitting and
    testing (90 %, for these sites), and by half of one that covers the spread between sites too:
    one site that gains much is enough, unless others lose. Of several remedies within half a point
    of the best it is the one that comes first in `REMEDIES`.

    Args:
        trials: What was tried.
        errors: Standard error of each gain, of fitting and testing.

    Returns:
        The remedy.
    """
    sure = [
        trial
        for trial, error in zip(trials, errors, strict=True)
        if trial.gain.value >= _LEAST
        and trial.gain.value > _ONE_SIDED * error
        and trial.gain.value > _SPREAD * (trial.gain.high - trial.gain.value) / _NORMAL
    ]
    best = max((trial.accuracy for trial in sure), default=0.0)
    close = [trial.remedy for trial in sure if trial.accuracy >= best - _CLOSE]
    return min(close, key=REMEDIES.index, default="nothing")


def standardised(z: Float[Tensor, "n d"], domain: Int[Tensor, " n"]) -> Float[Tensor, "n d"]:
    """Every feature of every site with mean 0 and variance 1, by the values that are not missing.

    Args:
        z: Features, NaN where missing.
        domain: The site of each sample.

    Returns:
        The features.

    Example:
        >>> standardised(torch.tensor([[1.0], [3.0], [7.0], [7.0]]), torch.tensor([0, 0, 1, 1])).T
        tensor([[-1.,  1.,  0.,  0.]])
    """
    found = torch.empty_like(z)
    for e in domain.unique():
        mine = domain == e
        part = z[mine]
        gaps = part.isnan()
        mean = part.nanmean(0).nan_to_num(0.0)
        filled = torch.where(gaps, mean, part)
        _, _, still = feature_scales(filled)
        count = (~gaps).sum(0).clamp_min(1)
        spread = ((filled - mean).square().sum(0) / count).sqrt()
        found[mine] = torch.where(still, 0.0, part - mean) / torch.where(still, 1.0, spread)
        found[mine] = torch.where(gaps, torch.nan, found[mine])
    return found


def reweighted(p: Float[Tensor, "r n c"], shares: Float[Tensor, " c"]) -> Float[Tensor, "r n c"]:
    r"""Probabilities for a site where classes have other shares, which need not be known.

    Expectation maximisation finds the likeliest shares from the probabilities alone (Saerens,
    Latinne and Decaestecker, 2002, eq. 2.9): repeat

    $$q_{nc} \propto p_{nc}\, \pi_c / \pi^0_c, \qquad \pi_c = \frac1n \sum_n q_{nc}$$

    Args:
        p: What models say of the site's samples.
        shares: Of the classes among the samples these were fitted to, π⁰.

    Returns:
        The weighted probabilities q.

    Example:
        >>> p = torch.tensor([[[0.9, 0.1]] * 9 + [[0.3, 0.7]]]).double()
        >>> q = reweighted(p, torch.tensor([0.5, 0.5]).double())
        >>> p[0, -1].argmax().item(), q[0, -1].argmax().item()
        (1, 0)
    """
    ratio = torch.where(shares > 0, p / shares.clamp_min(1e-300), 0)
    current = shares.expand(len(p), 1, -1)
    found = p
    for _ in range(_EM_STEPS):
        found = ratio * current
        found = found / found.sum(2, keepdim=True)
        before, current = current, found.mean(1, keepdim=True)
        if float((current - before).abs().max()) < 1e-6:
            break
    return found


@final
@dataclass(frozen=True, eq=False)
class _Removal:
    """Which training site to leave out, by what its removal does on the other training sites."""

    data: Sites

    @cached_property
    def _right(self) -> dict[tuple[frozenset[int], int], Tensor]:
        return {}

    def right(self, left_out: frozenset[int], site: int) -> Float[Tensor, " n"]:
        """Which samples of a site a model of all but some sites gets right."""
        key = left_out, site
        if key not in self._right:
            model = self.data.model(self.data.others(*left_out), replicates=False)
            for each in left_out:
                rows = self.data.rows([each])
                answer = model.answer(self.data.z[rows])[0].argmax(1)
                self._right[left_out, each] = (answer == self.data.y[rows]).double()
        return self._right[key]

    def choose(self, held: int) -> int | None:
        """The site to leave out beside the one held out; None if that does not surely help."""
        sites = [e for e in range(self.data.count) if e != held]
        alone = {s: float(self.right(frozenset({held, s}), s).mean()) for s in _some(sites, held)}
        gains = {}
        for s in sorted(alone, key=alone.__getitem__)[:_CANDIDATES]:
            judges = [v for v in _some(sites, held) if v != s]
            pairs = [
                self.right(frozenset({held, s, v}), v) - self.right(frozenset({held, v}), v)
                for v in judges
            ]
            gain, error = _mean_difference(pairs)
            if gain > _SURE * error:
                gains[s] = gain
        return max(gains, key=gains.__getitem__, default=None)


def _some(sites: Sequence[int], held: int) -> list[int]:
    """A few of many sites, those that follow the one held out in a circle."""
    return sorted(sites, key=lambda e: (e - held) % (max(*sites, held) + 1))[:_JUDGES]


def _trial(
    remedy: Remedy,
    labels: Sequence[Int[Tensor, " _"]],
    said: Sequence[Float[Tensor, "_ c"]],
    nothing: Sequence[Float[Tensor, "_ c"]],
    fits: Sequence[Float[Tensor, " r"]],
    choices: tuple[float | int | None, ...] = (),
) -> tuple[Trial, float]:
    """What a remedy does, by its probabilities and its replicates' gains; and its gain's error."""
    found = [scores(p.unsqueeze(0), y) for p, y in zip(said, labels, strict=True)]
    names = [name for name in found[0] if all(name in each for each in found)]
    means = {name: sum(float(each[name]) for each in found) / len(found) for name in names}
    pairs = [_right(p, y) - _right(q, y) for p, q, y in zip(said, nothing, labels, strict=True)]
    sites = tuple(float(each["accuracy"]) for each in found)
    gain, error = _gain(pairs, fits)
    return Trial(remedy, means["accuracy"], gain, sites, means, choices), error


def _right(p: Float[Tensor, "*r n c"], y: Int[Tensor, " n"]) -> Float[Tensor, "*r n"]:
    return (p.argmax(-1) == y).double()


def _gain(
    pairs: Sequence[Float[Tensor, " _"]], fits: Sequence[Float[Tensor, " r"]]
) -> tuple[Estimate, float]:
    """The mean gain; its interval is for fitting, testing and sites, its error without the last."""
    gain, error = _mean_difference(pairs)
    here = spread = error**2 + _variance(torch.stack(list(fits)).mean(0))
    if len(pairs) > 2:  # what is left of the spread between sites (DerSimonian and Laird, 1986)
        own = sum(_mean_difference([each])[1] ** 2 for each in pairs) + sum(map(_variance, fits))
        between = _variance(torch.stack([each.mean() for each in pairs])) - own / len(pairs)
        spread += max(0.0, between) / len(pairs)
    half = _NORMAL * spread**0.5
    return Estimate(gain, gain - half, gain + half), here**0.5


def _variance(values: Tensor) -> float:
    return float(values.var()) if len(values) > 1 else 0.0


def _mean_difference(pairs: Sequence[Tensor]) -> tuple[float, float]:
    """The mean over sites of samples' differences, and its standard error."""
    mean = sum(float(each.mean()) for each in pairs) / len(pairs)
    squares = sum(float(each.var(correction=0)) / len(each) for each in pairs)
    return mean, squares**0.5 / len(pairs)


def _align(
    data: Sites,
    few: Sites,
    chosen: Sequence[int],
    labels: Sequence[Int[Tensor, " _"]],
    nothing: Sequence[Float[Tensor, "_ c"]],
) -> tuple[Trial, float]:
    """Try aligned heads of a few samples, of the strength that training sites choose."""
    bench = _Aligned(few)
    said, fits, choices = [], [], []
    for e, y, plain in zip(chosen, labels, nothing, strict=True):
        place = bench.choose(e)
        fold = bench.fold(frozenset({e}))
        choices.append(STRENGTHS[place])
        if place == 0 or not fold.heads:
            said.append(plain)
            fits.append(torch.zeros(_REPLICATES))
            continue
        z = data.z[data.rows([e])]
        said.append(fold.answer(fold.heads[place], z))
        generator = torch.Generator().manual_seed(data.seed)
        fits.append(
            torch.tensor([fold.replicate(place, z, y, generator) for _ in range(_REPLICATES)])
        )
    return _trial("align", labels, said, nothing, fits, tuple(choices))


@final
@dataclass(frozen=True, eq=False)
class _Aligned:
    """Aligned heads of all sites but some, each fitted once."""

    data: Sites

    @cached_property
    def _folds(self) -> dict[frozenset[int], _Fold]:
        return {}

    def fold(self, left_out: frozenset[int]) -> _Fold:
        """The training samples and heads of all sites but some."""
        if left_out not in self._folds:
            self._folds[left_out] = _Fold(self.data.part(self.data.others(*left_out)))
        return self._folds[left_out]

    def choose(self, held: int) -> int:
        """The position of the strength that does best on training sites, 0 unless likely better."""
        sites = [e for e in range(self.data.count) if e != held]
        if len(sites) < 3:
            return _FIXED
        right = []
        for v in _neighbours(sites, held):
            fold, rows = self.fold(frozenset({held, v})), self.data.rows([v])
            if fold.heads:
                z, y = self.data.z[rows], self.data.y[rows]
                right.append([_right(fold.answer(head, z), y) for head in fold.heads])
        if not right:
            return 0
        gains = [
            _mean_difference([each[place] - each[0] for each in right])
            for place in range(len(STRENGTHS))
        ]
        likely = [place for place, (gain, error) in enumerate(gains) if gain > _LIKELY * error]
        return max(likely, key=lambda place: gains[place][0], default=0)


def _neighbours(sites: Sequence[int], held: int) -> list[int]:
    """Training sites that are left out in turn: all, or of many the next, last and opposite."""
    count = len(sites) + 1
    if count <= _ALL_SITES:
        return list(sites)
    return [(held + step) % count for step in (1, count - 1, count // 2)]


@final
@dataclass(frozen=True, eq=False)
class _Fold:
    """Training samples of aligned heads, prepared as those of plain models are."""

    data: Sites

    @cached_property
    def _preparation(self) -> Preparation:
        return fit_preparation(self.data.z, complete=self.data.complete)

    @cached_property
    def _seen(self) -> Int[Tensor, " _"]:
        found: Tensor = self.data.y.unique()
        return found

    @cached_property
    def _objective(self) -> AlignedObjective:
        return self._objective_of(torch.arange(len(self.data.y)))

    def _objective_of(self, rows: Int[Tensor, " _"]) -> AlignedObjective:
        data, classes = self.data, len(self._seen)
        x = self._preparation.apply(data.z[rows])
        samples = make_samples(
            x,
            torch.searchsorted(self._seen, data.y[rows]),
            data.domain[rows],
            Binary() if classes == 2 else CrossEntropy(),
            outputs=1 if classes == 2 else classes,
            bias=True,
            l2=1 / len(x) if data.l2 is None else data.l2,
            free_bias=True,
        )
        # Whole curvatures are aligned, or, where they have many components, diagonals.
        columns = x.shape[1] * (x.shape[1] + 1) // 2
        small = classes**2 <= FULL_COMPONENTS and len(x) * min(len(x), columns) <= _FULL
        return AlignedObjective(samples.to(torch.float64), "full" if small else "diagonal")

    @cached_property
    def heads(self) -> tuple[FittedHead, ...]:
        """One per strength; none where there is nothing to align."""
        if len(self._seen) < 2 or len(self.data.domain.unique()) < 2:
            return ()
        plain = quick_fit(self._objective, accuracy=_ACCURACY)
        return tuple(self._path(self._objective, plain, STRENGTHS, _STEPS))

    @staticmethod
    def _path(
        objective: AlignedObjective, plain: FittedHead, strengths: Sequence[float], steps: int
    ) -> Iterator[FittedHead]:
        goal = _ACCURACY / objective.samples.num_parameters**0.5
        return strength_path(
            objective, plain, strengths, tolerance=goal, still=1e-5 * _ACCURACY, max_steps=steps
        )

    def answer(self, head: FittedHead, z: Float[Tensor, "n d"]) -> Float[Tensor, "n c"]:
        """Probabilities of all classes, 0 for those it has not seen."""
        x = self._preparation.apply(z)
        found = torch.zeros(len(z), self.data.classes, dtype=torch.float64)
        found[:, self._seen] = probabilities(
            torch.cat([x, x.new_ones(len(x), 1)], dim=1).double(), head.parameters.unsqueeze(0)
        )[0]
        return found

    def replicate(
        self, place: int, z: Float[Tensor, "n d"], y: Int[Tensor, " n"], generator: torch.Generator
    ) -> float:
        """The gain over the plain head of a draw of the training samples, site by site."""
        rows = []
        for e in self.data.domain.unique().tolist():
            own = self.data.rows([e])
            rows.append(own[torch.randint(len(own), (len(own),), generator=generator)])
        objective = self._objective_of(torch.cat(rows))
        plain = quick_fit(objective, start=self.heads[0].parameters, accuracy=_ACCURACY)
        aligned = minimise(
            objective,
            weights_of(STRENGTHS[place], plain),
            start=self.heads[place].parameters,
            max_steps=_FEW_STEPS,
        )
        right = [_right(self.answer(head, z), y).mean() for head in (aligned, plain)]
        return float(right[0] - right[1])
