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
    ShiftShares,
)
from hessalign.diagnosis.answers import (
    CAUSES,
    METRICS,
    CauseReport,
    Estimate,
    Finding,
    RemedyReport,
    TransferReport,
    Trial,
)
from hessalign.diagnosis.glossary import TERMS, split_terms, term_id
from hessalign.diagnosis.text import (
    METRIC_TITLES,
    by_name,
    drop_text,
    estimate_text,
    gain_text,
    metric_text,
    number,
    p_text,
    where,
)
from hessalign.diagnosis.verdict import CAUSE_TITLES, REMEDY_TITLES, feature_name
from hessalign.report.page import LABELLED, Figure, Mark, render_page, shortened
from hessalign.report.plot import Plot, make_axis, names_axis
from hessalign.report.tables import whole_percents

Cell = str | tuple[str, str]
"""Of a table: a text, or a short one and what it says in full when pointed at."""

_MANY_CLASSES: Final = 10  # up to this many classes all are drawn
_SHORT: Final = 24  # letters of a name in a table
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
        terms=TERMS,
        metric_titles=METRIC_TITLES,
        **by_name(__name__) | {"term_id": term_id, "split_terms": split_terms},
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


def _name(name: str, length: int = _SHORT) -> Cell:
    return (shortened(name, length), name) if len(name) > length else name


def _site(diagnosis: Diagnosis, e: int) -> Cell:
    return _name(diagnosis.domains[e])


def _pair_name(diagnosis: Diagnosis, pair: tuple[int, int], joint: str = " – ") -> str:
    """What a pair of sites is called."""
    return joint.join(diagnosis.domains[e] for e in pair)


def _pair(
    diagnosis: Diagnosis, pair: tuple[int, int], joint: str = " – ", length: int = 16
) -> Cell:
    short = joint.join(shortened(diagnosis.domains[e], length) for e in pair)
    full = _pair_name(diagnosis, pair, joint)
    return short if short == full else (short, full)


# Will it hold?


def _transfer_figures(diagnosis: Diagnosis, report: TransferReport) -> list[Plot]:
    return [
        _transfer_figure(diagnosis, report, metric)
        for metric in ("accuracy", "balanced_accuracy")
        if any(metric in site.unseen for site in report.sites)
    ]


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
                _interval(plot, _scaled(each), up - i, kind, text)
    plot.keys = [*keys, (_CHANCE, "guessing")]
    return plot


def _interval(plot: Plot, found: Estimate, up: float, kind: str, text: str) -> None:
    plot.line([(found.low, up), (found.high, up)], kind.replace("mark", "line chosen"))
    plot.dot(found.value, up, kind, text)


def _scaled(found: Estimate) -> Estimate:
    return Estimate(*(100 * value for value in found))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _transfer_rows(
    diagnosis: Diagnosis, report: TransferReport, metrics: Sequence[str]
) -> list[list[Cell]]:
    """By site its samples, and of each metric what is unseen, of its own, and the drop."""
    return [
        [
            _site(diagnosis, site.domain),
            f"{site.samples:,}",
            *_metric_cells(metrics, site.unseen, site.within, site.drop),
            *([metric_text("accuracy", site.majority)] if "accuracy" in metrics else []),
        ]
        for site in report.sites
    ]


def _transfer_total(report: TransferReport, metrics: Sequence[str]) -> list[Cell]:
    cells = _metric_cells(metrics, report.mean, report.mean_within, report.mean_drop)
    return ["mean", "", *cells, *([""] if "accuracy" in metrics else [])]


def _other_metrics(report: TransferReport) -> list[str]:
    """The metrics beside accuracy that some site has."""
    return [metric for metric in METRICS[1:] if any(metric in site.unseen for site in report.sites)]


def _metric_cells(
    metrics: Sequence[str],
    unseen: dict[str, Estimate],
    within: dict[str, Estimate] | None,
    drop: dict[str, Estimate] | None,
) -> list[Cell]:
    cells: list[Cell] = []
    for metric in metrics:
        found = [estimate_text(metric, (each or {}).get(metric)) for each in (unseen, within)]
        cells += [*found, drop_text(metric, (drop or {}).get(metric))]
    return cells


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


def _finding_rows(diagnosis: Diagnosis, report: CauseReport) -> list[list[Cell]]:
    """What was found, then what was tested and not found."""
    rows: list[list[Cell]] = [
        [
            CAUSE_TITLES[each.cause],
            _name(where(diagnosis, each)),
            p_text(each.p_value),
            f"{each.unit}: {number(each.size)}",
            "yes" if each.harmful else "not shown",
            _features(diagnosis, each),
        ]
        for each in report.findings
    ]
    seen = {each.cause for each in report.findings}
    return rows + [
        [CAUSE_TITLES[cause], "not found", p_text(report.p_values[cause]), "–", "–", "–"]
        for cause in CAUSES
        if cause in report.p_values and cause not in seen
    ]


def _features(diagnosis: Diagnosis, finding: Finding) -> Cell:
    """Which features show it, with a word on those that do so by being missing."""
    names = [feature_name(diagnosis.feature_names, d) for d in finding.features]
    notes = [" (missing)" if d in finding.missing else "" for d in finding.features]
    pairs = list(zip(names, notes, strict=True))
    full = ", ".join(name + note for name, note in pairs)
    short = ", ".join(shortened(name, _SHORT) + note for name, note in pairs[:3])
    return (short or "–") if short == full else (short, full)


# What helps?


def _remedy_figure(diagnosis: Diagnosis, report: RemedyReport) -> Plot | None:
    """What each remedy gains on average, with its interval, and at each site left out."""
    plain, *tried = report.trials
    if not tried:
        return None
    ends, rows = [0.0], []
    for trial in tried:
        rows.append([100 * (a - b) for a, b in zip(trial.sites, plain.sites, strict=True)])
        ends += [*_scaled(trial.gain), *rows[-1]]
    across = make_axis("gain of accuracy, points", ends)
    names = [REMEDY_TITLES[trial.remedy] for trial in tried]
    keys = [(_UNSEEN, "mean with its 95 % interval"), ("mark c7", "a site left out")]
    caption = "What each remedy gains over a plain model at sites left out"
    plot = Plot(caption, across, names_axis(names), keys=keys)
    plot.line([(0.0, up) for up in (0.5, 0.5 - len(names))], "axis")
    for i, (trial, gains) in enumerate(zip(tried, rows, strict=True)):
        for e, gain in zip(_left_out(diagnosis, report), gains, strict=True):
            plot.dot(gain, -0.28 - i, "mark c7", f"{names[i]}, {diagnosis.domains[e]}: {gain:+.1f}")
        text = f"{names[i]}: {gain_text(trial)} points"
        _interval(plot, _scaled(trial.gain), 0.0 - i, _UNSEEN, text)
    return plot


def _left_out(diagnosis: Diagnosis, report: RemedyReport) -> Sequence[int]:
    """The sites that were left out, in the order of the trials."""
    count = len(report.trials[0].sites)
    if diagnosis.transfer is not None and len(diagnosis.transfer.sites) == count:
        return [site.domain for site in diagnosis.transfer.sites]
    return diagnosis.focus


def _remedy_header(diagnosis: Diagnosis, report: RemedyReport) -> list[Cell]:
    return [_name(diagnosis.domains[e], 14) for e in _left_out(diagnosis, report)]


def _remedy_rows(diagnosis: Diagnosis, report: RemedyReport) -> list[list[Cell]]:
    metrics = [metric for metric in METRICS[1:] if metric in report.trials[0].scores]
    return [
        [
            REMEDY_TITLES[trial.remedy] + " ✓" * (trial.remedy == report.recommended),
            metric_text("accuracy", trial.accuracy),
            gain_text(trial),
            *(metric_text(metric, trial.scores.get(metric)) for metric in metrics),
            *(metric_text("accuracy", value) for value in trial.sites),
        ]
        for trial in report.trials
    ]


def _remedy_metrics(report: RemedyReport) -> list[str]:
    return [metric for metric in METRICS[1:] if metric in report.trials[0].scores]


def _choice_rows(diagnosis: Diagnosis, report: RemedyReport) -> list[list[Cell]]:
    """What each remedy chose for each site left out."""
    return [
        [REMEDY_TITLES[trial.remedy], *(_choice(diagnosis, trial, each) for each in trial.choices)]
        for trial in report.trials
        if trial.choices
    ]


def _choice(diagnosis: Diagnosis, trial: Trial, choice: float | int | None) -> Cell:
    if choice is None:
        return "none"
    return _site(diagnosis, int(choice)) if trial.remedy == "leave_out" else f"{choice:g}"


# Evidence


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


def _distance_rows(diagnosis: Diagnosis) -> list[list[Cell]]:
    """By pair Hessian, spectral and gradient distance, each with its interval and its noise."""
    report = diagnosis.distances
    return [
        [
            _pair(diagnosis, entry.pair),
            *_distance_cells(report.hessian, entry.pair),
            number(entry.measured),
            _ends(entry.low, entry.high),
            number(entry.noise),
            *_distance_cells(report.gradient, entry.pair),
        ]
        for entry in diagnosis.spectral.distances
    ]


def _distance_cells(matrix: DistanceMatrix, pair: tuple[int, int]) -> list[str]:
    ends = _ends(float(matrix.low[pair]), float(matrix.high[pair]))
    return [number(float(matrix.measured[pair])), ends, number(float(matrix.noise[pair]))]


def _ends(low: float, high: float) -> str:
    return f"{number(low)} – {number(high)}"


def _attribute_title(name: str) -> str:
    """An attribute of Table 1 as people write it, for example logit×feature."""
    return name.replace("_", "×")


def _attribute_figures(diagnosis: Diagnosis) -> list[Figure]:
    report, marks = diagnosis.attributes, []
    titles = [_attribute_title(name) for name in report.distances]
    for title, (name, matrix) in zip(titles, report.distances.items(), strict=True):
        share = f"{100 * report.relative[name]:.0f} %"
        text = (
            f"{title}: {share}, measured distances are {matrix.times_noise():.1f} times the noise"
        )
        marks.append([Mark(report.relative[name], share, text)])
    caption = "Distance beyond noise, relative to the attribute's size in a single sample"
    return [Figure("bars", caption, "Relative distance beyond noise by attribute", marks, titles)]


def _attribute_rows(diagnosis: Diagnosis) -> list[list[Cell]]:
    return [
        [
            _attribute_title(name),
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


def _contribution_rows(diagnosis: Diagnosis) -> list[list[Cell]]:
    rows: list[list[Cell]] = []
    for entry in diagnosis.contributions.pairs:
        short, full = (
            "; ".join(
                f"{shortened(diagnosis.domains[sample.domain], length)} #{sample.row} "
                f"({shortened(diagnosis.classes[sample.label], length)}) {100 * sample.share:.1f} %"
                for sample in entry.samples
            )
            for length in (16, 10**6)
        )
        cell = short if short == full else (short, full)
        rows.append([_pair(diagnosis, entry.pair), entry.quantity.title(), cell])
    return rows


def _parts(shares: ShiftShares) -> list[float]:
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
            values = _parts(getattr(entry, title.lower()))
            row = zip(_SHIFT_KEYS, values, whole_percents(values), strict=True)
            marks.append([Mark(v, "", f"{name}, {what}: {p} %") for (_, what), v, p in row])
        caption = f"What the squared {title} distance is made of"
        drawings.append(Figure("bars", caption, caption, marks, labels, keys=_SHIFT_KEYS))
    return drawings


def _shift_rows(diagnosis: Diagnosis) -> list[list[Cell]]:
    """By pair the distance of class shares, and the parts of the gradient's and Hessian's."""
    return [
        [
            _pair(diagnosis, entry.pair),
            f"{100 * entry.label_distance:.0f} %",
            *(f"{p} %" for p in whole_percents(_parts(entry.gradient))),
            *(f"{p} %" for p in whole_percents(_parts(entry.hessian))),
        ]
        for entry in diagnosis.shift.pairs
    ]


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


def _correlation_text(report: CrossingReport) -> str:
    """The rank correlation in a sentence."""
    if report.correlation is None or report.low is None or report.high is None:
        return "No rank correlation: distances or regrets are all the same."
    return (
        f"Rank correlation over {report.pairs} pairs: {report.correlation:+.2f} (95 %: "
        f"{report.low:+.2f} to {report.high:+.2f}), p = {report.p_value:.3f}."
    )


def _bound_figures(diagnosis: Diagnosis, report: BoundReport) -> list[Figure]:
    names = [diagnosis.domains[e] for e in diagnosis.focus]
    values = {(entry.source, entry.target): entry.value for entry in report.pairs}

    def mark(row: int, column: int) -> Mark:
        if row == column:
            return Mark(0.0, "", f"{names[row]} itself")
        value = values[diagnosis.focus[row], diagnosis.focus[column]]
        return Mark(value, number(value), f"{names[row]} → {names[column]}: {value:.3g}")

    return [_square(names, "Bound of the transfer measure, from row to column", mark)]


def _bound_rows(diagnosis: Diagnosis, report: BoundReport) -> list[list[Cell]]:
    """The terms of the transfer bounds: their sum, Hessian, gradient, target, remainder."""
    return [
        [
            _pair(diagnosis, (entry.source, entry.target), " → "),
            *map(number, (entry.value, entry.hessian_term, entry.gradient_term)),
            *map(number, (entry.target_term, entry.remainder)),
        ]
        for entry in report.pairs
    ]


def _head_rows(diagnosis: Diagnosis) -> list[list[Cell]]:
    """How the head does on each site: samples, loss, accuracy."""
    head = diagnosis.head
    return [
        [
            _site(diagnosis, e),
            f"{diagnosis.samples[e]:,} of {diagnosis.available[e]:,}",
            number(float(head.risk[e])),
            f"{100 * float(head.accuracy[e]):.1f} %",
        ]
        for e in diagnosis.focus
    ]
