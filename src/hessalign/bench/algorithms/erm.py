"""Empirical risk minimisation (Vapnik, 1999): the mean risk, and nothing aligned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from hessalign.bench.algorithms.kinds import AbstractObjective, Setting
from hessalign.bench.algorithms.step import ObjectiveTerms, Step


@final
@dataclass(frozen=True)
class ErmConfig:
    """ERM has no hyper-parameters of its own."""


@final
class Erm(AbstractObjective):
    """Minimise the mean risk over domains.

    Args:
        config: Nothing to configure.
        setting: What to train on.
    """

    def __init__(self, config: ErmConfig, setting: Setting) -> None:
        super().__init__()
        self.config = config
        self.network = setting.make_network()

    def terms(self, step: Step) -> ObjectiveTerms:
        """The mean risk.

        Args:
            step: The current step.

        Returns:
            A loss without penalty.
        """
        return ObjectiveTerms(step.statistics.risk.mean())
