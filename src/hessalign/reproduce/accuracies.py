"""Tables of accuracies: 2, 3, 9 and 10."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hessalign.data.colored_mnist import Imbalance
from hessalign.report.figures import plot_accuracies
from hessalign.report.published import TABLE_2, TABLE_3, TABLE_9, TABLE_10, Accuracy
from hessalign.report.tables import markdown_table
from hessalign.reproduce.experiment import Experiment, Finished, Method, Options, Report
from hessalign.reproduce.invariance import slope
from hessalign.reproduce.methods import (
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
from hessalign.reproduce.verdict import Measured, measured, verdict
from hessalign.training import Run

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


def percent(runs: Sequence[Run], metric: str) -> Measured:
    """An accuracy over restarts.

    Args:
        runs: The restarts.
        metric: Which accuracy.

    Returns:
        Its summary in percent.
    """
    return measured([100 * run.final[metric] for run in runs])


def row(method: Method, runs: Sequence[Run], published: Mapping[str, Accuracy]) -> dict[str, Any]:
    """One method's numbers.

    Args:
        method: The method.
        runs: Its restarts.
        published: The table to compare with.

    Returns:
        Plain values.
    """
    train, test = percent(runs, "train_accuracy"), percent(runs, "test_accuracy")
    entry: dict[str, Any] = {
        "method": method.title,
        "algorithm": method.algorithm,
        "options": dict(method.options),
        "runs": len(runs),
        "seeds": [run.config.seed for run in runs],
        "train": [100 * run.final["train_accuracy"] for run in runs],
        "test": [100 * run.final["test_accuracy"] for run in runs],
        "slope": [slope(run) for run in runs],
        **{name: [run.final[name] for run in runs] for name in ALSO_KEPT},
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


def cells(entry: Mapping[str, Any]) -> list[str]:
    """A row as text.

    Args:
        entry: What `row` gave.

    Returns:
        One text per column of `HEADER`.
    """
    ours = [
        entry["method"],
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
            entries = [row(method, runs, published) for method, runs in found.items() if runs]
            data["versions"][heading] = entries
            table = markdown_table(HEADER, [cells(entry) for entry in entries])
            texts.append(f"## {heading}\n\n{table}" if len(versions) > 1 else table)
            texts += missing_runs(found, options.restarts)
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
