"""Tables of DomainBed: 4, 7 and 8, by its three methods of model selection, and 6.

Table 6 asks which of the two terms helps, on PACS with sketch as the test domain.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Mapping, Sequence
from typing import Any, Final

from hessalign.bench.algorithms import find_algorithm
from hessalign.bench.sweep.selection import Run, Table, build_tables, find_selection
from hessalign.bench.sweep.selection.tables import LEVEL, clear_errors, paired_difference
from hessalign.paper.experiment import Experiment, Finished, Options, Report
from hessalign.paper.figures import Rows, plot_trials
from hessalign.paper.published import (
    AVERAGE,
    DATASETS,
    TABLE_4,
    TABLE_6,
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
from hessalign.report.tables import grouped, markdown_table

_ALL_DATASETS: Final = "All data sets"

_ByTrial = Mapping[int, float]  # accuracies in percent by trial
_Cells = Mapping[str, Mapping[str, _ByTrial]]
"""By algorithm and column, or by what is aligned and algorithm."""


def _selected(runs: Sequence[Run], selection: str) -> dict[str, _Cells]:
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


def _judge(values: Sequence[float], paper: float | None, *, comparable: bool) -> str | None:
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
                "verdict": _judge(values, paper, comparable=comparable),
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
            *(_shown(row["accuracy"][column]) for column in columns),
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
    text = f"**{best['method']} is best on average**: {_shown(best['accuracy'][AVERAGE])}"
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


def _shown(values: _ByTrial | None) -> str:
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
        for dataset, methods in _selected(sweep.runs, selection).items()
        if any(methods.values())
    }
    if len(sections) > 1:
        averages: dict[str, dict[str, _ByTrial]] = {}
        for dataset, rows in sections.items():
            for row in rows:
                averages.setdefault(row["algorithm"], {})[dataset] = row["accuracy"][AVERAGE]
        sections[_ALL_DATASETS] = make_rows(averages, AVERAGE)
    return sections


# --- Table 6 --------------------------------------------------------------------------------------

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


def _make_term_sweeps(options: Options) -> list[Sweep]:
    """Those of Table 6: one for each choice of terms and weights."""
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


def _present_terms(finished: Finished) -> Report:
    """Table 6: accuracies, what each term adds, and a figure."""
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
                _terms_table(cells, comparable=not departed),
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
        (methods,) = _selected(each, _SELECTION).values() or ({},)  # of one data set
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


def _terms_table(cells: _Cells, *, comparable: bool) -> str:
    """Accuracies by terms and algorithm, and the published ones."""
    names = _algorithms(cells)
    rows = []
    for terms, title in _TITLES.items():
        group = cells[terms]
        ours = [_shown(group.get(name)) for name in names]
        if terms == _NEITHER:
            ours[:1] = [_shown(group.get("erm"))] if names else []
        paper = TABLE_6.get(terms)
        judged = _judge(list(group.get(_PUBLISHED, {}).values()), paper, comparable=comparable)
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


_WHAT: Final = "Table 6: which term helps, PACS with test domain sketch"
TABLES_4_6_7_8: Final = (
    _make_table(4, "leave-one-domain-out cross-validation", "leave-one-out", TABLE_4),
    Experiment("table6", _WHAT, _present_terms, sweeps=_make_term_sweeps),
    _make_table(7, "training-domain validation set", "training-domain", TABLE_7),
    _make_table(8, "test-domain validation set (oracle)", "oracle", TABLE_8),
)
