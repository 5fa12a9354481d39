"""Tables of accuracies: 2, 3, 9 and 10."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hessalign._errors import InputError
from hessalign.bench.data.colored_mnist import Imbalance
from hessalign.bench.runs import Run
from hessalign.paper.experiment import Experiment, Finished, Method, Options, Report
from hessalign.paper.figures import plot_accuracies
from hessalign.paper.invariance import slope
from hessalign.paper.methods import (
    ERM,
    FISHR,
    GRADIENT,
    HGP,
    IMBALANCED,
    IRM,
    VREX,
    comparison,
    hutchinson,
)
from hessalign.paper.published import TABLE_2, TABLE_3, TABLE_9, TABLE_10, Accuracy
from hessalign.paper.verdict import measured, verdict
from hessalign.report.tables import markdown_table

HEADER = [
    "method",
    "train",
    "OOD test",
    "slope",
    "‖H₁ − H₂‖",
    "published train",
    "published OOD",
    "difference",
    "verdict",
]
ALSO_KEPT = ("hessian_distance", "train_loss", "test_loss")
PER_RUN: Final = ("seeds", "train", "test", "slope", *ALSO_KEPT)
"""What a row keeps of each of its runs."""
NAMES: Final = ("table2", "table3", "table9", "table10")
TAKEN_FROM: Final = "taken_from"
TAKEN: Final = (
    "Rows marked *from {result}* were not run for this table: not all of their runs are in the "
    "cache, and the numbers of each run are those that `{command}` has written there, for the same "
    "algorithm, options, data and seeds."
)
READING = (
    "Accuracies in percent before the last update, mean ± standard deviation over {restarts} "
    "restarts (seeds {first} to {last}); the difference is that of the OOD accuracies. A number is "
    "reproduced if it differs from the published one by at most 2 combined standard deviations, in "
    "training and in OOD accuracy. A predictor that ignores colour reaches 75 in both. The slope "
    "is the rise of the accuracy on unseen images per unit of the correlation of colour and label, "
    "as in the experiment `profile`: 0 if colour is ignored; negative if it is used backwards, "
    "which raises the OOD accuracy. ‖H₁ − H₂‖ is the exact distance between the Hessians of the "
    "training domains at the end."
)


def row(method: Method, runs: Sequence[Run], published: Mapping[str, Accuracy]) -> dict[str, Any]:
    """One method's numbers.

    Args:
        method: The method.
        runs: Its restarts.
        published: The table to compare with.

    Returns:
        Plain values.
    """
    values = {
        "seeds": [run.config.seed for run in runs],
        "train": [100 * run.final["train_accuracy"] for run in runs],
        "test": [100 * run.final["test_accuracy"] for run in runs],
        "slope": [slope(run) for run in runs],
        **{name: [run.final[name] for run in runs] for name in ALSO_KEPT},
    }
    return _judged(method, values, published)


def _judged(
    method: Method, values: Mapping[str, Any], published: Mapping[str, Accuracy]
) -> dict[str, Any]:
    """A row from what is kept of its runs."""
    train, test = measured(values["train"]), measured(values["test"])
    entry: dict[str, Any] = {
        "method": method.title,
        "algorithm": method.algorithm,
        "options": dict(method.options),
        "runs": len(values["seeds"]),
        **values,
        "train_mean": train.mean,
        "train_std": train.std,
        "test_mean": test.mean,
        "test_std": test.std,
    }
    paper = published.get(method.published or "")
    if paper is not None:
        verdicts = {
            "train_verdict": verdict(train, paper.train, paper.train_std),
            "test_verdict": verdict(test, paper.test, paper.test_std),
        }
        entry |= {"published": paper._asdict(), "difference": test.mean - paper.test, **verdicts}
    return entry


def written_rows(name: str, heading: str, options: Options) -> list[dict[str, Any]]:
    """What other tables have written about the same data by the same protocol.

    Args:
        name: The table that wants to know.
        heading: The version of the data.
        options: Where results are, and how the protocol was changed.

    Returns:
        Their rows, each with where it is from; rows that they took themselves are left out.
    """
    rows: list[dict[str, Any]] = []
    if options.written is None:
        return rows
    for other in NAMES:
        content = _read_written(options.written / other / f"{other}.json")
        if other != name and content.get("overrides") == dict(options.overrides):
            source = {key: content[key] for key in ("command", "software")}
            source["result"] = f"{options.written.resolve().name}/{other}"
            entries = content["versions"].get(heading, [])
            rows += [{**each, TAKEN_FROM: source} for each in entries if TAKEN_FROM not in each]
    return rows


def taken_row(
    method: Method,
    rows: Sequence[Mapping[str, Any]],
    published: Mapping[str, Accuracy],
    seeds: Sequence[int],
) -> dict[str, Any] | None:
    """A row from what another table has written, marked as such.

    Args:
        method: The row.
        rows: What `written_rows` gave.
        published: The table to compare with.
        seeds: Which runs are wanted.

    Returns:
        Plain values, with where they are from; None if nothing written has all of these runs.
    """
    wanted = (method.algorithm, dict(method.options))
    for entry in rows:
        same = (entry["algorithm"], entry["options"]) == wanted
        if same and set(seeds) <= set(entry["seeds"]):
            places = [entry["seeds"].index(seed) for seed in seeds]
            values = {name: [entry[name][place] for place in places] for name in PER_RUN}
            return {**_judged(method, values, published), TAKEN_FROM: entry[TAKEN_FROM]}
    return None


def _read_written(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(
            f"Expected the numbers of a table in {path}, found {error}. Have it written again, or "
            "delete it."
        ) from error
    return content


def cells(entry: Mapping[str, Any]) -> list[str]:
    """A row as text.

    Args:
        entry: What `row` gave.

    Returns:
        One text per column of `HEADER`.
    """
    source = entry.get(TAKEN_FROM)
    ours = [
        entry["method"] if source is None else f"{entry['method']}, *from {source['result']}*",
        *(str(measured(entry[name])) for name in ("train", "test")),
        measured(entry["slope"]).show("+.1f", ".1f"),
        measured(entry["hessian_distance"]).show(".4f", ".4f"),
    ]
    if "published" not in entry:
        return [*ours, "–", "–", "–", "–"]
    paper = entry["published"]
    train, test = entry["train_verdict"], entry["test_verdict"]
    together = train if train == test else f"train {train}; OOD {test}"
    return [
        *ours,
        f"{paper['train']} ± {paper['train_std']}",
        f"{paper['test']} ± {paper['test_std']}",
        f"{entry['difference']:+.1f}",
        together,
    ]


def make_table(
    name: str,
    title: str,
    versions: Mapping[str, tuple[Imbalance | None, tuple[Method, ...]]],
    published: Mapping[str, Accuracy],
) -> Experiment:
    """A table of accuracies.

    Args:
        name: Name of the experiment.
        title: What it shows.
        versions: By title, the version of the data and the rows on it.
        published: The published table.

    Returns:
        The experiment.
    """

    def present(finished: Finished, options: Options) -> Report:
        last = options.seed + options.restarts - 1
        texts = [READING.format(restarts=options.restarts, first=options.seed, last=last)]
        data: dict[str, Any] = {"overrides": dict(options.overrides), "versions": {}}
        for heading, (imbalance, methods) in versions.items():
            found = {method: finished(method, imbalance) for method in methods}
            written = written_rows(name, heading, options)
            taken = {
                method: entry
                for method, runs in found.items()
                if len(runs) < options.restarts
                and (entry := taken_row(method, written, published, options.seeds))
            }
            entries = [
                taken.get(method) or row(method, runs, published)
                for method, runs in found.items()
                if runs or method in taken
            ]
            data["versions"][heading] = entries
            table = markdown_table(HEADER, [cells(entry) for entry in entries])
            texts.append(f"## {heading}\n\n{table}" if len(versions) > 1 else table)
            sources = {entry[TAKEN_FROM]["result"]: entry[TAKEN_FROM] for entry in taken.values()}
            texts += [TAKEN.format(**source) for source in sources.values()]
            lacking = {method: runs for method, runs in found.items() if method not in taken}
            texts += missing_runs(lacking, options.restarts)
        figures = {name: lambda path: plot_accuracies(data["versions"], path)}
        return Report("\n\n".join(texts), data, figures)

    rows = tuple(
        (method, imbalance) for imbalance, methods in versions.values() for method in methods
    )
    return Experiment(name, title, rows, present)


def missing_runs(found: Mapping[Method, Sequence[Run]], restarts: int) -> list[str]:
    """Say which rows are not complete yet.

    Args:
        found: Finished runs by row.
        restarts: How many there should be.

    Returns:
        Nothing, or one paragraph.
    """
    lacking = [
        f"{method.title} {len(runs)}" for method, runs in found.items() if len(runs) < restarts
    ]
    if not lacking:
        return []
    return [f"Not all of the {restarts} restarts are finished: {', '.join(lacking)}."]


def ablation(imbalance: Imbalance | None) -> tuple[Method, ...]:
    """The rows of Tables 9 and 10.

    Args:
        imbalance: Which version of the data.

    Returns:
        The rows.
    """
    sampled = hutchinson(imbalance)
    return (
        ERM,
        IRM,
        VREX,
        FISHR,
        HGP,
        GRADIENT,
        Method("HGP (β = 0)", "hgp", {"beta": 0.0}, "hgp_beta_0"),
        sampled,
        Method(
            "Hutchinson (β = 0)",
            "hutchinson",
            {**sampled.options, "beta": 0.0},
            "hutchinson_beta_0",
        ),
    )


TABLES = (
    make_table(
        "table2",
        "Table 2: Colored MNIST",
        {"Colored MNIST": (None, comparison(None))},
        TABLE_2,
    ),
    make_table(
        "table3",
        "Table 3: imbalanced Colored MNIST",
        {title: (version, comparison(version)) for title, version in IMBALANCED.items()},
        TABLE_3,
    ),
    make_table(
        "table9",
        "Table 9: ablation of α and β on Colored MNIST",
        {"Colored MNIST": (None, ablation(None))},
        TABLE_9,
    ),
    make_table(
        "table10",
        "Table 10: ablation of α and β on imbalanced Colored MNIST",
        {title: (version, ablation(version)) for title, version in IMBALANCED.items()},
        TABLE_10,
    ),
)
