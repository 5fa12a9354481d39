"""Differences of two methods on the same trials and domains, and whether chance explains them."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cache
from statistics import fmean, stdev
from typing import Final, TypeVar, final

LEVEL: Final = 0.05  # chance of calling a difference clear where there is none, for one comparison

_Key = TypeVar("_Key", bound=Hashable)


@final
@dataclass(frozen=True)
class Difference:
    """A mean difference over pairs, with its standard error unless there is only one pair."""

    mean: float
    error: float | None
    pairs: int

    def __str__(self) -> str:
        return f"{self.mean:+.1f}" + ("" if self.error is None else f" ± {self.error:.1f}")

    @property
    def interval(self) -> tuple[float, float] | None:
        """Where the mean lies but for chance, by Student's t: 95 % of such intervals hold it."""
        if self.error is None:
            return None
        width = clear_errors(self.pairs) * self.error
        return self.mean - width, self.mean + width

    @property
    def clear(self) -> bool:
        """Whether it is farther from 0 than chance explains, by Student's t."""
        return self.interval is not None and not self.interval[0] <= 0 <= self.interval[1]


def paired_difference(
    first: Mapping[_Key, float], second: Mapping[_Key, float]
) -> Difference | None:
    """The mean difference over the keys, such as trials, that both have.

    Returns:
        The difference; None if they share no key.

    Example:
        >>> found = paired_difference({0: 71.0, 1: 73.0, 2: 72.0}, {0: 70.0, 1: 71.0, 2: 70.5})
        >>> str(found), found.clear, [round(end, 2) for end in found.interval]
        ('+1.5 ± 0.3', True, [0.26, 2.74])
    """
    values = [value - second[key] for key, value in first.items() if key in second]
    if not values:
        return None
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return Difference(fmean(values), error, len(values))


@cache
def clear_errors(pairs: int) -> float:
    """Standard errors beyond which a mean over pairs is clearly not 0, by Student's t."""
    from scipy.stats import t

    return float(t.ppf(1 - LEVEL / 2, pairs - 1))
