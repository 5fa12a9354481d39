"""Methods on one data set: accuracies by test domain and trial, beside ERM and the paper."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from hessalign.bench.algorithms import find_algorithm
from hessalign.bench.sweep.selection import Table
from hessalign.paper.paired import (
    LEVEL,
    Difference,
    clear_errors,
    mean_by_trial,
    paired_difference,
)
from hessalign.paper.published_domainbed import AVERAGE
from hessalign.paper.verdict import Measured, measured, verdict
from hessalign.report.tables import markdown_table

REFERENCE: Final = "erm"
"""What the others are compared with."""

NOT_COMPARABLE: Final = "not comparable"

ByTrial = Mapping[int, float]
"""Accuracies in percent by trial."""


def accuracies(table: Table) -> dict[str, dict[str, ByTrial]]:
    """Selected accuracies of a table, without its empty columns.

    Args:
        table: Of one data set.

    Returns:
        By our name of the algorithm and test domain.
    """
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


def make_rows(
    found: Mapping[str, Mapping[str, ByTrial]],
    published: Mapping[str, float],
    *,
    comparable: bool,
    incomplete: Collection[str] = (),
) -> list[dict[str, Any]]:
    """The methods as plain values, in the paper's order, those that it lacks at the end.

    Args:
        found: Accuracies by algorithm and test domain, or data set.
        published: Published averages by algorithm.
        comparable: Whether there is a verdict on them.
        incomplete: Algorithms of which runs are missing.

    Returns:
        One entry each; what is not known is None.
    """
    names = [name for name in published if name in found]
    names += [name for name in found if name not in names]
    averages = {name: mean_by_trial(list(found[name].values())) for name in found}
    rows = []
    for name in names:
        cells = {**found[name], AVERAGE: averages[name]}
        ours = measured(list(averages[name].values())) if averages[name] else None
        paper = published.get(name)
        reference = {**found.get(REFERENCE, {}), AVERAGE: averages.get(REFERENCE, {})}
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
                    if name != REFERENCE
                },
            }
        )
    return rows


def _judge(ours: Measured | None, paper: float | None, *, comparable: bool) -> str | None:
    if ours is None or paper is None:
        return None
    # The paper prints no spread for these tables: ours stands for both.
    return verdict(ours, paper, ours.std) if comparable else NOT_COMPARABLE


def accuracy_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Our accuracies and the published average.

    Args:
        rows: What `make_rows` gave.

    Returns:
        Markdown.
    """
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


def difference_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Paired differences to ERM.

    Args:
        rows: What `make_rows` gave.

    Returns:
        Markdown.
    """
    columns = list(rows[0]["accuracy"])
    return markdown_table(
        ["against ERM", *columns],
        [
            [row["method"], *(_difference_text(row, column) for column in columns)]
            for row in rows
            if row["algorithm"] != REFERENCE
        ],
    )


def who_wins(rows: Sequence[Mapping[str, Any]]) -> str:
    """Which method is best, by how much against the spread over trials, and where.

    Methods of which runs are missing do not take part.

    Args:
        rows: What `make_rows` gave.

    Returns:
        A paragraph; empty if there is nothing to compare.
    """
    ranked = sorted(
        (row for row in rows if row["complete"] and row["mean"] is not None),
        key=lambda row: row["mean"],
        reverse=True,
    )
    if len(ranked) < 2 or all(row["algorithm"] != REFERENCE for row in ranked):
        return ""
    best = ranked[0]
    text = f"**{best['method']} is best on average**: {_shown(best['accuracy'][AVERAGE])}"
    if best["algorithm"] != REFERENCE:
        text += f", {_difference_text(best, AVERAGE)} against ERM"
    leaders = [
        f"{column} {_leader(ranked, column)}" for column in best["accuracy"] if column != AVERAGE
    ]
    text += f". Best by column: {'; '.join(leaders)}. "
    others = [row for row in ranked if row["algorithm"] != REFERENCE]
    return text + _clear_differences(others)


def _leader(rows: Sequence[Mapping[str, Any]], column: str) -> str:
    best = max(rows, key=lambda row: measured(list(row["accuracy"][column].values())).mean)
    if best["algorithm"] == REFERENCE:
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
