r"""The invariance profile: accuracy and loss against the correlation of colour and label.

Let ρ be the correlation between colour and label. An image's colour agrees with its label with
probability (1 + ρ)/2, so accuracy and mean loss are exactly

$$a(\rho) = \tfrac{1+\rho}2\, a(1) + \tfrac{1-\rho}2\, a(-1),$$

a straight line between the images all coloured as their labels and all coloured oppositely. Its
slope says how much the predictor uses colour, and in which direction: positive like ERM, negative
if it has learned to use colour backwards. The invariant predictor is flat at 75 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, cast

import torch
from torch import Tensor
from torch.nn import functional

from hessalign.bench.algorithms import Batch
from hessalign.bench.runs import Run
from hessalign.bench.runs.irm import TARGET, measure
from hessalign.paper.cache import FinishedRun
from hessalign.paper.experiment import Experiment, Finished, Options, Report, comparison
from hessalign.paper.figures import plot_profiles
from hessalign.paper.published import measured
from hessalign.report.tables import markdown_table

_INVARIANT: Final = 75.0
"""Accuracy of the digit's shape alone: a quarter of the labels is wrong."""

_FLAT: Final = 2.0
"""The largest mean slope, and spread of slopes, that counts as nearly invariant."""

_READING: Final = (
    "The unseen domain's images with their colour redrawn so that its correlation with the label "
    "is ρ. Accuracy is exactly linear in ρ: *at 0* is its value where colour says nothing, *slope* "
    "its rise per unit of ρ (positive: trusts colour; negative: uses it backwards; invariant: 0), "
    "*distance* the root mean square distance of the line from the invariant predictor's "
    "{invariant:.0f} % over ρ from −1 to 1. Mean ± standard deviation over restarts."
)


def _profile(run: Run) -> dict[str, float]:
    """Accuracy and loss of a trained network with colour and label equal, and opposite."""
    domain = run.plan.data.domains[TARGET]
    grey, label = cast(Tensor, domain.inputs).sum(1), domain.labels
    values = {}
    for name, colour in (("agree", label), ("oppose", 1 - label)):
        coloured = grey.unsqueeze(1) * functional.one_hot(colour, 2)[:, :, None, None]
        with torch.no_grad():
            head, (right,) = measure(run.network, Batch(coloured, label, torch.zeros_like(label)))
        values[name] = 100 * float(right.mean())
        values[f"{name}_loss"] = math.nan if head is None else float(head.risk.mean())
    return values


def _line(agree: float, oppose: float) -> tuple[float, float, float]:
    """The straight line through both ends of a profile.

    Returns:
        Value at 0, slope, and root mean square distance to the invariant predictor.

    Example:
        >>> _line(75.0, 75.0), _line(100.0, 50.0)[:2]
        ((75.0, 0.0, 0.0), (75.0, 25.0))
    """
    middle, rise = (agree + oppose) / 2, (agree - oppose) / 2
    return middle, rise, math.sqrt((middle - _INVARIANT) ** 2 + rise**2 / 3)


def slope(run: Run) -> float:
    """How much a trained network uses colour, in percent per unit of ρ."""
    ends = _profile(run)
    return _line(ends["agree"], ends["oppose"])[1]


def _present(finished: Finished, options: Options) -> Report:
    """Table and figure of the profiles of all methods."""
    entries = [
        _entry(method.title, method.algorithm, runs)
        for method in comparison(None)
        if (runs := finished(method, None))
    ]
    header = ["method", "runs", "train", "OOD test", "at 0", "slope", "distance", "reading"]
    table = markdown_table(header, [_cells(entry) for entry in entries])
    return Report(
        _READING.format(invariant=_INVARIANT) + "\n\n" + table,
        {"profiles": entries},
        {"profile": lambda path: plot_profiles(entries, path)},
    )


def _entry(title: str, algorithm: str, runs: Sequence[FinishedRun]) -> dict[str, Any]:
    ends = [_profile(run.load()) for run in runs]
    return {
        "method": title,
        "algorithm": algorithm,
        "runs": len(runs),
        "train": [100 * run.final["train_accuracy"] for run in runs],
        "test": [100 * run.final["test_accuracy"] for run in runs],
        **{key: [each[key] for each in ends] for key in ends[0]},
    }


def _cells(entry: dict[str, Any]) -> list[str]:
    lines = [_line(*pair) for pair in zip(entry["agree"], entry["oppose"], strict=True)]
    middle, slopes, distance = zip(*lines, strict=True)
    return [
        entry["method"],
        str(entry["runs"]),
        str(measured(entry["train"])),
        str(measured(entry["test"])),
        str(measured(middle)),
        measured(slopes).show("+.1f", ".1f"),
        str(measured(distance)),
        _reading(slopes),
    ]


def _reading(slopes: Sequence[float]) -> str:
    """Slopes in words.

    Returns:
        What the predictor does with colour; restarts that do different things are not averaged.

    Example:
        >>> [_reading(slopes) for slopes in ([30.0, 31.0], [-8.0, -3.0], [-9.0, 0.0])]
        ['trusts colour', 'uses colour backwards', 'differs between restarts']
    """
    middle = measured(slopes)
    if abs(middle.mean) <= _FLAT and middle.std <= _FLAT:
        return "nearly invariant"
    if min(slopes) > 0:
        return "trusts colour"
    return "uses colour backwards" if max(slopes) < 0 else "differs between restarts"


PROFILE = Experiment(
    "profile",
    "Invariance profile: what each method does with colour",
    _present,
    tuple((method, None) for method in comparison(None)),
)
