r"""Methods that take steps on some domains first: Fish and MLDG.

Fish (Shi et al., 2021) aligns gradients between domains: from the parameters θ it takes one step of
the network's optimiser per domain, each at the point where the last one led, and then goes a part ε
of the way there (Algorithm 1):

$$\tilde\theta \leftarrow \theta; \qquad
\tilde\theta \leftarrow \tilde\theta - \alpha \nabla L_e(\tilde\theta)\ \text{for each domain}\ e;
\qquad \theta \leftarrow \theta + \varepsilon (\tilde\theta - \theta)$$

To first order this also raises the inner products of the domains' gradients. The inner steps are
Adam's, whose averages go on from step to step, as in the method's own code. Buffers that are
floating-point numbers, such as running statistics, are interpolated as well.

In meta-learning domain generalisation, MLDG (Li et al., 2018), some domains play the unseen ones at
each step. A step on the others has to help them:

$$F(\theta) + \beta\, G\big(\theta - \alpha \nabla F(\theta)\big)$$

with F the mean risk over the meta-training domains, G that over the meta-test domains and the
derivative taken through the inner step, so with second derivatives of F (Algorithm 1). Which
domains are which is drawn anew at each step; at least one is for training. With one domain there
is nothing to test on and F alone is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, cycle
from typing import Annotated, ClassVar, Final, final

import torch
from torch import Tensor
from torch.func import functional_call
from torch.optim import Optimizer

from hessalign._shapes import Float
from hessalign.bench.algorithms.auxiliary import draw_order, follow
from hessalign.bench.algorithms.kinds import MAIN, AbstractStepOwner, Batch, Step, Terms
from hessalign.bench.algorithms.options import (
    Choice,
    Count,
    Fidelity,
    NonNegative,
    Options,
    Power,
    Range,
    SearchSpace,
)
from hessalign.curvature.losses import make_loss


@final
@dataclass(frozen=True)
class _FishConfig(Options):
    meta_lr: Annotated[float, Range(0, 1, open_low=True)] = 0.5  # the part ε of the way
    # "paper" visits the domains in random order, "domainbed" always in the same.
    fidelity: Fidelity = "paper"


@final
class Fish(AbstractStepOwner):
    """Follow a sequence of steps on single domains part of the way."""

    config: _FishConfig = _FishConfig()
    search: ClassVar[SearchSpace] = {"meta_lr": ("meta_lr", Choice((0.05, 0.1, 0.5)))}

    def update(self, step: Step, optimizers: Mapping[str, Optimizer]) -> Terms:
        """Inner steps, then interpolation."""
        state = list(chain(self.network.parameters(), self.network.buffers()))
        before = [each.detach().clone() for each in state]
        domains = step.batch.parts
        order = list(range(len(domains)))
        if self.config.fidelity == "paper":
            order = draw_order(len(domains), self.generator)
        risks = [follow(step.risk_in(domains[index]), optimizers, MAIN) for index in order]
        with torch.no_grad():
            for now, then in zip(state, before, strict=True):
                if now.is_floating_point():
                    now.copy_(then.lerp(now, self.config.meta_lr))
        mean = torch.stack(risks).mean()
        return {"risk": mean, "loss": mean}


_Parameters = Mapping[str, Tensor]

_ADAM_EPSILON: Final = 1e-8


@final
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
    parameters: _Parameters, gradients: _Parameters, learning_rate: float, weight_decay: float
) -> dict[str, Tensor]:
    r"""Where the first step of a new Adam leads, $\theta - \alpha\, g / (|g| + 10^{-8})$."""
    moved = {}
    for name, parameter in parameters.items():
        gradient = gradients[name] + weight_decay * parameter
        step = learning_rate * gradient / (gradient.abs() + _ADAM_EPSILON)
        moved[name] = (parameter - step).detach().requires_grad_()
    return moved


@final
class Mldg(AbstractStepOwner):
    """Take steps on some domains that help on the others."""

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

    def _trainable(self) -> dict[str, Tensor]:
        named = self.network.named_parameters()
        return {name: each for name, each in named if each.requires_grad}

    def _risk(
        self, step: Step, parameters: _Parameters, domain: Batch, count: int | None = None
    ) -> Float[Tensor, ""]:
        """Mean loss in the first samples of a domain of the network with other parameters."""
        logits: Tensor = functional_call(self.network, dict(parameters), (domain.x[:count],))
        return make_loss(step.loss).values(logits, domain.y[:count]).mean()

    def _second_order(
        self, step: Step, train: list[Batch], test: list[Batch], rate: float
    ) -> tuple[Tensor, Tensor]:
        """Leave the gradient of F + βG in the parameters; return F and G."""
        parameters = self._trainable()
        risk = torch.stack([step.risk_in(domain) for domain in train]).mean()
        test_risk = torch.zeros_like(risk)
        if test:
            gradients = _gradients(risk, parameters, create_graph=True)
            moved = {name: each - rate * gradients[name] for name, each in parameters.items()}
            test_risk = torch.stack([self._risk(step, moved, domain) for domain in test]).mean()
        (risk + self.config.beta * test_risk).backward()
        return risk.detach().double(), test_risk.detach().double()

    def _first_order(
        self, step: Step, train: list[Batch], test: list[Batch], rate: float, decay: float
    ) -> tuple[Tensor, Tensor]:
        """Leave DomainBed's gradient in the parameters; return its two parts of the objective."""
        parameters, count = self._trainable(), len(train) + len(test)
        total = {name: torch.zeros_like(each) for name, each in parameters.items()}
        risks = torch.zeros(2, dtype=torch.float64, device=train[0].y.device)
        for i, j in zip(train, cycle(test or [None]), strict=False):
            smaller = len(i.y) if j is None else min(len(i.y), len(j.y))
            risk = self._risk(step, parameters, i, smaller)
            gradients = _gradients(risk, parameters)
            risks[0] += risk.detach().double() / count
            for name, gradient in gradients.items():
                total[name] += gradient / count
            if j is None:
                continue
            moved = _first_adam_step(parameters, gradients, rate, decay)
            test_risk = self._risk(step, moved, j, smaller)
            risks[1] += test_risk.detach().double() / count
            for name, gradient in _gradients(test_risk, moved).items():
                total[name] += self.config.beta * gradient / count
        for name, parameter in parameters.items():
            parameter.grad = total[name]
        return risks[0], risks[1]


def _gradients(
    risk: Tensor, parameters: _Parameters, create_graph: bool = False
) -> dict[str, Tensor]:
    gradients = torch.autograd.grad(risk, list(parameters.values()), create_graph=create_graph)
    return dict(zip(parameters, gradients, strict=True))
