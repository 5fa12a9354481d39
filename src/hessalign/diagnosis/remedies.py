"""What helps: remedies tried on sites left out in turn, each compared with doing nothing.

Indices: n sample, d feature, r fit (the first) and its replicates, c class.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from hessalign._shapes import Float, Int
from hessalign.diagnosis.answers import REMEDIES, Estimate, Remedy, RemedyReport, Trial
from hessalign.diagnosis.draw import explain
from hessalign.diagnosis.refits import Sites
from hessalign.diagnosis.remedy_models import (
    FIXED,
    STRENGTHS,
    SURE,
    RemedyModels,
    mean_difference,
    right_answers,
)
from hessalign.diagnosis.scores import scores

_NORMAL: Final = 1.96
_ONE_SIDED: Final = 1.28  # 90 %
_LEAST: Final = 0.005  # gain that is named, at least
_SPREAD: Final = 0.5  # standard errors, spread between sites included, of a gain that is named
_CLOSE: Final = 0.005  # of two remedies whose accuracies are that close the simpler is named


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
    return try_remedies(RemedyModels(data), sites)


def try_remedies(models: RemedyModels, sites: Sequence[int] | None = None) -> RemedyReport:
    """The same for models that others use, too."""
    data = models.data
    chosen = tuple(range(data.count) if sites is None else sites)
    tests = [(data.z[rows], data.y[rows]) for rows in (data.rows([e]) for e in chosen)]
    labels = [y for _, y in tests]
    plain: list[Tensor] = []
    found = []
    for remedy in models.remedies:
        said = [
            models.answer(remedy, e, z, replicates=True)
            for e, (z, _) in zip(chosen, tests, strict=True)
        ]
        plain = plain or said
        if remedy == "align":
            fits = [models.aligned_gains(e, *test) for e, test in zip(chosen, tests, strict=True)]
        else:
            fits = [
                (right_answers(p[1:], y) - right_answers(q[1:], y)).mean(1)
                for p, q, y in zip(said, plain, labels, strict=True)
            ]
        choices: tuple[float | int | None, ...] = ()
        if remedy in ("leave_out", "align"):
            choices = tuple(models.choice(remedy, e) for e in chosen)
        answers = [p[0] for p in said], [p[0] for p in plain]
        found.append(_trial(remedy, labels, *answers, fits, choices))
    trials, errors = zip(*found, strict=True)
    recommended = recommend(trials, errors)
    how = explain(
        "remedies",
        count=data.count,
        strengths=STRENGTHS,
        fixed=STRENGTHS[FIXED],
        replicates=data.weights.shape[1],
        aligned=len(models.aligned.y),
        too_large=models.too_large,
        samples=len(data.y),
        sure=SURE,
    )
    return RemedyReport(trials, recommended, _left_out(trials, recommended), how)


def _left_out(trials: Sequence[Trial], recommended: Remedy) -> int | None:
    """The site whose removal is chosen most often, if that is recommended."""
    if recommended != "leave_out":
        return None
    (trial,) = (trial for trial in trials if trial.remedy == recommended)
    often = Counter(int(s) for s in trial.choices if s is not None).most_common(1)
    return often[0][0]


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
    pairs = [
        right_answers(p, y) - right_answers(q, y)
        for p, q, y in zip(said, nothing, labels, strict=True)
    ]
    sites = tuple(float(each["accuracy"]) for each in found)
    gain, error = _gain(pairs, fits)
    return Trial(remedy, means["accuracy"], gain, sites, means, choices), error


def _gain(
    pairs: Sequence[Float[Tensor, " _"]], fits: Sequence[Float[Tensor, " r"]]
) -> tuple[Estimate, float]:
    """The mean gain; its interval is for fitting, testing and sites, its error without the last."""
    gain, error = mean_difference(pairs)
    here = spread = error**2 + _variance(torch.stack(list(fits)).mean(0))
    if len(pairs) > 2:  # what is left of the spread between sites (DerSimonian and Laird, 1986)
        own = sum(mean_difference([each])[1] ** 2 for each in pairs) + sum(map(_variance, fits))
        between = _variance(torch.stack([each.mean() for each in pairs])) - own / len(pairs)
        spread += max(0.0, between) / len(pairs)
    half = _NORMAL * spread**0.5
    return Estimate(gain, gain - half, gain + half), here**0.5


def _variance(values: Tensor) -> float:
    return float(values.var()) if len(values) > 1 else 0.0
