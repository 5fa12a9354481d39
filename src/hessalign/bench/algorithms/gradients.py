"""Methods of the gradients of the domains' risks in all parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, cycle
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor
from torch.func import functional_call
from torch.optim import Optimizer

from hessalign._shapes import Float
from hessalign.bench.algorithms.auxiliary import (
    draw_normal,
    draw_order,
    follow,
    gradients,
    trainable,
)
from hessalign.bench.algorithms.kinds import (
    MAIN,
    AbstractGradientRule,
    AbstractObjective,
    AbstractStepOwner,
    Batch,
    ObjectiveTerms,
    Step,
    Terms,
)
from hessalign.bench.algorithms.options import (
    Choice,
    Count,
    Fidelity,
    NonNegative,
    Options,
    PenaltyFidelity,
    Power,
    Range,
    SearchSpace,
    Share,
    Uniform,
)
from hessalign.curvature.losses import make_loss


def _contrasts(domains: int) -> Float[Tensor, "j e"]:
    """Orthonormal rows, orthogonal to the row of ones: each domain against those before it."""
    before = torch.arange(1, domains, dtype=torch.float64).unsqueeze(1)
    rows = torch.ones(domains - 1, domains, dtype=torch.float64).tril().neg()
    rows += torch.cat([torch.zeros(domains - 1, 1), torch.diag(before.squeeze(1))], dim=1)
    return rows / (before * (before + 1)).sqrt()


@final
class Iga(AbstractObjective):
    r"""Inter-environmental gradient alignment: minimise the mean risk and its gradients' variance.

    It is the trace of their covariance over domains, in all parameters θ of the network:

    $$\frac1E \sum_e \|\nabla_\theta L_e - \nabla_\theta \bar L\|^2
    = \frac1E \sum_{j<E} \Big\|\nabla_\theta \sum_e C_{je} L_e\Big\|^2$$

    with orthonormal contrasts C, whose rows are orthogonal to (1, …, 1). There is one less of them
    than of domains, so there is one less gradient to keep the graph of: half of the work for two
    domains. Unlike `gradient`, which looks at the head alone, this needs a second backward pass
    through the whole network. With one domain the penalty is 0.
    """

    aligns = "gradients of all parameters"
    reference = "Koyama & Yamaguchi, 2020"
    # Fidelity "domainbed" takes the sum over domains instead of the mean, and treats the mean
    # gradient as a constant. Since the deviations add up to 0, the constant changes no gradient, so
    # it is E times "paper".
    config: PenaltyFidelity = PenaltyFidelity(penalty_weight=1000.0)
    search: ClassVar[SearchSpace] = {"penalty_weight": ("penalty", Power(10, 1, 5))}
    # With DomainBed's weights nothing is learnt there; the rule is that of Hessian alignment.
    search_features: ClassVar[SearchSpace] = {"penalty_weight": ("penalty", Power(10, -2.5, 1.5))}

    @classmethod
    def differentiates_twice(cls, config: PenaltyFidelity) -> bool:
        """It always does."""
        return True

    def terms(self, step: Step) -> ObjectiveTerms:
        """Risk and penalty."""
        risk = step.statistics.risk
        parameters = list(trainable(self.network).values())
        total = risk.new_zeros(())
        for row in _contrasts(len(risk)).to(risk):
            gradient = torch.autograd.grad(row @ risk, parameters, create_graph=True)
            total = total + torch.stack([each.square().sum() for each in gradient]).sum()
        scale = 1 if self.config.fidelity == "domainbed" else len(risk)
        return ObjectiveTerms(risk.mean(), total / scale)


def _sign_agreement(gradients: Float[Tensor, " e *p"]) -> Float[Tensor, "*p"]:
    """The absolute mean of the signs, 1 where all domains' gradients agree."""
    return gradients.sign().mean(0).abs()


def _masked_mean(
    gradients: Float[Tensor, " e *p"], mask: Float[Tensor, "*p"], rescale: bool
) -> Float[Tensor, "*p"]:
    """The mean gradient where the mask is open."""
    mean = mask * gradients.mean(0)
    return mean / (mask.mean() + 1e-10) if rescale else mean


@dataclass(frozen=True)
class _AndMaskConfig(Options):
    tau: Share = 1.0
    # "domainbed" also divides the gradient of each parameter tensor by the share of its entries
    # that the mask keeps (plus 10⁻¹⁰).
    fidelity: Fidelity = "paper"


@final
class AndMask(AbstractGradientRule):
    r"""Descend the mean risk only where the domains' gradients agree in sign.

    For every single parameter, with $g_e$ the gradient of the risk of domain e,

    $$m = \mathbb 1\left[\frac1E \left|\sum_e \text{sign}(g_e)\right| \geq \tau\right],
    \qquad \text{follow}\ m \odot \frac1E \sum_e g_e$$

    A gradient of exactly 0 has sign 0. At τ = 1 all domains have to agree; at τ = 0, or with one
    domain, this is plain gradient descent on the mean risk.
    """

    aligns = "signs of the gradients of all parameters"
    reference = "Parascandolo et al., 2021"
    config: _AndMaskConfig = _AndMaskConfig()
    search: ClassVar[SearchSpace] = {"tau": ("tau", Uniform(0.5, 1))}

    def combine(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """The masked mean gradient."""
        rescale = self.config.fidelity == "domainbed"
        return [
            _masked_mean(each, (_sign_agreement(each) >= self.config.tau).to(each.dtype), rescale)
            for each in gradients
        ]


@dataclass(frozen=True)
class _SandMaskConfig(Options):
    tau: Share = 1.0
    k: Annotated[float, Range(0, open_low=True)] = 10.0  # large values make an AND-mask of it


def _smooth_mask(gradients: Float[Tensor, " e *p"], tau: float, k: float) -> Float[Tensor, "*p"]:
    """The mask of one parameter tensor."""
    if len(gradients) == 1:
        return torch.ones_like(gradients[0])
    excess = _sign_agreement(gradients) - tau
    variance = gradients.var(0)
    smooth = (k * excess / variance).tanh().clamp(min=0)
    return torch.where(variance > 0, smooth, (excess > 0).to(smooth.dtype))


@final
class SandMask(AbstractGradientRule):
    r"""Smoothed AND-mask: descend the mean risk as far as gradients agree, in sign and size.

    $$m = \max\left(0, \tanh\left(\frac{k}{\sigma^2} (a - \tau)\right)\right), \qquad
    a = \frac1E \left|\sum_e \text{sign}(g_e)\right|, \qquad
    \sigma^2 = \frac{1}{E-1} \sum_e (g_e - \bar g)^2$$

    and the gradient to follow is $m \odot \bar g$, divided by the mean of m over the entries of
    each parameter tensor (plus 10⁻¹⁰). Where the gradients are equal (σ = 0) the mask is its limit:
    1 if a > τ, else 0. With one domain it is 1.

    Beware of τ = 1, DomainBed's default: a never exceeds it, the mask is 0 everywhere and nothing
    is learned unless there is one domain. The random draws of a search are below 1.
    """

    aligns = "signs and sizes of the gradients of all parameters"
    reference = "Shahtalebi et al., 2021"
    config: _SandMaskConfig = _SandMaskConfig()
    search: ClassVar[SearchSpace] = {"tau": ("tau", Uniform(0, 1)), "k": ("k", Power(10, -3, 5))}

    def combine(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """The masked mean gradient."""
        return [
            _masked_mean(each, _smooth_mask(each, self.config.tau, self.config.k), rescale=True)
            for each in gradients
        ]


@final
@dataclass(frozen=True)
class SurgeryConfig(Options):
    """What is put where gradients disagree in sign."""

    random: bool = False  # a normal draw (Agr-Rand) instead of 0 (Agr-Sum)


@final
class Surgery(AbstractGradientRule):
    r"""Gradient surgery: follow the sum of the domains' gradients where all agree in sign.

    Elsewhere Agr-Sum puts 0, and Agr-Rand a normal draw that does not let a parameter die:

    $$\sum_e g_e \quad \text{if } \Big|\sum_e \text{sign}(g_e)\Big| = E, \qquad
    \text{else } 0 \text{ or } \sigma \varepsilon, \quad \varepsilon \sim \mathcal N(0, 1)$$

    with σ the mean absolute value of the sums where all agree, over all parameters, as in the
    authors' code; 0 if they agree nowhere.
    """

    aligns = "signs of the gradients of all parameters"
    reference = "Mansilla et al., 2021, arXiv 2108.01621"
    config: SurgeryConfig = SurgeryConfig()

    def combine(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """The sums where all agree; elsewhere 0, or noise of their mean size."""
        agree = [each.sign().sum(0).abs() == len(each) for each in gradients]
        sums = [each.sum(0) * kept for each, kept in zip(gradients, agree, strict=True)]
        if not self.config.random:
            return sums
        total = torch.stack([each.abs().sum() for each in sums]).sum()
        size = total / torch.stack([kept.sum() for kept in agree]).sum().clamp(min=1)
        return [
            torch.where(kept, each, size * draw_normal(each, self.generator))
            for each, kept in zip(sums, agree, strict=True)
        ]


@dataclass(frozen=True)
class _FishConfig(Options):
    meta_lr: Annotated[float, Range(0, 1, open_low=True)] = 0.5  # the part ε of the way
    # "paper" visits the domains in random order, "domainbed" always in the same.
    fidelity: Fidelity = "paper"


@final
class Fish(AbstractStepOwner):
    r"""Follow a sequence of steps on single domains part of the way.

    From the parameters θ it takes one step of the network's optimiser per domain, each at the point
    where the last one led, and then goes a part ε of the way there (Algorithm 1):

    $$\tilde\theta \leftarrow \theta; \qquad \tilde\theta \leftarrow \tilde\theta
    - \alpha \nabla L_e(\tilde\theta)\ \text{for each domain}\ e;
    \qquad \theta \leftarrow \theta + \varepsilon (\tilde\theta - \theta)$$

    To first order this also raises the inner products of the domains' gradients. The inner steps
    are Adam's, whose averages go on from step to step, as in the method's own code. Buffers that
    are floating-point numbers, such as running statistics, are interpolated as well.
    """

    aligns = "gradients of all parameters, implicitly"
    reference = "Shi et al., 2021"
    config: _FishConfig = _FishConfig()
    search: ClassVar[SearchSpace] = {"meta_lr": ("meta_lr", Choice((0.05, 0.1, 0.5)))}

    def update(self, step: Step, optimizers: Mapping[str, Optimizer]) -> Terms:
        """Inner steps, then interpolation."""
        state = list(chain(self.network.parameters(), self.network.buffers()))
        before = [each.detach().clone() for each in state]
        domains, shuffled = step.batch.parts, self.config.fidelity == "paper"
        order = draw_order(len(domains), self.generator) if shuffled else range(len(domains))
        risks = [follow(step.risk_in(domains[index]), optimizers, MAIN) for index in order]
        with torch.no_grad():
            for now, then in zip(state, before, strict=True):
                if now.is_floating_point():
                    now.copy_(then.lerp(now, self.config.meta_lr))
        mean = torch.stack(risks).mean()
        return {"risk": mean, "loss": mean}


@dataclass(frozen=True)
class _MldgConfig(Options):
    beta: NonNegative = 1.0  # weight of the meta-test risk
    meta_test_domains: Count = 2  # that play the unseen ones; all but one if there are too few
    # Size α of the inner step; None for the learning rate of the network's optimiser.
    inner_lr: NonNegative | None = None
    # "domainbed" pairs each meta-training domain i with a meta-test domain j (going round if those
    # are fewer; the larger of the two loses its last samples), takes the first step of a new Adam
    # on i with the optimiser's weight decay, and adds up the gradients of L_i before and of β L_j
    # after it, over all pairs, divided by the number of all domains; no second derivatives.
    fidelity: Fidelity = "paper"


def _meta_split(order: Sequence[int], test: int) -> tuple[list[int], list[int]]:
    """Meta-training domains, the first ones and at least one, and meta-test domains, the last."""
    count = len(order) - min(test, len(order) - 1)
    return list(order[:count]), list(order[count:])


def _first_adam_step(
    parameters: Mapping[str, Tensor], slopes: Mapping[str, Tensor], rate: float, decay: float
) -> dict[str, Tensor]:
    r"""Where the first step of a new Adam leads, $\theta - \alpha\, g / (|g| + 10^{-8})$."""
    moved = {}
    for name, parameter in parameters.items():
        gradient = slopes[name] + decay * parameter
        step = rate * gradient / (gradient.abs() + 1e-8)
        moved[name] = (parameter - step).detach().requires_grad_()
    return moved


@final
class Mldg(AbstractStepOwner):
    r"""Meta-learning domain generalisation: steps on some domains are to help on the others.

    At each step some domains play the unseen ones, for which a step on the others has to be good:

    $$F(\theta) + \beta\, G\big(\theta - \alpha \nabla F(\theta)\big)$$

    with F the mean risk over the meta-training domains, G that over the meta-test domains and the
    derivative taken through the inner step, so with second derivatives of F (Algorithm 1). Which
    domains are which is drawn anew at each step; at least one is for training. With one domain
    there is nothing to test on and F alone is left.
    """

    aligns = "gradients of all parameters, implicitly"
    reference = "Li et al., 2018"
    config: _MldgConfig = _MldgConfig()
    search: ClassVar[SearchSpace] = {
        "beta": ("mldg_beta", Power(10, -1, 1)),
        "meta_test_domains": ("n_meta_test", Choice((1, 2))),
    }

    @classmethod
    def differentiates_twice(cls, config: _MldgConfig) -> bool:
        """Through the inner step, unless that is DomainBed's."""
        return config.fidelity == "paper"

    def update(self, step: Step, optimizers: Mapping[str, Optimizer]) -> Terms:
        """One outer step."""
        config, optimizer, domains = self.config, optimizers[MAIN], step.batch.parts
        order = draw_order(len(domains), self.generator)
        split = _meta_split(order, config.meta_test_domains)
        train, test = ([domains[index] for index in part] for part in split)
        group = optimizer.param_groups[0]
        rate = group["lr"] if config.inner_lr is None else config.inner_lr
        optimizer.zero_grad()
        if config.fidelity == "domainbed":
            risk, test_risk = self._first_order(step, train, test, rate, group["weight_decay"])
        else:
            risk, test_risk = self._second_order(step, train, test, rate)
        optimizer.step()
        loss = risk + config.beta * test_risk
        return {"risk": risk, "meta_test_risk": test_risk, "loss": loss}

    def _risk(
        self, step: Step, parameters: dict[str, Tensor], domain: Batch, count: int | None = None
    ) -> Float[Tensor, ""]:
        """Mean loss in the first samples of a domain of the network with other parameters."""
        logits: Tensor = functional_call(self.network, parameters, (domain.x[:count],))
        return make_loss(step.loss).values(logits, domain.y[:count]).mean()

    def _second_order(
        self, step: Step, train: list[Batch], test: list[Batch], rate: float
    ) -> tuple[Tensor, Tensor]:
        """Leave the gradient of F + βG in the parameters; return F and G."""
        parameters = trainable(self.network)
        risk = torch.stack([step.risk_in(domain) for domain in train]).mean()
        test_risk = torch.zeros_like(risk)
        if test:
            slopes = gradients(risk, parameters, create_graph=True)
            moved = {name: each - rate * slopes[name] for name, each in parameters.items()}
            test_risk = torch.stack([self._risk(step, moved, domain) for domain in test]).mean()
        (risk + self.config.beta * test_risk).backward()
        return risk.detach().double(), test_risk.detach().double()

    def _first_order(
        self, step: Step, train: list[Batch], test: list[Batch], rate: float, decay: float
    ) -> tuple[Tensor, Tensor]:
        """Leave DomainBed's gradient in the parameters; return its two parts of the objective."""
        parameters, count = trainable(self.network), len(train) + len(test)
        total = {name: torch.zeros_like(each) for name, each in parameters.items()}
        risks = torch.zeros(2, dtype=torch.float64, device=train[0].y.device)
        for i, j in zip(train, cycle(test or [None]), strict=False):
            smaller = len(i.y) if j is None else min(len(i.y), len(j.y))
            risk = self._risk(step, parameters, i, smaller)
            slopes = gradients(risk, parameters)
            risks[0] += risk.detach().double() / count
            for name, slope in slopes.items():
                total[name] += slope / count
            if j is None:
                continue
            moved = _first_adam_step(parameters, slopes, rate, decay)
            test_risk = self._risk(step, moved, j, smaller)
            risks[1] += test_risk.detach().double() / count
            for name, slope in gradients(test_risk, moved).items():
                total[name] += self.config.beta * slope / count
        for name, parameter in parameters.items():
            parameter.grad = total[name]
        return risks[0], risks[1]
