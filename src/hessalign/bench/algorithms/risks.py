r"""Methods of the domains' risks, and those that keep logits or features small besides.

In all formulas of this package $L_e$ is the risk of domain e, the mean loss of its samples n, out
of E domains, $\bar L$ the mean of their risks, z are features and a logits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Annotated, ClassVar, Final, Literal, final

import torch
from torch import Tensor

from hessalign._shapes import Float
from hessalign.bench.algorithms.features import squared_discrepancy
from hessalign.bench.algorithms.kinds import AbstractObjective, ObjectiveTerms, Setting, Step
from hessalign.bench.algorithms.options import (
    AnnealedOptions,
    Fidelity,
    Fixed,
    Hyper,
    NonNegative,
    Options,
    PenaltyFidelity,
    PenaltySchedule,
    Power,
    Range,
    SearchSpace,
    Uniform,
    Whole,
)

_WEIGHTS: Final = Power(10, -1, 5)
_STEPS: Final = Power(10, 0, 4, integer=True)


@final
class Erm(AbstractObjective):
    """Empirical risk minimisation: minimise the mean risk over domains."""

    aligns = "nothing"
    reference = "Vapnik, 1999"

    def terms(self, step: Step) -> ObjectiveTerms:
        """The mean risk."""
        return ObjectiveTerms(step.statistics.risk.mean())


@final
class Sd(AbstractObjective):
    r"""Spectral decoupling: minimise the mean risk and the size of the logits.

    The penalty, $\frac{1}{2N} \sum_n \|a_n\|^2$ over all N samples, keeps features that are learnt
    first from starving the others of gradient. It looks at no domains.
    """

    aligns = "nothing; logits are kept small"
    reference = "Pezeshki et al., 2021, arXiv 2011.09468"
    # Fidelity "paper" for half the squared norm of a sample's logits, "domainbed" for the mean of
    # the squares of all logits: 2/k of it for k logits.
    config: PenaltyFidelity = PenaltyFidelity(penalty_weight=0.1)
    search: ClassVar[SearchSpace] = {"penalty_weight": ("sd_reg", Power(10, -5, -1))}

    def terms(self, step: Step) -> ObjectiveTerms:
        """Risk and penalty."""
        squares = step.logits.square()
        if self.config.fidelity == "paper":
            squares = squares.sum(1) / 2
        return ObjectiveTerms(step.statistics.risk.mean(), squares.mean())


@dataclass(frozen=True)
class _VrexConfig(AnnealedOptions):
    penalty_weight: NonNegative = 10.0
    # "released" takes the squared difference of the two risks, as the Colored MNIST scripts do: E²
    # times the variance.
    fidelity: Literal["paper", "released"] = "paper"


@final
class Vrex(AbstractObjective):
    r"""Variance risk extrapolation: the penalty is $\frac1E \sum_e (L_e - \bar L)^2$."""

    aligns = "loss"
    reference = "Krueger et al., 2021"
    config: _VrexConfig = _VrexConfig()
    search: ClassVar[SearchSpace] = {
        "penalty_weight": ("vrex_lambda", _WEIGHTS),
        "anneal_steps": ("vrex_penalty_anneal_iters", _STEPS),
    }
    released: ClassVar[Mapping[str, object]] = {"fidelity": "released"}

    def terms(self, step: Step) -> ObjectiveTerms:
        """Risk and penalty."""
        risk = step.statistics.risk
        scale = len(risk) ** 2 if self.config.fidelity == "released" else 1
        return ObjectiveTerms(risk.mean(), scale * (risk - risk.mean()).square().mean())


@dataclass(frozen=True)
class _IrmConfig(AnnealedOptions):
    penalty_weight: NonNegative = 100.0
    # "paper" squares the derivative over all samples of a domain. "domainbed" multiplies the
    # derivatives over its even and its odd samples, which is unbiased.
    fidelity: Fidelity = "paper"


@final
class Irm(AbstractObjective):
    r"""Invariant risk minimisation, IRMv1: the same classifier is to be optimal in every domain.

    The penalty asks this of a scalar factor w = 1 on the logits:

    $$\frac1E \sum_e \left(\frac{\partial}{\partial w} L_e(w \cdot a)\Big|_{w=1}\right)^2,
    \qquad \frac{\partial}{\partial w} L_e = \text{mean}_{n \in e}\; r_n \cdot a_n$$

    with $r$ the derivative of the loss in the logits, so no second backward pass is needed.
    """

    aligns = "the optimal scale of the logits"
    reference = "Arjovsky et al., 2019"
    config: _IrmConfig = _IrmConfig()
    search: ClassVar[SearchSpace] = {
        "penalty_weight": ("irm_lambda", _WEIGHTS),
        "anneal_steps": ("irm_penalty_anneal_iters", _STEPS),
    }

    def terms(self, step: Step) -> ObjectiveTerms:
        """Risk and penalty."""
        return ObjectiveTerms(step.statistics.risk.mean(), _irm_penalty(step, self.config.fidelity))


def _irm_penalty(step: Step, fidelity: Fidelity) -> Float[Tensor, ""]:
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


@dataclass(frozen=True)
class _GroupDroConfig(Options):
    eta: NonNegative = 1e-2  # step size η of the weights


@final
class GroupDro(AbstractObjective):
    r"""Group distributionally robust optimisation: minimise the risk of the worst mixture.

    The weights q of the mixture follow the risks by exponentiated gradient ascent, first the
    weights and then the parameters (Algorithm 1):

    $$q_e \leftarrow \frac{q_e\, e^{\eta L_e}}{\sum_f q_f\, e^{\eta L_f}}, \qquad
    \text{minimise}\ \sum_e q_e L_e$$

    starting from $q_e = 1/E$; no derivative is taken through q.
    """

    aligns = "nothing; the worst mixture of domains"
    reference = "Sagawa et al., 2020"
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


def _feature_variance(step: Step) -> Float[Tensor, ""]:
    """Mean over domains and features of the variance within a domain."""
    variances = [
        (z - z.mean(0)).square().sum(0).mean() / max(1, len(z) - 1)
        for z in step.features_by_domain()
    ]
    return torch.stack(variances).mean()


@dataclass(frozen=True)
class _IbErmConfig(AnnealedOptions):
    before = 0.0
    penalty_weight: NonNegative = 100.0


@final
class IbErm(AbstractObjective):
    r"""Information bottleneck: minimise the mean risk and the entropy of the features.

    For the entropy stands their variance (divisors $n_e - 1$; 0 for a single sample),

    $$\frac1E \sum_e \frac1d \sum_j \mathrm{var}_{n \in e}\, z_{nj}$$
    """

    aligns = "nothing; features are kept small"
    reference = "Ahuja et al., 2021, arXiv 2106.06607"
    config: _IbErmConfig = _IbErmConfig()
    search: ClassVar[SearchSpace] = {
        "penalty_weight": ("ib_lambda", _WEIGHTS),
        "anneal_steps": ("ib_penalty_anneal_iters", _STEPS),
    }

    def terms(self, step: Step) -> ObjectiveTerms:
        """Risk and penalty."""
        return ObjectiveTerms(step.statistics.risk.mean(), _feature_variance(step))


@dataclass(frozen=True)
class _IbIrmConfig(Options):
    irm_weight: NonNegative = 100.0
    irm_anneal_steps: Whole = 500  # with the weight 1
    ib_weight: NonNegative = 100.0
    ib_anneal_steps: Whole = 500  # with the weight 0
    fidelity: Fidelity = "paper"  # of IRM's penalty

    @property
    def schedule(self) -> PenaltySchedule:
        """The sum has the weight 1; the optimiser starts afresh when either term sets in."""
        return PenaltySchedule(resets=(self.irm_anneal_steps, self.ib_anneal_steps))


@final
class IbIrm(AbstractObjective):
    """Minimise the mean risk with the penalties of `Irm` and `IbErm`, each with its schedule."""

    aligns = "the optimal scale of the logits"
    reference = "Ahuja et al., 2021, arXiv 2106.06607"
    config: _IbIrmConfig = _IbIrmConfig()
    search: ClassVar[SearchSpace] = {
        "irm_weight": ("irm_lambda", _WEIGHTS),
        "irm_anneal_steps": ("irm_penalty_anneal_iters", _STEPS),
        "ib_weight": ("ib_lambda", _WEIGHTS),
        "ib_anneal_steps": ("ib_penalty_anneal_iters", _STEPS),
    }
    # Both weights are the protocol's, which has one schedule for all penalties.
    released: ClassVar[Mapping[str, object]] = {
        "irm_weight": 1.0,
        "irm_anneal_steps": 0,
        "ib_weight": 1.0,
        "ib_anneal_steps": 0,
    }

    def terms(self, step: Step) -> ObjectiveTerms:
        """Risk and penalty."""
        config = self.config
        parts = {"irm": _irm_penalty(step, config.fidelity), "ib": _feature_variance(step)}
        irm = config.irm_weight if step.number >= config.irm_anneal_steps else 1.0
        ib = config.ib_weight if step.number >= config.ib_anneal_steps else 0.0
        penalty = irm * parts["irm"] + ib * parts["ib"]
        return ObjectiveTerms(step.statistics.risk.mean(), penalty, parts)


@dataclass(frozen=True)
class _EqrmConfig(Options):
    quantile: Annotated[float, Range(0, 1, open_low=True, open_high=True)] = 0.75  # α
    burn_in_steps: NonNegative = 2500  # with the mean risk; a fraction is the next whole number
    late_lr: NonNegative | None = 1e-6  # learning rate after these; None leaves it as it is
    # "domainbed" for its derivative of the quantile, and for its optimiser, which goes on as before
    # if the number of first steps is a fraction, as all its random draws are.
    fidelity: Fidelity = "paper"

    @property
    def schedule(self) -> PenaltySchedule:
        """When the optimiser starts afresh, with which learning rate; there is no penalty."""
        jump = math.ceil(self.burn_in_steps)
        afresh = self.fidelity == "paper" or jump == self.burn_in_steps
        return PenaltySchedule(jump=jump, reset=afresh, rate=self.late_lr if afresh else None)


def _quantile(
    risks: Float[Tensor, " e"], alpha: float, fidelity: Fidelity = "paper"
) -> Float[Tensor, ""]:
    """The quantile α of the kernel density estimate of some risks."""
    if len(risks) == 1:
        return risks.sum()
    # The tiny number leaves the derivative of the root finite where all risks are equal.
    width: Tensor = 1.06 * len(risks) ** -0.2 * (risks.var() + 1e-24).sqrt()
    reach = width * NormalDist().inv_cdf(alpha)
    low, high = risks.min() + reach, risks.max() + reach
    with torch.no_grad():
        left, right = torch.zeros_like(low), torch.ones_like(low)
        for _ in range(32):
            middle = (left + right) / 2
            point = low + middle * (high - low)
            above = torch.special.ndtr((point - risks) / width).mean() > alpha
            left, right = torch.where(above, left, middle), torch.where(above, middle, right)
        share = (left + right) / 2
    if fidelity == "domainbed":
        return low + share * (high - low)
    # A step of Newton's method from there has the quantile's own derivative.
    point = (low + share * (high - low)).detach()
    scaled = (point - risks) / width
    density = (torch.exp(-scaled.square() / 2) / (width * math.sqrt(2 * math.pi))).mean().detach()
    below: Tensor = torch.special.ndtr(scaled).mean()
    return point - (below - alpha) / density


@final
class Eqrm(AbstractObjective):
    r"""Empirical quantile risk minimisation: at first the mean risk, then a quantile of the risks.

    The domains' risks are draws from a distribution, and a new domain's risk is below its quantile
    α with probability α (algorithm 1). By a Gaussian kernel density estimate the quantile q solves

    $$\frac1E \sum_e \Phi\left(\frac{q - L_e}{h}\right) = \alpha, \qquad h = 1.06\, E^{-1/5}\, s$$

    with the risks' standard deviation s (divisor E − 1). With one domain it is the risk.

    Where they deviate. The quantile is found by halving the interval from $\min_e L_e + h\,
    \Phi^{-1}(\alpha)$ to $\max_e L_e + h\, \Phi^{-1}(\alpha)$. In DomainBed it is then
    differentiated as a fixed point between these two ends, so the gradient knows no domains but the
    best and the worst, and h; ours is the derivative of the quantile. And DomainBed draws the
    number of first steps as a fraction, starts the optimiser afresh with a learning rate of its own
    only if the count of steps is equal to that, and so never does except with the default.
    """

    aligns = "nothing; a high quantile of the risks"
    reference = "Eastwood et al., 2022, arXiv 2207.09944"
    config: _EqrmConfig = _EqrmConfig()
    search: ClassVar[SearchSpace] = {
        "quantile": ("eqrm_quantile", Uniform(0.5, 0.99)),
        "burn_in_steps": ("eqrm_burnin_iters", Power(10, 2.5, 3.5)),
        "late_lr": ("eqrm_lr", Power(10, -7, -5)),
    }
    released: ClassVar[Mapping[str, object]] = {"burn_in_steps": 190, "late_lr": None}

    def terms(self, step: Step) -> ObjectiveTerms:
        """The mean risk or the quantile."""
        risk, config = step.statistics.risk, self.config
        if step.number < config.burn_in_steps:
            return ObjectiveTerms(risk.mean())
        return ObjectiveTerms(_quantile(risk, config.quantile, config.fidelity))


@dataclass(frozen=True)
class _RdmConfig(Options):
    matching_weight: NonNegative = 5.0  # λ
    variance_weight: NonNegative = 0.004  # v
    anneal_steps: Whole = 1500  # without both
    late_lr: NonNegative | None = 1.5e-5  # learning rate after these; None leaves it as it is

    @property
    def schedule(self) -> PenaltySchedule:
        """When both terms set in."""
        return PenaltySchedule(0.0, 1.0, self.anneal_steps, reset=True, rate=self.late_lr)


def _variance(values: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    """The unbiased variance, 0 of a single value."""
    return (values - values.mean()).square().sum() / max(1, len(values) - 1)


_GAMMAS: Final = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)  # inverse squared widths of kernels
_NO_VARIANCE: Final = {"variance_weight": Hyper(0.0, Fixed(0.0))}
_LARGE_MATCHING: Final = {"rdm_lambda": Hyper(5.0, Uniform(1, 10))}
_SMALLER_BATCH: Final = {"batch_size": Hyper(40, Uniform(30, 60, integer=True))}


@final
class Rdm(AbstractObjective):
    r"""Minimise the mean risk, and how the worst domain's losses differ from those of all.

    Risk distribution matching compares the losses $\ell_n$ of the samples of the worst domain w
    with those of all domains, by MMD with γ from 10⁻⁴ to 10³ in powers of ten; its DomainBed code
    adds their variances (divisors one less than the samples):

    $$\lambda\, \mathrm{MMD}^2\big(\{\ell\}_w, \{\ell\}\big) + v \left(\mathrm{var}\,\{\ell\}
    + \mathrm{var}\,\{\ell\}_w\right), \qquad w = \arg\max_e L_e$$

    In the MMD each domain has the same share of all. Both terms set in after some steps, with an
    optimiser that starts afresh and a learning rate of its own; a variance weight of 0 is the
    paper's.
    """

    aligns = "the distribution of losses"
    reference = "Nguyen et al., 2024, arXiv 2310.18598"
    config: _RdmConfig = _RdmConfig()
    search: ClassVar[SearchSpace] = {
        "matching_weight": ("rdm_lambda", Uniform(0.1, 10)),
        "anneal_steps": ("rdm_penalty_anneal_iters", Uniform(800, 2700, integer=True)),
        "variance_weight": ("variance_weight", Uniform(0.001, 0.007)),
        "late_lr": ("rdm_lr", Uniform(8e-6, 2e-5)),
    }
    released: ClassVar[Mapping[str, object]] = {"matching_weight": 1.0, "late_lr": None}
    by_dataset: ClassVar[Mapping[str, Mapping[str, Hyper]]] = {
        "PACS": _LARGE_MATCHING,
        "OfficeHome": _NO_VARIANCE,
        "TerraIncognita": {**_LARGE_MATCHING, **_NO_VARIANCE, **_SMALLER_BATCH},
        "DomainNet": {
            "rdm_lambda": Hyper(0.5, Uniform(0.1, 1)),
            "rdm_penalty_anneal_iters": Hyper(2400, Uniform(1500, 3000, integer=True)),
            **_NO_VARIANCE,
            **_SMALLER_BATCH,
        },
    }

    def terms(self, step: Step) -> ObjectiveTerms:
        """Risk and penalty."""
        risk, losses, config = step.statistics.risk, step.losses, self.config
        worst = risk.argmax().unsqueeze(0)
        averaging = step.batch.domains.weights.averaging
        two = torch.cat([averaging.index_select(0, worst), averaging.mean(0, keepdim=True)])
        by_domain = torch.stack([_variance(part) for part in losses.split(step.batch.sizes)])
        parts = {
            "matching": squared_discrepancy(losses.unsqueeze(1), two, _GAMMAS),
            "variance": _variance(losses) + by_domain.index_select(0, worst).sum(),
        }
        penalty = config.matching_weight * parts["matching"]
        penalty = penalty + config.variance_weight * parts["variance"]
        return ObjectiveTerms(risk.mean(), penalty, parts)
