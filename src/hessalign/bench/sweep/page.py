"""A sweep as a page that opens anywhere, and as a few lines of text."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
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
from hessalign.bench.sweep.selection import SELECTIONS, Cell, Table
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
    text = _accuracy(result and result.cell)
    return text if result is None or result.difference is None else f"{text} ({result.difference})"


def _accuracy(cell: Cell | None, best: float | None = None) -> str:
    """Mean and standard error, a mark if something is missing, and in bold if it is the best."""
    if cell is None or cell.mean is None:
        return "–"
    text = f"{cell.mean:.1f} ± {cell.error:.1f}" + " *" * bool(cell.reasons)
    return _bold(text) if round(cell.mean, 1) == best else text


def _progress(overview: Overview) -> str:
    states = {state: count for state, count in overview.states.items() if count}
    words = ", ".join(f"{count:,} {state}" for state, count in states.items())
    hours = overview.total_seconds / 3600
    return f"{sum(states.values()):,} runs in {overview.folder}: {words}; {hours:,.2f} hours."


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
            each, up = row[name], -number + 0.18 * (1 - i)
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
