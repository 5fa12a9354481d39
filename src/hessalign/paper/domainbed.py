"""Tables 4, 7 and 8: DomainBed under its three methods of model selection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hessalign.bench.sweep.selection import build_tables, find_selection
from hessalign.paper.experiment import Report
from hessalign.paper.method_rows import (
    ByTrial,
    accuracies,
    accuracy_table,
    difference_table,
    make_rows,
    who_wins,
)
from hessalign.paper.published_domainbed import (
    AVERAGE,
    DATASETS,
    TABLE_4,
    TABLE_7,
    TABLE_8,
    PublishedTable,
)
from hessalign.paper.scales import departures, describe_departures, find_scale
from hessalign.paper.sweep_experiment import (
    Part,
    Results,
    SweepExperiment,
    SweepOptions,
    head_specs,
    sweep_folders,
)
from hessalign.paper.sweep_figures import plot_trials

READING = (
    "Model selection: {selection}. Accuracies in percent on the larger part of the test domain, "
    "mean ± standard deviation over trials. A number is reproduced if it differs from the "
    "published one by at most 2 combined standard deviations; the paper prints none for this "
    "table, so ours stands for both. Differences to ERM are those of the same trial, mean ± "
    "standard error over trials."
)
ALL_DATASETS = "All data sets"


def make_experiment(
    name: str, title: str, selection: str, published: PublishedTable
) -> SweepExperiment:
    """A table of DomainBed. All of them read the same runs; leave-one-out needs more of them.

    Args:
        name: Name of the experiment.
        title: What it shows.
        selection: The method of model selection.
        published: The published table.

    Returns:
        The experiment.
    """

    def parts(options: SweepOptions) -> list[Part]:
        scale = find_scale(options.scale)
        entries = {
            "datasets": list(DATASETS),
            "algorithms": list(scale.algorithms or published),
        }
        specs = head_specs(options, entries, [selection])
        return [
            Part(head, "", specs[head], folder) for head, folder in sweep_folders(options, specs)
        ]

    def present(results: Sequence[Results], options: SweepOptions) -> Report:
        texts = [
            READING.format(selection=find_selection(selection).title),
            *describe_departures(departures(results[0].part.spec)),
        ]
        sections: dict[str, dict[str, list[dict[str, Any]]]] = {}
        for each in results:
            title = each.part.head.title
            sections[title] = dataset_rows(each, selection, published)
            texts += [f"## {title.capitalize()}", *head_text(sections[title]), *each.lacking()]
        data = {"scale": options.scale, "selection": selection, "heads": sections}
        panels = {
            f"{title}, {dataset}": rows
            for title, datasets in sections.items()
            for dataset, rows in datasets.items()
        }
        return Report("\n\n".join(texts), data, {name: lambda path: plot_trials(panels, path)})

    return SweepExperiment(name, title, parts, present)


def dataset_rows(
    results: Results, selection: str, published: PublishedTable
) -> dict[str, list[dict[str, Any]]]:
    """The methods on each data set, and on their average if there are several.

    Args:
        results: The runs.
        selection: The method of model selection.
        published: The published table.

    Returns:
        Rows by data set.
    """
    if not results.runs:
        return {}
    comparable = not departures(results.part.spec)
    tables = build_tables(results.runs, [find_selection(selection)])
    found = {table.dataset: accuracies(table) for table in tables if table.dataset is not None}
    missing = results.missing
    sections = {
        dataset: make_rows(
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
        sections[ALL_DATASETS] = make_rows(
            averages, column, comparable=comparable, incomplete=missing
        )
    return sections


def _column(published: PublishedTable, name: str) -> dict[str, float]:
    return {method: row[name] for method, row in published.items() if name in row}


def head_text(sections: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """The tables of one head.

    Args:
        sections: Rows by data set.

    Returns:
        Paragraphs of Markdown.
    """
    texts = []
    for dataset, rows in sections.items():
        parts = [f"### {dataset}", accuracy_table(rows), difference_table(rows), who_wins(rows)]
        texts += [part for part in parts if part]
    return texts or ["No run is finished."]


TABLE_4_EXPERIMENT = make_experiment(
    "table4",
    "Table 4: DomainBed, leave-one-domain-out cross-validation",
    "leave-one-out",
    TABLE_4,
)
TABLE_7_EXPERIMENT = make_experiment(
    "table7",
    "Table 7: DomainBed, training-domain validation set",
    "training-domain",
    TABLE_7,
)
TABLE_8_EXPERIMENT = make_experiment(
    "table8",
    "Table 8: DomainBed, test-domain validation set (oracle)",
    "oracle",
    TABLE_8,
)
