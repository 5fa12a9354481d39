"""Our numbers beside the published ones and beside each other: whether they agree."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev, stdev
from typing import Final, final

_TOLERANCE: Final = 2.0
"""Combined standard deviations that a difference may have and still count as reproduced."""

LEVEL: Final = 0.05
"""Chance of calling a difference clear where there is none, for one comparison."""


@final
@dataclass(frozen=True)
class Measured:
    """Mean and spread over restarts, in percent or whatever unit the values have.

    Attributes:
        mean: The mean.
        std: The standard deviation of the values (that of a population, as the published ones).
        runs: How many values.
    """

    mean: float
    std: float
    runs: int

    def __str__(self) -> str:
        return self.show(".1f", ".1f")

    def show(self, mean: str, std: str) -> str:
        """The summary as text, for example "71.0 ± 0.5"; one run alone has no spread to show."""
        text = format(self.mean, mean)
        return f"{text} ± {format(self.std, std)}" if self.runs > 1 else text


def measured(values: Sequence[float]) -> Measured:
    """Mean and spread of some values.

    Returns:
        Their summary.

    Example:
        >>> str(measured([70.0, 72.0]))
        '71.0 ± 1.0'
    """
    return Measured(fmean(values), pstdev(values), len(values))


def verdict(ours: Measured, published: float, published_std: float) -> str:
    """Whether a published number is reproduced.

    Returns:
        "reproduced" if the means differ by at most 2 combined standard deviations, else by how
        many they differ; a single run has no spread to judge by.

    Example:
        >>> verdict(measured([70.0, 72.0]), 69.0, 1.0), verdict(measured([70.0, 72.0]), 60.0, 1.0)
        ('reproduced', 'not reproduced (7.8 std)')
    """
    if ours.runs < 2:
        return "one run only"
    spread = math.hypot(ours.std, published_std)
    distance = abs(ours.mean - published) / spread if spread > 0 else math.inf
    if ours.mean == published:
        distance = 0.0
    return "reproduced" if distance <= _TOLERANCE else f"not reproduced ({distance:.1f} std)"


@final
@dataclass(frozen=True)
class Difference:
    """A mean difference over trials.

    Attributes:
        mean: The mean.
        error: Its standard error over trials; None for a single trial.
        trials: How many trials.
    """

    mean: float
    error: float | None
    trials: int

    def __str__(self) -> str:
        return f"{self.mean:+.1f}" + ("" if self.error is None else f" ± {self.error:.1f}")

    @property
    def clear(self) -> bool:
        """Whether it is farther from 0 than chance explains, by Student's t."""
        return self.error is not None and abs(self.mean) > clear_errors(self.trials) * self.error


def paired_difference(first: Mapping[int, float], second: Mapping[int, float]) -> Difference | None:
    """The mean difference over the trials that both have.

    Returns:
        The difference; None if they have no trial in common.

    Example:
        >>> print(paired_difference({0: 71.0, 1: 73.0}, {0: 70.0, 1: 70.0}))
        +2.0 ± 1.0
    """
    values = [value - second[trial] for trial, value in first.items() if trial in second]
    if not values:
        return None
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return Difference(fmean(values), error, len(values))


def mean_by_trial(cells: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """The mean of several values by trial, of the trials that all of them have."""
    if not cells:
        return {}
    return {
        trial: fmean(cell[trial] for cell in cells)
        for trial in cells[0]
        if all(trial in cell for cell in cells)
    }


def clear_errors(trials: int) -> float:
    """Standard errors beyond which a mean over trials is clearly not 0, by Student's t."""
    from scipy.stats import t

    return float(t.ppf(1 - LEVEL / 2, trials - 1))
