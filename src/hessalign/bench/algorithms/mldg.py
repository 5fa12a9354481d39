r"""Meta-learning domain generalisation, MLDG (Li et al., 2018).

At each step some domains play the unseen ones. A step on the others has to help them:

$$F(\theta) + \beta\, G\big(\theta - \alpha \nabla F(\theta)\big)$$

with F the mean risk over the meta-training domains, G that over the meta-test domains and the
derivative taken through the inner step, so with second derivatives of F (Algorithm 1). Which
domains are which is drawn anew at each step; at least one is for training. With one domain there
is nothing to test on and F alone is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import ClassVar, Final, Literal, final

import torch
from torch import Tensor
from torch.func import functional_call
from torch.optim import Optimizer

from hessalign._shapes import Float
from hessalign.bench.algorithms.auxiliary import draw_order
from hessalign.bench.algorithms.kinds import MAIN, AbstractStepOwner, OptimizerSpec
from hessalign.bench.algorithms.options import Count, NonNegative, Options
from hessalign.bench.algorithms.search import Choice, Power, SearchSpace
from hessalign.bench.algorithms.step import Batch, Step
from hessalign.curvature.losses import make_loss

_Fidelity = Literal["paper", "domainbed"]
_Parameters = Mapping[str, Tensor]

_ADAM_EPSILON: Final = 1e-8


@final
@dataclass(frozen=True)
class _MldgConfig(Options):
    r"""Weight of the meta-test domains, and the inner step.

    Attributes:
        beta: Weight β of the meta-test risk.
        meta_test_domains: Domains that play the unseen ones; all but one if there are too few.
        inner_lr: Size α of the inner step; None for the learning rate of the network's optimiser.
        fidelity: "paper" as above. "domainbed" pairs each meta-training domain i with a meta-test
            domain j (going round if those are fewer; the larger of the two loses its last
            samples), takes the first step of a new Adam on i with the optimiser's weight decay,
            and adds up the gradients of $L_i$ before and of $\beta L_j$ after it, over all pairs,
            divided by the number of all domains; no second derivatives.
    """

    beta: NonNegative = 1.0
    meta_test_domains: Count = 2
    inner_lr: NonNegative | None = None
    fidelity: _Fidelity = "paper"


def _meta_split(order: Sequence[int], test: int) -> tuple[list[int], list[int]]:
    """Meta-training and meta-test domains.

    Returns:
        The first ones for training, at least one, and the last ones for testing.

    Example:
        >>> _meta_split([2, 0, 1], 1), _meta_split([1, 0], 2), _meta_split([0], 1)
        (([2, 0], [1]), ([1], [0]), ([0], []))
    """
    count = len(order) - min(test, len(order) - 1)
    return list(order[:count]), list(order[count:])


def _first_adam_step(
    parameters: _Parameters, gradients: _Parameters, learning_rate: float, weight_decay: float
) -> dict[str, Tensor]:
    r"""Where the first step of a new Adam leads, $\theta - \alpha\, g / (|g| + 10^{-8})$.

    Returns:
        New leaves that require gradients.

    Example:
        >>> one = torch.tensor([1.0])
        >>> _first_adam_step({"w": one}, {"w": 5 * one}, 0.1, 0.0)["w"]
        tensor([0.9000], requires_grad=True)
    """
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

    def optimizers(self) -> Mapping[str, OptimizerSpec]:
        """The optimiser of the outer step."""
        return {MAIN: OptimizerSpec(self.network.parameters())}

    def update(self, step: Step, optimizers: Mapping[str, Optimizer]) -> dict[str, float]:
        """One outer step."""
        domains, optimizer = step.batch.parts, optimizers[MAIN]
        order = draw_order(len(domains), self.generator)
        train, test = _meta_split(order, self.config.meta_test_domains)
        parts = [domains[i] for i in train], [domains[j] for j in test]
        optimizer.zero_grad()
        differentiate = self._first_order if self._is_first_order else self._second_order
        risk, test_risk = differentiate(step, *parts, optimizer.param_groups[0])
        optimizer.step()
        loss = risk + self.config.beta * test_risk
        return {"risk": risk, "meta_test_risk": test_risk, "loss": loss}

    @property
    def _is_first_order(self) -> bool:
        return self.config.fidelity == "domainbed"

    def _trainable(self) -> dict[str, Tensor]:
        named = self.network.named_parameters()
        return {name: each for name, each in named if each.requires_grad}

    def _risk(self, step: Step, parameters: _Parameters, domain: Batch) -> Float[Tensor, ""]:
        """Mean loss in one domain of the network with other parameters."""
        logits: Tensor = functional_call(self.network, dict(parameters), (domain.x,))
        return make_loss(step.loss).values(logits, domain.y).mean()

    def _inner_lr(self, group: Mapping[str, float]) -> float:
        return group["lr"] if self.config.inner_lr is None else self.config.inner_lr

    def _second_order(
        self, step: Step, train: list[Batch], test: list[Batch], group: Mapping[str, float]
    ) -> tuple[float, float]:
        """Leave the gradient of F + βG in the parameters; return F and G."""
        parameters = self._trainable()
        risk = torch.stack([step.risk_in(domain) for domain in train]).mean()
        test_risk = torch.zeros_like(risk)
        if test:
            gradients = torch.autograd.grad(risk, list(parameters.values()), create_graph=True)
            rate = self._inner_lr(group)
            moved = {
                name: parameter - rate * gradient
                for (name, parameter), gradient in zip(parameters.items(), gradients, strict=True)
            }
            test_risk = torch.stack([self._risk(step, moved, domain) for domain in test]).mean()
        (risk + self.config.beta * test_risk).backward()
        return float(risk.detach()), float(test_risk.detach())

    def _first_order(
        self, step: Step, train: list[Batch], test: list[Batch], group: Mapping[str, float]
    ) -> tuple[float, float]:
        """Leave DomainBed's gradient in the parameters; return its two parts of the objective."""
        parameters, count = self._trainable(), len(train) + len(test)
        total = {name: torch.zeros_like(each) for name, each in parameters.items()}
        risks = [0.0, 0.0]
        for i, j in zip(train, cycle(test or [None]), strict=False):
            smaller = len(i.y) if j is None else min(len(i.y), len(j.y))
            risk = self._risk(step, parameters, _first_samples(i, smaller))
            gradients = _gradients(risk, parameters)
            risks[0] += float(risk.detach()) / count
            for name, gradient in gradients.items():
                total[name] += gradient / count
            if j is None:
                continue
            rate, decay = self._inner_lr(group), group["weight_decay"]
            moved = _first_adam_step(parameters, gradients, rate, decay)
            test_risk = self._risk(step, moved, _first_samples(j, smaller))
            risks[1] += float(test_risk.detach()) / count
            for name, gradient in _gradients(test_risk, moved).items():
                total[name] += self.config.beta * gradient / count
        for name, parameter in parameters.items():
            parameter.grad = total[name]
        return risks[0], risks[1]


def _gradients(risk: Tensor, parameters: _Parameters) -> dict[str, Tensor]:
    gradients = torch.autograd.grad(risk, list(parameters.values()))
    return dict(zip(parameters, gradients, strict=True))


def _first_samples(domain: Batch, count: int) -> Batch:
    if len(domain.y) == count:
        return domain
    return Batch(domain.x[:count], domain.y[:count], domain.domain[:count])
