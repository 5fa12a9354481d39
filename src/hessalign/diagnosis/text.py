"""A diagnosis as text: on the terminal, and as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Mapping, Sequence
from inspect import isfunction
from typing import Any, Final

from torch import Tensor

from hessalign._errors import InputTypeError
from hessalign._version import __version__
from hessalign.diagnosis import (
    BoundReport,
    CrossingReport,
    Diagnosis,
    DistanceMatrix,
    HoldoutReport,
)
from hessalign.diagnosis.reading import attribute_title
from hessalign.report.page import render_template
from hessalign.report.tables import markdown_table

_SHOWN: Final = 3
_NOT_IN_JSON: Final = frozenset({"parameters"})  # fields that are not about the domains

HEAD_COLUMNS: Final = ("domain", "samples", "loss", "accuracy")
BOUND_COLUMNS: Final = ("source → target", "bound", "Hessian", "gradient", "target", "remainder")


def render_diagnosis_text(diagnosis: Diagnosis) -> str:
    """A diagnosis as text: the reading first, then a table for each section."""
    return render_template(__package__, "diagnosis.md.j2", it=diagnosis, **by_name(__name__))


def by_name(module: str) -> dict[str, object]:
    """What a template calls: functions of a module and those that text and page share."""
    found = {**globals(), **vars(sys.modules[module])}
    called = {name.lstrip("_"): each for name, each in found.items() if isfunction(each)}
    columns = {"head_columns": HEAD_COLUMNS, "bound_columns": BOUND_COLUMNS}
    return {**called, **columns, "markdown_table": markdown_table}


def head_rows(diagnosis: Diagnosis) -> list[list[str]]:
    """How the head does on each domain, under `HEAD_COLUMNS`."""
    head = diagnosis.head
    return [
        [
            diagnosis.domains[e],
            f"{diagnosis.samples[e]:,} of {diagnosis.available[e]:,}",
            number(float(head.risk[e])),
            f"{100 * float(head.accuracy[e]):.1f} %",
        ]
        for e in diagnosis.focus
    ]


def bound_rows(diagnosis: Diagnosis, report: BoundReport) -> list[list[str]]:
    """The terms of the transfer bounds, under `BOUND_COLUMNS`."""
    return [
        [
            f"{diagnosis.domains[entry.source]} → {diagnosis.domains[entry.target]}",
            *map(number, (entry.value, entry.hessian_term, entry.gradient_term)),
            *map(number, (entry.target_term, entry.remainder)),
        ]
        for entry in report.pairs
    ]


def distance_rows(diagnosis: Diagnosis, *, spectral_noise: bool = True) -> list[list[str]]:
    """By pair Hessian, spectral and gradient distance, each with its interval and its noise."""
    report = diagnosis.distances
    return [
        [
            pair_name(diagnosis, entry.pair),
            *_distance_cells(report.hessian, entry.pair),
            number(entry.measured),
            interval(entry.low, entry.high),
            *([number(entry.noise)] if spectral_noise else []),
            *_distance_cells(report.gradient, entry.pair),
        ]
        for entry in diagnosis.spectral.distances
    ]


def shift_rows(diagnosis: Diagnosis, *parts: str) -> list[list[str]]:
    """By pair the distance of class shares, and parts of the gradient's and Hessian's."""
    return [
        [
            pair_name(diagnosis, entry.pair),
            percent(entry.label_distance),
            *(percent(getattr(entry.gradient, part)) for part in parts),
            *(percent(getattr(entry.hessian, part)) for part in parts),
        ]
        for entry in diagnosis.shift.pairs
    ]


def holdout_rows(
    diagnosis: Diagnosis, report: HoldoutReport, joint: str, missing: Sequence[str] = ()
) -> list[list[str]]:
    """By domain held out the accuracy of a plain head, and what there is of an aligned one."""
    rows = []
    for entry in report.domains:
        row = [diagnosis.domains[entry.domain], f"{100 * entry.plain:.1f} %"]
        if entry.aligned is None or entry.low is None or entry.high is None:
            row += missing
        else:
            row += [
                f"{100 * entry.aligned:.1f} %",
                f"{100 * entry.low:+.1f} {joint} {100 * entry.high:+.1f}",
                f"{entry.strength:g}",
                *(f"{100 * value:.1f} %" for value in entry.others),
            ]
        rows.append(row)
    return rows


def holdout_columns(report: HoldoutReport) -> list[str]:
    """What stands above `holdout_rows`, if there are aligned heads."""
    header = ["held out", "plain", "aligned", "gain, 95 %", "strength chosen"]
    return header + [f"at {strength:g}" for strength in report.strengths]


def correlation_text(report: CrossingReport, of: str) -> str:
    """The rank correlation in a sentence."""
    if report.correlation is None or report.low is None or report.high is None:
        return "No rank correlation: distances or regrets are all the same."
    return (
        f"Rank correlation{of} over {report.pairs} pairs: {report.correlation:+.2f} (95 %: "
        f"{report.low:+.2f} to {report.high:+.2f}), p = {report.p_value:.3f}."
    )


def number(value: float) -> str:
    """A number with three digits that matter, for example "0.0123" or "1,234"."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def interval(low: float, high: float) -> str:
    """An interval."""
    return f"{number(low)} – {number(high)}"


def percent(value: float) -> str:
    """A fraction as a percentage."""
    return f"{100 * value:.0f} %"


def pair_name(diagnosis: Diagnosis, pair: tuple[int, int]) -> str:
    """What a pair of domains is called."""
    return " – ".join(diagnosis.domains[e] for e in pair)


def _distance_cells(matrix: DistanceMatrix, pair: tuple[int, int]) -> list[str]:
    ends = interval(float(matrix.low[pair]), float(matrix.high[pair]))
    return [number(float(matrix.measured[pair])), ends, number(float(matrix.noise[pair]))]


def _attribute_rows(diagnosis: Diagnosis) -> list[list[str]]:
    report = diagnosis.attributes
    return [
        [attribute_title(name), percent(report.relative[name]), f"{matrix.times_noise():.1f} ×"]
        for name, matrix in report.distances.items()
    ]


def _crossing_rows(diagnosis: Diagnosis, report: CrossingReport) -> list[list[str]]:
    values = zip(report.domains, report.loss.tolist(), strict=True)
    return [[diagnosis.domains[e], *map(number, row)] for e, row in values]


def _contribution_rows(diagnosis: Diagnosis) -> list[list[str]]:
    rows = []
    for entry in diagnosis.contributions.pairs:
        order = entry.classes.argsort(descending=True).tolist()[:_SHOWN]
        classes = [f"{diagnosis.classes[c]} {percent(float(entry.classes[c]))}" for c in order]
        samples = [
            f"{diagnosis.domains[s.domain]} #{s.row} {100 * s.share:.1f} %"
            for s in entry.samples[:_SHOWN]
        ]
        pair = pair_name(diagnosis, entry.pair)
        rows.append([pair, entry.quantity, ", ".join(classes), ", ".join(samples)])
    return rows


def render_diagnosis_json(diagnosis: Diagnosis) -> str:
    """A diagnosis as JSON: matrices as lists of rows, null for numbers that are not finite."""
    content = {"hessalign": __version__, **_plain(diagnosis)}
    if (holdout := diagnosis.holdout) is not None:
        content["holdout"] |= {"plain": holdout.plain, "aligned": holdout.aligned}
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _plain(value: object) -> Any:  # noqa: ANN401 - JSON is any of several types
    """A value as what JSON knows."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = (field.name for field in dataclasses.fields(value))
        return {name: _plain(getattr(value, name)) for name in fields if name not in _NOT_IN_JSON}
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
