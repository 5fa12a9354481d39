"""Table 6: its report, of accuracies and of what each term adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from hessalign.bench.algorithms import find_algorithm
from hessalign.bench.sweep.selection import Run, build_tables, find_selection
from hessalign.paper.experiment import Report
from hessalign.paper.method_rows import NOT_COMPARABLE, ByTrial, accuracies
from hessalign.paper.paired import paired_difference
from hessalign.paper.published_domainbed import TABLE_6
from hessalign.paper.scales import departures, describe_departures, find_scale
from hessalign.paper.sweep_experiment import Results, SweepExperiment, SweepOptions
from hessalign.paper.sweep_figures import plot_trials
from hessalign.paper.terms import (
    AS_PUBLISHED,
    PUBLISHED,
    SEARCHED,
    SELECTION,
    TERMS,
    Weights,
    make_parts,
)
from hessalign.paper.verdict import measured, verdict
from hessalign.report.tables import markdown_table

NEITHER: Final = "neither"
TITLES: Final = {
    "both": "Hessian and gradient",
    "gradient": "gradient only",
    "hessian": "Hessian only",
    NEITHER: "neither (ERM)",
}
SYMBOLS: Final = {"α": "penalty_alpha", "β": "penalty_beta"}
"""The weights, with their names in records."""

READING: Final = (
    "Test domain sketch of PACS. Accuracies in percent on its larger part, at the step that "
    "training-domain validation selects; mean ± standard deviation over trials. Without the "
    "Hessian term the algorithms are the same, so it is run once. Gains are those of the same "
    "trial, mean ± standard error over trials; Hutchinson's gradient-only runs and ERM stand for "
    "all."
)


def present(results: Sequence[Results], options: SweepOptions) -> Report:
    """The report.

    Args:
        results: The runs of all sweeps.
        options: How they were asked for.

    Returns:
        Tables of accuracies, of what each term adds, and a figure.
    """
    published = next(each for each in results if each.part.setting == AS_PUBLISHED.setting("both"))
    found = departures(published.part.spec, draws=1)
    texts = [READING, *describe_departures(found)]
    sections: dict[str, dict[str, dict[str, dict[str, ByTrial]]]] = {}
    panels: dict[str, list[dict[str, Any]]] = {}
    scale = find_scale(options.scale)
    for head in dict.fromkeys(each.part.head for each in results):
        group = {each.part.setting: each for each in results if each.part.head is head}
        texts.append(f"## {head.title.capitalize()}")
        sections[head.title] = {}
        for weights in (AS_PUBLISHED, *((SEARCHED,) if scale.features else ())):
            cells = accuracies_by_terms(group, weights)
            sections[head.title][weights.name] = cells
            draws = group[weights.setting("both")].part.spec.draws
            texts += [
                f"### {weights.title}" + (f" ({draws} draws)" if draws > 1 else ""),
                accuracy_table(cells, comparable=not found),
                gain_table(cells),
                *chosen_weights(group, weights),
            ]
            panels[f"{head.title}, {weights.name} weights"] = _panel(cells)
        texts += [f"{name}: {line}" for name, each in group.items() for line in each.lacking()]
    data = {"scale": options.scale, "published": TABLE_6, "heads": sections}
    figures = {"table6": lambda path: plot_trials(panels, path)}
    return Report("\n\n".join(texts), data, figures)


def accuracies_by_terms(
    group: Mapping[str, Results], weights: Weights
) -> dict[str, dict[str, ByTrial]]:
    """Selected accuracies.

    Args:
        group: The results of one head by setting.
        weights: How the terms are weighed.

    Returns:
        By terms, algorithm and trial; ERM stands for neither.
    """
    both = group[SEARCHED.setting("both")].runs
    erm = [run for run in both if run.key.algorithm == "ERM"]
    if weights is AS_PUBLISHED:  # which has the default hyper-parameters only
        erm = [run for run in erm if run.key.hparams_seed == 0]
    cells = {}
    for terms in TABLE_6:
        results = group.get(weights.setting(terms))
        runs = [] if results is None else results.runs
        cells[terms] = selected([run for run in runs if run.key.algorithm != "ERM"])
    return {**cells, NEITHER: selected(erm)}


def selected(runs: Sequence[Run]) -> dict[str, ByTrial]:
    """The selected accuracies on the one test domain.

    Args:
        runs: The runs.

    Returns:
        Accuracies by algorithm and trial.
    """
    if not runs:
        return {}
    table, _ = build_tables(runs, [find_selection(SELECTION)])
    found = accuracies(table)
    return {name: values for name, domains in found.items() for values in domains.values()}


def chosen_weights(group: Mapping[str, Results], weights: Weights) -> list[str]:
    """Say which weights were selected, where they were drawn.

    Args:
        group: The results of one head by setting.
        weights: How the terms are weighed.

    Returns:
        Nothing, or one paragraph.
    """
    if weights is not SEARCHED:
        return []
    texts = []
    for terms in TERMS:
        runs = [run for run in group[weights.setting(terms)].runs if run.key.algorithm != "ERM"]
        for row in build_tables(runs, [find_selection(SELECTION)])[0].rows if runs else ():
            pairs = [
                ", ".join(
                    f"{symbol} {candidate.run.hparams[name]:.1g}"
                    for symbol, name in SYMBOLS.items()
                    if candidate.run.hparams[name]
                )
                for cell in row.cells
                for candidate in cell.chosen
            ]
            title = find_algorithm(row.algorithm).title
            texts.append(f"{title}, {TITLES[terms]}: {'; '.join(pairs)}")
    return [f"Weights chosen, by trial. {'. '.join(texts)}."] if texts else []


def _algorithms(cells: Mapping[str, Mapping[str, ByTrial]]) -> list[str]:
    found = dict.fromkeys(name for group in cells.values() for name in group if name != "erm")
    return sorted(found, key=lambda name: name != PUBLISHED)


def accuracy_table(cells: Mapping[str, Mapping[str, ByTrial]], *, comparable: bool) -> str:
    """Accuracies by terms and algorithm, and the published ones.

    Args:
        cells: Accuracies by terms and algorithm.
        comparable: Whether there is a verdict.

    Returns:
        Markdown.
    """
    names = _algorithms(cells)
    rows = []
    for terms, title in TITLES.items():
        group = cells[terms]
        shown = [_shown(group.get("erm" if terms == NEITHER else name)) for name in names]
        if terms == NEITHER:
            shown[1:] = ["–"] * (len(shown) - 1)
        paper = TABLE_6.get(terms)
        ours = group.get(PUBLISHED)
        judged = NOT_COMPARABLE
        if comparable and paper is not None and ours:
            summary = measured(list(ours.values()))
            judged = verdict(summary, paper, summary.std)
        rows.append([title, *shown, *(["–", "–"] if paper is None else [f"{paper}", judged])])
    titles = [find_algorithm(name).title for name in names]
    return markdown_table(["aligned", *titles, "published (Hutchinson)", "verdict"], rows)


GAINS: Final = (
    ("the Hessian term, beside the gradient", "both", "gradient"),
    ("the gradient term, beside the Hessian", "both", "hessian"),
    ("the Hessian rather than the gradient", "hessian", "gradient"),
    ("both, over ERM", "both", NEITHER),
)
"""What is compared: title, and which terms against which."""


def gain_table(cells: Mapping[str, Mapping[str, ByTrial]]) -> str:
    """What each term adds, in the same trials.

    Args:
        cells: Accuracies by terms and algorithm.

    Returns:
        Markdown: mean ± standard error over trials.
    """
    names = _algorithms(cells)
    shared = {"gradient": PUBLISHED, NEITHER: "erm"}
    rows = []
    for title, more, less in GAINS:
        shown = []
        for name in names:
            first = cells[more].get(shared.get(more, name), {})
            found = paired_difference(first, cells[less].get(shared.get(less, name), {}))
            shown.append("–" if found is None else str(found))
        paper = f"{TABLE_6[more] - TABLE_6[less]:+.1f}" if less in TABLE_6 else "–"
        rows.append([title, *shown, paper])
    titles = [find_algorithm(name).title for name in names]
    return markdown_table(["gain by", *titles, "published (Hutchinson)"], rows)


def _panel(cells: Mapping[str, Mapping[str, ByTrial]]) -> list[dict[str, Any]]:
    return [
        {
            "method": f"{find_algorithm(name).title}: {TITLES[terms]}"
            if terms != NEITHER
            else "ERM",
            "algorithm": name,
            "values": list(values.values()),
            "published": TABLE_6.get(terms) if name == PUBLISHED else None,
        }
        for terms, group in cells.items()
        for name, values in group.items()
    ]


def _shown(values: ByTrial | None) -> str:
    return str(measured(list(values.values()))) if values else "–"


TABLE_6_EXPERIMENT: Final = SweepExperiment(
    "table6", "Table 6: which term helps, PACS with test domain sketch", make_parts, present
)
