r"""Variance risk extrapolation, V-REx (Krueger et al., 2021): align the risks.

$$\frac1E \sum_e (L_e - \bar L)^2$$
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, final

from hessalign.bench.algorithms.kinds import AbstractObjective, PenaltySchedule
from hessalign.bench.algorithms.options import NonNegative, Options, Whole
from hessalign.bench.algorithms.search import Power, SearchSpace
from hessalign.bench.algorithms.step import ObjectiveTerms, Step

_Fidelity = Literal["paper", "released"]


@final
@dataclass(frozen=True)
class _VrexConfig(Options):
    """Weight and scale of the penalty.

    Attributes:
        penalty_weight: Weight of the penalty after annealing; before it is 1.
        anneal_steps: Steps before the weight jumps.
        fidelity: "paper" for the variance. "released" for the Colored MNIST scripts, which take
            the squared difference of the two risks: E² times the variance.
    """

    penalty_weight: NonNegative = 10.0
    anneal_steps: Whole = 500
    fidelity: _Fidelity = "paper"

    @property
    def schedule(self) -> PenaltySchedule:
        """How the weight of the penalty changes."""
        return PenaltySchedule(1.0, self.penalty_weight, self.anneal_steps, reset=True)


@final
class Vrex(AbstractObjective):
    """Minimise the mean risk and its variance over domains."""

    config: _VrexConfig = _VrexConfig()
    search: ClassVar[SearchSpace] = {
        "penalty_weight": ("vrex_lambda", Power(10, -1, 5)),
        "anneal_steps": ("vrex_penalty_anneal_iters", Power(10, 0, 4, integer=True)),
    }

    def terms(self, step: Step) -> ObjectiveTerms:
        """Risk and penalty."""
        risk = step.statistics.risk
        scale = len(risk) ** 2 if self.config.fidelity == "released" else 1
        return ObjectiveTerms(risk.mean(), scale * (risk - risk.mean()).square().mean())
