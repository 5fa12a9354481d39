r"""Inter-environmental gradient alignment, IGA (Koyama & Yamaguchi, 2020).

Align the gradients of the domains' risks in all parameters θ of the network: the penalty is the
trace of the covariance of the gradients over domains,

$$\frac1E \sum_e \|\nabla_\theta L_e - \nabla_\theta \bar L\|^2, \qquad
\bar L = \frac1E \sum_e L_e$$

Unlike `gradient`, which looks at the head alone, this needs a second backward pass through the
whole network. With one domain the penalty is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, final, get_args

import torch
from torch import Tensor

from hessalign._names import check_name
from hessalign._shapes import Float
from hessalign.algorithms.checks import check_number
from hessalign.algorithms.kinds import AbstractObjective, Setting
from hessalign.algorithms.schedule import PenaltySchedule
from hessalign.algorithms.search import Power, SearchSpace
from hessalign.algorithms.step import ObjectiveTerms, Step

Fidelity = Literal["paper", "domainbed"]


@final
@dataclass(frozen=True)
class IgaConfig:
    """Weight and scale of the penalty.

    Attributes:
        penalty_weight: Weight of the penalty.
        fidelity: "paper" as above. "domainbed" takes the sum over domains instead of the mean, and
            treats the mean gradient as a constant. Since the deviations add up to 0, the constant
            changes no gradient, so "domainbed" is E times "paper".
    """

    penalty_weight: float = 1000.0
    fidelity: Fidelity = "paper"

    def __post_init__(self) -> None:
        check_number("penalty_weight", self.penalty_weight)
        check_name("fidelity", self.fidelity, get_args(Fidelity))

    @property
    def schedule(self) -> PenaltySchedule:
        """No annealing."""
        return PenaltySchedule(after=self.penalty_weight)


SEARCH: Final[SearchSpace] = {"penalty_weight": ("penalty", Power(10, 1, 5))}

FEATURES_SEARCH: Final[SearchSpace] = {"penalty_weight": ("penalty", Power(10, -2.5, 1.5))}
"""For frozen features, where DomainBed's weights let nothing be learnt.

The same rule as for Hessian alignment, see `hessian.FEATURES_SEARCH`.
"""


def gradient_trace(
    gradients: list[Float[Tensor, " e *p"]], fidelity: Fidelity = "paper"
) -> Float[Tensor, ""]:
    """Trace of the covariance of the gradients over domains.

    Args:
        gradients: For each parameter its gradients, domains on the first axis.
        fidelity: Mean or sum over domains, see `IgaConfig`.

    Returns:
        The sum over parameters of the variance, with divisor E or 1.

    Example:
        >>> gradients = [torch.tensor([[1.0, 0.0], [3.0, 0.0]])]
        >>> gradient_trace(gradients), gradient_trace(gradients, "domainbed")
        (tensor(1.), tensor(2.))
    """
    total = gradients[0].new_zeros(())
    for each in gradients:
        mean = each.mean(0)
        centre = mean.detach() if fidelity == "domainbed" else mean
        total = total + (each - centre).square().sum()
    return total if fidelity == "domainbed" else total / len(gradients[0])


@final
class Iga(AbstractObjective):
    """Minimise the mean risk and the variance of its gradient over domains.

    Args:
        config: Scale of the penalty.
        setting: What to train on.
    """

    def __init__(self, config: IgaConfig, setting: Setting) -> None:
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
        parameters = [each for each in self.network.parameters() if each.requires_grad]
        by_domain = [torch.autograd.grad(each, parameters, create_graph=True) for each in risk]
        gradients = [torch.stack(each) for each in zip(*by_domain, strict=True)]
        return ObjectiveTerms(risk.mean(), gradient_trace(gradients, self.config.fidelity))
