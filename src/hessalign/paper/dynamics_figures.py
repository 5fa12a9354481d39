"""Figures of Hessian distance, OOD accuracy and OOD loss along training (Figures 3 and 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hessalign.bench.algorithms import ALGORITHMS
from hessalign.bench.runs import Run
from hessalign.paper.figures import COLOURS, _pyplot, _save, _tidy

DISTANCE: Final = r"$\|H_1-H_2\|_F$"

Groups = Mapping[tuple[str, str], Sequence[Run]]
"""Runs by version of the data and algorithm."""


def plot_course(groups: Groups, path: Path) -> None:
    """Hessian distance, OOD accuracy and OOD loss along training (Figure 3).

    One column for each version of the data; means over restarts, and their ranges.

    Args:
        groups: What to draw.
        path: Where to save the figure; the suffix chooses the format.
    """
    pyplot = _pyplot()
    figure, grid, columns = _grid(pyplot, groups, rows=3)
    for (title, algorithm), runs in groups.items():
        top, middle, bottom = column = grid[:, columns[title]]
        style = {"color": COLOURS.get(algorithm), "label": ALGORITHMS[algorithm].title}
        _draw_course(top, runs, "hessian_distance", style)
        _draw_course(middle, runs, "test_accuracy", style, scale=100)
        _draw_course(bottom, runs, "test_loss", style)
        top.set_yscale("log")
        middle.set_ylim(0, 100)
        bottom.set_xlabel("step")
        for axes in column:
            _mark_jump(axes, runs)
            _tidy(axes)
    for axes, name in zip(grid[:, 0], (DISTANCE, "OOD accuracy (%)", "OOD loss"), strict=True):
        axes.set_ylabel(name)
    _shared_legend(figure, grid[0])
    _save(pyplot, figure, path)


def plot_pairs(groups: Groups, path: Path) -> None:
    """Hessian distance against OOD accuracy and OOD loss, one point per evaluation (Figure 3).

    Args:
        groups: What to draw, each run from the step at which the weight of the penalty jumps.
        path: Where to save the figure; the suffix chooses the format.
    """
    pyplot = _pyplot()
    figure, grid, columns = _grid(pyplot, groups, rows=2)
    for (title, algorithm), runs in groups.items():
        column = grid[:, columns[title]]
        records = [r for run in runs for r in run.records if r.step >= run.config.jump]
        distances = [record.metrics["hessian_distance"] for record in records]
        style = {"s": 9, "alpha": 0.6, "color": COLOURS.get(algorithm), "linewidths": 0}
        for axes, (metric, scale) in zip(
            column, (("test_accuracy", 100), ("test_loss", 1)), strict=True
        ):
            values = [scale * record.metrics[metric] for record in records]
            axes.scatter(distances, values, label=ALGORITHMS[algorithm].title, **style)
            _tidy(axes)
        column[1].set_xlabel(DISTANCE)
    for axes in grid.flat:
        _log_distances(axes)
    for axes, name in zip(grid[:, 0], ("OOD accuracy (%)", "OOD loss"), strict=True):
        axes.set_ylabel(name)
    _shared_legend(figure, grid[0])
    _save(pyplot, figure, path)


def plot_distances(groups: Groups, path: Path) -> None:
    """Hessian distance along training: the mean over restarts and their range (Figure 4).

    Args:
        groups: What to draw.
        path: Where to save the figure; the suffix chooses the format.
    """
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(6.4, 4.8), layout="constrained")
    lines = dict(zip(_titles(groups), ("-", "--", ":"), strict=False))
    for (title, algorithm), runs in groups.items():
        label = f"{ALGORITHMS[algorithm].title}, {title}"
        style = {"color": COLOURS.get(algorithm), "linestyle": lines[title], "label": label}
        _draw_course(axes, runs, "hessian_distance", style)
    if groups:
        _mark_jump(axes, next(iter(groups.values())))
    axes.set(xlabel="step", ylabel="Hessian distance " + DISTANCE, yscale="log")
    _tidy(axes)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    _save(pyplot, figure, path)


def _titles(groups: Groups) -> list[str]:
    return list(dict.fromkeys(title for title, _ in groups))


def _grid(pyplot: Any, groups: Groups, rows: int) -> tuple[Any, Any, dict[str, int]]:  # noqa: ANN401
    """A figure with a column for each version of the data, and which column is whose."""
    titles = _titles(groups)
    width = max(1, len(titles))
    figure, grid = pyplot.subplots(
        rows, width, figsize=(3.6 * width, 2.5 * rows + 0.4), layout="constrained", squeeze=False
    )
    for axes, title in zip(grid[0], titles, strict=False):
        axes.set_title(title, fontsize=9)
    return figure, grid, {title: column for column, title in enumerate(titles)}


def _draw_course(
    axes: Any,  # noqa: ANN401
    runs: Sequence[Run],
    metric: str,
    style: Mapping[str, Any],
    scale: float = 1,
) -> None:
    """Mean over restarts as a line, their range as a band."""
    steps = [record.step for record in runs[0].records]
    curves = [[scale * record.metrics[metric] for record in run.records] for run in runs]
    at_steps = list(zip(*curves, strict=True))
    axes.plot(steps, [sum(values) / len(values) for values in at_steps], **style)
    lowest, highest = [min(values) for values in at_steps], [max(values) for values in at_steps]
    axes.fill_between(steps, lowest, highest, color=style["color"], alpha=0.15, linewidth=0)


def _mark_jump(axes: Any, runs: Sequence[Run]) -> None:  # noqa: ANN401
    axes.axvline(runs[0].config.jump, color="black", linewidth=0.5, alpha=0.5)


def _log_distances(axes: Any) -> None:  # noqa: ANN401
    """A logarithmic axis, with round numbers as ticks where it covers less than a decade."""
    from matplotlib import ticker

    axes.set_xscale("log")
    low, high = axes.get_xlim()
    if high < 10 * low:
        axes.xaxis.set_major_locator(ticker.MaxNLocator(4))
        axes.xaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
        axes.xaxis.set_minor_locator(ticker.NullLocator())


def _shared_legend(figure: Any, row: Any) -> None:  # noqa: ANN401
    entries: dict[str, Any] = {}
    for axes in row:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    figure.legend(
        entries.values(),
        entries.keys(),
        loc="outside lower center",
        ncols=max(1, len(entries)),
        frameon=False,
    )
