r"""Methods of the domains' risks: ERM, SD, V-REx, IRM and GroupDRO.

Empirical risk minimisation (Vapnik, 1999) takes their mean $\bar L$ and aligns nothing. Variance
risk extrapolation, V-REx (Krueger et al., 2021), adds their variance,
$\frac1E \sum_e (L_e - \bar L)^2$.

Spectral decoupling, SD (Pezeshki et al., 2021, arXiv 2011.09468), adds the size of the logits
$a_n$, so that features that are learnt first do not starve the others of gradient,
$\frac{1}{2N} \sum_n \|a_n\|^2$ over all N samples. It looks at no domains.

A predictor is invariant if the same classifier is optimal in every domain. Invariant risk
minimisation, IRMv1 (Arjovsky et al., 2019), asks this of a scalar factor w = 1 on the logits $a$:

$$\frac1E \sum_e \left(\frac{\partial}{\partial w} L_e(w \cdot a)\Big|_{w=1}\right)^2,
\qquad \frac{\partial}{\partial w} L_e = \text{mean}_{n \in e}\; r_n \cdot a_n$$

with $r$ the derivative of the loss in the logits, so no second backward pass is needed.

Group distributionally robust optimisation, GroupDRO (Sagawa et al., 2020), minimises the risk under
the worst mixture of the source domains. The weights q of the mixture follow the risks by
exponentiated gradient ascent, first the weights and then the parameters (Algorithm 1):

$$q_e \leftarrow \frac{q_e\, e^{\eta L_e}}{\sum_f q_f\, e^{\eta L_f}}, \qquad
\text{minimise}\ \sum_e q_e L_e$$

starting from $q_e = 1/E$; no derivative is taken through q.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from hessalign._shapes import Float
from hessalign.bench.algorithms.kinds import AbstractObjective, ObjectiveTerms, Setting, Step
from hessalign.bench.algorithms.options import (
    AnnealedOptions,
    Fidelity,
    NonNegative,
    Options,
    PenaltyOptions,
    Power,
    SearchSpace,
)


@final
class Erm(AbstractObjective):
    """Minimise the mean risk over domains."""

    def terms(self, step: Step) -> ObjectiveTerms:
        """The mean risk."""
        return ObjectiveTerms(step.statistics.risk.mean())


@final
@dataclass(frozen=True)
class _SdConfig(PenaltyOptions):
    penalty_weight: NonNegative = 0.1
    # "paper" for half the squared norm of a sample's logits. "domainbed" for the mean of the
    # squares of all logits: 2/k of it for k logits.
    fidelity: Fidelity = "paper"


@final
class Sd(AbstractObjective):
    """Minimise the mean risk and the size of the logits."""

    config: _SdConfig = _SdConfig()
    search: ClassVar[SearchSpace] = {"penalty_weight": ("sd_reg", Power(10, -5, -1))}

    def terms(self, step: Step) -> ObjectiveTerms:
        """Risk and penalty."""
        squares = step.logits.square()
        if self.config.fidelity == "paper":
            squares = squares.sum(1) / 2
        return ObjectiveTerms(step.statistics.risk.mean(), squares.mean())


@final
@dataclass(frozen=True)
class _VrexConfig(AnnealedOptions):
    penalty_weight: NonNegative = 10.0
    # "released" takes the squared difference of the two risks, as the Colored MNIST scripts do: E²
    # times the variance.
    fidelity: Literal["paper", "released"] = "paper"


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


@final
@dataclass(frozen=True)
class _IrmConfig(AnnealedOptions):
    penalty_weight: NonNegative = 100.0
    # "paper" squares the derivative over all samples of a domain. "domainbed" multiplies the
    # derivatives over its even and its odd samples, which is unbiased.
    fidelity: Fidelity = "paper"


@final
class Irm(AbstractObjective):
    """Minimise the mean risk and the IRMv1 penalty."""

    config: _IrmConfig = _IrmConfig()
    search: ClassVar[SearchSpace] = {
        "penalty_weight": ("irm_lambda", Power(10, -1, 5)),
        "anneal_steps": ("irm_penalty_anneal_iters", Power(10, 0, 4, integer=True)),
    }

    def terms(self, step: Step) -> ObjectiveTerms:
        """Risk and penalty."""
        return ObjectiveTerms(step.statistics.risk.mean(), irm_penalty(step, self.config.fidelity))


def irm_penalty(step: Step, fidelity: Fidelity) -> Float[Tensor, ""]:
    """The IRMv1 penalty, the mean over domains of squared derivatives in a factor on the logits."""
    slopes = (step.statistics.error * step.statistics.logits).sum(1)
    penalties = []
    for part in slopes.split(step.batch.sizes):
        if fidelity == "domainbed":
            # A domain with a single sample has no odd one; its derivative is then 0.
            penalties.append(part[::2].mean() * part[1::2].sum() / max(1, len(part) // 2))
        else:
            penalties.append(part.mean().square())
    return torch.stack(penalties).mean()


@final
@dataclass(frozen=True)
class _GroupDroConfig(Options):
    eta: NonNegative = 1e-2  # step size η of the weights


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
        self.weights = (self.weights.log() + self.config.eta * risk.detach()).softmax(0)
        return ObjectiveTerms((self.weights * risk).sum())
