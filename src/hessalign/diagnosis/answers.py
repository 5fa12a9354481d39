"""The three answers of a diagnosis: will it hold, why not, what helps.

Only what they consist of; `transfer`, `causes` and `remedies` find them, `verdict` says them in
words. Positions of sites, classes and features are those of the draw.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, final

METRICS: Final = ("accuracy", "balanced_accuracy", "auc", "log_loss", "calibration_error")
"""What a model is judged by; of the last two, less is better."""

CAUSES: Final = ("label", "covariate", "offset", "scale", "concept", "noise", "sample_size")
"""Why a model may fail on a site that it has not seen.

- label: classes have other shares.
- covariate: patients are different, the same ones get the same label.
- offset: features are moved by a constant at a site, as by another calibration.
- scale: features are stretched at a site, as by another unit.
- concept: the same features mean another label.
- noise: labels at a site are wrong at random.
- sample_size: there are too few samples to learn from.
"""

REMEDIES: Final = ("nothing", "standardise", "weights", "leave_out", "align")
"""What one may do about it.

- nothing: a plain model of all sites together.
- standardise: every site's features brought to mean 0 and variance 1 by its own samples.
- weights: classes weighted as they occur at the site in question.
- leave_out: a site left out of training.
- align: Hessians and gradients of the sites aligned.
"""

Cause = Literal["label", "covariate", "offset", "scale", "concept", "noise", "sample_size"]
Remedy = Literal["nothing", "standardise", "weights", "leave_out", "align"]


class Estimate(NamedTuple):
    """A value with its 95 % interval, which covers both fitting and testing."""

    value: float
    low: float
    high: float


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
@dataclass(frozen=True)
class Finding:
    """One kind of difference, between all sites or of one.

    Attributes:
        cause: Which kind.
        domain: Position of the site that differs; None if it is not a single one.
        p_value: Of its test, corrected for the number of tests.
        size: How large it is, in the unit of its kind.
        unit: That unit in words, such as "largest difference of class shares".
        harmful: Whether it costs accuracy on a site not seen, as far as can be told.
        features: Positions of the features that differ the most, first the most.
        missing: Those of them that differ in where they are missing, rather than in their values.
    """

    cause: Cause
    domain: int | None
    p_value: float
    size: float
    unit: str
    harmful: bool
    features: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()


@final
@dataclass(frozen=True)
class CauseReport:
    """Why not?

    Attributes:
        findings: What was found at the 5 % level for all tests together, first what matters most;
            empty if nothing was.
        p_values: Of every test that was done, by cause, corrected; of class shares also where
            features explain them, so that label shift is not among the findings.
        odd_one_out: Position of the one site that differs from all others; None if there is none.
        how: How it was computed.
    """

    findings: tuple[Finding, ...]
    p_values: dict[str, float]
    odd_one_out: int | None
    how: str


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

    remedy: Remedy
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
    recommended: Remedy
    left_out: int | None
    how: str
