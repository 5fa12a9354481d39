"""The figure of a table of sweeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hessalign.paper.figures import COLOURS, _pyplot, _save, _tidy


def plot_trials(panels: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
    """Accuracy of every method and trial, published values beside them.

    Args:
        panels: By title, rows with "method", "algorithm", the "values" of the trials in percent,
            and the "published" value or None.
        path: Where to save the figure; the suffix chooses the format.
    """
    pyplot = _pyplot()
    tallest = max((len(rows) for rows in panels.values()), default=1)
    figure, grid = pyplot.subplots(
        1,
        max(1, len(panels)),
        figsize=(4.2 * max(1, len(panels)) + 1.2, 0.3 * tallest + 1.7),
        layout="constrained",
        squeeze=False,
    )
    for axes, (title, rows) in zip(grid[0], panels.items(), strict=False):
        for y, row in enumerate(rows):
            colour = COLOURS.get(row["algorithm"], "#444444")
            values = row["values"]
            axes.plot(values, [y] * len(values), "o", color=colour, alpha=0.6, markersize=5)
            if values:
                axes.plot([sum(values) / len(values)], [y], "|", color=colour, markersize=15)
            if row["published"] is not None:
                axes.plot([row["published"]], [y], "D", color="black", markerfacecolor="white")
        axes.set_yticks(range(len(rows)), [row["method"] for row in rows], fontsize=8)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlabel("accuracy (%)")
        axes.set_title(title, fontsize=9)
        _tidy(axes)
    handles = [
        pyplot.Line2D([], [], marker="o", linestyle="", color="grey", label="one trial"),
        pyplot.Line2D(
            [], [], marker="|", markersize=12, linestyle="", color="grey", label="mean of trials"
        ),
        pyplot.Line2D(
            [], [], marker="D", linestyle="", color="black", markerfacecolor="white",
            label="published",
        ),
    ]  # fmt: skip
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    _save(pyplot, figure, path)
