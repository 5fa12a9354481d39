"""Methods of how a pre-trained network is tuned; they align no domains."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Final, final

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from hessalign._shapes import Float
from hessalign.bench.algorithms.auxiliary import detached, follow, gradients, head_inputs, trainable
from hessalign.bench.algorithms.kinds import (
    MAIN,
    AbstractStepOwner,
    OptimizerSpec,
    Setting,
    Step,
    Terms,
)
from hessalign.bench.algorithms.options import (
    FEATURES_LR,
    Choice,
    Fidelity,
    Fixed,
    NonNegative,
    Options,
    Power,
    SearchSpace,
    Whole,
)

_PROBE: Final = "probe"


@dataclass(frozen=True)
class _ErmPlusPlusConfig(Options):
    probe_steps: Whole = 500  # w, in which the head alone is trained
    probe_lr: NonNegative | None = 5e-5  # of the head in these; None for that of the network
    sma_start: Whole = 600  # s, the first step at which parameters are averaged
    # "domainbed" trains the head alone for one step more than it says.
    fidelity: Fidelity = "paper"


@final
class ErmPlusPlus(AbstractStepOwner):
    r"""Probe, tune, average; `network` is the average, `trained` what the optimisers work on.

    As DomainBed has it: for the first w steps the head alone is trained, then all parameters, on
    the mean risk; predictions are made with the average of the parameters after steps s − 1, s,
    s + 1, …, counted from 1, and with the last ones before that:

    $$\bar\theta_t = \theta_t \ \text{for } t < s, \qquad
    \bar\theta_t = \frac{k\, \bar\theta_{t-1} + \theta_t}{k + 1}, \quad k = t - s + 1$$

    Running statistics are averaged too, and then see the batch under the averaged parameters,
    unless batch normalisation is frozen. What belongs to others is left to them: the initial
    weights (`weights`), batch normalisation that is not frozen (`freeze_batch_norm: false`), and
    longer training. Its learning rate, which DomainBed lowers by the validation loss in a first
    run, to repeat what it did in a second one on all the data, is here that of the loop's schedule.
    """

    aligns = "nothing; the head first, and averaged parameters"
    reference = "Teterwak et al., 2023, arXiv 2304.01973"
    config: _ErmPlusPlusConfig = _ErmPlusPlusConfig()
    search: ClassVar[SearchSpace] = {
        "probe_lr": ("linear_lr", Power(10, -5, -3.5)),
        "probe_steps": ("linear_steps", Fixed(500)),
        "sma_start": ("sma_start_iter", Fixed(600)),
    }
    released: ClassVar[Mapping[str, object]] = {"probe_steps": 50, "sma_start": 60}
    search_features: ClassVar[SearchSpace] = {"probe_lr": ("linear_lr", FEATURES_LR)}

    def __init__(self, config: _ErmPlusPlusConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        self.trained = copy.deepcopy(self.network)

    def optimizers(self) -> Mapping[str, OptimizerSpec]:
        """One of all the network, one of its head."""
        probe = OptimizerSpec(self.trained.head.parameters(), self.config.probe_lr)
        return {MAIN: OptimizerSpec(self.trained.parameters()), _PROBE: probe}

    def update(self, step: Step, optimizers: Mapping[str, Optimizer]) -> Terms:
        """A step of the head or of all, then the average."""
        probing = step.number < self.config.probe_steps + (self.config.fidelity == "domainbed")
        trained = replace(step, network=self.trained)
        risk = follow(trained.statistics.risk.mean(), optimizers, _PROBE if probing else MAIN)
        seen = step.number + 2 - self.config.sma_start
        self._average(max(0, min(seen, step.number)))
        if any(isinstance(each, _BatchNorm) and each.training for each in self.network.modules()):
            with torch.no_grad():
                self.network.features(step.batch.x)
        return {"risk": risk, "loss": risk}

    @torch.no_grad()
    def _average(self, count: int) -> None:
        """Let the average, of `count` networks so far, see one more."""
        trained = self.trained.state_dict()
        for name, average in self.network.state_dict().items():
            if average.is_floating_point():
                average.lerp_(trained[name], 1 / (count + 1))
            else:
                average.copy_(trained[name])


_ENCODER: Final = "encoder"
_EPSILON: Final = 1e-5


@dataclass(frozen=True)
class _MiroConfig(Options):
    weight: NonNegative = 0.1  # λ
    rate_factor: NonNegative = 10.0  # how many times as fast as the network b is learned


@final
class Miro(AbstractStepOwner):
    r"""Mutual information regularisation with an oracle, the pre-trained featurizer.

    It keeps the features close to the oracle's $z^0$, by a variational bound of their mutual
    information:

    $$\frac1E \sum_e L_e + \lambda\, \text{mean}_{n, d}\; \frac12 \left(
    \frac{(z_{nd} - z^0_{nd})^2}{\sigma_d^2} + \log \sigma_d^2\right), \qquad
    \sigma_d^2 = \log(1 + e^{b_d}) + 10^{-5}$$

    The mean encoder is the identity and the variances start at 0.1, as published; b is learned ten
    times as fast. The authors add the same term for the outputs of a ResNet's stages; here it is
    that of the features alone, which every backbone has. The oracle is the featurizer as it is when
    the run begins, so without pre-trained weights the term is a pull towards the random start.
    """

    aligns = "nothing; features stay near the pre-trained ones"
    reference = "Cha et al., 2022, arXiv 2203.10789"
    config: _MiroConfig = _MiroConfig()
    search: ClassVar[SearchSpace] = {
        "weight": ("ld", Choice((1.0, 0.1, 0.01, 0.001))),
        "rate_factor": ("lr_mult", Fixed(10.0)),
    }

    def __init__(self, config: _MiroConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        self.oracle = copy.deepcopy(self.network.featurizer).requires_grad_(False)
        example = next(self.network.head.parameters())
        start = math.log(math.expm1(0.1 - _EPSILON))
        self.spread = nn.Parameter(example.new_full((head_inputs(self.network.head),), start))

    def optimizers(self) -> Mapping[str, OptimizerSpec]:
        """One of the network, one of the variances."""
        encoder = OptimizerSpec([self.spread], rate_factor=self.config.rate_factor)
        return {MAIN: OptimizerSpec(self.network.parameters()), _ENCODER: encoder}

    def _penalty(self, step: Step) -> Float[Tensor, ""]:
        with torch.no_grad():
            goal: Tensor = self.oracle.eval()(step.batch.x)
        variance = functional.softplus(self.spread) + _EPSILON
        return ((step.z - goal).square() / variance + variance.log()).mean() / 2

    def update(self, step: Step, optimizers: Mapping[str, Optimizer]) -> Terms:
        """A step of both down the regularised risk."""
        risk, penalty = step.statistics.risk.mean(), self._penalty(step)
        loss = follow(risk + self.config.weight * penalty, optimizers, MAIN, _ENCODER)
        return detached(risk=risk, penalty=penalty, loss=loss)


@dataclass(frozen=True)
class _SagmConfig(Options):
    rho: NonNegative = 0.05  # length of the step up
    alpha: NonNegative = 1e-3  # size of the step down; the authors' sweeps draw larger ones
    # "domainbed", the authors' code on it, follows the mean of the two gradients, half their sum.
    fidelity: Fidelity = "paper"


@final
class Sagm(AbstractStepOwner):
    r"""Sharpness-aware gradient matching: the mean risk, here and at a perturbed point.

    $$L(\theta) + L\Big(\theta + \rho \frac{g}{\|g\|} - \alpha g\Big), \qquad g = \nabla L(\theta)$$

    with L the mean risk and the perturbation as a constant: the gradient to follow is $\nabla L$
    here plus $\nabla L$ there. Running statistics see the first of the two passes alone.
    """

    aligns = "nothing; gradients here and at a perturbed point"
    reference = "Wang et al., 2023, arXiv 2303.10353"
    config: _SagmConfig = _SagmConfig()
    search: ClassVar[SearchSpace] = {
        "rho": ("rho", Choice((0.01, 0.02, 0.05, 0.1))),
        "alpha": ("alpha", Choice((0.01, 0.02, 0.05, 0.1))),
    }

    def update(self, step: Step, optimizers: Mapping[str, Optimizer]) -> Terms:
        """Two passes and one step."""
        config, network, risk = self.config, step.network, step.statistics.risk.mean()
        parameters = trainable(network)
        here = gradients(risk, parameters)
        norm = torch.stack([slope.square().sum() for slope in here.values()]).sum().sqrt()
        size = config.rho / (norm + 1e-12) - config.alpha
        moved = {
            name: (each + size * here[name]).detach().requires_grad_()
            for name, each in parameters.items()
        }
        # The second pass leaves its trace on copies of the running statistics.
        buffers = {name: each.clone() for name, each in network.named_buffers()}
        logits: Tensor = functional_call(network, {**moved, **buffers}, (step.batch.x,))
        perturbed = step.risks_of(logits).mean()
        there = gradients(perturbed, moved)
        share = 0.5 if config.fidelity == "domainbed" else 1.0
        optimizers[MAIN].zero_grad()
        for name, parameter in parameters.items():
            parameter.grad = share * (here[name] + there[name])
        optimizers[MAIN].step()
        return detached(risk=risk, perturbed_risk=perturbed, loss=share * (risk + perturbed))
