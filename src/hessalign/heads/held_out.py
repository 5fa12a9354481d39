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
from hessalign.heads.fit import FittedHead
from hessalign.heads.labelled import Labelled
from hessalign.heads.strengths import plain_head, strength_path


class Candidate(NamedTuple):
    """What is aligned, and how strongly."""

    kind: HessianKind | None
    strength: float


@final
@dataclass(frozen=True, eq=False)
class HeldOutScores:
    """What candidates do in a domain that they were not fitted to.

    Attributes:
        right: Whether each sample is classified as it should be.
        loss: Its cross-entropy.
        weight: What it counts, 1 for all together.
    """

    right: np.ndarray  # [c n]
    loss: np.ndarray  # [c n]
    weight: np.ndarray  # [n]

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
    candidates: Sequence[Candidate],
    held: int,
    *,
    tolerance: float,
    still: float,
    max_steps: int,
    probes: int = 100,
    seed: int = 0,
) -> HeldOutScores:
    """Fit all candidates without one domain, each kind along a path of strengths, and test there.

    Args:
        data: Samples of all domains.
        candidates: As `make_candidates` gives them.
        held: The domain that is left out.
        tolerance: Slope to reach, as of `minimise`.
        still: Share of the objective below which a step ends an aligned fit.
        max_steps: Steps of each fit, at most.
        probes: Probes of each domain for the kinds that have some.
        seed: Determines these.

    Returns:
        The scores.
    """
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


_FURTHER: Final = 1.0  # how far out the next domain may be, in distances between these
_MEAN_FALL: Final = 0.02  # what an aligned head may cost in the mean over domains


def choose(scores: Sequence[HeldOutScores]) -> int:
    r"""The candidate to rely on in a domain that may differ from these more than they do.

    The next domain is an affine mixture of those left out in turn, with weights of at least −1
    that add up to 1 (as in risk extrapolation, Krueger et al., 2021): with accuracies $a_e$ its
    worst accuracy is $(1 + E) \min_e a_e - \sum_e a_e$, which falls with the spread of the domains
    as with their level. Their mean alone prefers what works in most of them, a shortcut they share
    included. The candidate with the best worst accuracy is chosen, if its gain over the plain head
    is more than its standard error in pairs of answers, if its worst domain is no worse than that
    of the plain head, and if it costs at most 2 points in the mean. Else it is plain, 0.

    Args:
        scores: What each candidate does in every domain left out, the plain head first.

    Returns:
        The position of the candidate.

    Example:
        >>> weight = np.full(100, 0.01)
        >>> def domain(*counts):
        ...     right = np.array([np.arange(100) < count for count in counts])
        ...     return HeldOutScores(right, np.zeros(1), weight)
        >>> choose([domain(99, 90), domain(80, 86)]), choose([domain(90, 91), domain(80, 81)])
        (1, 0)
    """
    accuracy = np.stack([own.accuracy for own in scores])
    count, candidates = len(scores), np.arange(accuracy.shape[1])
    worst = accuracy.argmin(0)
    mixture = np.full_like(accuracy, -_FURTHER)
    mixture[worst, candidates] += 1 + count * _FURTHER
    value = (mixture * accuracy).sum(0)
    error = np.stack([_paired_error(own) for own in scores])
    gain = value - value[0]
    lowest = accuracy.min(0)
    safe = (
        (gain > np.sqrt(np.square(mixture * error).sum(0)))
        & (lowest >= lowest[0])
        & (accuracy.mean(0) >= accuracy.mean(0)[0] - _MEAN_FALL)
    )
    return int(np.where(safe, gain, 0.0).argmax())


def _paired_error(scores: HeldOutScores) -> np.ndarray:
    """The standard error of each candidate's gain in accuracy over the first."""
    gains = scores.right.astype(float) - scores.right[0]
    spread = np.square(gains - (gains @ scores.weight)[:, None]) @ np.square(scores.weight)
    return np.asarray(np.sqrt(spread))
