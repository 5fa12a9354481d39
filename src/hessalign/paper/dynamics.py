"""Figures 3 and 4: Hessian distance, OOD accuracy and loss while training goes on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import StatisticsError, correlation
from typing import Any, Final

from hessalign.bench.data.colored_mnist import Imbalance
from hessalign.paper.cache import FinishedRun
from hessalign.paper.curves import plot_course, plot_distances, plot_pairs
from hessalign.paper.experiment import (
    HGP,
    VERSIONS,
    Experiment,
    Finished,
    Method,
    Options,
    Report,
    hutchinson,
)
from hessalign.paper.published import measured
from hessalign.report.tables import markdown_table

_READING_3: Final = (
    "‖H₁ − H₂‖ between the training domains, OOD accuracy and OOD loss during training; then the "
    "first against the others, one point for each evaluation from the step at which the weight of "
    "the penalty jumps. The correlations are those of log ‖H₁ − H₂‖ with OOD accuracy and with OOD "
    "loss over these evaluations of a run, mean ± standard deviation over {restarts} restarts. The "
    "paper speaks of a strong negative correlation with OOD accuracy and gives no numbers."
)
_READING_4: Final = (
    "‖H₁ − H₂‖ between the training domains during training, mean over {restarts} restarts, and "
    "its value at the last step. The paper shows curves without numbers."
)


def _rows() -> tuple[tuple[Method, Imbalance | None], ...]:
    """HGP and Hutchinson on each version of the data, the runs both figures need."""
    return tuple(
        (method, version) for version in VERSIONS.values() for method in (HGP, hutchinson(version))
    )


def _series(run: FinishedRun, metric: str, start: int = 0) -> list[float]:
    """One metric along a run, from some step on."""
    return [record.metrics[metric] for record in run.records if record.step >= start]


def _correlations(runs: Sequence[FinishedRun], metric: str) -> list[float]:
    """Correlations of log ‖H₁ − H₂‖ with a metric, one for each run in which both vary."""
    found = []
    for run in runs:
        jump = run.options.jump
        distances = [
            math.log(max(value, 1e-300)) for value in _series(run, "hessian_distance", jump)
        ]
        try:
            found.append(correlation(distances, _series(run, metric, jump)))
        except StatisticsError:
            continue
    return found


def _present_figure3(finished: Finished, options: Options) -> Report:
    """Hessian distance against OOD accuracy and loss."""
    entries: list[dict[str, Any]] = []
    groups = {}
    for title, version in VERSIONS.items():
        for method in (HGP, hutchinson(version)):
            runs = finished(method, version)
            if not runs:
                continue
            groups[title, method.algorithm] = runs
            entry = {"data": title, "method": method.title, "runs": len(runs)}
            for metric in ("test_accuracy", "test_loss"):
                entry[metric] = _correlations(runs, metric)
            entries.append(entry)
    table = markdown_table(
        ["data", "method", "runs", "with OOD accuracy", "with OOD loss"],
        [
            [
                entry["data"],
                entry["method"],
                str(entry["runs"]),
                *(_two_digits(entry[metric]) for metric in ("test_accuracy", "test_loss")),
            ]
            for entry in entries
        ],
        text_columns=2,
    )
    text = _READING_3.format(restarts=options.restarts) + "\n\n" + table
    return Report(
        text,
        {"correlations": entries},
        {
            "figure3": lambda path: plot_course(groups, path),
            "figure3-pairs": lambda path: plot_pairs(groups, path),
        },
    )


def _present_figure4(finished: Finished, options: Options) -> Report:
    """Hessian distance along training."""
    groups = {}
    entries: list[dict[str, Any]] = []
    for title, version in VERSIONS.items():
        for method in (HGP, hutchinson(version)):
            runs = finished(method, version)
            if not runs:
                continue
            groups[title, method.algorithm] = runs
            final_distances = [run.final["hessian_distance"] for run in runs]
            curves = [_series(run, "hessian_distance") for run in runs]
            entries.append(
                {
                    "data": title,
                    "method": method.title,
                    "final": final_distances,
                    "steps": [record.step for record in runs[0].records],
                    "mean_curve": [
                        math.fsum(values) / len(values) for values in zip(*curves, strict=True)
                    ],
                }
            )
    table = markdown_table(
        ["data", "method", "runs", "final ‖H₁ − H₂‖"],
        [
            [entry["data"], entry["method"], str(len(entry["final"])), _scientific(entry["final"])]
            for entry in entries
        ],
        text_columns=2,
    )
    text = _READING_4.format(restarts=options.restarts) + "\n\n" + table
    return Report(
        text, {"distances": entries}, {"figure4": lambda path: plot_distances(groups, path)}
    )


def _two_digits(values: Sequence[float]) -> str:
    return measured(values).show("+.2f", ".2f") if values else "–"


def _scientific(values: Sequence[float]) -> str:
    return measured(values).show(".1e", ".0e")


FIGURE_3 = Experiment(
    "figure3",
    "Figure 3: Hessian distance and OOD performance during training",
    _present_figure3,
    _rows(),
)
FIGURE_4 = Experiment(
    "figure4", "Figure 4: Hessian distance during training", _present_figure4, _rows()
)
