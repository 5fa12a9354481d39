"""A diagnosis as text: on the terminal, and as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from textwrap import fill
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
from hessalign.diagnosis.reading import ATTRIBUTE_TITLES
from hessalign.report.tables import markdown_table

_WIDTH: Final = 100
_SHOWN: Final = 3
_NOT_IN_JSON: Final = frozenset({"parameters"})  # fields that are not about the domains

HEAD_COLUMNS: Final = ("domain", "samples", "loss", "accuracy")
BOUND_COLUMNS: Final = ("source → target", "bound", "Hessian", "gradient", "target", "remainder")


def render_diagnosis_text(diagnosis: Diagnosis) -> str:
    """A diagnosis as text: the reading first, then a table for each section."""
    parts = [
        _title(diagnosis),
        _reading(diagnosis),
        _head(diagnosis),
        _distances(diagnosis),
        _attributes(diagnosis),
        _contributions(diagnosis),
        _shift(diagnosis),
        _holdout(diagnosis),
        _crossing(diagnosis),
        _bounds(diagnosis),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


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


def distance_rows(diagnosis: Diagnosis) -> list[list[str]]:
    """By pair Hessian, spectral and gradient distance, each with its interval and its noise."""
    report = diagnosis.distances
    return [
        [
            pair_name(diagnosis, entry.pair),
            *_distance_cells(report.hessian, entry.pair),
            number(entry.measured),
            interval(entry.low, entry.high),
            number(entry.noise),
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


def holdout_rows(diagnosis: Diagnosis, report: HoldoutReport, joint: str) -> list[list[str]]:
    """By domain held out the accuracy of a plain head, and what there is of an aligned one."""
    rows = []
    for entry in report.domains:
        row = [diagnosis.domains[entry.domain], f"{100 * entry.plain:.1f} %"]
        if entry.aligned is not None and entry.low is not None and entry.high is not None:
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


def _wrapped(text: str) -> str:
    return fill(text, _WIDTH)


def _section(title: str, table: str, how: str) -> str:
    return f"## {title}\n\n{table}\n\n{_wrapped(how)}"


def _title(diagnosis: Diagnosis) -> str:
    counts = (
        f"{len(diagnosis.domains)} domains, {len(diagnosis.classes)} classes, "
        f"{diagnosis.features:,} features"
    )
    notes = [fill(note, _WIDTH, initial_indent="Note: ") for note in diagnosis.notes]
    return "\n".join(
        [f"# Diagnosis of {diagnosis.name}: {counts}", "", _wrapped(diagnosis.how), *notes]
    )


def _reading(diagnosis: Diagnosis) -> str:
    reading = diagnosis.reading
    lines = ["## Reading", ""]
    for title, texts in (
        ("", reading.summary),
        ("Aligning can help here:", reading.can_fix),
        ("Aligning will not help with:", reading.cannot_fix),
    ):
        if not texts:
            continue
        lines += [title] if title else []
        lines += [fill(text, _WIDTH, initial_indent="- ", subsequent_indent="  ") for text in texts]
    return "\n".join(lines)


def _head(diagnosis: Diagnosis) -> str:
    head = diagnosis.head
    state = "at its optimum" if head.at_optimum else "NOT at its optimum"
    table = markdown_table(HEAD_COLUMNS, head_rows(diagnosis))
    text = (
        f"The head ({head.origin}) is {state}: gradient norm {head.gradient_norm:.2g}, "
        f"{head.relative:.1e} of a single sample's."
    )
    return _section("Head", f"{_wrapped(text)}\n\n{table}", head.how)


def _distances(diagnosis: Diagnosis) -> str:
    rows = [[*row[:6], *row[7:]] for row in distance_rows(diagnosis)]  # no noise of spectral ones
    less_noise = "95 %, less noise"
    header = ["pair", "‖ΔH‖", less_noise, "noise", "‖ΔH‖₂", less_noise]
    header += ["‖Δg‖", less_noise, "noise"]
    how = f"{diagnosis.distances.how} Spectral: {diagnosis.spectral.how}"
    return _section("Distances of Hessians and gradients", markdown_table(header, rows), how)


def _attributes(diagnosis: Diagnosis) -> str:
    rows = [
        [
            ATTRIBUTE_TITLES[name],
            percent(diagnosis.attributes.relative[name]),
            f"{matrix.times_noise():.1f} ×",
        ]
        for name, matrix in diagnosis.attributes.distances.items()
    ]
    table = markdown_table(["attribute", "relative distance", "of the noise"], rows)
    return _section("Attributes of Table 1", table, diagnosis.attributes.how)


def _contributions(diagnosis: Diagnosis) -> str:
    rows = []
    for entry in diagnosis.contributions.pairs:
        order = entry.classes.argsort(descending=True).tolist()[:_SHOWN]
        classes = ", ".join(
            f"{diagnosis.classes[c]} {percent(float(entry.classes[c]))}" for c in order
        )
        samples = ", ".join(
            f"{diagnosis.domains[s.domain]} #{s.row} {100 * s.share:.1f} %"
            for s in entry.samples[:_SHOWN]
        )
        rows.append([pair_name(diagnosis, entry.pair), entry.quantity, classes, samples])
    table = markdown_table(["pair", "of", "classes", "samples"], rows, text_columns=4)
    return _section("Where distances come from", table, diagnosis.contributions.how)


def _shift(diagnosis: Diagnosis) -> str:
    rows = shift_rows(diagnosis, "label", "feature", "noise")
    header = ["pair", "class shares", "‖Δg‖²: label", "feature", "noise"]
    header += ["‖ΔH‖²: label", "feature", "noise"]
    return _section(
        "Label shift against feature shift", markdown_table(header, rows), diagnosis.shift.how
    )


def _holdout(diagnosis: Diagnosis) -> str:
    report = diagnosis.holdout
    if report is None:
        return ""
    header = holdout_columns(report)
    rows = [row + ["–"] * (len(header) - len(row)) for row in holdout_rows(diagnosis, report, "–")]
    return _section("Leave one domain out", markdown_table(header, rows), report.how)


def _crossing(diagnosis: Diagnosis) -> str:
    report = diagnosis.crossing
    if report is None:
        return ""
    names = [diagnosis.domains[e] for e in report.domains]
    rows = [
        [name, *(number(float(value)) for value in row)]
        for name, row in zip(names, report.loss, strict=True)
    ]
    table = markdown_table(["head of, loss on", *names], rows)
    text = correlation_text(report, " of Hessian distance and regret")
    return _section(
        "Does Hessian distance foretell the loss?", f"{table}\n\n{_wrapped(text)}", report.how
    )


def _bounds(diagnosis: Diagnosis) -> str:
    report = diagnosis.bounds
    if report is None:
        return ""
    table = markdown_table(BOUND_COLUMNS, bound_rows(diagnosis, report))
    return _section("Transfer bound (Theorem 1)", table, report.how)


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
