"""Table 6: which of the two terms helps, on PACS with sketch as the test domain."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from hessalign.bench.algorithms import find_algorithm
from hessalign.bench.sweep import SweepSpec
from hessalign.bench.sweep.selection import Run, build_tables, find_selection
from hessalign.paper.domainbed import NOT_COMPARABLE, ByTrial, accuracies
from hessalign.paper.experiment import Experiment, Finished, Options, Report
from hessalign.paper.figures import plot_trials
from hessalign.paper.published import TABLE_6, measured, paired_difference, verdict
from hessalign.paper.sweeps import (
    Head,
    Results,
    Sweep,
    departures,
    describe_departures,
    find_scale,
    head_specs,
    sweep_folders,
)
from hessalign.report.tables import markdown_table

_WEIGHT: Final = 1e-5
"""The published α and β."""

_SELECTION: Final = "training-domain"
"""Of steps and, where there are several draws, of weights; the paper does not say."""

_PUBLISHED: Final = "hutchinson"
"""The algorithm of the published ablation."""

_ALGORITHMS: Final = (_PUBLISHED, "diagonal", "full")
_TERMS: Final = ("both", "gradient", "hessian")
_NEITHER: Final = "neither"
_TITLES: Final = {
    "both": "Hessian and gradient",
    "gradient": "gradient only",
    "hessian": "Hessian only",
    _NEITHER: "neither (ERM)",
}
_SYMBOLS: Final = {"α": "penalty_alpha", "β": "penalty_beta"}
"""The weights, with their names in records."""

_READING: Final = (
    "Test domain sketch of PACS. Accuracies in percent on its larger part, at the step that "
    "training-domain validation selects; mean ± standard deviation over trials. Without the "
    "Hessian term the algorithms are the same, so it is run once. Gains are those of the same "
    "trial, mean ± standard error over trials; Hutchinson's gradient-only runs and ERM stand for "
    "all."
)


@final
@dataclass(frozen=True)
class _Weights:
    """How the terms are weighed.

    Attributes:
        name: For the names of sweeps.
        title: For people.
        values: α and β that are set; without any they are drawn.
    """

    name: str
    title: str
    values: Mapping[str, float]

    def setting(self, terms: str) -> str:
        """What the sweep of some of the terms is called."""
        return f"{self.name} {terms}"

    def overrides(self, terms: str) -> dict[str, float]:
        """The hyper-parameters that ask for some of the terms: "both", "gradient" or "hessian".

        Returns:
            Values by name.

        Example:
            >>> _SEARCHED.overrides("gradient"), _AS_PUBLISHED.overrides("hessian")
            ({'alpha': 0.0}, {'alpha': 1e-05, 'beta': 0.0})
        """
        absent = {"gradient": {"alpha": 0.0}, "hessian": {"beta": 0.0}}
        return {**self.values, **absent.get(terms, {})}


_AS_PUBLISHED: Final = _Weights(
    "published", "α = β = 1e-5, as published", {"alpha": _WEIGHT, "beta": _WEIGHT}
)
_SEARCHED: Final = _Weights(
    "searched",
    "α and β by default or drawn from the ranges for features, chosen by training domains",
    {},
)


def _make_sweeps(options: Options) -> list[Sweep]:
    """The sweeps: one for each choice of terms and weights.

    At the small size weights are also drawn from ranges in which they matter, since those that were
    published carry the units of another network. The sweep with both terms drawn has the runs of
    Table 7, and its folder; those of the others are named after it.

    Returns:
        The sweeps.
    """
    scale = find_scale(options.scale)
    entries = {
        "datasets": ["PACS"],
        "algorithms": ["erm", *(_ALGORITHMS if scale.features else (_PUBLISHED,))],
        "test_domains": ["sketch"],
    }
    specs = head_specs(options, entries, [_SELECTION])
    found = []
    for head, folder in sweep_folders(options, specs):
        base = specs[head] if scale.features else dataclasses.replace(specs[head], draws=1)
        found.append(Sweep(head, _SEARCHED.setting("both"), base, folder))
        if not scale.features:  # of the sweep as it is, ERM alone is wanted
            spec = dataclasses.replace(base, algorithms=("erm",))
            found[-1] = dataclasses.replace(found[-1], spec=spec)
        choices = [(_AS_PUBLISHED, terms) for terms in _TERMS]
        if scale.features:
            choices += [(_SEARCHED, "gradient"), (_SEARCHED, "hessian")]
        found += [_variant(head, base, folder, weights, terms) for weights, terms in choices]
    return found


def _variant(head: Head, base: SweepSpec, folder: Path, weights: _Weights, terms: str) -> Sweep:
    wanted = [name for name in base.algorithms if name != "erm"]
    if terms == "gradient":
        wanted = [name for name in wanted if name == _PUBLISHED]
    spec = dataclasses.replace(
        base,
        algorithms=tuple(wanted),
        draws=base.draws if weights is _SEARCHED else 1,
        overrides={**base.overrides, **weights.overrides(terms)},
    )
    name = f"{folder.name}-{weights.name}-{terms}"
    return Sweep(head, weights.setting(terms), spec, folder.with_name(name))


def _present(finished: Finished, options: Options) -> Report:
    """Tables of accuracies, of what each term adds, and a figure."""
    results = finished.sweeps
    published = next(
        each for each in results if each.sweep.setting == _AS_PUBLISHED.setting("both")
    )
    found = departures(published.sweep.spec, draws=1)
    texts = [_READING, *describe_departures(found)]
    sections: dict[str, dict[str, dict[str, dict[str, ByTrial]]]] = {}
    panels: dict[str, list[dict[str, Any]]] = {}
    scale = find_scale(options.scale)
    for head in dict.fromkeys(each.sweep.head for each in results):
        group = {each.sweep.setting: each for each in results if each.sweep.head is head}
        texts.append(f"## {head.title.capitalize()}")
        sections[head.title] = {}
        for weights in (_AS_PUBLISHED, *((_SEARCHED,) if scale.features else ())):
            cells = _accuracies_by_terms(group, weights)
            sections[head.title][weights.name] = cells
            draws = group[weights.setting("both")].sweep.spec.draws
            texts += [
                f"### {weights.title}" + (f" ({draws} draws)" if draws > 1 else ""),
                _accuracy_table(cells, comparable=not found),
                _gain_table(cells),
                *_chosen_weights(group, weights),
            ]
            panels[f"{head.title}, {weights.name} weights"] = _panel(cells)
        texts += [f"{name}: {line}" for name, each in group.items() for line in each.lacking()]
    data = {"scale": options.scale, "published": TABLE_6, "heads": sections}
    figures = {"table6": lambda path: plot_trials(panels, path)}
    return Report("\n\n".join(texts), data, figures)


def _accuracies_by_terms(
    group: Mapping[str, Results], weights: _Weights
) -> dict[str, dict[str, ByTrial]]:
    """Selected accuracies by terms, algorithm and trial; ERM stands for neither."""
    both = group[_SEARCHED.setting("both")].runs
    erm = [run for run in both if run.key.algorithm == "ERM"]
    if weights is _AS_PUBLISHED:  # which has the default hyper-parameters only
        erm = [run for run in erm if run.key.hparams_seed == 0]
    cells = {}
    for terms in TABLE_6:
        results = group.get(weights.setting(terms))
        runs = [] if results is None else results.runs
        cells[terms] = _selected([run for run in runs if run.key.algorithm != "ERM"])
    return {**cells, _NEITHER: _selected(erm)}


def _selected(runs: Sequence[Run]) -> dict[str, ByTrial]:
    """The selected accuracies on the one test domain, by algorithm and trial."""
    if not runs:
        return {}
    table, _ = build_tables(runs, [find_selection(_SELECTION)])
    found = accuracies(table)
    return {name: values for name, domains in found.items() for values in domains.values()}


def _chosen_weights(group: Mapping[str, Results], weights: _Weights) -> list[str]:
    """Nothing, or a paragraph on which weights were selected where they were drawn."""
    if weights is not _SEARCHED:
        return []
    texts = []
    for terms in _TERMS:
        runs = [run for run in group[weights.setting(terms)].runs if run.key.algorithm != "ERM"]
        for row in build_tables(runs, [find_selection(_SELECTION)])[0].rows if runs else ():
            pairs = [
                ", ".join(
                    f"{symbol} {candidate.run.hparams[name]:.1g}"
                    for symbol, name in _SYMBOLS.items()
                    if candidate.run.hparams[name]
                )
                for cell in row.cells
                for candidate in cell.chosen
            ]
            title = find_algorithm(row.algorithm).title
            texts.append(f"{title}, {_TITLES[terms]}: {'; '.join(pairs)}")
    return [f"Weights chosen, by trial. {'. '.join(texts)}."] if texts else []


def _algorithms(cells: Mapping[str, Mapping[str, ByTrial]]) -> list[str]:
    found = dict.fromkeys(name for group in cells.values() for name in group if name != "erm")
    return sorted(found, key=lambda name: name != _PUBLISHED)


def _accuracy_table(cells: Mapping[str, Mapping[str, ByTrial]], *, comparable: bool) -> str:
    """Accuracies by terms and algorithm, and the published ones."""
    names = _algorithms(cells)
    rows = []
    for terms, title in _TITLES.items():
        group = cells[terms]
        shown = [_shown(group.get("erm" if terms == _NEITHER else name)) for name in names]
        if terms == _NEITHER:
            shown[1:] = ["–"] * (len(shown) - 1)
        paper = TABLE_6.get(terms)
        ours = group.get(_PUBLISHED)
        judged = NOT_COMPARABLE
        if comparable and paper is not None and ours:
            summary = measured(list(ours.values()))
            judged = verdict(summary, paper, summary.std)
        rows.append([title, *shown, *(["–", "–"] if paper is None else [f"{paper}", judged])])
    titles = [find_algorithm(name).title for name in names]
    return markdown_table(["aligned", *titles, "published (Hutchinson)", "verdict"], rows)


_GAINS: Final = (
    ("the Hessian term, beside the gradient", "both", "gradient"),
    ("the gradient term, beside the Hessian", "both", "hessian"),
    ("the Hessian rather than the gradient", "hessian", "gradient"),
    ("both, over ERM", "both", _NEITHER),
)
"""What is compared: title, and which terms against which."""


def _gain_table(cells: Mapping[str, Mapping[str, ByTrial]]) -> str:
    """What each term adds in the same trials, mean ± standard error."""
    names = _algorithms(cells)
    shared = {"gradient": _PUBLISHED, _NEITHER: "erm"}
    rows = []
    for title, more, less in _GAINS:
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
            "method": f"{find_algorithm(name).title}: {_TITLES[terms]}"
            if terms != _NEITHER
            else "ERM",
            "algorithm": name,
            "values": list(values.values()),
            "published": TABLE_6.get(terms) if name == _PUBLISHED else None,
        }
        for terms, group in cells.items()
        for name, values in group.items()
    ]


def _shown(values: ByTrial | None) -> str:
    return str(measured(list(values.values()))) if values else "–"


TABLE_6_EXPERIMENT: Final = Experiment(
    "table6",
    "Table 6: which term helps, PACS with test domain sketch",
    _present,
    sweeps=_make_sweeps,
)
