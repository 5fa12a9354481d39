"""A sweep as a page that opens anywhere, and as a few lines of text.

Runs are shown in figures: against hyper-parameters, by step, and against Hessian distance.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Final, get_args

from markupsafe import Markup

from hessalign._errors import UserError, some
from hessalign._numbers import finite
from hessalign.bench.algorithms import Power, find_algorithm
from hessalign.bench.algorithms.search import Preset, common_space, search_space
from hessalign.bench.data import Family
from hessalign.bench.runs import irm
from hessalign.bench.sweep.overview import REFERENCE, Overview, Result, domain_differences, results
from hessalign.bench.sweep.selection import SELECTIONS, Candidate, Cell, Run, Table
from hessalign.bench.sweep.selection.tables import Difference
from hessalign.report.page import Figure, Mark, render_page
from hessalign.report.plot import Plot, make_axis, names_axis
from hessalign.report.progress import duration
from hessalign.report.tables import first_notes, grouped, markdown_table

_MOST_NOTES: Final = 10  # of a kind
_SHOWN: Final = 4  # cells that lack the same
_MOST_TROUBLES: Final = 300  # rows, of which the first are in sight and the others folded
_TROUBLES_IN_SIGHT: Final = 12
_STATES: Final = ("failed", "diverged", "unfinished", "running", "left")

_COLOURS: Final = 8  # of marks, which repeat after that
_DESCRIBED: Final = 6000  # up to so many points say what they are when they are pointed at
_MOST_LINES: Final = 40  # of runs that were not chosen, in one drawing
_MOST_STEPS: Final = 25  # of one curve
_MOST_RUNS: Final = 500  # in the table of runs of a data set
_MANY: Final = 30.0  # times: values that differ so much are shown by powers, whoever drew them


def render_sweep_page(overview: Overview, *, refresh: bool = False) -> str:
    """A sweep as HTML, which is loaded again now and then if it goes on."""
    name = overview.folder.absolute().name
    datasets = [_dataset(overview, dataset, i) for i, dataset in enumerate(overview.datasets)]
    return render_page(
        __package__,
        "sweep.html.j2",
        f"Sweep {name}",
        script=True,
        refresh=refresh,
        it=overview,
        name=name,
        cards=_cards(overview),
        datasets=datasets,
        compared=any(data["forest"] for data in datasets),
        reference=REFERENCE,
        troubles=_trouble_rows(overview),
        costs=_cost_rows(overview),
        cost_figure=_cost_figure(overview),
        notes=first_notes(overview.collection.notes, _MOST_NOTES, "`hessalign collect` says more."),
        troubles_in_sight=_TROUBLES_IN_SIGHT,
        most_troubles=_MOST_TROUBLES,
        most_lines=_MOST_LINES,
        most_steps=_MOST_STEPS,
    )


def summarise(overview: Overview) -> str:
    """A sweep in a few lines: accuracies by the methods of selection, and what is not there."""
    parts = [_progress(overview)]
    names, compared = list(SELECTIONS), False
    for dataset in overview.datasets:
        rows = []
        for algorithm, found in results(overview, dataset).items():
            cells = [_with_difference(found.get(name)) for name in names]
            rows.append([algorithm, *cells])
            compared = compared or any(each.difference for each in found.values())
        parts.append(markdown_table([dataset, *names], rows))
    if overview.datasets:
        differences = (
            f"in brackets the difference to {REFERENCE} over the same trials and domains ± its "
            "standard error; "
        )
        parts.append(
            "Mean accuracy over domains ± standard error over trials; "
            f"{differences * compared}*: some trials, draws or domains are missing."
        )
    return "\n\n".join(parts) + "\n"


def _with_difference(result: Result | None) -> str:
    text = _accuracy(result and result.cell)
    return text if result is None or result.difference is None else f"{text} ({result.difference})"


def _accuracy(cell: Cell | None, best: float | None = None) -> str:
    """The mean, its standard error if there are several trials, a mark if something is missing.

    Returns:
        In bold the best.
    """
    if cell is None or cell.mean is None:
        return "–"
    error = f" ± {cell.error:.1f}" if len(cell.values) > 1 else ""
    text = f"{cell.mean:.1f}{error}" + " *" * bool(cell.reasons)
    return _bold(text) if round(cell.mean, 1) == best else text


def _progress(overview: Overview) -> str:
    states = {state: count for state, count in overview.states.items() if count}
    words = ", ".join(f"{count:,} {state}" for state, count in states.items())
    hours = overview.total_seconds / 3600
    count = sum(states.values())
    runs = f"{count:,} run{'s' * (count != 1)}"
    return f"{runs} in {overview.folder}: {words}; {hours:,.2f} hours."


def _cards(overview: Overview) -> list[tuple[str, str]]:
    """What stands out: a word or number each, and what it is."""
    states = overview.states
    total, done = sum(states.values()), states.get("done", 0)
    cards = [(f"{done:,} of {total:,}" if done < total else f"{total:,}", "runs done")]
    for state in _STATES:
        if states.get(state):
            cards.append((f"{states[state]:,}", f"runs {state}"))
    cards.append((duration(overview.total_seconds), "of training in all"))
    for dataset in overview.datasets[:4]:
        found = results(overview, dataset)
        known = _means(found, "training-domain")
        if len(known) > 1:
            best = max(known, key=lambda name: known[name])
            text = f"best on {dataset}, {known[best]:.1f} %, chosen on training domains"
            cards.append((best, text))
    return cards


def _trouble_rows(overview: Overview) -> list[tuple[str, str, str]]:
    """State, runs and reason of what is not done; runs with the same reason stand together."""
    troubles = sorted(overview.troubles, key=lambda each: _STATES.index(each.state))
    same = grouped(troubles, lambda each: (each.state, each.reason))
    return [
        (state, some([each.what for each in group], 1), reason)
        for (state, reason), group in same.items()
    ]


def _means(found: Mapping[str, Mapping[str, Result]], selection: str) -> dict[str, float]:
    """What algorithms reach by a method of selection, of those that have a value."""
    cells = {name: row[selection].cell for name, row in found.items() if selection in row}
    return {name: cell.mean for name, cell in cells.items() if cell.mean is not None}


def _dataset(overview: Overview, name: str, number: int) -> dict[str, object]:
    """What the page shows of a data set."""
    tables = overview.tables(name)
    domains = next(iter(tables.values())).columns
    points = [point for point in overview.points if point.run.key.dataset == name]
    runs = [run for run in overview.runs if run.key.dataset == name]
    found = results(overview, name)
    return {
        "name": name,
        "id": f"d{number}",
        "forest": _forest(found),
        "header": _result_header(found),
        "above": [("", 1), *((each, (len(_result_header(found)) - 1) // 3) for each in SELECTIONS)],
        "rows": _result_rows(found),
        "incomplete": any(each.cell.reasons for row in found.values() for each in row.values()),
        "domains": list(domains),
        "tables": [
            (table.selection.title, _domain_rows(table), _difference_rows(table), _reasons(table))
            for table in tables.values()
        ],
        "colours": _domain_keys(domains),
        "points": _point_figures(points, domains, len(overview.points)),
        "curves": _curve_figures(runs, overview.unfinished, tables["training-domain"]),
        "distance": _distance_figure(points, domains),
        "correlation": _correlation(points),
        "runs": _run_rows(points, domains),
        "shown": min(len(points), _MOST_RUNS),
        "count": len(points),
    }


def _result_header(found: Mapping[str, Mapping[str, Result]]) -> list[str]:
    pair = ["average", f"to {REFERENCE} (95 %)"] if REFERENCE in found else ["average"]
    return ["algorithm", *pair * len(SELECTIONS)]


def _result_rows(found: Mapping[str, Mapping[str, Result]]) -> list[list[str]]:
    rows = [[algorithm] for algorithm in found]
    for name in SELECTIONS:
        means = _means(found, name).values() if len(found) > 1 else ()
        best = round(max(means), 1) if means else None
        for cells, row in zip(rows, found.values(), strict=True):
            result = row.get(name)
            cells.append(_accuracy(result and result.cell, best))
            if REFERENCE in found:
                cells.append(_difference_text(result and result.difference))
    return rows


def _bold(text: str) -> str:
    return Markup("<b>{}</b>").format(text)


def _difference_text(difference: Difference | None) -> str:
    """The mean difference and its interval, in bold if it is clear."""
    if difference is None:
        return "–"
    ends = difference.interval
    interval = "one pair" if ends is None else f"{ends[0]:+.1f} to {ends[1]:+.1f}"
    text = f"{difference.mean:+.1f} ({interval})"
    return _bold(text) if difference.clear else text


def _forest(found: Mapping[str, Mapping[str, Result]]) -> Plot | None:
    """Differences to the reference with their intervals, by algorithm and method of selection."""
    rows = {
        algorithm: {name: each.difference for name, each in row.items() if each.difference}
        for algorithm, row in found.items()
    }
    rows = {algorithm: row for algorithm, row in rows.items() if row}
    if not rows:
        return None
    ends = [0.0]
    for row in rows.values():
        for each in row.values():
            ends += each.interval or (each.mean,)
    shown = {name for row in rows.values() for name in row}
    keys = [(f"mark c{i}", name) for i, name in enumerate(SELECTIONS) if name in shown]
    across = make_axis(f"accuracy less that of {REFERENCE}, points", ends)
    caption = f"Difference to {REFERENCE}, with 95 % intervals, over the same trials and domains"
    plot = Plot(caption, across, names_axis(list(rows)), keys=keys)
    height = len(rows)
    plot.line([(0.0, 0.5), (0.0, 0.5 - height)], "axis")
    for number, (algorithm, row) in enumerate(rows.items()):
        for i, name in enumerate(SELECTIONS):
            if name not in row:
                continue
            each, up = row[name], -number + 0.08 - 0.18 * i  # below the name
            if each.interval is not None:
                plot.line([(end, up) for end in each.interval], f"line chosen c{i}")
            plot.dot(each.mean, up, f"mark c{i}", f"{algorithm}, {name}: {each}")
    return plot


def _domain_rows(table: Table) -> list[list[str]]:
    """Accuracies by domain, the best of each in bold."""
    rows, best = [], table.best
    for row in table.rows:
        if any(cell.values for cell in row.cells):
            average = "–" if row.average is None else f"{row.average:.1f}"
            top = row.average is not None and round(row.average, 1) == best[-1]
            cells = map(_accuracy, row.cells, best)
            rows.append([row.algorithm, *cells, _bold(average) if top else average])
    return rows


def _difference_rows(table: Table) -> list[list[str]]:
    return [
        [algorithm, *("–" if each is None else str(each) for each in row)]
        for algorithm, row in domain_differences(table).items()
        if any(row)
    ]


def _reasons(table: Table) -> list[str]:
    found: dict[str, list[str]] = {}
    for algorithm, column, cell in table.cells():
        for reason in cell.reasons:
            found.setdefault(reason, []).append(f"{algorithm} on {column}")
    return [f"{some(where, _SHOWN)}: {reason}" for reason, where in found.items()]


def _cost_rows(overview: Overview) -> list[list[str]]:
    return [
        [name, dataset, f"{len(times):,}", f"{fmean(times):,.1f}", f"{sum(times) / 3600:,.3f}"]
        for (dataset, name), times in overview.seconds.items()
    ]


def _cost_figure(overview: Overview) -> Figure | None:
    hours: dict[str, float] = {}
    for (_, name), times in overview.seconds.items():
        hours[name] = hours.get(name, 0.0) + sum(times) / 3600
    if not hours:
        return None
    rows = sorted(hours, key=lambda name: -hours[name])
    marks = [
        [Mark(hours[name], f"{hours[name]:.3g}", f"{name}: {hours[name]:.3g} h")] for name in rows
    ]
    return Figure("bars", "Hours of training by algorithm", "Hours by algorithm", marks, rows)


def _domain_keys(domains: Sequence[str]) -> list[tuple[str, str]]:
    """Which colour stands for which domain."""
    return [(f"mark c{i % _COLOURS}", name) for i, name in enumerate(domains)]


def _point_figures(
    points: Sequence[Candidate], domains: Sequence[str], total: int
) -> list[tuple[str, list[Plot]]]:
    """By algorithm: OOD accuracy against each hyper-parameter that differs between runs."""
    up = make_axis("OOD accuracy, %", (100 * point.test for point in points))
    found = []
    for algorithm, group in _by_algorithm(points).items():
        figures = []
        for name in _varying(group):
            drawn = [(point, finite(point.run.hparams.get(name))) for point in group]
            values = [(point, value) for point, value in drawn if value is not None]
            log = _by_powers(algorithm, name, [value for _, value in values])
            across = make_axis(name, (value for _, value in values), log=log)
            title = f"{algorithm}: OOD accuracy against {name}"
            plot = Plot(name, across, up, title)
            for point, value in values:
                kind = f"c{point.domain % _COLOURS}"
                described = _describe(point, domains) if total <= _DESCRIBED else ""
                text = described and f"{described}, {name} {value:.3g}"
                plot.dot(value, 100 * point.test, f"mark {kind}" if text else kind, text)
            figures.append(plot)
        if figures:
            found.append((algorithm, figures))
    return found


def _by_algorithm(points: Iterable[Candidate]) -> dict[str, list[Candidate]]:
    found = grouped(points, lambda point: point.run.key.algorithm)
    return dict(sorted(found.items(), key=_reference_first))


def _reference_first(group: tuple[str, object]) -> tuple[bool, str]:
    return group[0] != REFERENCE, group[0]


def _varying(points: Sequence[Candidate]) -> list[str]:
    """Hyper-parameters that are numbers and differ between runs."""
    values: dict[str, set[float]] = {}
    for point in points:
        for name, value in point.run.hparams.items():
            if (found := finite(value)) is not None:
                values.setdefault(name, set()).add(found)
    return [name for name, found in values.items() if len(found) > 1]


def _by_powers(algorithm: str, name: str, values: Iterable[float]) -> bool:
    """Whether a hyper-parameter is drawn by powers, or looks so if it is not known."""
    drawn, known = _search(algorithm)
    positive = [value for value in values if value > 0]
    return name in drawn or (
        name not in known and bool(positive) and max(positive) > _MANY * min(positive)
    )


@cache
def _search(algorithm: str) -> tuple[set[str], set[str]]:
    """Which hyper-parameters of an algorithm are drawn by powers, and of which it is known."""
    spaces = [
        {name: hyper.search for name, hyper in common_space(family).items()}
        for family in get_args(Family)
    ]
    try:
        info = find_algorithm(algorithm)
        for family in get_args(Family):
            for preset in get_args(Preset):
                spaces.append(dict(search_space(info, family, preset).values()))
    except UserError:  # one of DomainBed's that we have not, or a plug-in that is not here
        pass
    pairs = [pair for space in (*spaces, irm.SEARCH) for pair in space.items()]
    return {name for name, each in pairs if isinstance(each, Power)}, {name for name, _ in pairs}


def _describe(point: Candidate, domains: Sequence[str]) -> str:
    key = point.run.key
    return (
        f"{key.algorithm}, {domains[point.domain]}, trial {key.trial_seed}, draw "
        f"{key.hparams_seed}: {100 * point.test:.1f} %"
    )


def _curve_figures(
    runs: Sequence[Run], unfinished: Sequence[Run], table: Table
) -> list[tuple[str, list[Plot]]]:
    """By algorithm: OOD and validation accuracy by step, of runs with one test domain."""
    going = {run.path for run in unfinished}
    chosen = {c.run.path for _, _, cell in table.cells() for c in cell.chosen}
    drawn = [run for run in runs if len(run.key.test_domains) == 1 and len(run.records) > 1]
    curves = {run.path: _curves(run) for run in drawn}
    groups = grouped(drawn, lambda run: run.key.algorithm)
    found = []
    for algorithm, group in sorted(groups.items(), key=_reference_first):
        others = [run for run in group if run.path not in chosen]
        every = -(-len(others) // _MOST_LINES)
        shown = others[:: every or 1] + [run for run in group if run.path in chosen]
        figures = []
        for i, title in enumerate(("OOD accuracy", "validation accuracy")):
            heights = [up for lines in curves.values() for _, up in lines[i]]
            across = make_axis("step", (step for lines in curves.values() for step, _ in lines[i]))
            up = make_axis(f"{title}, %", heights)
            plot = Plot(f"{title} by step", across, up, f"{algorithm}: {title} by step")
            for run in shown:
                kind = "chosen " * (run.path in chosen) + "going " * (run.path in going)
                domain = run.key.test_domains[0]
                plot.line(curves[run.path][i], f"line {kind}c{domain % _COLOURS}")
            figures.append(plot)
        found.append((algorithm, figures))
    return found


def _curves(run: Run) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """OOD and mean validation accuracy at some of the steps of a run, the last included."""
    (tested,) = run.key.test_domains
    every = -(-len(run.records) // _MOST_STEPS)
    records = run.records[::-every][::-1]
    validation = [
        (record.outer[:tested] + record.outer[tested + 1 :], record.step) for record in records
    ]
    return (
        [(record.step, 100 * record.test(tested)) for record in records],
        [(step, 100 * sum(values) / len(values)) for values, step in validation if values],
    )


def _distance_figure(points: Sequence[Candidate], domains: Sequence[str]) -> Plot | None:
    """OOD accuracy against the distance between Hessians, of runs that measured it."""
    having = [(point, point.distance) for point in points if point.distance is not None]
    if not having:
        return None
    title = "distance between Hessians of training domains"
    across = make_axis(title, (distance for _, distance in having), log=True)
    up = make_axis("OOD accuracy, %", (100 * point.test for point, _ in having))
    plot = Plot("Each dot is a run, coloured by its test domain", across, up)
    for point, distance in having:
        text = f"{_describe(point, domains)}, distance {distance:.3g}"
        plot.dot(distance, 100 * point.test, f"mark c{point.domain % _COLOURS}", text)
    return plot


def _correlation(points: Sequence[Candidate]) -> str:
    """The rank correlation of distance and accuracy within each test domain, where it exists."""
    from scipy.stats import spearmanr

    having = [point for point in points if point.distance is not None]
    found = []
    for group in grouped(having, lambda point: point.domain).values():
        distances, tests = [p.distance for p in group], [p.test for p in group]
        if len(group) > 2 and len(set(distances)) > 1 and len(set(tests)) > 1:
            found.append((float(spearmanr(distances, tests).statistic), len(group)))
    if not found:
        return ""
    mean = sum(value * count for value, count in found) / sum(count for _, count in found)
    count = sum(count for _, count in found)
    return f"Within a test domain the rank correlation is {mean:+.2f} on average ({count:,} runs)."


def _run_rows(points: Sequence[Candidate], domains: Sequence[str]) -> list[list[str]]:
    """The runs with the best validation accuracy, and the hyper-parameters that differ."""
    varying = {name for group in _by_algorithm(points).values() for name in _varying(group)}
    best = sorted(points, key=lambda point: -point.validation)[:_MOST_RUNS]
    return [
        [
            Path(point.run.path).parent.name,
            point.run.key.algorithm,
            domains[point.domain],
            str(point.run.key.trial_seed),
            str(point.run.key.hparams_seed),
            f"{100 * point.validation:.1f}",
            f"{100 * point.test:.1f}",
            str(point.step),
            _hparams({k: v for k, v in point.run.hparams.items() if k in varying}),
        ]
        for point in best
    ]


def _hparams(values: Mapping[str, object]) -> str:
    return ", ".join(
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {json.dumps(value)}"
        for name, value in sorted(values.items())
    )
