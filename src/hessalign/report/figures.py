"""Figures; the only place that needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hessalign.algorithms import ALGORITHMS
from hessalign.training import Run

COLOURS = {
    "erm": "#666666",
    "gradient": "#cc79a7",
    "hgp": "#e69f00",
    "hutchinson": "#0072b2",
    "expected": "#56b4e9",
    "diagonal": "#d55e00",
    "full": "#009e73",
}
"""One colour per algorithm in every figure (Okabe and Ito's palette, safe for colour blindness)."""


def _pyplot() -> Any:  # noqa: ANN401 - matplotlib is an optional dependency
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError("Figures need matplotlib: pip install 'hessalign[plot]'.") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def plot_dynamics(runs: Sequence[Run], path: Path, title: str) -> None:
    """OOD accuracy and Hessian distance during training, one line per run.

    Args:
        runs: Runs with the same schedule.
        path: Where to save the figure; the suffix chooses the format.
        title: What the runs have in common.
    """
    pyplot = _pyplot()
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for run in runs:
        name = run.config.algorithm
        steps = [record.step for record in run.records]
        style = {"color": COLOURS.get(name), "label": ALGORITHMS[name].title, "linewidth": 1.8}
        left.plot(steps, [100 * record.metrics["test_accuracy"] for record in run.records], **style)
        measured = [r for r in run.records if "hessian_distance" in r.metrics]
        distances = [r.metrics["hessian_distance"] for r in measured]
        right.plot([r.step for r in measured], distances, **style)
    left.axhline(75, color="black", linewidth=0.8, linestyle=":")
    left.annotate(
        "best without colour: 75 %",
        (0.98, 76),
        xycoords=("axes fraction", "data"),
        ha="right",
        va="bottom",
        fontsize=8,
    )
    left.set(xlabel="step", ylabel="accuracy on the unseen domain (%)", ylim=(0, 100))
    right.set(xlabel="step", ylabel=r"Hessian distance $\|H_1-H_2\|_F$", yscale="log")
    jump = runs[0].config.jump
    for axes in (left, right):
        axes.axvline(jump, color="black", linewidth=0.8, alpha=0.5)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    right.annotate(
        " penalty weight\n jumps",
        (jump, 0.02),
        xycoords=("data", "axes fraction"),
        fontsize=8,
        va="bottom",
    )
    figure.legend(
        *left.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=len(runs),
        frameon=False,
    )
    figure.suptitle(title, fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)
    pyplot.close(figure)
