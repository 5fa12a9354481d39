r"""Group distributionally robust optimisation, GroupDRO (Sagawa et al., 2020).

Minimise the risk under the worst mixture of the source domains. The weights q of the mixture
follow the risks by exponentiated gradient ascent, first the weights and then the parameters
(Algorithm 1):

$$q_e \leftarrow \frac{q_e\, e^{\eta L_e}}{\sum_f q_f\, e^{\eta L_f}}, \qquad
\text{minimise}\ \sum_e q_e L_e$$

starting from $q_e = 1/E$; no derivative is taken through q.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from hessalign._shapes import Float
from hessalign.bench.algorithms.kinds import AbstractObjective, Setting
from hessalign.bench.algorithms.options import NonNegative, Options
from hessalign.bench.algorithms.search import Power, SearchSpace
from hessalign.bench.algorithms.step import ObjectiveTerms, Step


@final
@dataclass(frozen=True)
class _GroupDroConfig(Options):
    """How fast the weights follow the risks.

    Attributes:
        eta: Step size η of the weights.
    """

    eta: NonNegative = 1e-2


def _exponentiated_weights(
    weights: Float[Tensor, " e"], risk: Float[Tensor, " e"], eta: float
) -> Float[Tensor, " e"]:
    r"""One step of exponentiated gradient ascent, $q_e e^{\eta L_e}$ normalised to sum 1.

    Returns:
        The weights after it, without a graph.

    Example:
        >>> _exponentiated_weights(torch.tensor([0.5, 0.5]), torch.tensor([0.0, 1.0]).log1p(), 1.0)
        tensor([0.3333, 0.6667])
    """
    return (weights.log() + eta * risk.detach()).softmax(0)


@final
class GroupDro(AbstractObjective):
    """Minimise the weighted risk, with weights that rise where the risk is high."""

    config: _GroupDroConfig = _GroupDroConfig()
    search: ClassVar[SearchSpace] = {"eta": ("groupdro_eta", Power(10, -3, -1))}

    constants: ClassVar[str] = "the weights of the domains"
    weights: Tensor

    def __init__(self, config: _GroupDroConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        uniform = torch.full((setting.domains,), 1 / setting.domains, dtype=torch.float64)
        self.register_buffer("weights", uniform)

    def terms(self, step: Step) -> ObjectiveTerms:
        """The weighted risk."""
        risk = step.statistics.risk
        self.weights = _exponentiated_weights(self.weights, risk, self.config.eta)
        return ObjectiveTerms((self.weights * risk).sum())
