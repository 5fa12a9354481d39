"""Figures of curves: along training (Figures 3 and 4), and against an attack (2 and 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from hessalign.bench.algorithms import ALGORITHMS
from hessalign.bench.runs import Run
from hessalign.heads import WorstCaseGap
from hessalign.paper.cache import FinishedRun
from hessalign.paper.figures import COLOURS, load_pyplot, save, tidy

_DISTANCE: Final = r"$\|H_1-H_2\|_F$"

_Groups = Mapping[tuple[str, str], Sequence[FinishedRun]]
"""Runs by version of the data and algorithm."""


def plot_dynamics(runs: Sequence[Run], path: Path, title: str) -> None:
    """OOD accuracy and Hessian distance during training, one line per run."""
    pyplot = load_pyplot()
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for run in runs:
        name = run.plan.info.name
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
    jump = runs[0].plan.options.jump
    for axes in (left, right):
        axes.axvline(jump, color="black", linewidth=0.8, alpha=0.5)
        tidy(axes)
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
    save(figure, path)


def plot_course(groups: _Groups, path: Path) -> None:
    """Hessian distance, OOD accuracy and OOD loss along training, by version (Figure 3)."""
    pyplot = load_pyplot()
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
            tidy(axes)
    for axes, name in zip(grid[:, 0], (_DISTANCE, "OOD accuracy (%)", "OOD loss"), strict=True):
        axes.set_ylabel(name)
    _shared_legend(figure, grid[0])
    save(figure, path)


def plot_pairs(groups: _Groups, path: Path) -> None:
    """Hessian distance against OOD accuracy and OOD loss, an evaluation a point (Figure 3)."""
    pyplot = load_pyplot()
    figure, grid, columns = _grid(pyplot, groups, rows=2)
    for (title, algorithm), runs in groups.items():
        column = grid[:, columns[title]]
        records = [r for run in runs for r in run.records if r.step >= run.options.jump]
        distances = [record.metrics["hessian_distance"] for record in records]
        style = {"s": 9, "alpha": 0.6, "color": COLOURS.get(algorithm), "linewidths": 0}
        for axes, (metric, scale) in zip(
            column, (("test_accuracy", 100), ("test_loss", 1)), strict=True
        ):
            values = [scale * record.metrics[metric] for record in records]
            axes.scatter(distances, values, label=ALGORITHMS[algorithm].title, **style)
            tidy(axes)
        column[1].set_xlabel(_DISTANCE)
    for axes in grid.flat:
        _log_distances(axes)
    for axes, name in zip(grid[:, 0], ("OOD accuracy (%)", "OOD loss"), strict=True):
        axes.set_ylabel(name)
    _shared_legend(figure, grid[0])
    save(figure, path)


def plot_distances(groups: _Groups, path: Path) -> None:
    """Hessian distance along training: the mean over restarts and their range (Figure 4)."""
    pyplot = load_pyplot()
    figure, axes = pyplot.subplots(figsize=(6.4, 4.8), layout="constrained")
    lines = dict(zip(_titles(groups), ("-", "--", ":"), strict=False))
    for (title, algorithm), runs in groups.items():
        label = f"{ALGORITHMS[algorithm].title}, {title}"
        style = {"color": COLOURS.get(algorithm), "linestyle": lines[title], "label": label}
        _draw_course(axes, runs, "hessian_distance", style)
    if groups:
        _mark_jump(axes, next(iter(groups.values())))
    axes.set(xlabel="step", ylabel="Hessian distance " + _DISTANCE, yscale="log")
    tidy(axes)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    save(figure, path)


def _titles(groups: _Groups) -> list[str]:
    return list(dict.fromkeys(title for title, _ in groups))


def _grid(pyplot: Any, groups: _Groups, rows: int) -> tuple[Any, Any, dict[str, int]]:  # noqa: ANN401
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
    runs: Sequence[FinishedRun],
    metric: str,
    style: Mapping[str, Any],
    scale: float = 1,
) -> None:
    """What restarts measured along training."""
    steps = [record.step for record in runs[0].records]
    curves = [[scale * record.metrics[metric] for record in run.records] for run in runs]
    _draw_band(axes, steps, curves, style)


def _draw_band(
    axes: Any,  # noqa: ANN401
    places: Sequence[float],
    curves: Sequence[Sequence[float]],
    style: Mapping[str, Any],
) -> None:
    """The mean of curves as a line, their range as a band."""
    columns = list(zip(*curves, strict=True))
    axes.plot(places, _means(curves), **style)
    lowest, highest = [min(column) for column in columns], [max(column) for column in columns]
    axes.fill_between(places, lowest, highest, color=style["color"], alpha=0.15, linewidth=0)


def _means(curves: Sequence[Sequence[float]]) -> list[float]:
    return [sum(column) / len(column) for column in zip(*curves, strict=True)]


def _mark_jump(axes: Any, runs: Sequence[FinishedRun]) -> None:  # noqa: ANN401
    axes.axvline(runs[0].options.jump, color="black", linewidth=0.5, alpha=0.5)


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


def plot_attack(
    epsilons: Sequence[float],
    entries: Sequence[Mapping[str, Any]],
    iterated: Sequence[float],
    path: Path,
) -> None:
    """Accuracy against the amplitude of a perturbation: the mean and the range over restarts.

    Args:
        epsilons: Amplitudes.
        entries: Rows with "method", "algorithm", "accuracy" and "iterated", a list per restart.
        iterated: Amplitudes of the iterated attack, drawn as points.
        path: Where to save the figure.
    """
    pyplot = load_pyplot()
    figure, axes = pyplot.subplots(figsize=(6.4, 4.2), layout="constrained")
    for entry in entries:
        colour = COLOURS.get(entry["algorithm"])
        style = {"color": colour, "label": entry["method"]}
        _draw_band(axes, epsilons, entry["accuracy"], style)
        axes.plot(iterated, _means(entry["iterated"]), "x", color=colour, clip_on=False)
    axes.plot([], [], "x", color="0.3", label="iterated attack")
    axes.set(
        xlabel=r"perturbation amplitude $\varepsilon$", ylabel="OOD accuracy (%)", ylim=(0, None)
    )
    tidy(axes)
    axes.legend(frameon=False, fontsize=8)
    save(figure, path)


def plot_worst_case(result: WorstCaseGap, names: Sequence[str], path: Path, title: str) -> None:
    """Gap, losses and accuracies of an attacked head against the radius (Figure 2)."""
    pyplot = load_pyplot()
    figure, all_axes = pyplot.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
    radii = [0.0, *(attack.delta for attack in result.attacks)]
    gaps, losses, accuracies = all_axes
    gaps.plot(radii, [result.gap, *(attack.gap for attack in result.attacks)], "o-", label="found")
    predicted = [attack.predicted for attack in result.attacks]
    gaps.plot(radii[1:], predicted, "k--", label="Theorem 1, second order")
    gaps.set(ylabel="largest loss gap", title="gap")
    gaps.legend(frameon=False, fontsize=8)
    for index, name in enumerate(names):
        found = [result.losses, *(attack.losses for attack in result.attacks)]
        values = [float(each[index]) for each in found]
        losses.plot(radii, values, "o-", label=name)
        shares = [result.accuracy, *(attack.accuracy for attack in result.attacks)]
        known = [100 * float(share[index]) for share in shares if share is not None]
        accuracies.plot(radii[: len(known)], known, "o-", label=name)
    losses.set(ylabel="loss", title="losses")
    accuracies.set(ylabel="accuracy (%)", ylim=(0, 100), title="accuracies")
    accuracies.legend(frameon=False, fontsize=8)
    for axes in all_axes:
        axes.set_xlabel(r"radius $\delta$")
        tidy(axes)
    figure.suptitle(f"Attacked head ({result.mode}): {title}", fontsize=11)
    save(figure, path)


def plot_attacked_heads(
    radii: Sequence[float], entries: Sequence[Mapping[str, Any]], path: Path
) -> None:
    """Gap and accuracy of the unseen domain against the radius, one line per method.

    Args:
        radii: The radii, 0 first.
        entries: Rows with "method", "algorithm", and per restart "gap", "predicted" and
            "target_accuracy", one value per radius.
        path: Where to save the figure.
    """
    pyplot = load_pyplot()
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9.4, 4.2), layout="constrained")
    for entry in entries:
        colour = COLOURS.get(entry["algorithm"])
        for axes, key, style in (
            (left, "gap", "o-"),
            (left, "predicted", ":"),
            (right, "target_accuracy", "o-"),
        ):
            label = entry["method"] if key != "predicted" else None
            axes.plot(radii, _means(entry[key]), style, color=colour, label=label, markersize=4)
    left.set(ylabel="largest loss gap (dotted: Theorem 1)", yscale="log")
    right.set(ylabel="accuracy on the unseen domain (%)", ylim=(0, 100))
    for axes in (left, right):
        axes.set_xlabel(r"radius $\delta$")
        tidy(axes)
    figure.legend(
        *right.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False
    )
    save(figure, path)


def plot_attacked_domains(
    radii: Sequence[float],
    entries: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    values: Literal["accuracies", "losses"],
    path: Path,
) -> None:
    """Accuracy or loss of every domain against the radius: one column per domain left out.

    Args:
        radii: The radii, 0 first.
        entries: Rows with "method", "algorithm" and "heads", each with its "test_domain" and the
            values of all domains at each radius.
        names: Of the domains.
        values: Which values.
        path: Where to save the figure.
    """
    pyplot = load_pyplot()
    heads = [head for entry in entries for head in entry["heads"]]
    left_out = [name for name in names if any(head["test_domain"] == name for head in heads)]
    figure, grid = pyplot.subplots(
        len(names),
        len(left_out),
        figsize=(1.6 + 2.2 * len(left_out), 1 + 1.7 * len(names)),
        layout="constrained",
        sharex=True,
        sharey=True,
        squeeze=False,
    )
    for column, test in enumerate(left_out):
        for row, name in enumerate(names):
            axes = grid[row][column]
            for entry in entries:
                curves = [
                    [point[row] for point in head[values]]
                    for head in entry["heads"]
                    if head["test_domain"] == test
                ]
                if curves:
                    means = _means(curves)
                    colour = COLOURS.get(entry["algorithm"])
                    axes.plot(radii, means, color=colour, label=entry["method"], linewidth=1.2)
            if name == test:
                axes.set_facecolor("#f3efe4")
            tidy(axes)
        grid[0][column].set_title(f"{test} unseen", fontsize=9)
        grid[-1][column].set_xlabel(r"radius $\delta$")
    for row, name in enumerate(names):
        grid[row][0].set_ylabel(f"{name}" + (" (%)" if values == "accuracies" else ""))
    grid[0][0].set_xscale("symlog", linthresh=min(radii[1:]))
    if values == "losses":
        grid[0][0].set_yscale("log")
    figure.legend(
        *grid[0][0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=4,
        frameon=False,
        fontsize=8,
    )
    word = "Accuracy" if values == "accuracies" else "Loss"
    figure.suptitle(f"{word} of every domain under attack", fontsize=11)
    save(figure, path)
