"""A diagnosis as text: on the terminal, and as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Mapping
from inspect import isfunction
from typing import Any, Final

from torch import Tensor

from hessalign._errors import InputTypeError
from hessalign._version import __version__
from hessalign.diagnosis import Diagnosis
from hessalign.diagnosis.answers import CAUSES, CauseReport, Estimate, Finding, Trial
from hessalign.diagnosis.verdict import CAUSE_TITLES, REMEDY_TITLES, signed
from hessalign.report.page import render_template, shortened
from hessalign.report.tables import markdown_table

METRIC_TITLES: Final = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "auc": "AUC",
    "log_loss": "log loss",
    "calibration_error": "calibration error",
}
_PERCENT: Final = frozenset({"accuracy", "balanced_accuracy", "calibration_error"})
_NOT_IN_JSON: Final = frozenset({"parameters"})  # fields that are not about the domains


def render_diagnosis_text(diagnosis: Diagnosis) -> str:
    """A diagnosis as text: the three answers, each with a table."""
    return render_template(__package__, "diagnosis.md.j2", it=diagnosis, **by_name(__name__))


def by_name(module: str) -> dict[str, object]:
    """What a template calls: functions of a module and those that text and page share."""
    found = {**globals(), **vars(sys.modules[module])}
    called = {name.lstrip("_"): each for name, each in found.items() if isfunction(each)}
    return {**called, "markdown_table": markdown_table}


def _transfer_rows(diagnosis: Diagnosis) -> list[list[str]]:
    """By site the accuracy of models that have not seen it and of its own, and yardsticks."""
    found = diagnosis.transfer
    assert found is not None
    rows = []
    for site in found.sites:
        rows.append(
            [
                _short(diagnosis.domains[site.domain]),
                f"{site.samples:,}",
                estimate_text("accuracy", site.unseen.get("accuracy")),
                estimate_text("accuracy", (site.within or {}).get("accuracy")),
                drop_text("accuracy", (site.drop or {}).get("accuracy")),
                metric_text("accuracy", site.majority),
                estimate_text("auc", site.unseen.get("auc")),
            ]
        )
    return rows


def _cause_rows(diagnosis: Diagnosis, report: CauseReport) -> list[list[str]]:
    """By cause what its test says, and where it was found."""
    rows = []
    for cause in CAUSES:
        places = [where(diagnosis, each) for each in report.findings if each.cause == cause]
        if cause in report.p_values or places:
            p = p_text(report.p_values.get(cause, math.nan))
            rows.append([CAUSE_TITLES[cause], ", ".join(map(_short, places)) or "not found", p])
    return rows


def _short(name: str) -> str:
    return shortened(name, 24)


def _remedy_rows(trials: tuple[Trial, ...]) -> list[list[str]]:
    return [
        [
            REMEDY_TITLES[trial.remedy],
            metric_text("accuracy", trial.accuracy),
            gain_text(trial),
            metric_text("auc", trial.scores.get("auc")),
        ]
        for trial in trials
    ]


def where(diagnosis: Diagnosis, finding: Finding) -> str:
    """The site of a finding."""
    return "several sites" if finding.domain is None else diagnosis.domains[finding.domain]


def gain_text(trial: Trial) -> str:
    """What a remedy gains in points, with its interval."""
    if trial.remedy == "nothing":
        return "–"
    value, low, high = (signed(100 * each) for each in trial.gain)
    return f"{value} ({low} to {high})"


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


def drop_text(metric: str, found: Estimate | None) -> str:
    """How much worse an unseen model is than one of the site itself, with its interval."""
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
