r"""SAND-mask, the smoothed AND-mask (Shahtalebi et al., 2021).

The gradients of the domains have to agree in size as well as in sign. For every single parameter,

$$m = \max\left(0, \tanh\left(\frac{k}{\sigma^2} (a - \tau)\right)\right), \qquad
a = \frac1E \left|\sum_e \text{sign}(g_e)\right|, \qquad
\sigma^2 = \frac{1}{E-1} \sum_e (g_e - \bar g)^2$$

and the gradient to follow is $m \odot \bar g$, divided by the mean of m over the entries of each
parameter tensor (plus 10⁻¹⁰). Where the gradients are equal (σ = 0) the mask is its limit: 1 if
a > τ, else 0. With one domain it is 1.

Beware of τ = 1, DomainBed's default: a never exceeds it, the mask is 0 everywhere and nothing is
learned unless there is one domain. The random draws of a search are below 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor

from hessalign._shapes import Float
from hessalign.bench.algorithms.andmask import masked_mean, sign_agreement
from hessalign.bench.algorithms.checks import check_number
from hessalign.bench.algorithms.kinds import AbstractGradientRule, Setting
from hessalign.bench.algorithms.search import Power, SearchSpace, Uniform


@final
@dataclass(frozen=True)
class SandMaskConfig:
    """How much agreement is asked for, and how sharply.

    Attributes:
        tau: The agreement τ in sign from which on parameters move, from 0 to 1.
        k: Steepness; large values make an AND-mask of it.
    """

    tau: float = 1.0
    k: float = 10.0

    def __post_init__(self) -> None:
        check_number("tau", self.tau, 0, 1)
        check_number("k", self.k, open_low=True)


SEARCH: Final[SearchSpace] = {"tau": ("tau", Uniform(0, 1)), "k": ("k", Power(10, -3, 5))}


def smooth_mask(gradients: Float[Tensor, " e *p"], tau: float, k: float) -> Float[Tensor, "*p"]:
    """The mask of one parameter tensor.

    Args:
        gradients: Its gradients, domains on the first axis.
        tau: The least agreement.
        k: Steepness.

    Returns:
        Factors from 0 to 1.

    Example:
        >>> gradients = torch.tensor([[1.0, 1.0, 1.0], [1.0, 2.0, -1.0]])
        >>> smooth_mask(gradients, tau=0.5, k=1.0)  # tanh(0.5 / 0.5) in the middle
        tensor([1.0000, 0.7616, 0.0000])
    """
    if len(gradients) == 1:
        return torch.ones_like(gradients[0])
    excess = sign_agreement(gradients) - tau
    variance = gradients.var(0)
    smooth = (k * excess / variance).tanh().clamp(min=0)
    return torch.where(variance > 0, smooth, (excess > 0).to(smooth.dtype))


@final
class SandMask(AbstractGradientRule):
    """Descend the mean risk, each parameter as far as the domains agree on it.

    Args:
        config: How much agreement is asked for.
        setting: What to train on.
    """

    def __init__(self, config: SandMaskConfig, setting: Setting) -> None:
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
        return [
            masked_mean(each, smooth_mask(each, self.config.tau, self.config.k), rescale=True)
            for each in gradients
        ]
