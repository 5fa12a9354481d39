"""Table 6: which of the two terms helps, on PACS with sketch as the test domain."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from hessalign.bench.algorithms import find_algorithm
from hessalign.bench.sweep.selection import Run, build_tables, find_selection
from hessalign.bench.sweep.selection.differences import paired_difference
from hessalign.paper.domainbed import ByTrial, judge, selected, shown
from hessalign.paper.experiment import Experiment, Finished, Options, Report
from hessalign.paper.figures import plot_trials
from hessalign.paper.published import TABLE_6, or_dash
from hessalign.paper.sweeps import Sweep, departures, disclaimer, find_scale, head_sweeps
from hessalign.report.tables import grouped, markdown_table

_SELECTION: Final = "training-domain"
"""Of steps and, where there are several draws, of weights; the paper does not say."""

_PUBLISHED: Final = "hutchinson"  # the algorithm of the published ablation
_ALGORITHMS: Final = (_PUBLISHED, "diagonal", "full")
_TERMS: Final[Mapping[str, Mapping[str, float]]] = {
    "both": {},
    "gradient": {"alpha": 0.0},
    "hessian": {"beta": 0.0},
}
"""Which terms are aligned, and the weights without which the others are not."""
_NEITHER: Final = "neither"
_TITLES: Final = {
    "both": "Hessian and gradient",
    "gradient": "gradient only",
    "hessian": "Hessian only",
    _NEITHER: "neither (ERM)",
}
_WEIGHTS: Final[Mapping[str, Mapping[str, float]]] = {
    "published": {"alpha": 1e-5, "beta": 1e-5},
    "searched": {},
}
"""How the terms are weighed: α and β that are set; without any they are drawn."""
_WEIGHT_TITLES: Final = {
    "published": "α = β = 1e-5, as published",
    "searched": (
        "α and β by default or drawn from the ranges for features, chosen by training domains"
    ),
}
_SYMBOLS: Final = {"α": "penalty_alpha", "β": "penalty_beta"}
"""The weights, with their names in records."""

_Cells = Mapping[str, Mapping[str, ByTrial]]  # accuracies by terms, algorithm and trial


def _make_sweeps(options: Options) -> list[Sweep]:
    """The sweeps: one for each choice of terms and weights."""
    features = find_scale(options.scale).features
    entries = {
        "datasets": ["PACS"],
        "algorithms": ["erm", *(_ALGORITHMS if features else (_PUBLISHED,))],
        "test_domains": ["sketch"],
    }
    # At the small size weights are also drawn from ranges in which they matter, since those that
    # were published carry the units of another network. The sweep with both terms drawn has the
    # runs of Table 7, and its folder; those of the others are named after it.
    settings = [("published", terms) for terms in _TERMS]
    if features:
        settings += [("searched", "gradient"), ("searched", "hessian")]
    found = []
    for sweep in head_sweeps(options, entries, _SELECTION):
        base = whole = sweep.spec
        if not features:  # of the sweep as it is, ERM alone is wanted
            base = dataclasses.replace(whole, draws=1)
            whole = dataclasses.replace(base, algorithms=("erm",))
        found.append(dataclasses.replace(sweep, setting="searched both", spec=whole))
        for weights, terms in settings:
            wanted = [name for name in base.algorithms if name != "erm"]
            if terms == "gradient":
                wanted = [name for name in wanted if name == _PUBLISHED]
            spec = dataclasses.replace(
                base,
                algorithms=tuple(wanted),
                draws=base.draws if weights == "searched" else 1,
                overrides={**base.overrides, **_WEIGHTS[weights], **_TERMS[terms]},
            )
            folder = sweep.folder.with_name(f"{sweep.folder.name}-{weights}-{terms}")
            found.append(Sweep(sweep.head, f"{weights} {terms}", spec, folder))
    return found


def _present(finished: Finished) -> Report:
    """Tables of accuracies, of what each term adds, and a figure."""
    sweeps, scale = finished.sweeps, finished.options.scale
    published = next(each for each in sweeps if each.setting == "published both")
    departed = departures(published.spec, draws=1)
    texts = disclaimer(departed)
    sections: dict[str, dict[str, _Cells]] = {}
    panels: dict[str, list[dict[str, Any]]] = {}
    for head, of_head in grouped(sweeps, lambda sweep: sweep.head).items():
        group = {sweep.setting: sweep for sweep in of_head}
        texts.append(f"## {head.title.capitalize()}")
        sections[head.title] = {}
        for weights in _WEIGHTS if find_scale(scale).features else ("published",):
            cells = _accuracies_by_terms(group, weights)
            sections[head.title][weights] = cells
            draws = group[f"{weights} both"].spec.draws
            texts += [
                f"### {_WEIGHT_TITLES[weights]}" + (f" ({draws} draws)" if draws > 1 else ""),
                _accuracy_table(cells, comparable=not departed),
                _gain_table(cells),
                *(_chosen_weights(group) if weights == "searched" else ()),
            ]
            panels[f"{head.title}, {weights} weights"] = _panel(cells)
        texts += [f"{name}: {line}" for name, each in group.items() for line in each.lacking()]
    data = {"scale": scale, "published": TABLE_6, "heads": sections}
    figures = {"table6": lambda path: plot_trials(panels, path)}
    return Report(texts, data, figures)


def _accuracies_by_terms(group: Mapping[str, Sweep], weights: str) -> _Cells:
    """Selected accuracies by terms, algorithm and trial; ERM stands for neither."""
    erm = [run for run in group["searched both"].runs if run.key.algorithm == "ERM"]
    if weights == "published":  # which has the default hyper-parameters only
        erm = [run for run in erm if run.key.hparams_seed == 0]
    runs = {terms: _aligned(group[f"{weights} {terms}"]) for terms in _TERMS}
    cells = {}
    for terms, each in {**runs, _NEITHER: erm}.items():
        (methods,) = selected(each, _SELECTION).values() or ({},)  # of one data set
        cells[terms] = {name: x for name, domains in methods.items() for x in domains.values()}
    return cells


def _aligned(sweep: Sweep) -> list[Run]:
    return [run for run in sweep.runs if run.key.algorithm != "ERM"]


def _chosen_weights(group: Mapping[str, Sweep]) -> list[str]:
    """Nothing, or a paragraph on which weights were selected where they were drawn."""
    texts = []
    for terms in _TERMS:
        runs = _aligned(group[f"searched {terms}"])
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


def _algorithms(cells: _Cells) -> list[str]:
    found = dict.fromkeys(name for group in cells.values() for name in group if name != "erm")
    return sorted(found, key=lambda name: name != _PUBLISHED)


def _accuracy_table(cells: _Cells, *, comparable: bool) -> str:
    """Accuracies by terms and algorithm, and the published ones."""
    names = _algorithms(cells)
    rows = []
    for terms, title in _TITLES.items():
        group = cells[terms]
        ours = [shown(group.get(name)) for name in names]
        if terms == _NEITHER:
            ours[:1] = [shown(group.get("erm"))] if names else []
        paper = TABLE_6.get(terms)
        judged = judge(list(group.get(_PUBLISHED, {}).values()), paper, comparable=comparable)
        words = ["–", "–"] if paper is None else [f"{paper}", judged or "not comparable"]
        rows.append([title, *ours, *words])
    titles = [find_algorithm(name).title for name in names]
    return markdown_table(["aligned", *titles, "published (Hutchinson)", "verdict"], rows)


_GAINS: Final = (
    ("the Hessian term, beside the gradient", "both", "gradient"),
    ("the gradient term, beside the Hessian", "both", "hessian"),
    ("the Hessian rather than the gradient", "hessian", "gradient"),
    ("both, over ERM", "both", _NEITHER),
)
"""What is compared: title, and which terms against which."""


def _gain_table(cells: _Cells) -> str:
    """What each term adds in the same trials, mean ± standard error."""
    names = _algorithms(cells)
    shared = {"gradient": _PUBLISHED, _NEITHER: "erm"}
    rows = []
    for title, more, less in _GAINS:
        gains = []
        for name in names:
            first = cells[more].get(shared.get(more, name), {})
            second = cells[less].get(shared.get(less, name), {})
            gains.append(or_dash(paired_difference(first, second)))
        paper = f"{TABLE_6[more] - TABLE_6[less]:+.1f}" if less in TABLE_6 else "–"
        rows.append([title, *gains, paper])
    titles = [find_algorithm(name).title for name in names]
    return markdown_table(["gain by", *titles, "published (Hutchinson)"], rows)


def _panel(cells: _Cells) -> list[dict[str, Any]]:
    return [
        {
            "method": "ERM" if name == "erm" else f"{find_algorithm(name).title}: {_TITLES[terms]}",
            "algorithm": name,
            "values": list(values.values()),
            "published": TABLE_6.get(terms) if name == _PUBLISHED else None,
        }
        for terms, group in cells.items()
        for name, values in group.items()
    ]


_TITLE: Final = "Table 6: which term helps, PACS with test domain sketch"
TABLE_6_EXPERIMENT: Final = Experiment("table6", _TITLE, _present, sweeps=_make_sweeps)
