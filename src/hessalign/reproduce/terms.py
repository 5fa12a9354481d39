"""Table 6: which of the two terms helps, on PACS with sketch as the test domain."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from hessalign.algorithms import find_algorithm
from hessalign.report.published_domainbed import TABLE_6
from hessalign.report.sweep_figures import plot_trials
from hessalign.report.tables import markdown_table
from hessalign.reproduce.experiment import Report
from hessalign.reproduce.method_rows import NOT_COMPARABLE, ByTrial, accuracies
from hessalign.reproduce.paired import paired_difference
from hessalign.reproduce.scales import Head, departures, describe_departures, find_scale
from hessalign.reproduce.sweep_experiment import (
    Part,
    Results,
    SweepExperiment,
    SweepOptions,
    head_specs,
    sweep_folders,
)
from hessalign.reproduce.verdict import measured, verdict
from hessalign.selection import Run, build_tables, find_selection
from hessalign.sweep import SweepSpec

WEIGHT: Final = 1e-5
"""The published α and β."""

SELECTION: Final = "training-domain"
"""Of steps and, where there are several draws, of weights; the paper does not say."""

PUBLISHED: Final = "hutchinson"
"""The algorithm of the published ablation."""

ALGORITHMS: Final = (PUBLISHED, "diagonal", "full")
NEITHER: Final = "neither"
TITLES: Final = {
    "both": "Hessian and gradient",
    "gradient": "gradient only",
    "hessian": "Hessian only",
    NEITHER: "neither (ERM)",
}
READING = (
    "Test domain sketch of PACS. Accuracies in percent on its larger part, at the step that "
    "training-domain validation selects; mean ± standard deviation over trials. Without the "
    "Hessian term the algorithms are the same, so it is run once."
)


@final
@dataclass(frozen=True)
class Weights:
    """How the terms are weighed.

    Attributes:
        name: For the names of sweeps.
        title: For people.
        values: α and β that are set; without any they are drawn.
    """

    name: str
    title: str
    values: Mapping[str, float]

    def overrides(self, terms: str) -> dict[str, float]:
        """The hyper-parameters that ask for some of the terms.

        Args:
            terms: "both", "gradient" or "hessian".

        Returns:
            Values by name.

        Example:
            >>> SEARCHED.overrides("gradient"), AS_PUBLISHED.overrides("hessian")
            ({'alpha': 0.0}, {'alpha': 1e-05, 'beta': 0.0})
        """
        absent = {"gradient": {"alpha": 0.0}, "hessian": {"beta": 0.0}}
        return {**self.values, **absent.get(terms, {})}


AS_PUBLISHED: Final = Weights(
    "published", "α = β = 1e-5, as published", {"alpha": WEIGHT, "beta": WEIGHT}
)
SEARCHED: Final = Weights(
    "searched", "α and β drawn from the ranges for features, chosen by training domains", {}
)


def make_parts(options: SweepOptions) -> list[Part]:
    """The sweeps: one for each choice of terms and weights.

    At the small size weights are also drawn from ranges in which they matter, since those that were
    published carry the units of another network. The sweep with both terms drawn has the runs of
    Table 7, and its folder; those of the others are named after it.

    Args:
        options: How to reproduce.

    Returns:
        The sweeps.
    """
    scale = find_scale(options.scale)
    entries = {
        "datasets": ["PACS"],
        "algorithms": ["erm", *(ALGORITHMS if scale.features else (PUBLISHED,))],
        "test_domains": ["sketch"],
    }
    specs = head_specs(options, entries, [SELECTION])
    parts = []
    for head, folder in sweep_folders(options, specs):
        base = specs[head] if scale.features else dataclasses.replace(specs[head], draws=1)
        parts.append(Part(head, f"{SEARCHED.name} both", base, folder))
        if not scale.features:  # of the sweep as it is, ERM alone is wanted
            spec = dataclasses.replace(base, algorithms=("erm",))
            parts[-1] = dataclasses.replace(parts[-1], spec=spec)
        choices = [(AS_PUBLISHED, terms) for terms in TABLE_6]
        if scale.features:
            choices += [(SEARCHED, "gradient"), (SEARCHED, "hessian")]
        parts += [_variant(head, base, folder, weights, terms) for weights, terms in choices]
    return parts


def _variant(head: Head, base: SweepSpec, folder: Path, weights: Weights, terms: str) -> Part:
    wanted = [name for name in base.algorithms if name != "erm"]
    if terms == "gradient":
        wanted = [name for name in wanted if name == PUBLISHED]
    spec = dataclasses.replace(
        base,
        algorithms=tuple(wanted),
        draws=base.draws if weights is SEARCHED else 1,
        overrides={**base.overrides, **weights.overrides(terms)},
    )
    name = f"{folder.name}-{weights.name}-{terms}"
    return Part(head, f"{weights.name} {terms}", spec, folder.with_name(name))


def present(results: Sequence[Results], options: SweepOptions) -> Report:
    """The report.

    Args:
        results: The runs of all sweeps.
        options: How they were asked for.

    Returns:
        Tables of accuracies, of what each term adds, and a figure.
    """
    published = next(each for each in results if each.part.setting.startswith(AS_PUBLISHED.name))
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
            cells = _cells(group, weights)
            sections[head.title][weights.name] = cells
            texts += [
                f"### {weights.title}",
                accuracy_table(cells, comparable=not found),
                gain_table(cells),
            ]
            panels[f"{head.title}, {weights.name} weights"] = _panel(cells)
        texts += [line for each in group.values() for line in each.lacking()]
    data = {"scale": options.scale, "published": TABLE_6, "heads": sections}
    figures = {"table6": lambda path: plot_trials(panels, path)}
    return Report("\n\n".join(texts), data, figures)


def _cells(group: Mapping[str, Results], weights: Weights) -> dict[str, dict[str, ByTrial]]:
    """Accuracies by terms and algorithm."""
    both = group[f"{SEARCHED.name} both"].runs
    erm = [run for run in both if run.key.algorithm == "ERM"]
    if weights is AS_PUBLISHED:  # which has the default hyper-parameters only
        erm = [run for run in erm if run.key.hparams_seed == 0]
    cells = {}
    for terms in TABLE_6:
        results = group.get(f"{weights.name} {terms}")
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
