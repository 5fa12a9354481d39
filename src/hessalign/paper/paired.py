"""Differences between two methods on the same trials, against their spread."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import final

LEVEL = 0.05
"""Chance of calling a difference clear where there is none, for one comparison."""


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

    Args:
        first: Values by trial.
        second: Likewise, what is subtracted.

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
    """The mean of several values, trial by trial.

    Args:
        cells: Values by trial, of each test domain for example.

    Returns:
        Means of the trials that all of them have.

    Example:
        >>> mean_by_trial([{0: 1.0, 1: 5.0}, {0: 3.0}])
        {0: 2.0}
    """
    if not cells:
        return {}
    return {
        trial: fmean(cell[trial] for cell in cells)
        for trial in cells[0]
        if all(trial in cell for cell in cells)
    }


def clear_errors(trials: int) -> float:
    """Standard errors beyond which a mean over trials is clearly not 0.

    Args:
        trials: How many, at least two.

    Returns:
        The quantile of Student's t for `LEVEL`, both sides.

    Example:
        >>> round(clear_errors(3), 1)
        4.3
    """
    from scipy.stats import t

    return float(t.ppf(1 - LEVEL / 2, trials - 1))
