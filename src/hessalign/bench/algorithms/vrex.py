r"""Variance risk extrapolation, V-REx (Krueger et al., 2021): align the risks.

$$\frac1E \sum_e (L_e - \bar L)^2$$
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, final, get_args

from torch import Tensor

from hessalign._names import check_name
from hessalign._shapes import Float
from hessalign.bench.algorithms.checks import check_count, check_number
from hessalign.bench.algorithms.kinds import AbstractObjective, Setting
from hessalign.bench.algorithms.schedule import PenaltySchedule
from hessalign.bench.algorithms.search import Power, SearchSpace
from hessalign.bench.algorithms.step import ObjectiveTerms, Step

Fidelity = Literal["paper", "released"]


@final
@dataclass(frozen=True)
class VrexConfig:
    """Weight and scale of the penalty.

    Attributes:
        penalty_weight: Weight of the penalty after annealing; before it is 1.
        anneal_steps: Steps before the weight jumps.
        fidelity: "paper" for the variance. "released" for the Colored MNIST scripts, which take
            the squared difference of the two risks: E² times the variance.
    """

    penalty_weight: float = 10.0
    anneal_steps: int = 500
    fidelity: Fidelity = "paper"

    def __post_init__(self) -> None:
        check_number("penalty_weight", self.penalty_weight)
        check_count("anneal_steps", self.anneal_steps, 0)
        check_name("fidelity", self.fidelity, get_args(Fidelity))

    @property
    def schedule(self) -> PenaltySchedule:
        """How the weight of the penalty changes."""
        return PenaltySchedule(1.0, self.penalty_weight, self.anneal_steps, reset=True)


SEARCH: Final[SearchSpace] = {
    "penalty_weight": ("vrex_lambda", Power(10, -1, 5)),
    "anneal_steps": ("vrex_penalty_anneal_iters", Power(10, 0, 4, integer=True)),
}


def risk_variance(risk: Float[Tensor, " e"]) -> Float[Tensor, ""]:
    """Variance of the risks over domains.

    Args:
        risk: Mean loss of each domain.

    Returns:
        The mean squared deviation from their mean.
    """
    return (risk - risk.mean()).square().mean()


@final
class Vrex(AbstractObjective):
    """Minimise the mean risk and its variance over domains.

    Args:
        config: Scale of the penalty.
        setting: What to train on.
    """

    def __init__(self, config: VrexConfig, setting: Setting) -> None:
        super().__init__()
        self.config = config
        self.network = setting.make_network()

    def terms(self, step: Step) -> ObjectiveTerms:
        """Risk and penalty.

        Args:
            step: The current step.

        Returns:
            The terms.
        """
        risk = step.statistics.risk
        scale = len(risk) ** 2 if self.config.fidelity == "released" else 1
        return ObjectiveTerms(risk.mean(), scale * risk_variance(risk))
