"""Table 1 as a heat map: how far each method brings each attribute of the domains together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hessalign.paper.figures import _pyplot, _save

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
KINDS: Final = {"raw": "raw", "relative": "relative to the attribute's mean square"}
DOMAINS: Final = {"sources": "training domains", "all": "all domains"}
LIMIT: Final = 4.0
"""The colours end at ratios of 2 to the power of this, and its inverse."""


def plot_reductions(methods: Sequence[Mapping[str, Any]], path: Path, title: str) -> None:
    """Ratios of dispersions to ERM's, with the paper's ticks and crosses.

    Args:
        methods: Rows with "method", "published" (the attributes ticked), and by "raw" and
            "relative", then "sources" and "all", the "ratio" and "change" of each attribute.
        path: Where to save the figure; the suffix chooses the format.
        title: The data set.
    """
    pyplot = _pyplot()
    figure, grid = pyplot.subplots(
        len(DOMAINS),
        len(KINDS),
        figsize=(12.5, 2.2 + 0.8 * len(methods)),
        layout="constrained",
        sharex=True,
        sharey=True,
    )
    for row, (domains, which) in enumerate(DOMAINS.items()):
        for column, (kind, heading) in enumerate(KINDS.items()):
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
    _save(pyplot, figure, path)


def _heat_map(
    axes: Any,  # noqa: ANN401 - matplotlib is an optional dependency
    rows: Sequence[tuple[Sequence[str], Mapping[str, Mapping[str, Any]]]],
) -> Any:  # noqa: ANN401
    """Cells of one panel; those that cannot be judged have no colour."""
    colours = [
        [
            math.nan
            if cells[name]["change"] == "unclear"
            else max(-LIMIT, min(LIMIT, math.log2(max(cells[name]["ratio"], 1e-300))))
            for name in TITLES
        ]
        for _, cells in rows
    ]
    axes.set_facecolor("#e4e4e4")
    image = axes.imshow(colours, cmap="RdBu_r", vmin=-LIMIT, vmax=LIMIT, aspect="auto")
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
                color="white" if abs(colours[row][column]) > 0.7 * LIMIT else "black",
            )
    return image


def ratio_text(ratio: float) -> str:
    """A ratio with two significant digits, or one below a tenth; large and small as powers of 10.

    Args:
        ratio: A number of 0 or more.

    Returns:
        The text.

    Example:
        >>> ratio_text(0.4567), ratio_text(0.0345), ratio_text(12.3), ratio_text(0.00001)
        ('0.46', '0.03', '12', '1e-05')
    """
    if 0.001 <= ratio < 0.1:
        return f"{ratio:.1g}"
    return f"{ratio:.2g}" if 0.1 <= ratio < 99.5 else f"{ratio:.0e}"
