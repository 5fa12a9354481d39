"""How good probabilities are, by several metrics, and how sure that is.

A score is a value with two kinds of replicates: of the fit, on the same test samples, and of the
test samples, by the same fit. Their spreads together make the interval.

Indices: r replicate, n sample, c class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, final

import torch
from torch import Tensor

from hessalign._shapes import Float, Int

METRICS: Final = ("accuracy", "balanced_accuracy", "auc", "log_loss", "calibration_error")
"""What a model is judged by; of the last two, less is better."""

NORMAL: Final = 1.96  # standard errors to either end of a 95 % interval
_BINS: Final = 10  # of the calibration error
_SHARES: Final = METRICS[:3]  # from 0 to 1
_REPLICATES: Final = (50, 200)  # of the test samples, fewest and most
_ELEMENTS: Final = 1 << 20  # test samples of all replicates together


class Estimate(NamedTuple):
    """A value with its 95 % interval, which covers both fitting and testing."""

    value: float
    low: float
    high: float


def scores(
    p: Float[Tensor, "_ n c"], y: Int[Tensor, " n"], weights: Float[Tensor, "r n"] | None = None
) -> dict[str, Float[Tensor, " r"]]:
    """Every metric that exists for these labels.

    Accuracy; balanced accuracy, the mean recall of the classes there are, if there are two; AUC,
    for more than two classes the mean of each against the rest, if all are there; log loss, with
    probabilities of at least 2.2e-16; and the expected calibration error (Guo et al., 2017): the
    mean difference, in size, between the share of right answers and the mean probability of the
    answer given, over 10 bins of that probability.

    Returns:
        By metric, one value per model; given weights of the samples in replicates, per replicate.

    Example:
        >>> p = torch.tensor([[[0.9, 0.1], [0.4, 0.6], [0.25, 0.75]]])
        >>> [round(float(value), 3) for value in scores(p, torch.tensor([0, 0, 1])).values()]
        [0.667, 0.75, 1.0, 0.436, 0.317]
    """
    p = p.double()
    w = p.new_ones(len(p), len(y)) if weights is None else weights.double()
    w = w / w.sum(1, keepdim=True)
    sure, answer = p.max(2)
    right = (answer == y).double()
    found = {"accuracy": (w * right).sum(1)}
    present = y.unique().tolist()
    if len(present) > 1:
        own = [(y == c).double() for c in present]
        recalls = [(w * right * mask).sum(1) / (w * mask).sum(1) for mask in own]
        found["balanced_accuracy"] = torch.stack(recalls).mean(0)
    classes = p.shape[2]
    if len(present) == classes:
        ranked = [1] if classes == 2 else range(classes)
        areas = [_area(p[:, :, c], y == c, w) for c in ranked]
        found["auc"] = torch.stack(areas).mean(0)
    own_p = p.gather(2, y.view(1, -1, 1).expand(len(p), -1, 1)).squeeze(2)
    found["log_loss"] = -(w * own_p.clamp_min(torch.finfo(torch.float64).eps).log()).sum(1)
    bins = (sure * _BINS).long().clamp_max(_BINS - 1).expand_as(w)
    gaps = torch.zeros(len(w), _BINS, dtype=torch.float64)
    found["calibration_error"] = gaps.scatter_add_(1, bins, w * (right - sure)).abs().sum(1)
    return found


def _area(
    score: Float[Tensor, "_ n"], positive: Tensor, w: Float[Tensor, "r n"]
) -> Float[Tensor, " r"]:
    """How often a positive sample has the larger score, ties half."""
    found = []
    for i, row in enumerate(score):
        _, rank = row.unique(return_inverse=True)
        mine = w if len(score) == 1 else w[i : i + 1]
        up, down = (
            mine.new_zeros(len(mine), int(rank.max()) + 1).index_add_(1, rank, mine * side)
            for side in (positive.double(), (~positive).double())
        )
        below = down.cumsum(1) - down / 2
        found.append((up * below).sum(1) / (up.sum(1) * down.sum(1)))
    return torch.cat(found)


class _Score(NamedTuple):
    """A value with replicates of the fit and of the test samples."""

    value: float
    fits: Float[Tensor, " r"]
    tests: Float[Tensor, " _"]

    @property
    def variance(self) -> float:
        """Of fitting and testing."""
        return variance(self.fits) + variance(self.tests)


@final
@dataclass(frozen=True, eq=False)
class Scores:
    """What some predictions are worth: a score by metric, and how many samples say so."""

    of: Mapping[str, _Score]
    counts: Mapping[str, float]

    def estimates(self, *, difference: bool = False) -> dict[str, Estimate]:
        """Every metric, or difference of it, with its 95 % interval."""
        how = _difference if difference else _estimate
        return {name: how(score, name, self.counts[name]) for name, score in self.of.items()}

    def less(self, other: Scores) -> Scores:
        """How much worse the other is, metric by metric, on the same samples."""
        found = {}
        for name in METRICS:
            if name in self.of and name in other.of:
                a, b = self.of[name], other.of[name]
                if name in METRICS[3:]:
                    a, b = b, a
                found[name] = _Score(a.value - b.value, a.fits - b.fits, a.tests - b.tests)
        return Scores(found, self.counts)


def judge(said: Float[Tensor, "r n c"], y: Int[Tensor, " n"], generator: torch.Generator) -> Scores:
    """Judge probabilities of a fit, the first, by those of its replicates too."""
    least, most = _REPLICATES
    count = max(least, min(most, _ELEMENTS // len(y)))
    drawn = torch.empty(count, len(y), dtype=torch.float64).exponential_(generator=generator)
    value, fits = scores(said[:1], y), scores(said[1:], y)
    tests = scores(said[:1], y, drawn)
    # Weights of n samples vary n/(n + 1) as much as draws do, and draws (n − 1)/n of the truth.
    wider = ((len(y) + 1) / max(1, len(y) - 1)) ** 0.5
    found = {
        name: _Score(float(each), fits[name], each + wider * (tests[name] - each))
        for name, each in value.items()
    }
    present = y.bincount()[y.unique()].double()
    balanced = len(present) ** 2 / float((1 / present).sum())
    counts = dict.fromkeys(METRICS, float(len(y))) | {"balanced_accuracy": balanced}
    return Scores(found, counts)


def mean_scores(sites: Sequence[Scores]) -> Scores:
    """The mean over sites, of each metric over those that have it."""
    found, counts = {}, {}
    for name in METRICS:
        having = [site for site in sites if name in site.of]
        if having:
            each = [site.of[name] for site in having]
            value = sum(score.value for score in each) / len(each)
            fits = torch.stack([score.fits for score in each]).mean(0)
            size = min(len(score.tests) for score in each)  # they are independent
            tests = torch.stack([score.tests[:size] for score in each]).sum(0) / len(each)
            found[name] = _Score(value, fits, tests)
            counts[name] = len(each) ** 2 / sum(1 / site.counts[name] for site in having)
    return Scores(found, counts)


def variance(values: Tensor) -> float:
    """Of replicates; 0 if there is only one."""
    return float(values.var()) if len(values) > 1 else 0.0


def _estimate(score: _Score, name: str, most: float) -> Estimate:
    """A share's interval is Wilson's, with as many samples as would vary as much, if not more."""
    value, variance = score.value, score.variance
    if name not in _SHARES:
        half = NORMAL * variance**0.5
        return Estimate(value, max(0.0, value - half), value + half)
    inside = (most * value + 2) / (most + 4)
    count = min(most, inside * (1 - inside) / variance) if variance > 0 else most
    more = NORMAL**2 / count
    centre = (value + more / 2) / (1 + more)
    half = (more * value * (1 - value) + more**2 / 4) ** 0.5 / (1 + more)
    return Estimate(value, max(0.0, min(value, centre - half)), min(1.0, max(value, centre + half)))


def _difference(score: _Score, name: str, most: float) -> Estimate:
    """Where no sample tells two models apart, two more could, one for each."""
    least = 2 / (most + 2) ** 2 if name in _SHARES else 0.0
    half = NORMAL * max(least, score.variance) ** 0.5
    return Estimate(score.value, score.value - half, score.value + half)
