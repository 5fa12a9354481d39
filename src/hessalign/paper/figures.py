"""What figures share: colours, legends, bands, and panels of dots; needs matplotlib."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hessalign._files import naming
from hessalign._plugins import import_optional

# ruff: noqa: ANN401 - matplotlib is an optional dependency, so what it makes has no types here

Rows = Sequence[Mapping[str, Any]]  # each with its "method" and "algorithm"
_Panels = Mapping[str, Rows]  # by title

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


def load_pyplot() -> Any:
    """What draws, without a window; a missing package raises a MissingPackageError."""
    lacking = "Figures need matplotlib: pip install 'hessalign[plot]'."
    import_optional("matplotlib", lacking).use("Agg")
    return import_optional("matplotlib.pyplot", lacking)


def make_axes(
    width: float, height: float, rows: int = 1, columns: int = 1, **options: object
) -> tuple[Any, Any]:
    """A figure of some size in inches, and a grid of axes in it."""
    options |= {"figsize": (width, height), "layout": "constrained", "squeeze": False}
    figure, grid = load_pyplot().subplots(rows, columns, **options)
    return figure, grid


def save(figure: Any, path: Path, *, boxed: bool = False) -> None:
    """Write a figure, unless boxed with a faint grid instead of a box around its axes.

    The suffix of the path chooses the format.
    """
    for axes in () if boxed else figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"Date": None} if path.suffix == ".svg" else None  # the same bytes every time
    with naming(path):
        figure.savefig(path, dpi=160, metadata=metadata)
    load_pyplot().close(figure)


def add_legend(
    figure: Any, axes: Iterable[Any], columns: int | None = None, **options: object
) -> None:
    """One legend below a figure, of what has a label in some of its axes."""
    entries: dict[str, Any] = {}
    for each in axes:
        for handle, label in zip(*each.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    options |= {"ncols": columns or max(1, len(entries)), "frameon": False}
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", **options)


def means(curves: Iterable[Sequence[float]]) -> list[float]:
    """The mean of curves at each of their places."""
    return [sum(column) / len(column) for column in zip(*curves, strict=True)]


def draw_band(
    axes: Any, places: Sequence[float], curves: Sequence[Sequence[float]], style: Mapping[str, Any]
) -> None:
    """The mean of curves as a line, their range as a band."""
    columns = list(zip(*curves, strict=True))
    axes.plot(places, means(curves), **style)
    lowest, highest = [min(column) for column in columns], [max(column) for column in columns]
    axes.fill_between(places, lowest, highest, color=style["color"], alpha=0.15, linewidth=0)


def plot_accuracies(panels: _Panels, path: Path) -> None:
    """Accuracies of every method and restart, "train" and "test", the "published" OOD beside."""
    methods = {tuple(row["method"] for row in rows) for rows in panels.values()}
    tallest = max(len(rows) for rows in panels.values())
    width, height = 5.2 * len(panels) + 2.2, 0.36 * tallest + 1.7
    figure, grid = make_axes(width, height, columns=len(panels), sharey=len(methods) == 1)
    for axes, (title, rows) in zip(grid[0], panels.items(), strict=True):
        for y, row in enumerate(rows):
            colour = COLOURS.get(row["algorithm"])
            axes.plot(row["test"], [y] * len(row["test"]), "o", color=colour, alpha=0.75)
            axes.plot(row["train"], [y] * len(row["train"]), "|", color=colour, markersize=11)
            if "published" in row:
                paper = row["published"]
                bar = {"fmt": "D", "color": "black", "markerfacecolor": "white", "markersize": 4.5}
                axes.errorbar([paper.test], [y + 0.28], xerr=[paper.test_std], capsize=2, **bar)
        axes.axvline(75, color="black", linewidth=0.8, linestyle=":")
        axes.set_xlim(0, 100)
        _name_rows(axes, rows)
        axes.set_title(title, fontsize=10)
    _explain_marks(figure, 11, "OOD, one run", "training, one run", "OOD, published mean ± std")
    save(figure, path)


def plot_trials(panels: _Panels, path: Path) -> None:
    """Accuracy of every method and trial, "values", and the "published" one or None."""
    columns = max(1, len(panels))
    tallest = max((len(rows) for rows in panels.values()), default=1)
    figure, grid = make_axes(4.2 * columns + 1.2, 0.3 * tallest + 1.7, columns=columns)
    for axes, (title, rows) in zip(grid[0], panels.items(), strict=False):
        for y, row in enumerate(rows):
            colour = COLOURS.get(row["algorithm"], "#444444")
            values = row["values"]
            axes.plot(values, [y] * len(values), "o", color=colour, alpha=0.6, markersize=5)
            if values:
                axes.plot([sum(values) / len(values)], [y], "|", color=colour, markersize=15)
            if row["published"] is not None:
                axes.plot([row["published"]], [y], "D", color="black", markerfacecolor="white")
        _name_rows(axes, rows, fontsize=8)
        axes.set_title(title, fontsize=9)
    _explain_marks(figure, 12, "one trial", "mean of trials", "published")
    save(figure, path)


def _name_rows(axes: Any, rows: Rows, **text: object) -> None:
    axes.set_yticks(range(len(rows)), [row["method"] for row in rows], **text)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel("accuracy (%)")


def _explain_marks(figure: Any, bar: int, *labels: str) -> None:
    """A legend of dots, bars and diamonds."""
    styles: list[dict[str, Any]] = [
        {"marker": "o", "color": "grey"},
        {"marker": "|", "color": "grey", "markersize": bar},
        {"marker": "D", "color": "black", "markerfacecolor": "white"},
    ]
    line = load_pyplot().Line2D
    handles = [
        line([], [], linestyle="", label=label, **style)
        for label, style in zip(labels, styles, strict=True)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
