"""What helps: remedies tried on sites left out in turn, each compared with doing nothing.

Whatever a remedy has to choose, it chooses from the training sites alone.

Indices: n sample, d feature, r fit (the first) and its replicates, c class.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Final, Literal, final, get_args

import torch
from torch import Tensor

from hessalign._shapes import Float, Int
from hessalign.curvature.losses import Binary, CrossEntropy
from hessalign.diagnosis.draw import explain
from hessalign.diagnosis.heads import quick_fit
from hessalign.diagnosis.preparation import standardised
from hessalign.diagnosis.scores import NORMAL, Estimate, scores, variance
from hessalign.diagnosis.transfer import Model, Sites
from hessalign.heads.aligned_objective import FULL_COMPONENTS, AlignedObjective
from hessalign.heads.fit import FittedHead, minimise, strength_path, weights_of
from hessalign.heads.samples import make_samples

_Remedy = Literal["nothing", "standardise", "weights", "leave_out", "align"]
REMEDIES: Final[tuple[_Remedy, ...]] = get_args(_Remedy)
"""What one may do about it.

- nothing: a plain model of all sites together.
- standardise: every site's features brought to mean 0 and variance 1 by its own samples.
- weights: classes weighted as they occur at the site in question.
- leave_out: a site left out of training.
- align: Hessians and gradients of the sites aligned.
"""

_ONE_SIDED: Final = 1.28  # 90 %
_LEAST: Final = 0.005  # gain that is named, at least
_SPREAD: Final = 0.5  # standard errors, spread between sites included, of a gain that is named
_CLOSE: Final = 0.005  # of two remedies whose accuracies are that close the simpler is named
STRENGTHS: Final = (0.0, 0.1, 1.0, 10.0)
_FIXED: Final = 2  # position of the strength where there are too few sites to choose one
_SURE: Final = 2.0  # standard errors by which leaving a site out must help inside
_LIKELY: Final = 1.0  # and by which aligning must
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


@final
@dataclass(frozen=True)
class Trial:
    """What one remedy does on sites that were left out.

    Attributes:
        remedy: Which one.
        accuracy: Mean accuracy over the sites left out.
        gain: That less the accuracy of doing nothing, in pairs.
        sites: Accuracy of each site left out, in the order of the report.
        scores: By metric, the mean over the sites left out.
        choices: What was chosen inside for each site left out, without it: a strength, the site
            left out of training; empty if there is nothing to choose.
    """

    remedy: _Remedy
    accuracy: float
    gain: Estimate
    sites: tuple[float, ...]
    scores: dict[str, float]
    choices: tuple[float | int | None, ...] = ()


@final
@dataclass(frozen=True)
class RemedyReport:
    """What helps?

    Attributes:
        trials: What was tried, "nothing" first.
        recommended: The remedy with a gain that is not luck, "nothing" if there is none.
        left_out: Position of the site whose removal helps, if that is recommended.
        how: How it was computed.
    """

    trials: tuple[Trial, ...]
    recommended: _Remedy
    left_out: int | None
    how: str


def remedy_report(models: RemedyModels, sites: Sequence[int] | None = None) -> RemedyReport:
    """Try every remedy on each site left out, and recommend one if its gain is not luck.

    Args:
        models: Under each remedy.
        sites: Sites to leave out in turn, all by default; all others train.

    Returns:
        The report.

    Example:
        >>> y, domain = torch.arange(90) % 2, torch.arange(90) // 30
        >>> moved = (y + domain * 3.0 + torch.linspace(-0.4, 0.4, 90)).unsqueeze(1)
        >>> remedy_report(RemedyModels(Sites(moved, y, domain, classes=2))).recommended
        'standardise'
    """
    data = models.data
    held = tuple(range(data.count) if sites is None else sites)
    tests = [(e, data.z[rows], data.y[rows]) for e in held for rows in [data.rows([e])]]
    labels = [y for _, _, y in tests]
    plain: list[Tensor] = []
    found = []
    for remedy in models.remedies:
        said = [models.answer(remedy, e, z, replicates=True) for e, z, _ in tests]
        plain = plain or said
        gains = [
            right_answers(p, y) - right_answers(q[: len(p)], y)
            for p, q, y in zip(said, plain, labels, strict=True)
        ]
        if remedy == "align":
            fits = [models.aligned_gains(*test) for test in tests]
        else:
            fits = [gain[1:].mean(1) for gain in gains]
        choices: tuple[float | int | None, ...] = ()
        if remedy in ("leave_out", "align"):
            choices = tuple(models.choice(remedy, e) for e in held)
        each = [scores(p[:1], y) for p, y in zip(said, labels, strict=True)]
        names = [name for name in each[0] if all(name in one for one in each)]
        means = {name: sum(float(one[name]) for one in each) / len(each) for name in names}
        gain, error = _gain([gain[0] for gain in gains], fits)
        accuracies = tuple(float(one["accuracy"]) for one in each)
        trial = Trial(remedy, means["accuracy"], gain, accuracies, means, choices)
        found.append((trial, error))
    trials, errors = zip(*found, strict=True)
    recommended = recommend(trials, errors)
    how = explain(
        "remedies",
        count=data.count,
        strengths=STRENGTHS,
        fixed=STRENGTHS[_FIXED],
        replicates=data.weights.shape[1],
        aligned=len(models.aligned.y),
        too_large=models.too_large,
        samples=len(data.y),
        sure=_SURE,
    )
    left_out = None
    if recommended == "leave_out":  # which is chosen most often
        (chosen,) = (trial.choices for trial in trials if trial.remedy == recommended)
        ((left_out, _),) = Counter(int(s) for s in chosen if s is not None).most_common(1)
    return RemedyReport(trials, recommended, left_out, how)


def recommend(trials: Sequence[Trial], errors: Sequence[float]) -> _Remedy:
    """The remedy to name, "nothing" if no gain is more than luck.

    A gain counts if it is half a point or more, above 0 by 1.28 standard errors of fitting and
    testing (90 %, for these sites), and by half of one that covers the spread between sites too:
    one site that gains much is enough, unless others lose.

    Returns:
        Of several remedies within half a point of the best the one that is first in `REMEDIES`.
    """
    sure = [
        trial
        for trial, error in zip(trials, errors, strict=True)
        if trial.gain.value >= _LEAST
        and trial.gain.value > _ONE_SIDED * error
        and trial.gain.value > _SPREAD * (trial.gain.high - trial.gain.value) / NORMAL
    ]
    best = max((trial.accuracy for trial in sure), default=0.0)
    close = [trial.remedy for trial in sure if trial.accuracy >= best - _CLOSE]
    return min(close, key=REMEDIES.index, default="nothing")


def _gain(
    pairs: Sequence[Float[Tensor, " _"]], fits: Sequence[Float[Tensor, " r"]]
) -> tuple[Estimate, float]:
    """The mean gain; its interval is for fitting, testing and sites, its error without the last."""
    gain, error = _mean_difference(pairs)
    here = spread = error**2 + variance(torch.stack(list(fits)).mean(0))
    if len(pairs) > 2:  # what is left of the spread between sites (DerSimonian and Laird, 1986)
        own = sum(_mean_difference([each])[1] ** 2 for each in pairs) + sum(map(variance, fits))
        between = variance(torch.stack([each.mean() for each in pairs])) - own / len(pairs)
        spread += max(0.0, between) / len(pairs)
    half = NORMAL * spread**0.5
    return Estimate(gain, gain - half, gain + half), here**0.5


def right_answers(p: Float[Tensor, "*r n c"], y: Int[Tensor, " n"]) -> Float[Tensor, "*r n"]:
    """Which samples are given their class, 1 or 0."""
    return (p.argmax(-1) == y).double()


def _mean_difference(pairs: Sequence[Tensor]) -> tuple[float, float]:
    """The mean over sites of samples' differences, and its standard error."""
    mean = sum(float(each.mean()) for each in pairs) / len(pairs)
    squares = sum(float(each.var(correction=0)) / len(each) for each in pairs)
    return mean, squares**0.5 / len(pairs)


@final
@dataclass(frozen=True, eq=False)
class RemedyModels:
    """Models of all sites but one, under each remedy that can be tried, each fitted once."""

    data: Sites

    @cached_property
    def remedies(self) -> tuple[_Remedy, ...]:
        """What can be tried, "nothing" first."""
        found: list[_Remedy] = ["nothing", "standardise", "weights"]
        if self.data.count > 3:
            found.append("leave_out")
        if self.data.count > 2 and not self.too_large:
            found.append("align")
        return tuple(found)

    @cached_property
    def aligned(self) -> Sites:
        """The samples that are aligned: all, or as many as can be afforded."""
        return self.data.fewer(_ALIGNED)

    @property
    def too_large(self) -> bool:
        """Whether that is too few of them to be worth it."""
        few = self.aligned
        return few is not self.data and len(few.y) < _AMPLE * self.data.z.shape[1]

    @cached_property
    def _level(self) -> Sites:
        return replace(self.data, z=standardised(self.data.z, self.data.domain))

    @cached_property
    def _inner(self) -> Sites:
        return self.data.fewer(_INNER)

    @cached_property
    def _choices(self) -> dict[tuple[_Remedy, int], float | int | None]:
        return {}

    @cached_property
    def _folds(self) -> dict[frozenset[int], _AlignedHeads]:
        return {}

    def choice(self, remedy: _Remedy, held: int) -> float | int | None:
        """What a remedy chooses without the site left out: another one, a strength, or None."""
        if remedy not in ("leave_out", "align"):
            return None
        key = remedy, held
        if key not in self._choices:
            choose = self._other_site if remedy == "leave_out" else self._strength
            self._choices[key] = choose(held)
        return self._choices[key]

    def answer(
        self, remedy: _Remedy, held: int, z: Float[Tensor, "n d"], *, replicates: bool = False
    ) -> Float[Tensor, "r n c"]:
        """What is said of a batch of the site left out; aligned heads have no replicates here."""
        chosen = self.choice(remedy, held)
        if remedy == "align" and chosen and (heads := self._aligned_heads(held)).several:
            return heads.answer(heads.head(STRENGTHS.index(chosen)), z)
        data, left_out = self.data, [held]
        if remedy == "standardise":
            data, z = self._level, standardised(z, torch.zeros(len(z), dtype=torch.long))
        if remedy == "leave_out" and chosen is not None:
            left_out.append(int(chosen))
        model = data.unseen(*left_out)
        found = (model if replicates and remedy != "align" else model.alone()).answer(z)
        return reweighted(found, model.shares) if remedy == "weights" else found

    def aligned_gains(
        self, held: int, z: Float[Tensor, "n d"], y: Int[Tensor, " n"]
    ) -> Float[Tensor, " r"]:
        """Gains of accuracy of aligned over plain heads, of draws of the training samples."""
        strength, heads = self.choice("align", held), self._aligned_heads(held)
        if not strength or not heads.several:
            return torch.zeros(_REPLICATES)
        generator = torch.Generator().manual_seed(self.data.seed)
        place = STRENGTHS.index(strength)
        return torch.tensor([heads.replicate(place, z, y, generator) for _ in range(_REPLICATES)])

    def _other_site(self, held: int) -> int | None:
        """The site to leave out beside the one held out; None if that does not surely help."""
        count = self.data.count  # of many sites those that follow the one held out in a circle
        some = [(held + step) % count for step in range(1, count)][:_JUDGES]
        alone = {s: float(self._right(s, held).mean()) for s in some}
        gains = {}
        for s in sorted(alone, key=alone.__getitem__)[:_CANDIDATES]:
            pairs = [self._right(v, held, s) - self._right(v, held) for v in some if v != s]
            gain, error = _mean_difference(pairs)
            if gain > _SURE * error:
                gains[s] = gain
        return max(gains, key=gains.__getitem__, default=None)

    def _right(self, site: int, *left_out: int) -> Float[Tensor, " n"]:
        """Which samples of a site a model without it and some others gets right."""
        rows = self._inner.rows([site])
        model = self._inner.unseen(site, *left_out, replicates=False)
        return right_answers(model.answer(self._inner.z[rows])[0], self._inner.y[rows])

    def _strength(self, held: int) -> float:
        """The strength that does best on training sites, 0 unless one is likely better."""
        count = self.data.count
        judges = [e for e in range(count) if e != held]
        if len(judges) < 3:
            return STRENGTHS[_FIXED]
        if count > _ALL_SITES:  # of many the next, last and opposite
            judges = [(held + step) % count for step in (1, count - 1, count // 2)]
        right = []
        for v in judges:
            heads, rows = self._aligned_heads(held, v), self.aligned.rows([v])
            if heads.several:
                right.append(partial(heads.right, z=self.aligned.z[rows], y=self.aligned.y[rows]))
        best, chosen = 0.0, 0
        for place in range(1, len(STRENGTHS) if right else 0):
            gain, error = _mean_difference([each(place) - each(0) for each in right])
            if gain > max(best, _LIKELY * error):
                best, chosen = gain, place
            if gain < -_LIKELY * error:  # more of it will not help
                break
        return STRENGTHS[chosen]

    def _aligned_heads(self, *left_out: int) -> _AlignedHeads:
        key = frozenset(left_out)
        if key not in self._folds:
            self._folds[key] = _AlignedHeads(self.aligned.part(self.aligned.others(*left_out)))
        return self._folds[key]


@final
@dataclass(frozen=True, eq=False)
class _AlignedHeads:
    """Heads of some samples by strength, on features prepared as those of plain models are."""

    data: Sites

    @cached_property
    def _model(self) -> Model:
        return self.data.blank(torch.arange(len(self.data.y)))

    def _objective(self, rows: Int[Tensor, " _"]) -> AlignedObjective:
        data, classes = self.data, len(self._model.seen)
        x = self._model.preparation.apply(data.z[rows])
        samples = make_samples(
            x,
            torch.searchsorted(self._model.seen, data.y[rows]),
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
    def several(self) -> bool:
        """Whether there is something to align."""
        return len(self._model.seen) > 1 and len(self.data.domain.unique()) > 1

    @cached_property
    def _found(self) -> list[FittedHead]:
        return []

    @cached_property
    def _path(self) -> Iterator[FittedHead]:
        objective = self._objective(torch.arange(len(self.data.y)))
        return strength_path(
            objective,
            quick_fit(objective, accuracy=_ACCURACY),
            STRENGTHS,
            tolerance=_ACCURACY / objective.samples.num_parameters**0.5,
            still=1e-5 * _ACCURACY,
            max_steps=_STEPS,
        )

    def head(self, place: int) -> FittedHead:
        """The head of a strength; it and all weaker ones are fitted once."""
        while len(self._found) <= place:
            self._found.append(next(self._path))
        return self._found[place]

    def answer(self, head: FittedHead, z: Float[Tensor, "n d"]) -> Float[Tensor, "1 n c"]:
        """What a head says, as a plain model does."""
        return replace(self._model, heads=head.parameters.unsqueeze(0)).answer(z)

    def right(
        self, place: int, z: Float[Tensor, "n d"], y: Int[Tensor, " n"]
    ) -> Float[Tensor, " n"]:
        """Which samples the head of a strength gets right."""
        return right_answers(self.answer(self.head(place), z)[0], y)

    def replicate(
        self, place: int, z: Float[Tensor, "n d"], y: Int[Tensor, " n"], generator: torch.Generator
    ) -> float:
        """The gain over the plain head of a draw of the training samples, site by site."""
        rows = []
        for e in self.data.domain.unique().tolist():
            own = self.data.rows([e])
            rows.append(own[torch.randint(len(own), (len(own),), generator=generator)])
        objective = self._objective(torch.cat(rows))
        plain = quick_fit(objective, start=self.head(0).parameters, accuracy=_ACCURACY)
        aligned = minimise(
            objective,
            weights_of(STRENGTHS[place], plain),
            start=self.head(place).parameters,
            max_steps=_FEW_STEPS,
        )
        right = [right_answers(self.answer(head, z), y).mean() for head in (aligned, plain)]
        return float(right[0] - right[1])


def reweighted(p: Float[Tensor, "r n c"], shares: Float[Tensor, " c"]) -> Float[Tensor, "r n c"]:
    r"""Probabilities for a site where classes have other shares, which need not be known.

    Expectation maximisation finds the likeliest shares from the probabilities alone (Saerens,
    Latinne and Decaestecker, 2002, eq. 2.9): with the shares $\pi^0$ among the samples that models
    were fitted to, repeat

    $$q_{nc} \propto p_{nc}\, \pi_c / \pi^0_c, \qquad \pi_c = \frac1n \sum_n q_{nc}$$

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
