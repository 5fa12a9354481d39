"""Accuracies of finished runs on Colored MNIST, the paper's beside them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from hessalign.bench.algorithms import ALGORITHMS
from hessalign.bench.runs import Run
from hessalign.paper.published import Accuracy
from hessalign.report.tables import markdown_table, mean_and_std


def accuracy_table(runs: Sequence[Run], published: dict[str, Accuracy]) -> str:
    """Final accuracies of runs by algorithm, the paper's beside ours.

    Args:
        runs: The runs; those of one algorithm are restarts.
        published: The paper's numbers by algorithm.

    Returns:
        A Markdown table.
    """
    by_algorithm: dict[str, list[Run]] = {}
    for run in runs:
        by_algorithm.setdefault(run.plan.info.name, []).append(run)
    rows = []
    for name, group in by_algorithm.items():
        paper = published.get(name)
        rows.append(
            [
                ALGORITHMS[name].title,
                mean_and_std([run.final["train_accuracy"] for run in group]),
                mean_and_std([run.final["test_accuracy"] for run in group]),
                f"{paper.train} ± {paper.train_std}" if paper else "–",
                f"{paper.test} ± {paper.test_std}" if paper else "–",
                f"{fmean(run.records[-1].seconds for run in group):.0f} s",
            ]
        )
    header = ["method", "train", "OOD test", "paper train", "paper OOD test", "time"]
    return markdown_table(header, rows)
