"""Our numbers beside the published ones, and whether they agree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import final

TOLERANCE = 2.0
"""Combined standard deviations that a difference may have and still count as reproduced."""


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
        """The summary as text; one run alone has no spread to show.

        Args:
            mean: Format of the mean.
            std: Format of the standard deviation.

        Returns:
            For example "71.0 ± 0.5".
        """
        text = format(self.mean, mean)
        return f"{text} ± {format(self.std, std)}" if self.runs > 1 else text


def measured(values: Sequence[float]) -> Measured:
    """Mean and spread of some values.

    Args:
        values: One per restart.

    Returns:
        Their summary.

    Example:
        >>> str(measured([70.0, 72.0]))
        '71.0 ± 1.0'
    """
    return Measured(fmean(values), pstdev(values), len(values))


def combined_std(ours: Measured, published_std: float) -> float:
    """Standard deviation of the difference between one of our runs and one published run.

    Args:
        ours: Our summary.
        published_std: The published spread.

    Returns:
        √(s² + s'²).
    """
    return math.hypot(ours.std, published_std)


def verdict(ours: Measured, published: float, published_std: float) -> str:
    """Whether a published number is reproduced.

    Args:
        ours: Our summary.
        published: The published mean.
        published_std: Its spread.

    Returns:
        "reproduced" if the means differ by at most 2 combined standard deviations, else by how
        many they differ; a single run has no spread to judge by.

    Example:
        >>> verdict(measured([70.0, 72.0]), 69.0, 1.0), verdict(measured([70.0, 72.0]), 60.0, 1.0)
        ('reproduced', 'not reproduced (7.8 std)')
    """
    if ours.runs < 2:
        return "one run only"
    spread = combined_std(ours, published_std)
    distance = abs(ours.mean - published) / spread if spread > 0 else math.inf
    if ours.mean == published:
        distance = 0.0
    return "reproduced" if distance <= TOLERANCE else f"not reproduced ({distance:.1f} std)"
