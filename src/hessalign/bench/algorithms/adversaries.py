r"""Adversaries besides DANN's: MDAN, of every domain against the others, and URM, of uniformity.

Multi-source domain adversarial networks, MDAN (Zhao et al., 2018, arXiv 1705.09684), bound the risk
on a target by the worst source, which is one with a high risk or unlike the target. Here, where
there is no target, the other sources stand for it: a linear discriminator $d_e$ of each domain e
tells it from them, with the loss

$$D_e = \text{mean}_{n \in e} \log(1 + e^{-d_e(z_n)}) + \frac{1}{E-1} \sum_{f \neq e}
\text{mean}_{n \in f} \log(1 + e^{d_e(z_n)})$$

and in one step, with the gradient of the discriminators reversed, the game is

$$\min_{\text{network}}\, \max_{d}\; \max_e\, (L_e - \mu D_e) \qquad\text{or}\qquad
\min_{\text{network}}\, \max_{d}\; \frac1\gamma \log \sum_e e^{\gamma (L_e - \mu D_e)}$$

the hard and the soft maximum. With one domain $D_e = 0$.

Uniform risk minimisation, URM (Krishnamachari et al., 2024, TMLR), has features of a bounded
network, $\tanh(z)$ or $\max(0, z)$, that a discriminator D cannot tell from noise u, uniform on
[−1, 1] or [0, 1] in every feature. It looks at no domains. One step of the network, then one of the
discriminator on the same features, as in the authors' code on DomainBed:

$$\min_{\text{network}}\; \frac1E \sum_e L_e + \lambda\, \text{mean}_n \log(1 + e^{-D(z_n)}), \qquad
\min_D\; \text{mean}_n \log(1 + e^{-D(u_n)}) + \lambda\, \text{mean}_n \log(1 + e^{D(z_n)})$$
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Literal, final

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus
from torch.optim import Optimizer

from hessalign._shapes import Float
from hessalign.bench.algorithms.auxiliary import follow, head_inputs, make_perceptron, match, seeded
from hessalign.bench.algorithms.kinds import (
    MAIN,
    AbstractStepOwner,
    OptimizerSpec,
    Setting,
    Step,
    Terms,
)
from hessalign.bench.algorithms.options import (
    Choice,
    NonNegative,
    Options,
    Power,
    Range,
    SearchSpace,
    Uniform,
    Whole,
)
from hessalign.bench.models import Network

_DISCRIMINATOR: Final = "discriminator"


@final
@dataclass(frozen=True)
class _MdanConfig(Options):
    weight: NonNegative = 0.01  # μ, of deceiving the discriminators; the authors' code has this
    # γ of the soft maximum, likewise; None for the hard one.
    gamma: Annotated[float, Range(0, open_low=True)] | None = 10.0


@final
class Mdan(AbstractStepOwner):
    """Minimise the worst domain's risk, where a domain is bad if it can be told from the others."""

    config: _MdanConfig = _MdanConfig()
    search: ClassVar[SearchSpace] = {"weight": Power(10, -3, 0), "gamma": Power(10, -1, 2)}  # ours

    def __init__(self, config: _MdanConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        with seeded(setting.generator):
            self.discriminators = nn.Linear(head_inputs(self.network.head), setting.domains)
        match(self.discriminators, self.network)

    def optimizers(self) -> Mapping[str, OptimizerSpec]:
        """One of network and discriminators."""
        return {MAIN: OptimizerSpec(self.parameters())}

    def _discriminator_losses(self, step: Step) -> Float[Tensor, " e"]:
        """How badly each domain is told from the others."""
        scores: Tensor = self.discriminators(step.z)
        averaging = step.batch.domains.weights.averaging.to(scores.dtype)
        if len(averaging) == 1:
            return scores.new_zeros(1)
        at_home = (averaging @ softplus(-scores)).diagonal()
        elsewhere = averaging @ softplus(scores)
        return at_home + (elsewhere.sum(0) - elsewhere.diagonal()) / (len(averaging) - 1)

    def update(self, step: Step, optimizers: Mapping[str, Optimizer]) -> Terms:
        """A step down for the network, up for the discriminators."""
        config, risk = self.config, step.statistics.risk
        adversary = self._discriminator_losses(step)
        values = risk - config.weight * adversary
        if config.gamma is None:
            loss = values.max()
        else:
            loss = (config.gamma * values).logsumexp(0) / config.gamma
        optimizers[MAIN].zero_grad()
        loss.backward()
        for parameter in self.discriminators.parameters():
            if parameter.grad is not None:  # with one domain there is nothing to tell
                parameter.grad.neg_()
        optimizers[MAIN].step()
        return {
            "risk": risk.detach().mean(),
            "discriminator_loss": adversary.detach().mean(),
            "loss": loss.detach(),
        }


@final
@dataclass(frozen=True)
class _UrmConfig(Options):
    # What is fixed in all of DomainBed's draws is no option: Adam, no smoothing of labels.
    weight: NonNegative = 0.1  # λ
    output: Literal["tanh", "relu"] = "tanh"  # what features go through, and the range of noise
    hidden_layers: Whole = 1  # of the discriminator, after the first; 100 units and leaky ReLU each
    discriminator_lr: NonNegative | None = None  # None for the loop's


@final
class _ActivatedFeaturizer(nn.Module):
    """Features after an activation."""

    def __init__(self, featurizer: nn.Module, activation: nn.Module) -> None:
        super().__init__()
        self.featurizer = featurizer
        self.activation = activation

    def forward(self, x: Tensor) -> Float[Tensor, "n d"]:
        z: Tensor = self.activation(self.featurizer(x))
        return z


@final
class Urm(AbstractStepOwner):
    """Learn features that a discriminator cannot tell from uniform noise."""

    config: _UrmConfig = _UrmConfig()
    search: ClassVar[SearchSpace] = {
        "weight": ("urm_adv_lambda", Uniform(0, 0.2)),
        "output": ("urm_generator_output", Choice(("tanh", "relu"))),
        "hidden_layers": ("urm_discriminator_hidden_layers", Choice((1, 2, 3))),
        "discriminator_lr": ("urm_discriminator_lr", Power(10, -6, -4.5)),
    }
    search_small: ClassVar[SearchSpace] = {
        "discriminator_lr": ("urm_discriminator_lr", Power(10, -5.5, -3.5))
    }
    # A tenth of the network's, as DomainBed's are.
    search_features: ClassVar[SearchSpace] = {
        "discriminator_lr": ("urm_discriminator_lr", Power(10, -5, -3))
    }

    def __init__(self, config: _UrmConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        features, depth = head_inputs(self.network.head), config.hidden_layers + 2
        self.discriminator = make_perceptron(
            features, 1, 100, depth, 0.0, setting.generator, nn.LeakyReLU
        )
        match(self.discriminator, self.network)

    def make_network(self, setting: Setting) -> Network:
        """A network whose features are bounded."""
        inner = setting.make_network()
        activation = nn.Tanh() if self.config.output == "tanh" else nn.ReLU()
        return Network(_ActivatedFeaturizer(inner.featurizer, activation), inner.head)

    def optimizers(self) -> Mapping[str, OptimizerSpec]:
        """One optimiser per player."""
        discriminator = self.discriminator.parameters()
        return {
            MAIN: OptimizerSpec(self.network.parameters()),
            _DISCRIMINATOR: OptimizerSpec(discriminator, self.config.discriminator_lr),
        }

    def _noise(self, z: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Uniform noise in the range of the features."""
        source = self.generator
        noise = torch.rand(z.shape, generator=source, device=source.device).to(z)
        return 2 * noise - 1 if self.config.output == "tanh" else noise

    def update(self, step: Step, optimizers: Mapping[str, Optimizer]) -> Terms:
        """A step of the network, then one of the discriminator."""
        weight, judge, z = self.config.weight, self.discriminator, step.z
        risk = step.statistics.risk.mean()
        deception = softplus(-judge(z)).mean()
        loss = follow(risk + weight * deception, optimizers, MAIN)
        real, made = softplus(-judge(self._noise(z))).mean(), softplus(judge(z.detach())).mean()
        adversary = follow(real + weight * made, optimizers, _DISCRIMINATOR)
        return {
            "risk": risk.detach(),
            "deception": deception.detach(),
            "discriminator_loss": adversary,
            "loss": loss,
        }
