"""Figures; the only place that needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hessalign._errors import MissingPackageError
from hessalign._files import naming
from hessalign.bench.algorithms import ALGORITHMS
from hessalign.bench.runs import Run

COLOURS = {
    "erm": "#666666",
    "irm": "#b8860b",
    "vrex": "#8c6bb1",
    "fishr": "#b2182b",
    "coral": "#7a9a01",
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
        raise MissingPackageError(
            "Figures need matplotlib: pip install 'hessalign[plot]'."
        ) from error
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
    _save(pyplot, figure, path)


def _save(pyplot: Any, figure: Any, path: Path) -> None:  # noqa: ANN401
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"Date": None} if path.suffix == ".svg" else None  # the same bytes every time
    with naming(path):
        figure.savefig(path, dpi=160, metadata=metadata)
    pyplot.close(figure)


def _tidy(axes: Any) -> None:  # noqa: ANN401
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)


def plot_accuracies(versions: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
    """Training and OOD accuracy of every method and restart, published values beside them.

    Args:
        versions: By title, rows with "method", "algorithm", "train" and "test" values, and
            "published" if there is such a row.
        path: Where to save the figure; the suffix chooses the format.
    """
    pyplot = _pyplot()
    rows = max(len(entries) for entries in versions.values())
    figure, all_axes = pyplot.subplots(
        1,
        len(versions),
        figsize=(5.2 * len(versions) + 2.2, 0.36 * rows + 1.7),
        layout="constrained",
        squeeze=False,
        sharey=len({tuple(e["method"] for e in entries) for entries in versions.values()}) == 1,
    )
    for axes, (title, entries) in zip(all_axes[0], versions.items(), strict=True):
        for y, entry in enumerate(entries):
            colour = COLOURS.get(entry["algorithm"])
            axes.plot(entry["test"], [y] * len(entry["test"]), "o", color=colour, alpha=0.75)
            axes.plot(entry["train"], [y] * len(entry["train"]), "|", color=colour, markersize=11)
            if "published" in entry:
                paper = entry["published"]
                bar = {"fmt": "D", "color": "black", "markerfacecolor": "white", "markersize": 4.5}
                axes.errorbar(
                    [paper["test"]], [y + 0.28], xerr=[paper["test_std"]], capsize=2, **bar
                )
        axes.axvline(75, color="black", linewidth=0.8, linestyle=":")
        axes.set_yticks(range(len(entries)), [entry["method"] for entry in entries])
        axes.set_ylim(len(entries) - 0.4, -0.6)
        axes.set(xlabel="accuracy (%)", xlim=(0, 100))
        axes.set_title(title, fontsize=10)
        _tidy(axes)
    handles = [
        pyplot.Line2D([], [], marker="o", linestyle="", color="grey", label="OOD, one run"),
        pyplot.Line2D(
            [], [], marker="|", markersize=11, linestyle="", color="grey", label="training, one run"
        ),
        pyplot.Line2D(
            [], [], marker="D", linestyle="", color="black", markerfacecolor="white",
            label="OOD, published mean ± std",
        ),
    ]  # fmt: skip
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    _save(pyplot, figure, path)


def plot_profiles(entries: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Accuracy and loss against the correlation of colour and label, one line per method.

    Args:
        entries: Rows with "method", "algorithm", and values at both ends: "agree", "oppose",
            "agree_loss", "oppose_loss".
        path: Where to save the figure; the suffix chooses the format.
    """
    pyplot = _pyplot()
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9.4, 4.2), layout="constrained")
    seen: set[str] = set()
    for entry in entries:
        style = {"color": COLOURS.get(entry["algorithm"]), "label": entry["method"]}
        style["linestyle"] = "--" if entry["algorithm"] in seen else "-"
        seen.add(entry["algorithm"])
        for axes, suffix in ((left, ""), (right, "_loss")):
            ends = [sum(entry[key + suffix]) / entry["runs"] for key in ("oppose", "agree")]
            axes.plot((-1, 1), ends, **style)
    left.axhline(75, color="black", linewidth=0.8, linestyle=":")
    left.set(ylabel="accuracy (%)", ylim=(0, 100))
    right.set(ylabel="loss", ylim=(0, None))  # linear, as the loss is in the correlation
    for axes in (left, right):
        axes.set(xlabel="correlation of colour and label", xticks=(-1, -0.5, 0, 0.5, 1))
        for rho in (0.6, 0.8):
            axes.axvline(rho, color="black", linewidth=0.6, alpha=0.4)
        axes.axvline(-0.8, color="black", linewidth=0.6, alpha=0.4, linestyle="--")
        _tidy(axes)
    place = {"ha": "center", "fontsize": 8, "bbox": {"color": "white", "pad": 1}}
    left.annotate("training\ndomains", (0.7, 3), **place)
    left.annotate("unseen\ndomain", (-0.8, 22), **place)
    figure.legend(
        *left.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=4,
        frameon=False,
        fontsize=8,
    )
    _save(pyplot, figure, path)


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
        path: Where to save the figure; the suffix chooses the format.
    """
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(6.4, 4.2), layout="constrained")
    for entry in entries:
        columns = list(zip(*entry["accuracy"], strict=True))
        colour = COLOURS.get(entry["algorithm"])
        axes.plot(epsilons, [sum(c) / len(c) for c in columns], color=colour, label=entry["method"])
        axes.fill_between(
            epsilons,
            [min(c) for c in columns],
            [max(c) for c in columns],
            color=colour,
            alpha=0.15,
            linewidth=0,
        )
        means = [sum(c) / len(c) for c in zip(*entry["iterated"], strict=True)]
        axes.plot(iterated, means, "x", color=colour, clip_on=False)
    axes.plot([], [], "x", color="0.3", label="iterated attack")
    axes.set(
        xlabel=r"perturbation amplitude $\varepsilon$", ylabel="OOD accuracy (%)", ylim=(0, None)
    )
    _tidy(axes)
    axes.legend(frameon=False, fontsize=8)
    _save(pyplot, figure, path)
