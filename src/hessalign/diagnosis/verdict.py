"""What a diagnosis says in plain words: decided here, the words are in `verdict.md.j2`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, Literal, final

import torch

from hessalign.diagnosis.causes import CauseReport, Finding
from hessalign.diagnosis.draw import Draw
from hessalign.diagnosis.remedies import RemedyReport
from hessalign.diagnosis.scores import Estimate
from hessalign.diagnosis.transfer import SiteTransfer, TransferReport
from hessalign.report.page import render_template, shortened

CAUSE_TITLES: Final = {
    "label": "label shift",
    "covariate": "covariate shift",
    "offset": "offset",
    "scale": "scale",
    "concept": "concept shift",
    "noise": "label noise",
    "sample_size": "sample size",
}

REMEDY_TITLES: Final = {
    "nothing": "a plain model",
    "standardise": "standardising per site",
    "weights": "class weights",
    "leave_out": "leaving a site out",
    "align": "aligning",
}

_Holds = Literal["yes", "mostly", "no", "unclear", "nothing to learn", "not tested"]

_JUDGED: Final = ("accuracy", "balanced_accuracy", "auc")  # what a drop is looked for in
_TRIFLE: Final = 0.02  # a drop below this is not spoken of as one
_MATTERS: Final = 0.05  # a drop that must be ruled out before a model is said to hold
_NAME_LENGTH: Final = 60


@final
@dataclass(frozen=True)
class Verdict:
    """A diagnosis in plain words.

    Attributes:
        holds: Whether a model holds on a site that it has not seen: "no" if some drop of 2 points
            or more is clear at the 5 % level for all sites and metrics together, or probabilities
            mislead at a site; "nothing to learn" if models are no better than guessing where they
            were trained; "yes" if a mean drop of accuracy of 5 points is ruled out, "mostly" if
            so, but some difference between sites costs accuracy; "unclear" otherwise; "not tested"
            without an L2 term.
        headline: The answer in a sentence or two.
        transfer: Will it hold on a site that it has not seen?
        causes: Why not?
        remedies: What helps?
    """

    holds: _Holds
    headline: str
    transfer: tuple[str, ...]
    causes: tuple[str, ...]
    remedies: tuple[str, ...]


def make_verdict(
    sites: Sequence[str],
    transfer: TransferReport | None,
    causes: CauseReport,
    remedies: RemedyReport | None,
    features: Sequence[str] = (),
) -> Verdict:
    """Say in words, with names of sites and features, what the three answers say in numbers."""
    names = [_name(site) for site in sites]
    failing: list[SiteTransfer] = []
    told: dict[str, object] = {}
    if transfer is not None:
        failing = _failing(transfer)
        chance = transfer.chance
        told["guessing"] = [s for s in transfer.sites if _like_guessing(s.unseen, chance)]
        told["misleading"], told["doubtful"] = _misleading(transfer), _doubtful(transfer)
    costly = [each for each in causes.findings if each.harmful]
    holds = _holds(transfer, failing, costly)
    facts = {
        "it": transfer,
        "causes": causes,
        "remedies": remedies,
        "holds": holds,
        "site": names.__getitem__,
        "feature": lambda d: _name(feature_name(features, d)),
        "failing": failing,
        "costly": costly,
        **told,
        "sites": len(names),
        "cause_titles": CAUSE_TITLES,
        "remedy_titles": REMEDY_TITLES,
    }
    parts = ("headline", "transfer", "causes", "remedies")
    headline, *rest = (_sentences(part, facts) for part in parts)
    return Verdict(holds, headline[0], *rest)


def feature_name(names: Sequence[str], d: int) -> str:
    """What a feature is called: by its name, or by its position."""
    return names[d] if names else f"feature {d}"


def input_notes(
    draw: Draw, l2: float, focus: tuple[int, ...], *, at_optimum: bool = True
) -> tuple[str, ...]:
    """What the reader should know about the input, and about a model that was given."""
    names = {"site": [_name(name) for name in draw.domain_names].__getitem__}
    facts = {"draw": draw, "l2": l2, "focus": focus, "lone": _lone_classes(draw)}
    return _sentences("notes", {**facts, **names, "at_optimum": at_optimum, "name": _name})


def points(estimate: Estimate) -> str:
    """A difference in points with its interval, for example "+9.2 points (95 %: +4.1 to +14.2)"."""
    return "{} points (95 %: {} to {})".format(*(signed(100 * each) for each in estimate))


def _dropped(drop: Estimate) -> str:
    """A drop in points with its interval, or the gain it is if it is below 0."""
    what = "a drop"
    if drop.value < 0:
        what, drop = "a gain", Estimate(-drop.value, -drop.high, -drop.low)
    value, low, high = (signed(100 * each).removeprefix("+") for each in drop)
    return f"{what} of {value} points (95 %: {low} to {high})"


def signed(value: float, digits: int = 1) -> str:
    """A number with its sign, and none for 0.

    Returns:
        Text with a true minus.

    Example:
        >>> signed(-1.26), signed(-0.04), signed(0.05, 2)
        ('−1.3', '0.0', '+0.05')
    """
    found = round(value, digits)
    return f"{found:+.{digits}f}".replace("-", "−") if found else f"{0:.{digits}f}"


def _name(name: str) -> str:
    """A name on one line, not too long for a sentence."""
    return shortened(" ".join(name.split()), _NAME_LENGTH)


def _sentences(part: str, facts: Mapping[str, object]) -> tuple[str, ...]:
    shown = {"points": points, "dropped": _dropped, **facts}
    found = render_template(__package__, "verdict.md.j2", part=part, **shown)
    return tuple(" ".join(text.split()) for text in re.split(r"(?m)^- ", found)[1:])


def _clear(estimate: Estimate, level: float, tests: int = 1) -> bool:
    """Whether it is above a level at 2.5 % for so many tests together, as a normal one would be."""
    wider = NormalDist().inv_cdf(1 - 0.025 / tests) / NormalDist().inv_cdf(0.975)
    return estimate.value - wider * (estimate.value - estimate.low) > level


def _failing(transfer: TransferReport) -> list[SiteTransfer]:
    """Sites with a clear drop, also of probabilities that mislead; worst first."""
    misleading = _misleading(transfer)
    found = [
        site
        for site in transfer.sites
        if site.drop is not None
        and (
            _drops(site.drop, len(transfer.sites) + 1)
            or (site in misleading and _clear(site.drop["log_loss"], 0.0, len(transfer.sites)))
        )
    ]
    return sorted(found, key=lambda site: -(site.drop or {})["accuracy"].value)


def _doubtful(transfer: TransferReport) -> SiteTransfer | None:
    """The site with the largest drop of accuracy, if it would be clear were it the only one."""
    drops = [(site.drop["accuracy"], site) for site in transfer.sites if site.drop is not None]
    found = max(drops, key=lambda each: each[0].value, default=None)
    return found[1] if found is not None and found[0].low > 0 else None


def _drops(drop: dict[str, Estimate], places: int) -> bool:
    tests = places * len(_JUDGED)
    return any(
        drop[metric].value >= _TRIFLE and _clear(drop[metric], 0.0, tests)
        for metric in _JUDGED
        if metric in drop
    )


def _holds(
    transfer: TransferReport | None, failing: Sequence[SiteTransfer], costly: Sequence[Finding]
) -> _Holds:
    if transfer is None:
        return "not tested"
    drop, within = transfer.mean_drop, transfer.mean_within
    if failing or (drop is not None and _drops(drop, len(transfer.sites) + 1)):
        return "no"
    models = [transfer.mean] if within is None else [transfer.mean, within]
    if all(_like_guessing(each, transfer.chance) for each in models):
        return "nothing to learn"
    if drop is None or drop["accuracy"].high > _MATTERS:
        return "unclear"
    return "mostly" if costly else "yes"


def _like_guessing(model: dict[str, Estimate], chance: float) -> bool:
    """Whether it cannot be told from guessing; not said of a site with one class only."""
    found = model.get("balanced_accuracy")
    return found is not None and not _clear(found, chance)


def _misleading(transfer: TransferReport) -> list[SiteTransfer]:
    """Sites where the unseen model's probabilities are worse than the class shares elsewhere."""
    tests = len(transfer.sites)
    return [s for s in transfer.sites if _clear(s.unseen["log_loss"], s.guess, tests)]


def _lone_classes(draw: Draw) -> list[tuple[int, int]]:
    """Classes seen in one domain only, with that domain."""
    seen = torch.zeros(len(draw.class_names), len(draw.domain_names), dtype=torch.bool)
    seen[draw.y, draw.domain] = True
    alone = (seen.sum(1) == 1).nonzero().squeeze(1).tolist()
    return [(label, int(seen[label].nonzero()[0])) for label in alone]
