r"""AND-mask (Parascandolo et al., 2021): follow only where the domains' gradients agree in sign.

For every single parameter, with $g_e$ the gradient of the risk of domain e,

$$m = \mathbb 1\left[\frac1E \left|\sum_e \text{sign}(g_e)\right| \geq \tau\right],
\qquad \text{follow}\ m \odot \frac1E \sum_e g_e$$

A gradient of exactly 0 has sign 0. At τ = 1 all domains have to agree; at τ = 0, or with one
domain, this is plain gradient descent on the mean risk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, final, get_args

from torch import Tensor

from hessalign._names import check_name
from hessalign._shapes import Float
from hessalign.bench.algorithms.checks import check_number
from hessalign.bench.algorithms.kinds import AbstractGradientRule, Setting
from hessalign.bench.algorithms.search import SearchSpace, Uniform

Fidelity = Literal["paper", "domainbed"]


@final
@dataclass(frozen=True)
class AndMaskConfig:
    """How much agreement is asked for.

    Attributes:
        tau: The least agreement τ, from 0 to 1.
        fidelity: "paper" as above. "domainbed" also divides the gradient of each parameter tensor
            by the share of its entries that the mask keeps (plus 10⁻¹⁰).
    """

    tau: float = 1.0
    fidelity: Fidelity = "paper"

    def __post_init__(self) -> None:
        check_number("tau", self.tau, 0, 1)
        check_name("fidelity", self.fidelity, get_args(Fidelity))


SEARCH: Final[SearchSpace] = {"tau": ("tau", Uniform(0.5, 1))}


def sign_agreement(gradients: Float[Tensor, " e *p"]) -> Float[Tensor, "*p"]:
    """How far the domains' gradients agree in sign.

    Args:
        gradients: Those of one parameter tensor, domains on the first axis.

    Returns:
        The absolute mean of the signs, 1 where all agree.

    Example:
        >>> import torch
        >>> sign_agreement(torch.tensor([[1.0, 2.0], [3.0, -0.1]]))
        tensor([1., 0.])
    """
    return gradients.sign().mean(0).abs()


def masked_mean(
    gradients: Float[Tensor, " e *p"], mask: Float[Tensor, "*p"], rescale: bool
) -> Float[Tensor, "*p"]:
    """The mean gradient where the mask is open.

    Args:
        gradients: Those of one parameter tensor, domains on the first axis.
        mask: Factors from 0 to 1.
        rescale: Divide by the mean of the mask, plus 10⁻¹⁰.

    Returns:
        The gradient to follow.
    """
    mean = mask * gradients.mean(0)
    return mean / (mask.mean() + 1e-10) if rescale else mean


@final
class AndMask(AbstractGradientRule):
    """Descend the mean risk along the parameters in which all domains agree.

    Args:
        config: How much agreement is asked for.
        setting: What to train on.
    """

    def __init__(self, config: AndMaskConfig, setting: Setting) -> None:
        super().__init__()
        self.config = config
        self.network = setting.make_network()

    def combine(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """The masked mean gradient.

        Args:
            gradients: For each parameter of the network its gradients, domains on the first axis.

        Returns:
            For each parameter the gradient to follow.
        """
        rescale = self.config.fidelity == "domainbed"
        return [
            masked_mean(each, (sign_agreement(each) >= self.config.tau).to(each.dtype), rescale)
            for each in gradients
        ]
