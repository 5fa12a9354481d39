"""Figures of attacked heads: gap, losses and accuracies against the radius (Figure 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from hessalign.heads import WorstCaseGap
from hessalign.paper.figures import COLOURS, _pyplot, _save, _tidy


def plot_worst_case(result: WorstCaseGap, names: Sequence[str], path: Path, title: str) -> None:
    """Gap, losses and accuracies of an attacked head against the radius (Figure 2).

    Args:
        result: The attack.
        names: Of the domains, in the order of the result.
        path: Where to save the figure; the suffix chooses the format.
        title: Whose head it is.
    """
    pyplot = _pyplot()
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
        _tidy(axes)
    figure.suptitle(f"Attacked head ({result.mode}): {title}", fontsize=11)
    _save(pyplot, figure, path)


def plot_attacked_heads(
    radii: Sequence[float], entries: Sequence[Mapping[str, Any]], path: Path
) -> None:
    """Gap and accuracy of the unseen domain against the radius, one line per method.

    Args:
        radii: The radii, 0 first.
        entries: Rows with "method", "algorithm", and per restart "gap", "predicted" and
            "target_accuracy", one value per radius.
        path: Where to save the figure; the suffix chooses the format.
    """
    pyplot = _pyplot()
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9.4, 4.2), layout="constrained")
    for entry in entries:
        colour = COLOURS.get(entry["algorithm"])
        for axes, key, style in (
            (left, "gap", "o-"),
            (left, "predicted", ":"),
            (right, "target_accuracy", "o-"),
        ):
            means = [sum(column) / len(column) for column in zip(*entry[key], strict=True)]
            label = entry["method"] if key != "predicted" else None
            axes.plot(radii, means, style, color=colour, label=label, markersize=4)
    left.set(ylabel="largest loss gap (dotted: Theorem 1)", yscale="log")
    right.set(ylabel="accuracy on the unseen domain (%)", ylim=(0, 100))
    for axes in (left, right):
        axes.set_xlabel(r"radius $\delta$")
        _tidy(axes)
    figure.legend(
        *right.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False
    )
    _save(pyplot, figure, path)


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
        path: Where to save the figure; the suffix chooses the format.
    """
    pyplot = _pyplot()
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
                    means = [sum(each) / len(each) for each in zip(*curves, strict=True)]
                    colour = COLOURS.get(entry["algorithm"])
                    axes.plot(radii, means, color=colour, label=entry["method"], linewidth=1.2)
            if name == test:
                axes.set_facecolor("#f3efe4")
            _tidy(axes)
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
    _save(pyplot, figure, path)
