"""The page of a diagnosis, that opens anywhere: three answers with a picture each, evidence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch

from hessalign.diagnosis import (
    BoundReport,
    CrossingReport,
    Diagnosis,
    DistanceMatrix,
    PairContributions,
    ShiftShares,
)
from hessalign.diagnosis.causes import CauseReport, Finding
from hessalign.diagnosis.explanations import CAUSES
from hessalign.diagnosis.remedies import RemedyReport
from hessalign.diagnosis.scores import Estimate
from hessalign.diagnosis.text import METRIC_TITLES, by_name, estimate_text, gain_text, number
from hessalign.diagnosis.transfer import TransferReport
from hessalign.diagnosis.verdict import CAUSE_TITLES, REMEDY_TITLES, feature_name
from hessalign.report.page import LABELLED, Figure, Mark, render_page, shortened
from hessalign.report.plot import Plot, make_axis, names_axis
from hessalign.report.tables import whole_percents

_MANY_CLASSES: Final = 10  # up to this many classes all are drawn
_SHIFT_KEYS: Final = (("part0", "features"), ("part1", "labels"), ("part2", "noise"))
_UNSEEN, _WITHIN, _MAJORITY, _CHANCE = "mark c1", "mark c0", "tick c6", "tick c7"


def render_diagnosis_page(diagnosis: Diagnosis) -> str:
    """A diagnosis as HTML."""
    return render_page(
        __package__,
        "diagnosis.html.j2",
        f"Diagnosis of {diagnosis.name}",
        footnote=f", seed {diagnosis.seed}",
        script=True,
        it=diagnosis,
        **by_name(__name__),
    )


def _cards(diagnosis: Diagnosis) -> list[tuple[str, str, str]]:
    """The three answers in a word or two each, what they answer, and where more is said."""
    held = _capital(diagnosis.verdict.holds)
    findings = diagnosis.causes.findings
    costs = [finding for finding in findings if finding.harmful] or findings
    why = ", ".join(dict.fromkeys(CAUSE_TITLES[each.cause] for each in costs[:2]))
    why = why or "no difference found"
    helps = "not tested"
    if (remedies := diagnosis.remedies) is not None:
        best = next(each for each in remedies.trials if each.remedy == remedies.recommended)
        helps = "nothing tried helps clearly"
        if best.remedy != "nothing":
            helps = f"{REMEDY_TITLES[best.remedy]}, {gain_text(best).split(' ')[0]} points"
    return [
        (held, "Will it hold on a site it has not seen?", "hold"),
        (_capital(why), "Why not?", "why"),
        (_capital(helps), "What helps?", "help"),
    ]


def _pair_name(diagnosis: Diagnosis, pair: tuple[int, int]) -> str:
    return " – ".join(diagnosis.domains[e] for e in pair)


# Will it hold?


def _transfer_figure(diagnosis: Diagnosis, report: TransferReport, metric: str) -> Plot:
    """By site a metric of the model that has not seen it and of its own, with yardsticks."""
    title, kinds = METRIC_TITLES[metric], (("unseen", _UNSEEN), ("within", _WITHIN))
    names = [diagnosis.domains[site.domain] for site in report.sites]
    keys = [(_UNSEEN, "site unseen"), (_WITHIN, "model of the site itself")]
    values = [100 * report.chance]
    for site in report.sites:
        found = [each[metric] for each in (site.unseen, site.within) if each and metric in each]
        values += [100 * end for each in found for end in each]
        values += [100 * site.majority] * (metric == "accuracy")
    across = make_axis(f"{title}, %", values)
    plot = Plot(f"{_capital(title)} at each site, with 95 % intervals", across, names_axis(names))
    if metric == "accuracy":
        keys.append((_MAJORITY, "always the commonest class"))
    plot.line([(100 * report.chance, up) for up in (0.5, 0.5 - len(names))], _CHANCE)
    for i, site in enumerate(report.sites):
        if metric == "accuracy":
            plot.line([(100 * site.majority, up - i) for up in (0.2, -0.42)], _MAJORITY)
        for up, (key, kind) in zip((0.0, -0.26), kinds, strict=True):
            if (each := (getattr(site, key) or {}).get(metric)) is not None:
                text = f"{names[i]}, {dict(keys)[kind]}: {estimate_text(metric, each)}"
                _interval(plot, each, up - i, kind, text)
    plot.keys = [*keys, (_CHANCE, "guessing")]
    return plot


def _interval(plot: Plot, found: Estimate, up: float, kind: str, text: str) -> None:
    value, *ends = (100 * each for each in found)
    plot.line([(end, up) for end in ends], kind.replace("mark", "line chosen"))
    plot.dot(value, up, kind, text)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


# Why not?


def _cause_figure(diagnosis: Diagnosis, report: CauseReport) -> Figure:
    """Which kind of difference was found where; of very many sites those with one."""
    found: dict[tuple[str, int | None], Finding] = {}
    for each in reversed(report.findings):
        found[each.cause, each.domain] = each
    touched = {each.domain for each in report.findings}
    places: list[int | None] = list(range(len(diagnosis.domains)))
    if len(places) >= LABELLED:
        places = [e for e in places if e in touched][: LABELLED - 1]
    if None in touched or not places:
        places.append(None)
    columns = ["several sites" if e is None else diagnosis.domains[e] for e in places]
    causes = [
        each for each in CAUSES if each in report.p_values or any(each == c for c, _ in found)
    ]
    marks = []
    for cause in causes:
        row = []
        for e, name in zip(places, columns, strict=True):
            finding, about = found.get((cause, e)), f"{CAUSE_TITLES[cause]}, {name}"
            if finding is None:
                alone = " alone" if (cause, None) in found else ""
                row.append(Mark(0.0, "", f"{about}: not found{alone}"))
            else:
                cost = "costs accuracy" if finding.harmful else "no cost in accuracy was shown"
                text = f"{about}: {finding.unit} {number(finding.size)}; {cost}"
                row.append(Mark(1.0 if finding.harmful else 0.35, number(finding.size), text))
        marks.append(row)
    caption = "What was found where. Strong: costs accuracy as far as can be told; pale: not shown"
    if len(columns) < len(diagnosis.domains):
        caption += f" ({len(columns)} of {len(diagnosis.domains)} sites)"
    rows = [CAUSE_TITLES[each] for each in causes]
    return Figure("heat_map", caption, "Differences by kind and site", marks, rows, columns)


def _features(
    diagnosis: Diagnosis, finding: Finding, length: int = 10**6, most: int | None = None
) -> str:
    """Which features show it, with a word on those that do so by being missing."""
    names = [
        shortened(feature_name(diagnosis.feature_names, d), length)
        + " (missing)" * (d in finding.missing)
        for d in finding.features[:most]
    ]
    return ", ".join(names) or "–"


# What helps?


def _remedy_figure(diagnosis: Diagnosis, report: RemedyReport) -> Plot | None:
    """What each remedy gains on average, with its interval, and at each site left out."""
    plain, *tried = report.trials
    if not tried:
        return None
    ends, rows = [0.0], []
    for trial in tried:
        rows.append([100 * (a - b) for a, b in zip(trial.sites, plain.sites, strict=True)])
        ends += [*(100 * end for end in trial.gain), *rows[-1]]
    across = make_axis("gain of accuracy, points", ends)
    names = [REMEDY_TITLES[trial.remedy] for trial in tried]
    keys = [(_UNSEEN, "mean with its 95 % interval"), ("mark c7", "a site left out")]
    caption = "What each remedy gains over a plain model at sites left out"
    plot = Plot(caption, across, names_axis(names), keys=keys)
    plot.line([(0.0, up) for up in (0.5, 0.5 - len(names))], "axis")
    for i, (trial, gains) in enumerate(zip(tried, rows, strict=True)):
        for e, gain in zip(diagnosis.focus, gains, strict=True):
            plot.dot(gain, -0.28 - i, "mark c7", f"{names[i]}, {diagnosis.domains[e]}: {gain:+.1f}")
        text = f"{names[i]}: {gain_text(trial)} points"
        _interval(plot, trial.gain, 0.0 - i, _UNSEEN, text)
    return plot


# Evidence


def _distance_figure(names: Sequence[str], matrix: DistanceMatrix, caption: str) -> Figure:
    def mark(e: int, f: int) -> Mark:
        if e == f:
            value = float(matrix.halves[e])
            return Mark(value, number(value), f"two halves of {names[e]}: {number(value)}")
        value = float(matrix.measured[e, f])
        ends = _ends(float(matrix.low[e, f]), float(matrix.high[e, f]))
        text = f"{names[e]} – {names[f]}: {number(value)} (without noise, 95 %: {ends})"
        return Mark(value, number(value), text)

    return _square(names, caption, mark)


def _square(
    names: Sequence[str], caption: str, mark: Callable[[int, int], Mark], title: str | None = None
) -> Figure:
    """A heat map of sites against sites."""
    places = range(len(names))
    marks = [[mark(row, column) for column in places] for row in places]
    return Figure("heat_map", caption, title or caption, marks, names, names)


def _ends(low: float, high: float) -> str:
    return f"{number(low)} – {number(high)}"


def _attribute_title(name: str) -> str:
    """An attribute of Table 1 as people write it, for example logit×feature."""
    return name.replace("_", "×")


def _attribute_figure(diagnosis: Diagnosis) -> Figure:
    report, marks = diagnosis.attributes, []
    titles = [_attribute_title(name) for name in report.distances]
    for title, (name, matrix) in zip(titles, report.distances.items(), strict=True):
        share = f"{100 * report.relative[name]:.0f} %"
        times = f"{matrix.times_noise():.1f} times the noise"
        text = f"{title}: {share}, measured distances are {times}"
        marks.append([Mark(report.relative[name], share, text)])
    caption = "Distance beyond noise, relative to the attribute's size in a single sample"
    return Figure("bars", caption, "Relative distance beyond noise by attribute", marks, titles)


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
        classes = [diagnosis.classes[c] for c in shown]
        if len(shown) < len(diagnosis.classes):
            classes.append(f"{len(diagnosis.classes) - len(shown)} others")
        marks = []
        for entry in few:
            shares, pair = entry.classes[shown].tolist(), _pair_name(diagnosis, entry.pair)
            if len(shown) < len(diagnosis.classes):
                shares.append(float(entry.classes.sum()) - sum(shares))
            cells = zip(classes, shares, whole_percents(shares), strict=True)
            marks.append([Mark(max(0.0, s), f"{p} %", f"{pair}, {c}: {p} %") for c, s, p in cells])
        caption = f"Share of each class in the squared {quantity.title()} distance"
        if len(few) < len(entries):
            caption += f" (the {len(few)} farthest of {len(entries)} pairs)"
        names = [_pair_name(diagnosis, entry.pair) for entry in few]
        drawings.append(Figure("heat_map", caption, caption, marks, names, classes))
    return drawings


def _largest(diagnosis: Diagnosis, entry: PairContributions, length: int = 10**6) -> str:
    """The samples that contribute most."""
    return "; ".join(
        f"{shortened(diagnosis.domains[sample.domain], length)} #{sample.row} "
        f"({shortened(diagnosis.classes[sample.label], length)}) {100 * sample.share:.1f} %"
        for sample in entry.samples
    )


def _shift_parts(shares: ShiftShares) -> list[float]:
    """Features, labels and noise, as shares that add up to 1."""
    values = [shares.feature, shares.label, shares.noise]
    return [value / (sum(values) or 1.0) for value in values]


def _shift_figures(diagnosis: Diagnosis) -> list[Figure]:
    report = diagnosis.shift
    labels = [_pair_name(diagnosis, entry.pair) for entry in report.pairs]
    drawings = []
    for title in ("Gradient", "Hessian"):
        marks = []
        for name, entry in zip(labels, report.pairs, strict=True):
            values = _shift_parts(getattr(entry, title.lower()))
            row = zip(_SHIFT_KEYS, values, whole_percents(values), strict=True)
            marks.append([Mark(v, "", f"{name}, {what}: {p} %") for (_, what), v, p in row])
        caption = f"What the squared {title} distance is made of"
        drawings.append(Figure("bars", caption, caption, marks, labels, keys=_SHIFT_KEYS))
    return drawings


def _crossing_figures(diagnosis: Diagnosis, report: CrossingReport) -> list[Figure | Plot]:
    names = [diagnosis.domains[e] for e in report.domains]

    def loss(row: int, column: int) -> Mark:
        value = float(report.loss[row, column])
        text = f"head of {names[row]} on {names[column]}: {value:.3g}"
        return Mark(value, number(value), text)

    measured, points = diagnosis.distances.hessian.measured, []
    for i, e in enumerate(report.domains):
        for j, f in enumerate(report.domains[:i]):
            regret = float(report.regret[i, j] + report.regret[j, i]) / 2
            distance = float(measured[e, f])
            text = f"{names[i]} – {names[j]}: distance {number(distance)}, regret {number(regret)}"
            points.append((distance, regret, text))
    plot = Plot(
        "Each dot is a pair of sites",
        make_axis("Hessian distance", [0.0, *(point[0] for point in points)]),
        make_axis("regret", [point[1] for point in points]),
        "Regret against Hessian distance",
    )
    for distance, regret, text in points:
        plot.dot(distance, regret, "mark c0", text)
    caption = "Loss of the head of one site (row) on another (column)"
    return [_square(names, caption, loss, "Loss of the head of one site on another"), plot]


def _bound_figure(diagnosis: Diagnosis, report: BoundReport) -> Figure:
    names = [diagnosis.domains[e] for e in diagnosis.focus]
    values = {(entry.source, entry.target): entry.value for entry in report.pairs}

    def mark(row: int, column: int) -> Mark:
        if row == column:
            return Mark(0.0, "", f"{names[row]} itself")
        value = values[diagnosis.focus[row], diagnosis.focus[column]]
        return Mark(value, number(value), f"{names[row]} → {names[column]}: {value:.3g}")

    return _square(names, "Bound of the transfer measure, from row to column", mark)
