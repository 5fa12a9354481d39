"""Models under each remedy, of all sites but one: each does what the remedy says, fitted once.

Whatever a remedy has to choose, it chooses from the training sites alone.

Indices: n sample, d feature, r fit (the first) and its replicates, c class.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Final, final

import torch
from torch import Tensor

from hessalign._shapes import Float, Int
from hessalign.curvature.losses import Binary, CrossEntropy
from hessalign.diagnosis.answers import Remedy
from hessalign.diagnosis.head import quick_fit
from hessalign.diagnosis.preparation import Preparation, fit_preparation
from hessalign.diagnosis.refits import Model, Sites
from hessalign.heads.aligned_objective import FULL_COMPONENTS, AlignedObjective
from hessalign.heads.fit import FittedHead, minimise
from hessalign.heads.logistic import probabilities
from hessalign.heads.samples import feature_scales, make_samples
from hessalign.heads.strengths import strength_path, weights_of

STRENGTHS: Final = (0.0, 0.1, 1.0, 10.0)
FIXED: Final = 2  # position of the strength where there are too few sites to choose one
SURE: Final = 2.0  # standard errors by which leaving a site out must help inside
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
@dataclass(frozen=True, eq=False)
class RemedyModels:
    """Models of all sites but one, under each remedy that can be tried.

    Attributes:
        data: The sites.
    """

    data: Sites

    @cached_property
    def remedies(self) -> tuple[Remedy, ...]:
        """What can be tried, "nothing" first."""
        found: list[Remedy] = ["nothing", "standardise", "weights"]
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
    def _removal(self) -> _Removal:
        return _Removal(self.data.fewer(_INNER))

    @cached_property
    def _alignment(self) -> _Aligned:
        return _Aligned(self.aligned)

    @cached_property
    def _choices(self) -> dict[tuple[Remedy, int], float | int | None]:
        return {}

    def choice(self, remedy: Remedy, held: int) -> float | int | None:
        """What a remedy chooses for a site left out, without it.

        Args:
            remedy: Which one.
            held: The site left out.

        Returns:
            The site that is left out of training too, or the strength; None if nothing is chosen.
        """
        key = remedy, held
        if key not in self._choices:
            if remedy == "leave_out":
                self._choices[key] = self._removal.choose(held)
            else:
                self._choices[key] = self._alignment.choose(held) if remedy == "align" else None
        return self._choices[key]

    def answer(
        self, remedy: Remedy, held: int, z: Float[Tensor, "n d"], *, replicates: bool = False
    ) -> Float[Tensor, "r n c"]:
        """What is said of a batch of samples of the site left out.

        Args:
            remedy: Which one.
            held: The site left out.
            z: The samples' features as they came, NaN where missing.
            replicates: Whether replicates of the fit answer too; an aligned head has none here.

        Returns:
            Probabilities of the classes.
        """
        chosen = self.choice(remedy, held)
        if remedy == "align" and chosen != 0 and (fold := self._alignment.fold({held})).several:
            return fold.answer(fold.head(STRENGTHS.index(float(chosen or 0))), z).unsqueeze(0)
        plain = self.data.unseen(held)
        if remedy == "standardise":
            z = standardised(z, torch.zeros(len(z), dtype=torch.long))
            return _some_of(self._level.unseen(held), replicates).answer(z)
        if remedy == "leave_out" and chosen is not None:
            return _some_of(self.data.unseen(held, int(chosen)), replicates).answer(z)
        found = _some_of(plain, replicates and remedy != "align").answer(z)
        return reweighted(found, plain.shares) if remedy == "weights" else found

    def aligned_gains(
        self, held: int, z: Float[Tensor, "n d"], y: Int[Tensor, " n"]
    ) -> Float[Tensor, " r"]:
        """Gains of aligned over plain heads, both of draws of the training samples.

        Args:
            held: The site left out.
            z: Its features.
            y: Its labels.

        Returns:
            One gain of accuracy per draw.
        """
        strength, fold = self.choice("align", held), self._alignment.fold({held})
        if strength == 0 or not fold.several:
            return torch.zeros(_REPLICATES)
        generator = torch.Generator().manual_seed(self.data.seed)
        place = STRENGTHS.index(float(strength or 0))
        return torch.tensor([fold.replicate(place, z, y, generator) for _ in range(_REPLICATES)])


def _some_of(model: Model, replicates: bool) -> Model:
    """The model with its replicates or alone."""
    return model if replicates else model.alone()


def right_answers(p: Float[Tensor, "*r n c"], y: Int[Tensor, " n"]) -> Float[Tensor, "*r n"]:
    """Which samples are given their class, 1 or 0."""
    return (p.argmax(-1) == y).double()


def mean_difference(pairs: Sequence[Tensor]) -> tuple[float, float]:
    """The mean over sites of samples' differences, and its standard error."""
    mean = sum(float(each.mean()) for each in pairs) / len(pairs)
    squares = sum(float(each.var(correction=0)) / len(each) for each in pairs)
    return mean, squares**0.5 / len(pairs)


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
            gain, error = mean_difference(pairs)
            if gain > SURE * error:
                gains[s] = gain
        return max(gains, key=gains.__getitem__, default=None)


def _some(sites: Sequence[int], held: int) -> list[int]:
    """A few of many sites, those that follow the one held out in a circle."""
    return sorted(sites, key=lambda e: (e - held) % (max(*sites, held) + 1))[:_JUDGES]


@final
@dataclass(frozen=True, eq=False)
class _Aligned:
    """Aligned heads of all sites but some, each fitted once."""

    data: Sites

    @cached_property
    def _folds(self) -> dict[frozenset[int], _Fold]:
        return {}

    def fold(self, left_out: set[int]) -> _Fold:
        """The training samples and heads of all sites but some."""
        key = frozenset(left_out)
        if key not in self._folds:
            self._folds[key] = _Fold(self.data.part(self.data.others(*left_out)))
        return self._folds[key]

    def choose(self, held: int) -> float:
        """The strength that does best on training sites, 0 unless one is likely better."""
        sites = [e for e in range(self.data.count) if e != held]
        if len(sites) < 3:
            return STRENGTHS[FIXED]
        judges = [(self.fold({held, v}), self.data.rows([v])) for v in _neighbours(sites, held)]
        right = [
            partial(fold.right, z=self.data.z[rows], y=self.data.y[rows])
            for fold, rows in judges
            if fold.several
        ]
        best, chosen = 0.0, 0
        for place in range(1, len(STRENGTHS) if right else 0):
            gain, error = mean_difference([each(place) - each(0) for each in right])
            if gain > max(best, _LIKELY * error):
                best, chosen = gain, place
            if gain < -_LIKELY * error:  # more of it will not help
                break
        return STRENGTHS[chosen]


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
    def several(self) -> bool:
        """Whether there is something to align."""
        return len(self._seen) > 1 and len(self.data.domain.unique()) > 1

    @cached_property
    def _found(self) -> list[FittedHead]:
        return []

    @cached_property
    def _path(self) -> Iterator[FittedHead]:
        return strength_path(
            self._objective,
            quick_fit(self._objective, accuracy=_ACCURACY),
            STRENGTHS,
            tolerance=_ACCURACY / self._objective.samples.num_parameters**0.5,
            still=1e-5 * _ACCURACY,
            max_steps=_STEPS,
        )

    def head(self, place: int) -> FittedHead:
        """The head of a strength; it and all weaker ones are fitted once."""
        while len(self._found) <= place:
            self._found.append(next(self._path))
        return self._found[place]

    def right(
        self, place: int, z: Float[Tensor, "n d"], y: Int[Tensor, " n"]
    ) -> Float[Tensor, " n"]:
        """Which samples the head of a strength gets right."""
        return right_answers(self.answer(self.head(place), z), y)

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
        plain = quick_fit(objective, start=self.head(0).parameters, accuracy=_ACCURACY)
        aligned = minimise(
            objective,
            weights_of(STRENGTHS[place], plain),
            start=self.head(place).parameters,
            max_steps=_FEW_STEPS,
        )
        right = [right_answers(self.answer(head, z), y).mean() for head in (aligned, plain)]
        return float(right[0] - right[1])
