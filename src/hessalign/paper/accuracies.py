"""Tables of accuracies: 2, 3, 9 and 10.

Each restart of a row is a finished run, or what this table or another has written about the same
run before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final, final

from hessalign._errors import InputError
from hessalign._files import parse_json
from hessalign.bench.algorithms import ALGORITHMS
from hessalign.bench.data.colored_mnist import Imbalance
from hessalign.bench.runs import Run
from hessalign.paper.changed_images import slope
from hessalign.paper.experiment import (
    IMBALANCED,
    Experiment,
    Finished,
    FinishedRun,
    Method,
    Options,
    Report,
    comparison,
    paper_six,
    reading,
)
from hessalign.paper.figures import plot_accuracies
from hessalign.paper.published import TABLE_2, TABLE_3, Accuracy, measured, verdict
from hessalign.report.tables import grouped, markdown_table

_HEADER: Final = (
    *("method", "train", "OOD test", "slope", "‖H₁ − H₂‖"),
    *("published train", "published OOD", "difference", "verdict"),
)
_ALSO_KEPT: Final = ("hessian_distance", "train_loss", "test_loss")
_PER_RUN: Final = ("train", "test", "slope", *_ALSO_KEPT)  # what a row keeps of each of its runs
_NAMES: Final = ("table2", "table3", "table9", "table10")
_TAKEN_FROM: Final = "taken_from"


@final
@dataclass(frozen=True)
class _Restart:
    """What a table keeps of one run."""

    seed: int
    values: Mapping[str, float]
    source: Mapping[str, Any] | None = None
    """Where they were written: "result", "command" and "software"; None for a run."""


def _measure_restart(run: FinishedRun) -> _Restart:
    """What a table keeps of a finished run."""
    found = run.final
    values = {
        "train": 100 * found["train_accuracy"],
        "test": 100 * found["test_accuracy"],
        "slope": slope(run.load()),
    }
    return _Restart(run.job.trial_seed, {**values, **{name: found[name] for name in _ALSO_KEPT}})


def _row(
    method: Method, restarts: Sequence[_Restart], published: Mapping[str, Accuracy]
) -> dict[str, Any]:
    """One method's numbers."""
    values = {name: [each.values[name] for each in restarts] for name in _PER_RUN}
    seeds = [each.seed for each in restarts]
    entry = method.entry(options=dict(method.options), runs=len(restarts), seeds=seeds, **values)
    ours = {part: measured(values[part]) for part in ("train", "test")}
    for part, found in ours.items():
        entry |= {f"{part}_mean": found.mean, f"{part}_std": found.std}
    paper = published.get(method.published or method.algorithm)
    if paper is not None:
        entry |= {"published": paper, "difference": ours["test"].mean - paper.test}
        entry["train_verdict"] = verdict(ours["train"], paper.train, paper.train_std)
        entry["test_verdict"] = verdict(ours["test"], paper.test, paper.test_std)
    sources: dict[str, dict[str, Any]] = {}
    for each in restarts:
        if each.source is not None:
            key = json.dumps(each.source, sort_keys=True)
            sources.setdefault(key, {**each.source, "seeds": []})["seeds"].append(each.seed)
    return {**entry, _TAKEN_FROM: list(sources.values())} if sources else entry


_Written = tuple[str, Mapping[str, object], _Restart]  # algorithm, options, and a restart


def _written_restarts(name: str, heading: str, options: Options) -> Iterator[_Written]:
    """What tables have written about the same data by the same protocol."""
    if options.written is None:
        return
    for table in sorted(_NAMES, key=lambda each: each != name):
        content = _read_written(options.written / table / f"{table}.json")
        if content.get("overrides") != dict(options.entries):
            continue
        place = f"{options.written.resolve().name}/{table}"
        source = {"result": place, "command": content["command"], "software": content["software"]}
        for entry in content["versions"].get(heading, []):
            taken = _sources(entry)
            for number, seed in enumerate(entry["seeds"]):
                origin = taken.get(seed, source)
                # What a table took from another is passed over, since it stands there; what it took
                # from an earlier version of itself stands nowhere else.
                if origin["result"] == place and seed in options.seeds:
                    values = {key: entry[key][number] for key in _PER_RUN}
                    yield entry["algorithm"], entry["options"], _Restart(seed, values, origin)


def _sources(entry: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """Where the restarts of a written row were taken from, by seed; one source may be for all."""
    found = entry.get(_TAKEN_FROM, [])
    found = [{**found, "seeds": entry["seeds"]}] if isinstance(found, dict) else found
    return {
        seed: {key: value for key, value in each.items() if key != "seeds"}
        for each in found
        for seed in each["seeds"]
    }


def _read_written(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        content: dict[str, Any] = parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(
            f"Expected the numbers of a table in {path}, found {error}. Have it written again, or "
            "delete it."
        ) from error
    return content


def _cells(entry: Mapping[str, Any]) -> list[str]:
    """A row as text, one for each column."""
    title: str = entry["method"]
    taken: dict[str, list[int]] = {}
    for source in entry.get(_TAKEN_FROM, ()):  # several commands may have written one result
        taken.setdefault(source["result"], []).extend(source["seeds"])
    for result, seeds in taken.items():
        which = ", ".join(map(str, sorted(seeds)))
        part = f"seed{'s' * (len(seeds) > 1)} {which} " if len(seeds) < entry["runs"] else ""
        title += f", *{part}from {result}*"
    ours = [
        title,
        *(str(measured(entry[name])) for name in ("train", "test")),
        measured(entry["slope"]).show("+.1f", ".1f"),
        measured(entry["hessian_distance"]).show(".4f", ".4f"),
    ]
    if "published" not in entry:
        return [*ours, "–", "–", "–", "–"]
    train, test = entry["train_verdict"], entry["test_verdict"]
    together = train if train == test else f"train {train}; OOD {test}"
    return [*ours, *entry["published"].cells, f"{entry['difference']:+.1f}", together]


def _make_table(
    number: int,
    words: str,
    versions: Mapping[str, Imbalance | None],
    methods: Callable[[Imbalance | None], Sequence[Method]],
    published: Mapping[str, Accuracy],
) -> Experiment:
    """A table of accuracies: versions of the data by title, and the rows on each."""
    name, title = f"table{number}", f"Table {number}: {words}"
    rows = {version: methods(version) for version in versions.values()}

    def present(finished: Finished) -> Report:
        options = finished.options
        facts = {"restarts": options.restarts, "first": options.seeds[0], "last": options.seeds[-1]}
        texts: list[str] = []
        found: dict[str, list[dict[str, Any]]] = {}
        for heading, version in versions.items():
            written = list(_written_restarts(name, heading, options))
            entries = found[heading] = []
            lacking = []
            for method in rows[version]:
                restarts = _restarts(method, finished(method, version), written)
                if restarts:
                    entries.append(_row(method, restarts, published))
                if len(restarts) < options.restarts:
                    lacking.append(f"{method.title} {len(restarts)}")
            table = markdown_table(_HEADER, [_cells(entry) for entry in entries])
            texts.append(f"## {heading}\n\n{table}" if len(versions) > 1 else table)
            sources = [each for entry in entries for each in entry.get(_TAKEN_FROM, ())]
            texts += dict.fromkeys(reading("taken", **source) for source in sources)
            if lacking:
                wanted = f"Not all of the {options.restarts} restarts are finished"
                texts.append(f"{wanted}: {', '.join(lacking)}.")
        data = {"overrides": dict(options.entries), "versions": found}
        figures = {name: lambda path: plot_accuracies(found, path)}
        return Report(texts, data, figures, facts)

    return Experiment(name, title, present, rows)


def _restarts(
    method: Method, runs: Sequence[FinishedRun], written: Sequence[_Written]
) -> list[_Restart]:
    """The restarts of a row by seed: finished runs, and for other seeds what was written."""
    found = {run.job.trial_seed: _measure_restart(run) for run in runs}
    for algorithm, options, restart in written:
        if (algorithm, options) == (method.algorithm, dict(method.options)):
            found.setdefault(restart.seed, restart)
    return [found[seed] for seed in sorted(found)]


def accuracy_table(runs: Sequence[Run], published: Mapping[str, Accuracy]) -> str:
    """Final accuracies of runs by algorithm, the paper's beside ours."""
    rows = [
        [
            ALGORITHMS[name].title,
            str(measured([100 * run.final["train_accuracy"] for run in group])),
            str(measured([100 * run.final["test_accuracy"] for run in group])),
            *(published[name].cells if name in published else ("–", "–")),
            f"{fmean(run.records[-1].seconds for run in group):.0f} s",
        ]
        for name, group in grouped(runs, lambda run: run.plan.info.name).items()
    ]
    header = ["method", "train", "OOD test", "paper train", "paper OOD test", "time"]
    return markdown_table(header, rows)


def _ablation(imbalance: Imbalance | None) -> tuple[Method, ...]:
    """The rows of Tables 9 and 10."""
    *others, sampled = paper_six(imbalance)
    options = {**sampled.options, "beta": 0.0}
    return (
        *others,
        Method("Gradient only (α = 0)", "gradient"),
        Method("HGP (β = 0)", "hgp", {"beta": 0.0}, "hgp_beta_0"),
        sampled,
        Method("Hutchinson (β = 0)", "hutchinson", options, "hutchinson_beta_0"),
    )


_ABLATED: Final = "ablation of α and β on"
_BALANCED: Final[Mapping[str, Imbalance | None]] = {"Colored MNIST": None}
TABLES_2_3_9_10: Final = (
    _make_table(2, "Colored MNIST", _BALANCED, comparison, TABLE_2),
    _make_table(3, "imbalanced Colored MNIST", IMBALANCED, comparison, TABLE_3),
    _make_table(9, f"{_ABLATED} Colored MNIST", _BALANCED, _ablation, TABLE_2),
    _make_table(10, f"{_ABLATED} imbalanced Colored MNIST", IMBALANCED, _ablation, TABLE_3),
)
