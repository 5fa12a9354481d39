"""Heads of all kinds and strengths, fitted to all domains but one and tested on that one.

Indices: c candidate, n sample of the domain left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, final

import numpy as np

from hessalign.alignment.penalties import HessianKind
from hessalign.heads.classifier_objective import losses
from hessalign.heads.fit import FittedHead, plain_head, strength_path
from hessalign.heads.labelled import Labelled


class Candidate(NamedTuple):
    """What is aligned, and how strongly."""

    kind: HessianKind | None
    strength: float


@final
@dataclass(frozen=True, eq=False)
class HeldOutScores:
    """What candidates do in a domain that they were not fitted to."""

    right: np.ndarray  # [c n], whether each sample is classified as it should be
    loss: np.ndarray  # [c n], its cross-entropy
    weight: np.ndarray  # [n], what it counts, 1 for all together

    @property
    def accuracy(self) -> np.ndarray:
        """The weighted share of right answers of each candidate."""
        return np.asarray(self.right @ self.weight)


def make_candidates(
    kinds: Sequence[HessianKind | None], strengths: Sequence[float]
) -> list[Candidate]:
    """The plain head, named by the first kind, and every kind at every strength above 0."""
    rising = sorted({float(strength) for strength in strengths} - {0.0})
    return [Candidate(kinds[0], 0.0), *(Candidate(kind, s) for kind in kinds for s in rising)]


def held_out_scores(
    data: Labelled,
    candidates: Sequence[Candidate],  # as `make_candidates` gives them
    held: int,  # the domain that is left out
    *,
    tolerance: float,  # the slope to reach, as of `minimise`
    still: float,  # share of the objective below which a step ends an aligned fit
    max_steps: int,  # of each fit
    probes: int = 100,  # of each domain, for the kinds that have some
    seed: int = 0,  # of these
) -> HeldOutScores:
    """Fit candidates without one domain, each kind along a path of strengths, and test there."""
    design = data.design([e for e in range(data.count) if e != held])
    plain: FittedHead | None = None
    heads: list[FittedHead] = []
    for kind in dict.fromkeys(candidate.kind for candidate in candidates):
        objective = data.objective(design, kind, probes, seed)
        start = None if plain is None else plain.parameters
        plain = plain_head(objective, start=start, tolerance=tolerance, max_steps=max_steps)
        strengths = [own.strength for own in candidates if own.kind == kind]
        heads += strength_path(
            objective, plain, strengths, tolerance=tolerance, still=still, max_steps=max_steps
        )
    rows = data.rows(held)
    x, labels = data.x[rows], data.labels[rows]
    right, loss = [], []
    for head in heads:
        weights, constants = design.as_they_came(head.parameters.numpy())
        logits = x @ weights.T + constants
        loss.append(losses(logits, labels)[1])
        guess = logits[:, 0] > 0 if data.outputs == 1 else logits.argmax(1)
        right.append(guess == labels)
    weight = data.weight[rows]
    return HeldOutScores(np.array(right), np.array(loss), weight / weight.sum())


_NUDGE: Final = 0.1  # strengths up to this are a nudge
_WRONG: Final = 1 / 3  # the share of wrong answers of the plain head in the domain to choose for
_SURE: Final = 1.28  # standard errors of a gain there, which chance alone exceeds one time in ten
_WORTH: Final = 0.02  # what a head may cost in the mean over domains; such a gain needs no slope
_STEEP: Final = 0.5  # standard errors by which gains must fall with accuracy
_HARM: Final = 0.01  # what a nudge may cost there
_TINY: Final = 1e-9  # a share of answers below any that there are


def choose(candidates: Sequence[Candidate], scores: Sequence[HeldOutScores]) -> int:
    """The candidate to rely on in a domain that is harder than most of these.

    The mean accuracy in domains left out prefers what works in most of them, a shortcut they share
    included. So the next domain is taken to be one in which the plain head is wrong in one answer
    of three, its right and wrong answers being like those here. A candidate that corrects a share c
    of its wrong answers and spoils a share s of its right ones gains c/3 − 2s/3 there. Then

    1. the one whose gain there less 1.28 standard errors is largest is chosen, if that is above 0,
       of those that cost at most 2 points in the mean over domains, and gain more in harder domains
       than in easier ones, by at least half a standard error of the slope of gains over accuracies,
       or at least 2 points in the mean. Kinds are preferred in their order: a later one is looked
       at only if no strength of those before it is good enough;
    2. else a nudge, the smallest strength of the first kind if that is at most 0.1, unless it costs
       more than 1 point there or changes no answer in any domain;
    3. else the plain head.

    Errors are those of answers in pairs, right of one head and wrong of the other; a domain of few
    samples has large ones. Few domains can tell neither for nor against a nudge: it is a belief,
    that what differs between domains is worth avoiding a little. Accuracies for the slope are means
    of both heads, so that a lucky domain of one of them does not make a slope.

    Args:
        candidates: As `make_candidates` gives them, the plain head first.
        scores: What they do in every domain left out.

    Returns:
        The position of the candidate.

    Example:
        >>> candidates = make_candidates(["diagonal"], [0.03, 1.0])
        >>> weight = np.full(100, 0.01)
        >>> def domain(*counts):
        ...     right = np.array([np.arange(100) < count for count in counts])
        ...     return HeldOutScores(right, np.zeros(1), weight)
        >>> choose(candidates, [domain(99, 99, 97), domain(90, 91, 92), domain(80, 81, 86)])
        2
        >>> choose(candidates, [domain(99, 99, 99), domain(90, 90, 88), domain(80, 81, 76)])
        1
        >>> choose(candidates, [domain(99, 99, 99), domain(90, 88, 85), domain(80, 76, 70)])
        0
    """
    accuracy = np.stack([own.accuracy for own in scores])
    gains = accuracy - accuracy[:, :1]
    chance = [_chance(own.right.astype(float) - own.right[0], own.weight) for own in scores]
    mean, (there, error) = gains.mean(0), _gain_if_wrong(scores, _WRONG)
    sure = there - _SURE * error
    told = _falls(accuracy[:, :1] + gains / 2, gains, np.mean(chance, axis=0)) | (mean >= _WORTH)
    good = (sure > _TINY) & (mean >= -_WORTH) & told
    if good.any():
        first = candidates[int(good.argmax())].kind
        good &= np.array([own.kind == first for own in candidates])
        return int(np.where(good, sure, 0.0).argmax())
    nudged = len(candidates) > 1 and candidates[1].strength <= _NUDGE
    changed = nudged and any((own.right[1] != own.right[0]).any() for own in scores)
    return int(changed and there[1] >= -_HARM)


def _gain_if_wrong(scores: Sequence[HeldOutScores], share: float) -> tuple[np.ndarray, np.ndarray]:
    """Each candidate's gain where the plain head is wrong so often, like here otherwise; errors."""
    right = np.mean([own.right[0] @ own.weight for own in scores])
    per_corrected = share / max(1 - right, _TINY)
    per_spoilt = (1 - share) / max(right, _TINY)
    gains, chance = [], []
    for own in scores:
        plain = own.right[0]
        each = per_corrected * (own.right & ~plain) - per_spoilt * (~own.right & plain)
        gains.append(each @ own.weight)
        chance.append(_chance(each, own.weight))
    return np.mean(gains, axis=0), np.sqrt(np.sum(chance, axis=0)) / len(scores)


def _falls(level: np.ndarray, gains: np.ndarray, chance: np.ndarray) -> np.ndarray:
    """Whether gains [e c] fall with a level, by the slope over domains and its standard error."""
    level, rest = level - level.mean(0), gains - gains.mean(0)
    spread = np.square(level).sum(0)
    slope = (level * rest).sum(0) / np.maximum(spread, _TINY**2)
    rest = rest - slope * level
    # Three domains leave a single residual: chance is at least that of the answers.
    noise = np.square(rest).sum(0) / max(len(gains) - 2, 1)
    noise = np.maximum(noise, chance)
    return np.asarray(-slope * np.sqrt(spread) > _STEEP * np.sqrt(noise))


def _chance(values: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The squared standard error of weighted means of values [c n]."""
    deviations = values - (values @ weight)[:, None]
    return np.asarray(np.square(deviations) @ np.square(weight))
