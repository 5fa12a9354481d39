"""Tables 4, 7 and 8: DomainBed under its three methods of model selection."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any, Final

from hessalign.bench.algorithms import find_algorithm
from hessalign.bench.sweep.selection import Run, Table, build_tables, find_selection
from hessalign.bench.sweep.selection.differences import LEVEL, clear_errors, paired_difference
from hessalign.paper.experiment import Experiment, Finished, Options, Report
from hessalign.paper.figures import Rows, plot_trials
from hessalign.paper.published import (
    AVERAGE,
    DATASETS,
    TABLE_4,
    TABLE_7,
    TABLE_8,
    PublishedTable,
    mean_by_trial,
    measured,
    or_dash,
    verdict,
)
from hessalign.paper.sweeps import (
    REFERENCE,
    Sweep,
    departures,
    disclaimer,
    find_scale,
    head_sweeps,
)
from hessalign.report.tables import markdown_table

_ALL_DATASETS: Final = "All data sets"

ByTrial = Mapping[int, float]  # accuracies in percent by trial
_Cells = Mapping[str, Mapping[str, ByTrial]]  # by algorithm and column


def selected(runs: Sequence[Run], selection: str) -> dict[str, _Cells]:
    """Selected accuracies by data set, algorithm and test domain, without empty columns."""
    tables = build_tables(runs, [find_selection(selection)]) if runs else ()
    return {table.dataset: _accuracies(table) for table in tables if table.dataset is not None}


def _accuracies(table: Table) -> _Cells:
    cells = {
        find_algorithm(row.algorithm).name: {
            column: {trial: 100 * value for trial, value in cell.by_trial.items()}
            for column, cell in zip(table.columns, row.cells, strict=True)
        }
        for row in table.rows
    }
    used = {name for columns in cells.values() for name, values in columns.items() if values}
    return {
        algorithm: {name: values for name, values in columns.items() if name in used}
        for algorithm, columns in cells.items()
    }


def judge(values: Sequence[float], paper: float | None, *, comparable: bool) -> str | None:
    """What accuracies say of a published one, if there are any."""
    if not values or paper is None:
        return None
    if not comparable:
        return "not comparable"
    ours = measured(values)
    return verdict(ours, paper, ours.std)  # the paper prints no spread: ours stands for both


def _make_rows(
    found: _Cells, published: Mapping[str, float], comparable: bool, incomplete: Container[str] = ()
) -> list[dict[str, Any]]:
    """The methods as plain values, in the paper's order, those that it lacks at the end."""
    table = {
        name: {**found[name], AVERAGE: mean_by_trial(list(found[name].values()))}
        for name in dict.fromkeys((*published, *found))
        if name in found
    }
    reference = table.get(REFERENCE, {})
    rows = []
    for name, cells in table.items():
        values = list(cells[AVERAGE].values())
        ours = measured(values) if values else None
        paper = published.get(name)
        against = {
            column: paired_difference(cell, reference.get(column, {}))
            for column, cell in cells.items()
            if name != REFERENCE
        }
        rows.append(
            {
                "method": find_algorithm(name).title,
                "algorithm": name,
                "complete": name not in incomplete,
                "accuracy": cells,
                "values": values,
                "mean": ours and ours.mean,
                "std": ours and ours.std,
                "published": paper,
                "difference": None if ours is None or paper is None else ours.mean - paper,
                "verdict": judge(values, paper, comparable=comparable),
                "against_erm": against,
            }
        )
    return rows


def _accuracy_table(rows: Rows) -> str:
    """Our accuracies and the published average."""
    columns = list(rows[0]["accuracy"])
    cells = [
        [
            row["method"] + ("" if row["complete"] else " *"),
            *(shown(row["accuracy"][column]) for column in columns),
            or_dash(row["published"], ".1f"),
            or_dash(row["difference"], "+.1f"),
            or_dash(row["verdict"]),
        ]
        for row in rows
    ]
    return markdown_table(["method", *columns, "published", "difference", "verdict"], cells)


def _difference_table(rows: Rows) -> str:
    """Paired differences to ERM."""
    columns = list(rows[0]["accuracy"])
    cells = [
        [row["method"], *(or_dash(row["against_erm"][column]) for column in columns)]
        for row in rows
        if row["algorithm"] != REFERENCE
    ]
    return markdown_table(["against ERM", *columns], cells)


def _who_wins(rows: Rows) -> str:
    """Which method is best among the complete ones, by how much against the spread, and where."""
    complete = [row for row in rows if row["complete"] and row["mean"] is not None]
    ranked = sorted(complete, key=lambda row: row["mean"], reverse=True)
    others = [row for row in ranked if row["algorithm"] != REFERENCE]
    if not others or len(others) == len(ranked):
        return ""
    best = ranked[0]
    text = f"**{best['method']} is best on average**: {shown(best['accuracy'][AVERAGE])}"
    if best["algorithm"] != REFERENCE:
        text += f", {or_dash(best['against_erm'][AVERAGE])} against ERM"
    leaders = [
        f"{column} {_leader(ranked, column)}" for column in best["accuracy"] if column != AVERAGE
    ]
    return f"{text}. Best by column: {'; '.join(leaders)}. {_clear_differences(others)}"


def _leader(rows: Rows, column: str) -> str:
    best = max(rows, key=lambda row: measured(row["accuracy"][column].values()).mean)
    if best["algorithm"] == REFERENCE:
        return str(best["method"])
    return f"{best['method']} ({or_dash(best['against_erm'][column])})"


def _clear_differences(rows: Rows) -> str:
    differences = {row["method"]: row["against_erm"][AVERAGE] for row in rows}
    found = {method: each for method, each in differences.items() if each is not None}
    trials = max((each.pairs for each in found.values()), default=0)
    if trials < 2:
        return "One trial has no spread to judge differences by."
    clear = [f"{method} {each}" for method, each in found.items() if each.clear]
    return (
        f"On average {', '.join(clear) if clear else 'no method'} "
        f"{'differ' if len(clear) > 1 else 'differs'} from ERM by more than "
        f"{clear_errors(trials):.1f} standard errors, which chance exceeds in {100 * LEVEL:.0f} % "
        f"of comparisons with {trials} trials ({len(found)} made here)."
    )


def shown(values: ByTrial | None) -> str:
    """Accuracies by trial as text."""
    return or_dash(measured(values.values()) if values else None)


def _make_table(number: int, words: str, selection: str, published: PublishedTable) -> Experiment:
    """A table of DomainBed. All of them read the same runs; leave-one-out needs more of them."""
    name, title = f"table{number}", f"Table {number}: DomainBed, {words}"

    def sweeps(options: Options) -> list[Sweep]:
        algorithms = find_scale(options.scale).algorithms or published
        entries = {"datasets": list(DATASETS), "algorithms": list(algorithms)}
        return head_sweeps(options, entries, selection)

    def present(finished: Finished) -> Report:
        texts = disclaimer(departures(finished.sweeps[0].spec))
        heads: dict[str, dict[str, list[dict[str, Any]]]] = {}
        panels: dict[str, list[dict[str, Any]]] = {}
        for sweep in finished.sweeps:
            head = sweep.head.title
            heads[head] = _dataset_rows(sweep, selection, published)
            texts.append(f"## {head.capitalize()}")
            texts += [] if heads[head] else ["No run is finished."]
            for dataset, rows in heads[head].items():
                parts = (_accuracy_table(rows), _difference_table(rows), _who_wins(rows))
                texts += [f"### {dataset}", *filter(None, parts)]
                panels[f"{head}, {dataset}"] = rows
            texts += sweep.lacking()
        data = {"scale": finished.options.scale, "selection": selection, "heads": heads}
        facts = {"selection": find_selection(selection).title}
        return Report(texts, data, {name: lambda path: plot_trials(panels, path)}, facts)

    return Experiment(name, title, present, sweeps=sweeps)


def _dataset_rows(
    sweep: Sweep, selection: str, published: PublishedTable
) -> dict[str, list[dict[str, Any]]]:
    """The methods on each data set, and on their average if there are several."""

    def make_rows(found: _Cells, column: str) -> list[dict[str, Any]]:
        paper = {method: row[column] for method, row in published.items() if column in row}
        comparable = not departures(sweep.spec)
        return _make_rows(found, paper, comparable=comparable, incomplete=sweep.missing)

    sections = {
        dataset: make_rows(methods, dataset.partition("@")[0])
        for dataset, methods in selected(sweep.runs, selection).items()
        if any(methods.values())
    }
    if len(sections) > 1:
        averages: dict[str, dict[str, ByTrial]] = {}
        for dataset, rows in sections.items():
            for row in rows:
                averages.setdefault(row["algorithm"], {})[dataset] = row["accuracy"][AVERAGE]
        sections[_ALL_DATASETS] = make_rows(averages, AVERAGE)
    return sections


TABLES_4_7_8: Final = (
    _make_table(4, "leave-one-domain-out cross-validation", "leave-one-out", TABLE_4),
    _make_table(7, "training-domain validation set", "training-domain", TABLE_7),
    _make_table(8, "test-domain validation set (oracle)", "oracle", TABLE_8),
)
