"""Tables 4, 7 and 8: DomainBed under its three methods of model selection."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from hessalign.bench.algorithms import find_algorithm
from hessalign.bench.sweep.selection import Table, build_tables, find_selection
from hessalign.paper.experiment import Experiment, Finished, Options, Report
from hessalign.paper.figures import plot_trials
from hessalign.paper.published import (
    AVERAGE,
    DATASETS,
    LEVEL,
    TABLE_4,
    TABLE_7,
    TABLE_8,
    Difference,
    Measured,
    PublishedTable,
    clear_errors,
    mean_by_trial,
    measured,
    paired_difference,
    verdict,
)
from hessalign.paper.sweeps import (
    Results,
    Sweep,
    departures,
    describe_departures,
    find_scale,
    head_specs,
    sweep_folders,
)
from hessalign.report.tables import markdown_table

_READING: Final = (
    "Model selection: {selection}. Accuracies in percent on the larger part of the test domain, "
    "mean ± standard deviation over trials. A number is reproduced if it differs from the "
    "published one by at most 2 combined standard deviations; the paper prints none for this "
    "table, so ours stands for both. Differences to ERM are those of the same trial, mean ± "
    "standard error over trials."
)
_ALL_DATASETS: Final = "All data sets"

_REFERENCE: Final = "erm"
"""What the others are compared with."""

NOT_COMPARABLE: Final = "not comparable"

ByTrial = Mapping[int, float]
"""Accuracies in percent by trial."""


def accuracies(table: Table) -> dict[str, dict[str, ByTrial]]:
    """Selected accuracies of a table by algorithm and test domain, without its empty columns."""
    used = [
        column
        for i, column in enumerate(table.columns)
        if any(row.cells[i].values for row in table.rows)
    ]
    return {
        find_algorithm(row.algorithm).name: {
            column: dict(zip(cell.trials, (100 * value for value in cell.values), strict=True))
            for column, cell in zip(table.columns, row.cells, strict=True)
            if column in used
        }
        for row in table.rows
    }


def _make_rows(
    found: Mapping[str, Mapping[str, ByTrial]],
    published: Mapping[str, float],
    *,
    comparable: bool,
    incomplete: Collection[str] = (),
) -> list[dict[str, Any]]:
    """The methods as plain values, in the paper's order, those that it lacks at the end."""
    names = [name for name in published if name in found]
    names += [name for name in found if name not in names]
    averages = {name: mean_by_trial(list(found[name].values())) for name in found}
    rows = []
    for name in names:
        cells = {**found[name], AVERAGE: averages[name]}
        ours = measured(list(averages[name].values())) if averages[name] else None
        paper = published.get(name)
        reference = {**found.get(_REFERENCE, {}), AVERAGE: averages.get(_REFERENCE, {})}
        differences = {
            column: paired_difference(values, reference.get(column, {}))
            for column, values in cells.items()
        }
        rows.append(
            {
                "method": find_algorithm(name).title,
                "algorithm": name,
                "complete": name not in incomplete,
                "accuracy": {column: dict(values) for column, values in cells.items()},
                "values": list(averages[name].values()),
                "mean": None if ours is None else ours.mean,
                "std": None if ours is None else ours.std,
                "published": paper,
                "difference": None if ours is None or paper is None else ours.mean - paper,
                "verdict": _judge(ours, paper, comparable=comparable),
                "against_erm": {
                    column: None if each is None else vars(each)
                    for column, each in differences.items()
                    if name != _REFERENCE
                },
            }
        )
    return rows


def _judge(ours: Measured | None, paper: float | None, *, comparable: bool) -> str | None:
    if ours is None or paper is None:
        return None
    # The paper prints no spread for these tables: ours stands for both.
    return verdict(ours, paper, ours.std) if comparable else NOT_COMPARABLE


def _accuracy_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Our accuracies and the published average."""
    columns = list(rows[0]["accuracy"])
    header = ["method", *columns, "published", "difference", "verdict"]
    return markdown_table(
        header,
        [
            [
                row["method"] + ("" if row["complete"] else " *"),
                *(_shown(row["accuracy"][column]) for column in columns),
                _or_dash(row["published"], ".1f"),
                _or_dash(row["difference"], "+.1f"),
                row["verdict"] or "–",
            ]
            for row in rows
        ],
    )


def _difference_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Paired differences to ERM."""
    columns = list(rows[0]["accuracy"])
    return markdown_table(
        ["against ERM", *columns],
        [
            [row["method"], *(_difference_text(row, column) for column in columns)]
            for row in rows
            if row["algorithm"] != _REFERENCE
        ],
    )


def _who_wins(rows: Sequence[Mapping[str, Any]]) -> str:
    """Which method is best among the complete ones, by how much against the spread, and where."""
    ranked = sorted(
        (row for row in rows if row["complete"] and row["mean"] is not None),
        key=lambda row: row["mean"],
        reverse=True,
    )
    if len(ranked) < 2 or all(row["algorithm"] != _REFERENCE for row in ranked):
        return ""
    best = ranked[0]
    text = f"**{best['method']} is best on average**: {_shown(best['accuracy'][AVERAGE])}"
    if best["algorithm"] != _REFERENCE:
        text += f", {_difference_text(best, AVERAGE)} against ERM"
    leaders = [
        f"{column} {_leader(ranked, column)}" for column in best["accuracy"] if column != AVERAGE
    ]
    text += f". Best by column: {'; '.join(leaders)}. "
    others = [row for row in ranked if row["algorithm"] != _REFERENCE]
    return text + _clear_differences(others)


def _leader(rows: Sequence[Mapping[str, Any]], column: str) -> str:
    best = max(rows, key=lambda row: measured(list(row["accuracy"][column].values())).mean)
    if best["algorithm"] == _REFERENCE:
        return str(best["method"])
    return f"{best['method']} ({_difference_text(best, column)})"


def _clear_differences(rows: Sequence[Mapping[str, Any]]) -> str:
    found = {
        row["method"]: Difference(**row["against_erm"][AVERAGE])
        for row in rows
        if row["against_erm"][AVERAGE] is not None
    }
    trials = max((each.trials for each in found.values()), default=0)
    if trials < 2:
        return "One trial has no spread to judge differences by."
    clear = [f"{method} {each}" for method, each in found.items() if each.clear]
    return (
        f"On average {', '.join(clear) if clear else 'no method'} "
        f"{'differ' if len(clear) > 1 else 'differs'} from ERM by more than "
        f"{clear_errors(trials):.1f} standard errors, which chance exceeds in {100 * LEVEL:.0f} % "
        f"of comparisons with {trials} trials ({len(found)} made here)."
    )


def _shown(values: ByTrial) -> str:
    return str(measured(list(values.values()))) if values else "–"


def _difference_text(row: Mapping[str, Any], column: str) -> str:
    found = row["against_erm"].get(column)
    return "–" if found is None else str(Difference(**found))


def _or_dash(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _table(name: str, title: str, selection: str, published: PublishedTable) -> Experiment:
    """A table of DomainBed. All of them read the same runs; leave-one-out needs more of them."""

    def sweeps(options: Options) -> list[Sweep]:
        scale = find_scale(options.scale)
        entries = {
            "datasets": list(DATASETS),
            "algorithms": list(scale.algorithms or published),
        }
        specs = head_specs(options, entries, [selection])
        return [
            Sweep(head, "", specs[head], folder) for head, folder in sweep_folders(options, specs)
        ]

    def present(finished: Finished, options: Options) -> Report:
        results = finished.sweeps
        texts = [
            _READING.format(selection=find_selection(selection).title),
            *describe_departures(departures(results[0].sweep.spec)),
        ]
        sections: dict[str, dict[str, list[dict[str, Any]]]] = {}
        for each in results:
            title = each.sweep.head.title
            sections[title] = _dataset_rows(each, selection, published)
            texts += [f"## {title.capitalize()}", *_head_text(sections[title]), *each.lacking()]
        data = {"scale": options.scale, "selection": selection, "heads": sections}
        panels = {
            f"{title}, {dataset}": rows
            for title, datasets in sections.items()
            for dataset, rows in datasets.items()
        }
        return Report("\n\n".join(texts), data, {name: lambda path: plot_trials(panels, path)})

    return Experiment(name, title, present, sweeps=sweeps)


def _dataset_rows(
    results: Results, selection: str, published: PublishedTable
) -> dict[str, list[dict[str, Any]]]:
    """The methods on each data set, and on their average if there are several."""
    if not results.runs:
        return {}
    comparable = not departures(results.sweep.spec)
    tables = build_tables(results.runs, [find_selection(selection)])
    found = {table.dataset: accuracies(table) for table in tables if table.dataset is not None}
    missing = results.missing
    sections = {
        dataset: _make_rows(
            methods,
            _column(published, dataset.partition("@")[0]),
            comparable=comparable,
            incomplete=missing,
        )
        for dataset, methods in found.items()
        if any(values for cells in methods.values() for values in cells.values())
    }
    if len(sections) > 1:
        averages: dict[str, dict[str, ByTrial]] = {}
        for dataset, rows in sections.items():
            for row in rows:
                averages.setdefault(row["algorithm"], {})[dataset] = row["accuracy"][AVERAGE]
        column = _column(published, AVERAGE)
        sections[_ALL_DATASETS] = _make_rows(
            averages, column, comparable=comparable, incomplete=missing
        )
    return sections


def _column(published: PublishedTable, name: str) -> dict[str, float]:
    return {method: row[name] for method, row in published.items() if name in row}


def _head_text(sections: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """The tables of one head, as paragraphs."""
    texts = []
    for dataset, rows in sections.items():
        parts = [f"### {dataset}", _accuracy_table(rows), _difference_table(rows), _who_wins(rows)]
        texts += [part for part in parts if part]
    return texts or ["No run is finished."]


TABLE_4_EXPERIMENT = _table(
    "table4",
    "Table 4: DomainBed, leave-one-domain-out cross-validation",
    "leave-one-out",
    TABLE_4,
)
TABLE_7_EXPERIMENT = _table(
    "table7",
    "Table 7: DomainBed, training-domain validation set",
    "training-domain",
    TABLE_7,
)
TABLE_8_EXPERIMENT = _table(
    "table8",
    "Table 8: DomainBed, test-domain validation set (oracle)",
    "oracle",
    TABLE_8,
)
