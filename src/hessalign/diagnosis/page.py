"""The page of a diagnosis, that opens anywhere: its cards and its sections, a figure each."""

from __future__ import annotations

from typing import Final

import torch

from hessalign.diagnosis import Diagnosis, DistanceMatrix
from hessalign.diagnosis.reading import attribute_title
from hessalign.diagnosis.text import (
    BOUND_COLUMNS,
    HEAD_COLUMNS,
    bound_rows,
    correlation_text,
    distance_rows,
    head_rows,
    holdout_columns,
    holdout_rows,
    interval,
    number,
    pair_name,
    percent,
    shift_rows,
)
from hessalign.report.page import LABELLED, Figure, Mark, Section, Table, render_page, shortened

_MANY_CLASSES: Final = 10  # up to this many classes all are drawn
_SHIFT_KEYS: Final = (("part0", "features"), ("part1", "labels"), ("part2", "noise"))


def render_diagnosis_page(diagnosis: Diagnosis) -> str:
    """A diagnosis as HTML."""
    return render_page(
        __package__,
        "diagnosis.html.j2",
        f"Diagnosis of {diagnosis.name}",
        footnote=f", seed {diagnosis.seed}",
        diagnosis=diagnosis,
        cards=_cards(diagnosis),
        sections=_sections(diagnosis),
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


def _sections(diagnosis: Diagnosis) -> list[Section]:
    """The sections of a diagnosis that it has."""
    sections = (
        _distances(diagnosis),
        _attributes(diagnosis),
        _contributions(diagnosis),
        _shift(diagnosis),
        _holdout(diagnosis),
        _crossing(diagnosis),
        _bounds(diagnosis),
        _head(diagnosis),
    )
    return [section for section in sections if section is not None]


def _distances(diagnosis: Diagnosis) -> Section:
    """Heat maps and table of the distances."""
    report, spectral = diagnosis.distances, diagnosis.spectral
    maps = [
        _distance_map(diagnosis, matrix, caption)
        for caption, matrix in (
            ("Hessians, Frobenius norm of the difference", report.hessian),
            ("Gradients, norm of the difference", report.gradient),
        )
    ]
    header = ["pair"]
    for quantity in ("Hessian ‖·‖", "Hessian ‖·‖₂", "gradient"):
        header += [quantity, "95 %, less noise", "noise"]
    text = (
        "On the diagonal: the distance of two random halves of the same domain. Squares that are "
        "not much darker than the diagonal of their row and column show sampling, not a difference."
    )
    how = f"{report.how} Spectral norm: {spectral.how}"
    return Section("How far apart", how, text, maps, Table(header, distance_rows(diagnosis)))


def _distance_map(diagnosis: Diagnosis, matrix: DistanceMatrix, caption: str) -> Figure:
    names = diagnosis.domains
    marks = []
    for e, first in enumerate(names):
        row = []
        for f, second in enumerate(names):
            if e == f:
                value = float(matrix.halves[e])
                text = f"two halves of {first}: {number(value)}"
            else:
                value = float(matrix.measured[e, f])
                ends = interval(float(matrix.low[e, f]), float(matrix.high[e, f]))
                text = f"{first} – {second}: {number(value)} (without noise, 95 %: {ends})"
            row.append(Mark(value, number(value), text))
        marks.append(row)
    return Figure("heat_map", caption, caption, marks, names, names)


def _attributes(diagnosis: Diagnosis) -> Section:
    """Bars and table of the attributes of Table 1."""
    report = diagnosis.attributes
    titles = [attribute_title(name) for name in report.distances]
    marks = [
        [
            Mark(
                report.relative[name],
                percent(report.relative[name]),
                f"{attribute_title(name)}: {percent(report.relative[name])}, measured distances "
                f"are {matrix.times_noise():.1f} times the noise",
            )
        ]
        for name, matrix in report.distances.items()
    ]
    focus = diagnosis.spectral.distances
    rows = [
        [
            title,
            f"{matrix.times_noise():.1f} ×",
            *(number(float(matrix.measured[entry.pair])) for entry in focus),
        ]
        for title, matrix in zip(titles, report.distances.values(), strict=True)
    ]
    header = ["attribute", "of the noise", *(pair_name(diagnosis, entry.pair) for entry in focus)]
    caption = "Distance beyond noise, as a share of the attribute's size in a single sample"
    title = "Relative distance beyond noise by attribute"
    return Section(
        "In what they differ",
        report.how,
        figures=[Figure("bars", caption, title, marks, titles)],
        table=Table(header, rows, folded="Distances by pair"),
    )


def _contributions(diagnosis: Diagnosis) -> Section:
    """Classes and samples that distances come from."""
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
    rows = [
        [
            pair_name(diagnosis, entry.pair),
            entry.quantity.title(),
            "; ".join(
                f"{diagnosis.domains[sample.domain]} #{sample.row} "
                f"({diagnosis.classes[sample.label]}) {100 * sample.share:.1f} %"
                for sample in entry.samples
            ),
        ]
        for entry in report.pairs
    ]
    header = ["pair", "of", "samples with the largest shares"]
    listing = Table(header, rows, words=True, folded="Samples that contribute most")
    return Section("Which classes and samples", report.how, figures=drawings, table=listing)


def _pair(diagnosis: Diagnosis, pair: tuple[int, int]) -> str:
    """A name for a pair that fits beside a figure."""
    return " – ".join(shortened(diagnosis.domains[e], 10) for e in pair)


def _shift(diagnosis: Diagnosis) -> Section:
    """Stacked bars of label shift, feature shift and noise."""
    report = diagnosis.shift
    labels = [_pair(diagnosis, entry.pair) for entry in report.pairs]
    drawings = []
    for title in ("Gradient", "Hessian"):
        marks = []
        for entry in report.pairs:
            part = entry.gradient if title == "Gradient" else entry.hessian
            values = (("features", part.feature), ("labels", part.label), ("noise", part.noise))
            total = sum(value for _, value in values) or 1.0
            name = pair_name(diagnosis, entry.pair)
            marks.append(
                [
                    Mark(value / total, "", f"{name}, {what}: {percent(value)}")
                    for what, value in values
                ]
            )
        caption = f"What the squared {title} distance is made of"
        drawings.append(Figure("bars", caption, caption, marks, labels, keys=_SHIFT_KEYS))
    rows = shift_rows(diagnosis, "feature", "label", "noise")
    header = ["pair", "class shares differ by", "gradient: features", "labels", "noise"]
    header += ["Hessian: features", "labels", "noise"]
    return Section(
        "Label shift or feature shift", report.how, figures=drawings, table=Table(header, rows)
    )


def _holdout(diagnosis: Diagnosis) -> Section | None:
    """Accuracies on domains held out."""
    report = diagnosis.holdout
    if report is None:
        return None
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
    drawing = Figure("dots", caption, caption, marks, names, keys=keys)
    header = holdout_columns(report) if report.strengths else ["held out", "plain"]
    table = Table(header, holdout_rows(diagnosis, report, "to"))
    return Section("Leave one domain out", report.how, figures=[drawing], table=table)


def _crossing(diagnosis: Diagnosis) -> Section | None:
    """Losses of single domains' heads elsewhere, against Hessian distance."""
    report = diagnosis.crossing
    if report is None:
        return None
    names = [diagnosis.domains[e] for e in report.domains]
    marks = [
        [
            Mark(float(value), number(float(value)), f"head of {first} on {second}: {value:.3g}")
            for second, value in zip(names, row, strict=True)
        ]
        for first, row in zip(names, report.loss, strict=True)
    ]
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
    drawings = [
        Figure("heat_map", caption, title, marks, names, names),
        Figure(
            "scatter",
            "Each dot is a pair of domains",
            "Regret against Hessian distance",
            [points],
            columns=("Hessian distance", "regret"),
        ),
    ]
    text = correlation_text(report, "")
    return Section("Does Hessian distance foretell the loss?", report.how, text, drawings)


def _bounds(diagnosis: Diagnosis) -> Section | None:
    """Theorem 1 for pairs of domains."""
    report = diagnosis.bounds
    if report is None:
        return None
    names = {e: diagnosis.domains[e] for e in diagnosis.focus}
    values = {(entry.source, entry.target): entry.value for entry in report.pairs}
    marks = [
        [
            Mark(0.0, "", f"{names[s]} itself")
            if s == t
            else Mark(
                values[s, t], number(values[s, t]), f"{names[s]} → {names[t]}: {values[s, t]:.3g}"
            )
            for t in names
        ]
        for s in names
    ]
    caption = "Bound of the transfer measure, from row to column"
    everyone = list(names.values())
    text = (
        "How much worse than on the source can a head be on the target, if its loss on the source "
        f"is within {report.tolerance:g} of the best?"
    )
    terms = Table(BOUND_COLUMNS, bound_rows(diagnosis, report), folded="The terms of each bound")
    drawing = Figure("heat_map", caption, caption, marks, everyone, everyone)
    return Section("The transfer bound", report.how, text, [drawing], terms)


def _head(diagnosis: Diagnosis) -> Section:
    """How good the head is."""
    head = diagnosis.head
    state = "is at its optimum" if head.at_optimum else "is not at its optimum"
    best = "" if head.best is None else f" Refitted, its mean loss would be {number(head.best)}."
    text = (
        f"The head ({head.origin}) {state}: the gradient of its objective over "
        f"{', '.join(head.domains[:8])}{' and others' if len(head.domains) > 8 else ''} has norm "
        f"{head.gradient_norm:.2g}, {head.relative:.1e} of a single sample's at zero.{best}"
    )
    return Section("The head", head.how, text, table=Table(HEAD_COLUMNS, head_rows(diagnosis)))
