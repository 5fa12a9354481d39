"""Empirical risk minimisation (Vapnik, 1999): the mean risk, and nothing aligned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from hessalign.algorithms.objective import ObjectiveTerms
from hessalign.curvature import HeadStatistics


@final
@dataclass(frozen=True)
class ErmConfig:
    """ERM has no hyper-parameters of its own."""


@final
@dataclass(frozen=True)
class Erm:
    """Minimise the mean risk over domains.

    Args:
        config: Nothing to configure.
    """

    config: ErmConfig

    def __call__(self, statistics: HeadStatistics) -> ObjectiveTerms:
        """The mean risk.

        Args:
            statistics: Statistics of the head on one batch.

        Returns:
            A loss without penalty.
        """
        return ObjectiveTerms(statistics.risk.mean())
