"""The page of a diagnosis, that opens anywhere: its cards and its sections, a figure each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch

from hessalign.diagnosis import (
    BoundReport,
    CrossingReport,
    Diagnosis,
    DistanceMatrix,
    HoldoutReport,
)
from hessalign.diagnosis.reading import attribute_title
from hessalign.diagnosis.text import by_name, interval, number, pair_name, percent
from hessalign.report.page import LABELLED, Figure, Mark, render_page, shortened

_MANY_CLASSES: Final = 10  # up to this many classes all are drawn
_SHIFT_KEYS: Final = (("part0", "features"), ("part1", "labels"), ("part2", "noise"))


def render_diagnosis_page(diagnosis: Diagnosis) -> str:
    """A diagnosis as HTML."""
    return render_page(
        __package__,
        "diagnosis.html.j2",
        f"Diagnosis of {diagnosis.name}",
        footnote=f", seed {diagnosis.seed}",
        it=diagnosis,
        pairs=[pair_name(diagnosis, entry.pair) for entry in diagnosis.spectral.distances],
        **by_name(__name__),
    )


def _cards(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """What stands out: a word or number each, and what it is."""
    odd, holdout = diagnosis.reading.odd_one_out, diagnosis.holdout
    crossing = diagnosis.crossing
    beyond_noise = int((diagnosis.distances.hessian.low.triu(1) > 0).sum())
    pairs = len(diagnosis.domains) * (len(diagnosis.domains) - 1) // 2
    cards = [
        ("–" if odd is None else diagnosis.domains[odd], "odd one out"),
        (f"{beyond_noise} of {pairs}", "pairs of domains whose Hessians differ beyond noise"),
    ]
    if holdout is not None:
        cards.append((f"{100 * holdout.plain:.1f} %", "right on an unseen domain, plain head"))
        if holdout.gain is not None:
            cards.append((f"{100 * holdout.gain[0]:+.1f}", "points by aligning the head"))
    if crossing is not None and crossing.correlation is not None:
        text = f"rank correlation of distance and loss (p = {crossing.p_value:.2f})"
        cards.append((f"{crossing.correlation:+.2f}", text))
    return cards


def _distance_figures(diagnosis: Diagnosis) -> list[Figure]:
    return [
        _distance_map(diagnosis.domains, matrix, caption)
        for caption, matrix in (
            ("Hessians, Frobenius norm of the difference", diagnosis.distances.hessian),
            ("Gradients, norm of the difference", diagnosis.distances.gradient),
        )
    ]


def _distance_map(names: Sequence[str], matrix: DistanceMatrix, caption: str) -> Figure:
    def mark(e: int, f: int) -> Mark:
        if e == f:
            value = float(matrix.halves[e])
            return Mark(value, number(value), f"two halves of {names[e]}: {number(value)}")
        value = float(matrix.measured[e, f])
        ends = interval(float(matrix.low[e, f]), float(matrix.high[e, f]))
        text = f"{names[e]} – {names[f]}: {number(value)} (without noise, 95 %: {ends})"
        return Mark(value, number(value), text)

    return _square(names, caption, mark)


def _square(
    names: Sequence[str], caption: str, mark: Callable[[int, int], Mark], title: str | None = None
) -> Figure:
    """A heat map of domains against domains."""
    places = range(len(names))
    marks = [[mark(row, column) for column in places] for row in places]
    return Figure("heat_map", caption, title or caption, marks, names, names)


def _attribute_figures(diagnosis: Diagnosis) -> list[Figure]:
    report, marks = diagnosis.attributes, []
    titles = [attribute_title(name) for name in report.distances]
    for title, (name, matrix) in zip(titles, report.distances.items(), strict=True):
        share = percent(report.relative[name])
        text = (
            f"{title}: {share}, measured distances are {matrix.times_noise():.1f} times the noise"
        )
        marks.append([Mark(report.relative[name], share, text)])
    caption = "Distance beyond noise, as a share of the attribute's size in a single sample"
    return [Figure("bars", caption, "Relative distance beyond noise by attribute", marks, titles)]


def _attribute_rows(diagnosis: Diagnosis) -> list[list[str]]:
    return [
        [
            attribute_title(name),
            f"{matrix.times_noise():.1f} ×",
            *(number(float(matrix.measured[e.pair])) for e in diagnosis.spectral.distances),
        ]
        for name, matrix in diagnosis.attributes.distances.items()
    ]


def _contribution_figures(diagnosis: Diagnosis) -> list[Figure]:
    report = diagnosis.contributions
    drawings = []
    for quantity, matrix in (
        ("hessian", diagnosis.distances.hessian),
        ("gradient", diagnosis.distances.gradient),
    ):
        few = entries = [entry for entry in report.pairs if entry.quantity == quantity]
        if len(entries) > LABELLED:  # the farthest
            few = sorted(entries, key=lambda entry: -float(matrix.measured[entry.pair]))[:LABELLED]
        total = torch.stack([entry.classes.clamp_min(0) for entry in entries]).sum(0)
        shown = sorted(total.argsort(descending=True, stable=True)[:_MANY_CLASSES].tolist())
        marks = []
        for entry in few:
            shares, pair = entry.classes.tolist(), pair_name(diagnosis, entry.pair)
            titles = [f"{pair}, class {diagnosis.classes[c]}: {percent(shares[c])}" for c in shown]
            row = zip(shown, titles, strict=True)
            marks.append([Mark(max(0.0, shares[c]), percent(shares[c]), text) for c, text in row])
        caption = f"Share of each class in the squared {quantity.title()} distance"
        if len(shown) < len(diagnosis.classes):
            caption += f" (the {len(shown)} largest of {len(diagnosis.classes)} classes)"
        if len(few) < len(entries):
            caption += f" (the {len(few)} farthest of {len(entries)} pairs)"
        names = [_pair(diagnosis, entry.pair) for entry in few]
        classes = [diagnosis.classes[c] for c in shown]
        drawings.append(Figure("heat_map", caption, caption, marks, names, classes))
    return drawings


def _contribution_rows(diagnosis: Diagnosis) -> list[list[str]]:
    return [
        [
            pair_name(diagnosis, entry.pair),
            entry.quantity.title(),
            "; ".join(
                f"{diagnosis.domains[sample.domain]} #{sample.row} "
                f"({diagnosis.classes[sample.label]}) {100 * sample.share:.1f} %"
                for sample in entry.samples
            ),
        ]
        for entry in diagnosis.contributions.pairs
    ]


def _pair(diagnosis: Diagnosis, pair: tuple[int, int]) -> str:
    """A name for a pair that fits beside a figure."""
    return " – ".join(shortened(diagnosis.domains[e], 10) for e in pair)


def _shift_figures(diagnosis: Diagnosis) -> list[Figure]:
    report = diagnosis.shift
    labels = [_pair(diagnosis, entry.pair) for entry in report.pairs]
    drawings = []
    for title in ("Gradient", "Hessian"):
        marks = []
        for entry in report.pairs:
            part = getattr(entry, title.lower())
            values = (part.feature, part.label, part.noise)
            total, name = sum(values) or 1.0, pair_name(diagnosis, entry.pair)
            row = zip(_SHIFT_KEYS, values, strict=True)
            marks.append(
                [Mark(v / total, "", f"{name}, {what}: {percent(v)}") for (_, what), v in row]
            )
        caption = f"What the squared {title} distance is made of"
        drawings.append(Figure("bars", caption, caption, marks, labels, keys=_SHIFT_KEYS))
    return drawings


def _holdout_figures(diagnosis: Diagnosis, report: HoldoutReport) -> list[Figure]:
    names, marks, kinds = [], [], ["plain"]
    if report.strengths:
        kinds += ["aligned", "best strength in hindsight"]
    for entry in report.domains:
        names.append(diagnosis.domains[entry.domain])
        values = [entry.plain]
        if entry.aligned is not None:
            values += [entry.aligned, max(entry.others)]
        row = zip(kinds, values, strict=True)
        marks.append([Mark(v, "", f"{names[-1]}, {kind}: {100 * v:.1f} %") for kind, v in row])
    keys = [(f"dot{i}", kind) for i, kind in enumerate(kinds)]
    caption = "Accuracy on a domain that was not trained on"
    return [Figure("dots", caption, caption, marks, names, keys=keys)]


def _crossing_figures(diagnosis: Diagnosis, report: CrossingReport) -> list[Figure]:
    names = [diagnosis.domains[e] for e in report.domains]

    def loss(row: int, column: int) -> Mark:
        value = float(report.loss[row, column])
        text = f"head of {names[row]} on {names[column]}: {value:.3g}"
        return Mark(value, number(value), text)

    measured = diagnosis.distances.hessian.measured
    points = []
    for i, e in enumerate(report.domains):
        for j, f in enumerate(report.domains[:i]):
            regret = float(report.regret[i, j] + report.regret[j, i]) / 2
            distance = float(measured[e, f])
            text = f"{names[i]} – {names[j]}: distance {number(distance)}, regret {number(regret)}"
            points.append(Mark(regret, "", text, across=distance))
    caption = "Loss of the head of one domain (row) on another (column)"
    title = "Loss of the head of one domain on another"
    return [
        _square(names, caption, loss, title),
        Figure(
            "scatter",
            "Each dot is a pair of domains",
            "Regret against Hessian distance",
            [points],
            columns=("Hessian distance", "regret"),
        ),
    ]


def _bound_figures(diagnosis: Diagnosis, report: BoundReport) -> list[Figure]:
    names = [diagnosis.domains[e] for e in diagnosis.focus]
    values = {(entry.source, entry.target): entry.value for entry in report.pairs}

    def mark(row: int, column: int) -> Mark:
        if row == column:
            return Mark(0.0, "", f"{names[row]} itself")
        value = values[diagnosis.focus[row], diagnosis.focus[column]]
        return Mark(value, number(value), f"{names[row]} → {names[column]}: {value:.3g}")

    return [_square(names, "Bound of the transfer measure, from row to column", mark)]
