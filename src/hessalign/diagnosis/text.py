"""A diagnosis as text, on the terminal and as JSON: its numbers, and what its words mean."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from inspect import isfunction
from typing import Any, Final

from torch import Tensor

from hessalign._errors import InputTypeError
from hessalign._version import __version__
from hessalign.diagnosis import Diagnosis
from hessalign.diagnosis.causes import Finding
from hessalign.diagnosis.remedies import Trial
from hessalign.diagnosis.scores import METRICS, Estimate
from hessalign.diagnosis.verdict import CAUSE_TITLES, REMEDY_TITLES, signed
from hessalign.report.page import render_template
from hessalign.report.tables import markdown_table as markdown_table
from hessalign.report.tables import plain_lines

METRIC_TITLES: Final = {name: name.replace("_", " ") for name in METRICS} | {"auc": "AUC"}
_PERCENT: Final = frozenset({"accuracy", "balanced_accuracy", "calibration_error"})
_NOT_IN_JSON: Final = frozenset({"parameters"})  # fields that are not about the domains

_TERMS: Final = {
    "site": "A place, device or time that samples come from: a hospital, a camera, a year. The "
    "library calls it a domain.",
    "unseen site": "A site whose samples had no part in training, nor in scaling, filling gaps or "
    "choosing anything.",
    "model of the site itself": "Trained on some samples of the site and tested on others, in turn "
    "(cross-validated): what can be reached there.",
    "drop": "How much worse the model that has not seen the site is than the one of the site "
    "itself, tested on the same samples. Above 0 is worse, for every yardstick.",
    "accuracy": "Share of cases whose class is named rightly. Compare it with always naming the "
    "commonest class.",
    "balanced accuracy": "Mean over classes of the share that is named rightly: rare classes count "
    "as much as frequent ones. Guessing gives 1 / classes.",
    "AUC": "How well cases are ranked: the chance that of a case of a class and one of another the "
    "former gets the higher probability of that class. 1 is perfect, 0.5 chance. It does not "
    "exist where a site has one class only.",
    "log loss": "How well probabilities fit: the mean of −log of the probability that was given to "
    "the right class. Less is better.",
    "calibration error": "By how much probabilities differ from how often they come true. Less is "
    "better: of cases given 80 %, 80 % should be of that class.",
    "commonest class": "Accuracy of always naming the site's commonest class: a model below it is "
    "of no use for naming classes there.",
    "guessing": "What any answer gives that does not look at the case.",
    "95 %": "An interval that holds the true value in 95 of 100 such studies; it covers that both "
    "training and test samples might have been others.",
    "p": "How often chance alone would show as much, corrected for the number of tests. Up to 0.05 "
    "counts as found: without any difference that happens in one of 20 such studies.",
    "label shift": "Classes have other shares at a site. The same kind of case looks alike.",
    "covariate shift": "Cases at a site are of another kind, but the same kind of case gets the "
    "same class.",
    "offset": "Features are moved by a constant at a site, as by another calibration.",
    "scale": "Features are stretched at a site, as by another unit or device.",
    "concept shift": "The same features mean another class at a site.",
    "label noise": "Classes at a site are wrong at random.",
    "sample size": "There are too few samples to learn from.",
    "a plain model": "One model of all sites together, logistic regression on the features.",
    "standardising per site": "Every site's features are brought to mean 0 and variance 1 by its "
    "own samples. It needs a batch of cases of a new site, not their classes.",
    "class weights": "Probabilities are weighted by how frequent classes are at the site in "
    "question, which is estimated from its cases without their classes.",
    "leaving a site out": "A site is left out of training.",
    "aligning": "Training with a penalty on how differently the model errs, and how unsure it is, "
    "at different sites (alignment of gradients and Hessians). Its strength is relative to the "
    "training loss; 0 is a plain model.",
    "head": "A linear model on the features, at which sites are compared.",
    "gradient": "The direction in which a site would change the head: how it errs there.",
    "Hessian": "The curvature of the loss in the head's parameters: where it is unsure.",
    "noise": "What a distance would be if the sites did not differ, for want of samples.",
    "Table 1": "Of the paper: attributes of a head's samples whose means gradients and Hessians "
    "are made of.",
    "spectral norm": "The largest difference in any one direction.",
    "share": "Of a squared distance. Shares add up to 100 %; a negative one says that without it "
    "the sites would be further apart.",
    "regret": "Loss of the head of one site on another, less that of the other's own head.",
    "transfer bound": "Theorem 1 of the paper: how much worse a head can be on another site at "
    "most. A worst case, usually far above what happens.",
}  # fmt: skip
"""What each term means, in the order in which the page explains them."""

_TERM: Final = re.compile(
    "“[^”]*”|"
    + "|".join(
        rf"(?<!\w){re.escape(term)}(?!\w)" for term in sorted(_TERMS, key=len, reverse=True)
    ),
    re.IGNORECASE,
)
_UNLINKED: Final = frozenset({"site", "p", "95 %", "noise", "share", "head", "accuracy"})
"""Terms that are words of every sentence: they are linked from tables only."""


def render_diagnosis_text(diagnosis: Diagnosis) -> str:
    """A diagnosis as text: the three answers, each with a table."""
    text = render_template(__package__, "diagnosis.md.j2", it=diagnosis, **by_name(__name__))
    return plain_lines(text)


def by_name(module: str) -> dict[str, object]:
    """What a template calls: functions of a module and those that text and page share."""
    found = {**globals(), **vars(sys.modules[module])}
    called = {name.lstrip("_"): each for name, each in found.items() if isfunction(each)}
    titles = (("cause", CAUSE_TITLES), ("metric", METRIC_TITLES), ("remedy", REMEDY_TITLES))
    return {**called, **{f"{what}_titles": each for what, each in titles}, "terms": _TERMS}


def metric_texts(
    metrics: Sequence[str],
    unseen: dict[str, Estimate],
    within: dict[str, Estimate] | None,
    drop: dict[str, Estimate] | None,
) -> list[str]:
    """Of each metric that of an unseen model, that of the site itself, and the drop."""
    cells = []
    for metric in metrics:
        found = [estimate_text(metric, (each or {}).get(metric)) for each in (unseen, within)]
        cells += [*found, _drop_text(metric, (drop or {}).get(metric))]
    return cells


def where(diagnosis: Diagnosis, finding: Finding) -> str:
    """The site of a finding."""
    return "several sites" if finding.domain is None else diagnosis.domains[finding.domain]


def gain_text(trial: Trial) -> str:
    """What a remedy gains in points, with its interval."""
    return "–" if trial.remedy == "nothing" else _drop_text("accuracy", trial.gain)


def p_text(value: float) -> str:
    """A p-value."""
    if not math.isfinite(value):
        return "–"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def metric_text(metric: str, value: float | None) -> str:
    """A value of a metric, for example "71.2 %" or "0.82"; a dash if there is none."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{100 * value:.1f} %" if metric in _PERCENT else f"{value:.3f}"


def estimate_text(metric: str, found: Estimate | None) -> str:
    """A value of a metric with its interval."""
    if found is None or not math.isfinite(found.value):
        return "–"
    if metric in _PERCENT:
        return "{:.1f} % ({:.1f} to {:.1f})".format(*(100 * each for each in found))
    return "{:.3f} ({:.3f} to {:.3f})".format(*found)


def _drop_text(metric: str, found: Estimate | None) -> str:
    """A difference of a metric, such as how much worse an unseen model is, with its interval."""
    if found is None or not math.isfinite(found.value):
        return "–"
    scale, digits = (100, 1) if metric in _PERCENT else (1, 3)
    value, low, high = (signed(scale * each, digits) for each in found)
    return f"{value} ({low} to {high})"


def number(value: float) -> str:
    """A number with three digits that matter, for example "0.0123" or "1,234"."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def render_diagnosis_json(diagnosis: Diagnosis) -> str:
    """A diagnosis as JSON: matrices as lists of rows, null for numbers that are not finite."""
    content = {"hessalign": __version__, **_plain(diagnosis)}
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _plain(value: object) -> Any:  # noqa: ANN401 - JSON is any of several types
    """A value as what JSON knows."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = (field.name for field in dataclasses.fields(value))
        return {name: _plain(getattr(value, name)) for name in fields if name not in _NOT_IN_JSON}
    if isinstance(value, Estimate):
        return _plain(value._asdict())
    if isinstance(value, Tensor):
        return _plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    raise InputTypeError(f"Expected a value for JSON, got {type(value).__name__}.")


def term_id(term: str) -> str:
    """Where a term is explained on the page."""
    return "term-" + re.sub(r"\W+", "-", term.lower()).strip("-")


def split_terms(text: str) -> list[tuple[str, str]]:
    """A text in pieces, each with the term it is, once each; names in quotes are none."""
    known = {term.lower(): term for term in _TERMS if term not in _UNLINKED}
    found, start = [], 0
    for match in _TERM.finditer(text):
        if (term := known.pop(match[0].lower(), None)) is not None:
            found += [(text[start : match.start()], ""), (match[0], term)]
            start = match.end()
    return [*found, (text[start:], "")]
