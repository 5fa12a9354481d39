"""Table 2: how the cost of the penalties grows with samples, features, classes and domains.

One size is varied at a time, the others are held. Fitted exponents are slopes of log time against
log size by least squares over the whole range; the last step is the slope between the two largest
sizes, where fixed costs weigh least.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, final

import numpy as np
from torch import Tensor, autograd

import hessalign
from benchmarks.cases import Case
from benchmarks.memory import peak_memory
from benchmarks.targets import Target
from benchmarks.timing import Effort, Run, Timing, measure
from hessalign.alignment import hessian_dispersion
from hessalign.alignment.quantities import moment
from hessalign.report.progress import Progress

Axis = Literal["samples", "features", "classes", "domains"]
Kind = Literal["full", "diagonal"]
Form = Literal["dual", "primal"]

BASE = Case(features=256, classes=8, domains=4, samples=64)
SIZES: dict[Axis, tuple[int, ...]] = {
    "samples": (16, 32, 64, 128, 256, 512, 1024),
    "features": (64, 128, 256, 512, 1024, 2048, 4096),
    "classes": (2, 4, 8, 16, 32, 64, 128, 256),
    "domains": (2, 4, 8, 16, 32),
}
QUICK: dict[Axis, tuple[int, ...]] = {
    "samples": (16, 32, 64, 128),
    "features": (64, 128, 256, 512),
    "classes": (2, 4, 8, 16),
    "domains": (2, 4, 8, 16),
}
SYMBOL: dict[Axis, str] = {"samples": "n", "features": "d", "classes": "C", "domains": "E"}

FORMS: tuple[tuple[Kind, Form], ...] = (
    ("full", "dual"),
    ("full", "primal"),
    ("diagonal", "dual"),
    ("diagonal", "primal"),
)
EXPONENTS: dict[str, dict[Axis, int]] = {
    "full dual": {"samples": 2, "features": 1, "classes": 1, "domains": 2},
    "full primal": {"samples": 1, "features": 2, "classes": 2, "domains": 1},
    "diagonal dual": {"samples": 2, "features": 1, "classes": 1, "domains": 2},
    "diagonal primal": {"samples": 1, "features": 1, "classes": 1, "domains": 1},
}
"""Growth of the number of multiplications."""

PRIMAL_ELEMENTS = 1 << 26
"""Largest full Hessian (upper triangle in the classes, all domains) that is formed: 512 MiB."""


@final
@dataclass(frozen=True)
class Series:
    """Times of one form of one penalty along one axis.

    Attributes:
        axis: What is varied.
        sizes: Its values.
        timings: The time at each.
        memory: Peak extra memory at each, in bytes.
    """

    axis: Axis
    sizes: tuple[int, ...]
    timings: tuple[Timing, ...]
    memory: tuple[int, ...]

    @property
    def exponent(self) -> float:
        """Slope of log time against log size, by least squares."""
        return fitted_exponent(self.sizes, [timing.median for timing in self.timings])

    @property
    def last_exponent(self) -> float:
        """The same between the two largest sizes."""
        return fitted_exponent(self.sizes[-2:], [timing.median for timing in self.timings[-2:]])


def fitted_exponent(sizes: tuple[int, ...], times: list[float]) -> float:
    """Exponent of the power law that fits best.

    Args:
        sizes: What was varied.
        times: What was measured.

    Returns:
        The slope of the logarithms.

    Example:
        >>> round(fitted_exponent((1, 2, 4), [3.0, 12.0, 48.0]), 6)
        2.0
    """
    slope, _ = np.polyfit([math.log(size) for size in sizes], [math.log(t) for t in times], 1)
    return float(slope)


def feasible(case: Case, kind: Kind, form: Form) -> bool:
    """Whether a form fits into memory: the primal form of a full Hessian may not.

    Args:
        case: The sizes.
        kind: The penalty.
        form: How it is evaluated.

    Returns:
        True if it fits.
    """
    if (kind, form) != ("full", "primal"):
        return True
    pairs = case.classes * (case.classes + 1) // 2
    return case.domains * pairs * case.features**2 <= PRIMAL_ELEMENTS


def penalty_step(case: Case, kind: Kind, form: Form) -> Run:
    """Forward and backward of a dispersion in features and logits.

    Args:
        case: The sizes.
        kind: The penalty.
        form: How it is evaluated.

    Returns:
        The procedure.
    """
    batch = case.batch()

    def step() -> tuple[Tensor, ...]:
        head = hessalign.linear_head(batch.z, batch.logits, batch.y, batch.domain)
        value = hessian_dispersion(head, kind, evaluation=form)
        return autograd.grad(value, (batch.z, batch.logits))

    return step


def automatic(case: Case, kind: Kind) -> str:
    """The form the library chooses.

    Args:
        case: The sizes.
        kind: The penalty.

    Returns:
        "primal" or "dual".
    """
    batch = case.batch()
    head = hessalign.linear_head(batch.z, batch.logits, batch.y, batch.domain)
    return moment(head, "hessian" if kind == "full" else "hessian_diagonal").cheaper()


def along(axis: Axis, size: int) -> Case:
    """The base case with one size changed.

    Args:
        axis: Which.
        size: To what.

    Returns:
        The case.
    """
    change: dict[Axis, Callable[[], Case]] = {
        "samples": lambda: replace(BASE, samples=size),
        "features": lambda: replace(BASE, features=size),
        "classes": lambda: replace(BASE, classes=size),
        "domains": lambda: replace(BASE, domains=size),
    }
    return change[axis]()


def measure_axis(
    axis: Axis, sizes: tuple[int, ...], effort: Effort, progress: Progress
) -> tuple[dict[str, Series], dict[str, list[str]]]:
    """Measure all forms along one axis.

    Args:
        axis: What is varied.
        sizes: Its values.
        effort: How long to measure each point.
        progress: Where to report.

    Returns:
        The series by form, and the library's choice of form at each size by penalty.
    """
    points: dict[str, list[tuple[int, Timing, int]]] = {f"{k} {f}": [] for k, f in FORMS}
    for size in sizes:
        progress.title = f"growth {SYMBOL[axis]}={size}"
        case = along(axis, size)
        runs = {
            f"{kind} {form}": penalty_step(case, kind, form)
            for kind, form in FORMS
            if feasible(case, kind, form)
        }
        for name, timing in measure(runs, effort, progress).items():
            points[name].append((size, timing, peak_memory(runs[name])))
    series = {}
    for name, measured in points.items():
        values, timings, memory = zip(*measured, strict=True)
        series[name] = Series(axis, values, timings, memory)
    kinds: tuple[Kind, ...] = ("full", "diagonal")
    return series, {kind: [automatic(along(axis, size), kind) for size in sizes] for kind in kinds}


def targets(largest: dict[str, int]) -> list[Target]:
    """What the growth table should show.

    Args:
        largest: Largest peak memory of the full Hessian's dual form along each axis, in bytes.

    Returns:
        The targets with their measurements.
    """
    return [
        Target(
            f"full dual along {symbol}, largest peak extra memory", memory / 1e6, "below", 64, " MB"
        )
        for symbol, memory in largest.items()
    ]


def run(quick: bool, effort: Effort, progress: Progress) -> tuple[dict[str, Any], list[Target]]:
    """Measure the table.

    Args:
        quick: Fewer and smaller sizes.
        effort: How long to measure each point.
        progress: Where to report.

    Returns:
        The table as it is written to JSON, and the targets.
    """
    axes, largest = [], {}
    for axis, sizes in (QUICK if quick else SIZES).items():
        series, chosen = measure_axis(axis, sizes, effort, progress)
        largest[SYMBOL[axis]] = max(series["full dual"].memory)
        axes.append(
            {
                "axis": axis,
                "symbol": SYMBOL[axis],
                "sizes": list(sizes),
                "chosen_automatically": chosen,
                "forms": {
                    name: {
                        "sizes": list(one.sizes),
                        "times": [timing.record() for timing in one.timings],
                        "peak_extra_memory_bytes": list(one.memory),
                        "exponent": one.exponent,
                        "exponent_of_last_step": one.last_exponent,
                        "exponent_of_multiplications": EXPONENTS[name][axis],
                    }
                    for name, one in series.items()
                },
            }
        )
    base = {
        "samples": BASE.samples,
        "features": BASE.features,
        "classes": BASE.classes,
        "domains": BASE.domains,
    }
    found = targets(largest)
    record = {"base": base, "axes": axes, "targets": [target.record() for target in found]}
    return record, found
