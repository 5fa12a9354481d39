"""Table 1 as a heat map: how far each method brings each attribute of the domains together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hessalign.report.figures import _pyplot, _save

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
PANELS: Final = {"raw": "raw", "relative": "relative to the attribute's mean square"}
LIMIT: Final = 4.0
"""The colours end at ratios of 2 to the power of this, and its inverse."""


def plot_reductions(methods: Sequence[Mapping[str, Any]], path: Path, title: str) -> None:
    """Ratios of dispersions between training domains to ERM's, with the paper's ticks and crosses.

    Args:
        methods: Rows with "method", "published" (the attributes ticked), and by "raw" and
            "relative", then "sources", the "ratio" of each attribute.
        path: Where to save the figure; the suffix chooses the format.
        title: The data set.
    """
    pyplot = _pyplot()
    height = 1.9 + 0.42 * len(methods)
    figure, all_axes = pyplot.subplots(
        1, 2, figsize=(12.5, height), layout="constrained", sharey=True
    )
    for axes, (kind, heading) in zip(all_axes, PANELS.items(), strict=True):
        ratios = [[entry[kind]["sources"][name]["ratio"] for name in TITLES] for entry in methods]
        colours = [
            [max(-LIMIT, min(LIMIT, math.log2(max(ratio, 1e-300)))) for ratio in row]
            for row in ratios
        ]
        image = axes.imshow(colours, cmap="RdBu_r", vmin=-LIMIT, vmax=LIMIT, aspect="auto")
        for row, entry in enumerate(methods):
            for column, name in enumerate(TITLES):
                ticked = name in entry["published"]
                mark = ("✓" if ticked else "✗") if entry["published"] else ""
                axes.text(
                    column,
                    row,
                    f"{mark} {ratio_text(ratios[row][column])}".strip(),
                    ha="center",
                    va="center",
                    fontsize=8,
                    fontweight="bold" if ticked else "normal",
                    color="white" if abs(colours[row][column]) > 0.7 * LIMIT else "black",
                )
        axes.set_xticks(range(len(TITLES)), list(TITLES.values()), rotation=30, ha="right")
        axes.set_yticks(range(len(methods)), [entry["method"] for entry in methods])
        axes.set_title(heading, fontsize=10)
        axes.tick_params(length=0, labelsize=8)
    bar = figure.colorbar(image, ax=all_axes, shrink=0.8, ticks=[-4, -2, 0, 2, 4])
    bar.ax.set_yticklabels(["1/16", "1/4", "1", "4", "16"])
    bar.set_label("dispersion over ERM's", fontsize=8)
    figure.suptitle(f"Table 1 measured on {title}: ✓ ✗ are the paper's", fontsize=11)
    _save(pyplot, figure, path)


def ratio_text(ratio: float) -> str:
    """A ratio with two significant digits, without an exponent where that is readable.

    Args:
        ratio: A number of 0 or more.

    Returns:
        The text.

    Example:
        >>> ratio_text(0.4567), ratio_text(12.3), ratio_text(0.00001)
        ('0.46', '12', '1e-05')
    """
    return f"{ratio:.2g}" if 0.001 <= ratio < 99.5 else f"{ratio:.0e}"
