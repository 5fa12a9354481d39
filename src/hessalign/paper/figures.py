"""Figures of tables: dots, lines and heat maps, and what all figures share; needs matplotlib."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hessalign._errors import MissingPackageError
from hessalign._files import naming

COLOURS: Final = {
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

TITLES: Final = {
    "loss": "loss",
    "feature": "feature",
    "covariance": "covariance",
    "error": "error",
    "error_feature": "error × feature",
    "logit": "logit",
    "logit_feature": "logit × feature",
    "logit_covariance": "logit × covariance",
}
_KINDS: Final = {"raw": "raw", "relative": "relative to the attribute's mean square"}
_DOMAINS: Final = {"sources": "training domains", "all": "all domains"}
_LIMIT: Final = 4.0
"""The colours end at ratios of 2 to the power of this, and its inverse."""


def load_pyplot() -> Any:  # noqa: ANN401 - matplotlib is an optional dependency
    """What draws, without a window; a missing package raises a MissingPackageError."""
    try:
        import matplotlib
    except ImportError as error:
        raise MissingPackageError(
            "Figures need matplotlib: pip install 'hessalign[plot]'."
        ) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def save(figure: Any, path: Path) -> None:  # noqa: ANN401
    """Write a figure; the suffix of the path chooses the format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"Date": None} if path.suffix == ".svg" else None  # the same bytes every time
    with naming(path):
        figure.savefig(path, dpi=160, metadata=metadata)
    load_pyplot().close(figure)


def tidy(axes: Any) -> None:  # noqa: ANN401
    """Axes without a box, with a faint grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)


def plot_accuracies(versions: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
    """Training and OOD accuracy of every method and restart, published values beside them.

    Args:
        versions: By title, rows with "method", "algorithm", "train" and "test" values, and
            "published" if there is such a row.
        path: Where to save the figure.
    """
    pyplot = load_pyplot()
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
        tidy(axes)
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
    save(figure, path)


def plot_profiles(entries: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Accuracy and loss against the correlation of colour and label, one line per method.

    Args:
        entries: Rows with "method", "algorithm", and values at both ends: "agree", "oppose",
            "agree_loss", "oppose_loss".
        path: Where to save the figure.
    """
    pyplot = load_pyplot()
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
        tidy(axes)
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
    save(figure, path)


def plot_trials(panels: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
    """Accuracy of every method and trial, published values beside them.

    Args:
        panels: By title, rows with "method", "algorithm", the "values" of the trials in percent,
            and the "published" value or None.
        path: Where to save the figure.
    """
    pyplot = load_pyplot()
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
        tidy(axes)
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
    save(figure, path)


def plot_reductions(methods: Sequence[Mapping[str, Any]], path: Path, title: str) -> None:
    """Ratios of dispersions to ERM's, with the paper's ticks and crosses.

    Args:
        methods: Rows with "method", "published" (the attributes ticked), and by "raw" and
            "relative", then "sources" and "all", the "ratio" and "change" of each attribute.
        path: Where to save the figure.
        title: The data set.
    """
    pyplot = load_pyplot()
    figure, grid = pyplot.subplots(
        len(_DOMAINS),
        len(_KINDS),
        figsize=(12.5, 2.2 + 0.8 * len(methods)),
        layout="constrained",
        sharex=True,
        sharey=True,
    )
    for row, (domains, which) in enumerate(_DOMAINS.items()):
        for column, (kind, heading) in enumerate(_KINDS.items()):
            axes = grid[row][column]
            image = _heat_map(
                axes, [(entry["published"], entry[kind][domains]) for entry in methods]
            )
            axes.set_title(f"{which}, {heading}", fontsize=9)
            axes.tick_params(length=0, labelsize=8)
            axes.set_xticks(range(len(TITLES)), list(TITLES.values()), rotation=30, ha="right")
            axes.set_yticks(range(len(methods)), [entry["method"] for entry in methods])
    bar = figure.colorbar(image, ax=grid, shrink=0.6, ticks=[-4, -2, 0, 2, 4])
    bar.ax.set_yticklabels(["1/16", "1/4", "1", "4", "16"])
    bar.set_label("dispersion over ERM's", fontsize=8)
    figure.suptitle(
        f"Table 1 measured on {title} (✓ ✗: the paper's; grey: mostly chance)", fontsize=11
    )
    save(figure, path)


def _heat_map(
    axes: Any,  # noqa: ANN401 - matplotlib is an optional dependency
    rows: Sequence[tuple[Sequence[str], Mapping[str, Mapping[str, Any]]]],
) -> Any:  # noqa: ANN401
    """Cells of one panel; those that cannot be judged have no colour."""
    colours = [
        [
            math.nan
            if cells[name]["change"] == "unclear"
            else max(-_LIMIT, min(_LIMIT, math.log2(max(cells[name]["ratio"], 1e-300))))
            for name in TITLES
        ]
        for _, cells in rows
    ]
    axes.set_facecolor("#e4e4e4")
    image = axes.imshow(colours, cmap="RdBu_r", vmin=-_LIMIT, vmax=_LIMIT, aspect="auto")
    for row, (ticked, cells) in enumerate(rows):
        for column, name in enumerate(TITLES):
            mark = ("✓ " if name in ticked else "✗ ") if ticked else ""
            axes.text(
                column,
                row,
                mark + ratio_text(cells[name]["ratio"]),
                ha="center",
                va="center",
                fontsize=8,
                fontweight="bold" if name in ticked else "normal",
                color="white" if abs(colours[row][column]) > 0.7 * _LIMIT else "black",
            )
    return image


def ratio_text(ratio: float) -> str:
    """A ratio with two significant digits, one below a tenth; large and small as powers of 10."""
    if 0.001 <= ratio < 0.1:
        return f"{ratio:.1g}"
    return f"{ratio:.2g}" if 0.1 <= ratio < 99.5 else f"{ratio:.0e}"
