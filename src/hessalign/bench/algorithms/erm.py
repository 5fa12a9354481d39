"""Empirical risk minimisation (Vapnik, 1999): the mean risk, and nothing aligned."""

from __future__ import annotations

from typing import final

from hessalign.bench.algorithms.kinds import AbstractObjective
from hessalign.bench.algorithms.step import ObjectiveTerms, Step


@final
class Erm(AbstractObjective):
    """Minimise the mean risk over domains."""

    def terms(self, step: Step) -> ObjectiveTerms:
        """The mean risk."""
        return ObjectiveTerms(step.statistics.risk.mean())
