"""A sweep as a page that opens anywhere, and as a few lines of text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from markupsafe import Markup

from hessalign._names import some
from hessalign.bench.sweep.overview import REFERENCE, Overview, Result, domain_differences, results
from hessalign.bench.sweep.run_figures import (
    MOST_LINES,
    MOST_RUNS,
    MOST_STEPS,
    correlation,
    curve_figures,
    distance_figure,
    domain_keys,
    point_figures,
    run_rows,
)
from hessalign.bench.sweep.selection import SELECTIONS, Table
from hessalign.bench.sweep.selection.differences import Difference
from hessalign.report.page import Figure, Mark, render_page
from hessalign.report.plot import Plot, make_axis, names_axis
from hessalign.report.progress import duration
from hessalign.report.tables import first_notes, markdown_table

_MOST_NOTES: Final = 10  # of a kind
_SHOWN: Final = 4  # cells that lack the same
_MOST_TROUBLES: Final = 300
_STATES: Final = ("failed", "diverged", "unfinished", "running", "left")


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
        troubles=sorted(overview.troubles, key=lambda each: _STATES.index(each.state)),
        costs=_cost_rows(overview),
        cost_figure=_cost_figure(overview),
        notes=first_notes(overview.collection.notes, _MOST_NOTES, "`hessalign collect` says more."),
        most_troubles=_MOST_TROUBLES,
        most_lines=MOST_LINES,
        most_steps=MOST_STEPS,
    )


def summarise(overview: Overview) -> str:
    """A sweep in a few lines: accuracies by the methods of selection, and what is not there."""
    parts = [_progress(overview)]
    names = list(SELECTIONS)
    for dataset in overview.datasets:
        rows = []
        for algorithm, found in results(overview, dataset).items():
            cells = [_with_difference(found.get(name)) for name in names]
            rows.append([algorithm, *cells])
        parts.append(markdown_table([dataset, *names], rows))
    if overview.datasets:
        parts.append(
            "Mean accuracy over domains ± standard error over trials; in brackets the difference "
            f"to {REFERENCE} over the same trials and domains ± its standard error; *: some "
            "trials, draws or domains are missing."
        )
    return "\n\n".join(parts) + "\n"


def _with_difference(result: Result | None) -> str:
    text = _average(result)
    return text if result is None or result.difference is None else f"{text} ({result.difference})"


def _average(result: Result | None) -> str:
    """Mean over domains and trials with its standard error, and a mark if something is missing."""
    if result is None or result.cell.mean is None:
        return "–"
    text = f"{result.cell.mean:.1f} ± {result.cell.error:.1f}"
    return f"{text} *" if result.cell.reasons else text


def _progress(overview: Overview) -> str:
    states = {state: count for state, count in overview.states.items() if count}
    words = ", ".join(f"{count:,} {state}" for state, count in states.items())
    hours = sum(cost.seconds for cost in overview.costs) / 3600
    return f"{sum(states.values()):,} runs in {overview.folder}: {words}; {hours:,.2f} hours."


def _cards(overview: Overview) -> list[tuple[str, str]]:
    """What stands out: a word or number each, and what it is."""
    states = overview.states
    total, done = sum(states.values()), states.get("done", 0)
    cards = [(f"{done:,} of {total:,}" if done < total else f"{total:,}", "runs done")]
    for state in _STATES:
        if states.get(state):
            cards.append((f"{states[state]:,}", f"runs {state}"))
    seconds = sum(cost.seconds for cost in overview.costs)
    cards.append((duration(seconds), "of training in all"))
    for dataset in overview.datasets[:4]:
        found = results(overview, dataset)
        rows = {name: row.get("training-domain") for name, row in found.items()}
        means = {name: row.cell.mean for name, row in rows.items() if row is not None}
        known = {name: mean for name, mean in means.items() if mean is not None}
        if len(known) > 1:
            best = max(known, key=lambda name: known[name])
            text = f"best on {dataset}, {known[best]:.1f} %, chosen on training domains"
            cards.append((best, text))
    return cards


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
        "colours": domain_keys(domains),
        "points": point_figures(points, domains, len(overview.points)),
        "curves": curve_figures(runs, overview.unfinished, tables["training-domain"]),
        "distance": distance_figure(points, domains),
        "correlation": correlation(points),
        "runs": run_rows(points, domains),
        "shown": min(len(points), MOST_RUNS),
        "count": len(points),
    }


def _result_header(found: Mapping[str, Mapping[str, Result]]) -> list[str]:
    pair = ["average", f"to {REFERENCE} (95 %)"] if REFERENCE in found else ["average"]
    return ["algorithm", *pair * len(SELECTIONS)]


def _result_rows(found: Mapping[str, Mapping[str, Result]]) -> list[list[str]]:
    best = {
        name: max((_rounded(row.get(name)) for row in found.values()), default=-1.0)
        for name in SELECTIONS
    }
    rows = []
    for algorithm, row in found.items():
        cells: list[str] = [algorithm]
        for name in SELECTIONS:
            result = row.get(name)
            text = _average(result)
            highest = len(found) > 1 and 0 <= _rounded(result) == best[name]
            cells.append(_bold(text) if highest else text)
            if REFERENCE in found:
                cells.append(_difference_text(result and result.difference))
        rows.append(cells)
    return rows


def _rounded(result: Result | None) -> float:
    mean = None if result is None else result.cell.mean
    return -1.0 if mean is None else round(mean, 1)


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
            each, up = row[name], -number + 0.18 * (1 - i)
            if each.interval is not None:
                plot.line([(end, up) for end in each.interval], f"line chosen c{i}")
            plot.dot(each.mean, up, f"mark c{i}", f"{algorithm}, {name}: {each}")
    return plot


def _domain_rows(table: Table) -> list[list[str]]:
    """Accuracies by domain, the best of each in bold."""
    best = table.best
    rows = []
    for row in table.rows:
        if not any(cell.values for cell in row.cells):
            continue
        cells = []
        for cell, highest in zip(row.cells, best, strict=False):
            text = "–" if cell.mean is None else f"{cell.mean:.1f} ± {cell.error:.1f}"
            text += " *" * bool(cell.reasons and cell.values)
            cells.append(
                _bold(text) if cell.mean is not None and round(cell.mean, 1) == highest else text
            )
        average = "–" if row.average is None else f"{row.average:.1f}"
        top = row.average is not None and round(row.average, 1) == best[-1]
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
        [
            cost.algorithm,
            cost.dataset,
            f"{cost.runs:,}",
            f"{cost.seconds / cost.runs:,.1f}",
            f"{cost.seconds / 3600:,.3f}",
        ]
        for cost in overview.costs
    ]


def _cost_figure(overview: Overview) -> Figure | None:
    hours: dict[str, float] = {}
    for cost in overview.costs:
        hours[cost.algorithm] = hours.get(cost.algorithm, 0.0) + cost.seconds / 3600
    if not hours:
        return None
    rows = sorted(hours, key=lambda name: -hours[name])
    marks = [
        [Mark(hours[name], f"{hours[name]:.3g}", f"{name}: {hours[name]:.3g} h")] for name in rows
    ]
    return Figure("bars", "Hours of training by algorithm", "Hours by algorithm", marks, rows)
