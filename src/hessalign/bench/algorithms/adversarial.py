r"""Domain-adversarial training: DANN (Ganin et al., 2016) and CDANN (Li et al., 2018).

A discriminator D tells the domains apart by the features z; the featurizer learns to deceive it:

$$\min_D\; \mathcal D + \rho\, \text{mean}_n \|\nabla_{u_n} \ell_n\|^2, \qquad
\min_{\text{network}}\; \frac1E \sum_e L_e - \lambda \left(\mathcal D + \rho\,
\text{mean}_n \|\nabla_{u_n} \ell_n\|^2\right), \qquad
\mathcal D = \sum_n w_n \ell_n$$

with $\ell_n$ the cross-entropy of $D(u_n)$ and the domain of sample n. DANN has $u_n = z_n$ and
$w_n = 1/N$ over all N samples. CDANN adds a learned embedding of the class, $u_n = z_n + v_{y_n}$,
and gives each class that occurs the same weight, $w_n = 1 / (C\, N_{y_n})$ with C such classes, so
that the features of each class are aligned. A single logit stands for two classes. DomainBed's C is
one more than the highest class that occurs, so where classes are absent its $w_n$ add up to less
than 1.

Of every s + 1 steps s train the discriminator and one the network: step number t, from 0, trains
the discriminator if (t + 1) mod (s + 1) < s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, ClassVar, Final, final

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from hessalign._shapes import Float, Int
from hessalign.bench.algorithms.auxiliary import (
    count_classes,
    follow,
    head_inputs,
    make_perceptron,
    match,
    seeded,
)
from hessalign.bench.algorithms.kinds import MAIN, AbstractStepOwner, OptimizerSpec, Setting, Step
from hessalign.bench.algorithms.options import (
    FEATURES_LR,
    Choice,
    Count,
    Fidelity,
    Fixed,
    NonNegative,
    Options,
    Power,
    Range,
    SearchSpace,
)

_DISCRIMINATOR: Final = "discriminator"


@final
@dataclass(frozen=True)
class AdversarialConfig(Options):
    """The game of network and discriminator; rates and decays that are None are the loop's."""

    conditional: bool = False  # whether the discriminator knows the class (CDANN)
    weight: NonNegative = 1.0  # λ, of deceiving the discriminator
    gradient_penalty: NonNegative = 0.0  # ρ, of the squared gradient in its inputs
    discriminator_steps: Count = 1  # s, per step of the network
    width: Count = 256
    depth: Annotated[int, Range(2)] = 3  # linear layers
    dropout: Annotated[float, Range(0, 1, open_high=True)] = 0.0
    # Adam's first decay rate in both optimisers; the second is 0.9.
    beta1: Annotated[float, Range(0, 1, open_high=True)] = 0.5
    network_lr: NonNegative | None = None
    network_weight_decay: NonNegative | None = None
    discriminator_lr: NonNegative | None = None
    discriminator_weight_decay: NonNegative = 0.0
    # What CDANN's class weights are divided by: "paper" by the number of classes that occur in the
    # batch, "domainbed" by one more than the highest of them. DANN has no class weights.
    fidelity: Fidelity = "paper"


SEARCH_SMALL: Final[SearchSpace] = {
    "network_lr": ("lr_g", Power(10, -4.5, -2.5)),
    "discriminator_lr": ("lr_d", Power(10, -4.5, -2.5)),
    "network_weight_decay": ("weight_decay_g", Fixed(0.0)),
}
"""What differs on small images."""

SEARCH_FEATURES: Final[SearchSpace] = {
    "network_lr": ("lr_g", FEATURES_LR),
    "discriminator_lr": ("lr_d", FEATURES_LR),
}
"""What differs on frozen features."""


def _trains_discriminator(number: int, discriminator_steps: int) -> bool:
    """Whose turn it is."""
    return (number + 1) % (1 + discriminator_steps) < discriminator_steps


def _class_mean(
    values: Float[Tensor, " n"], y: Int[Tensor, " n"], fidelity: Fidelity = "paper"
) -> Float[Tensor, ""]:
    """Mean over the classes that occur of the mean over their samples."""
    present, position, counts = torch.unique(y, return_inverse=True, return_counts=True)
    classes = len(present) if fidelity == "paper" else present[-1] + 1
    mean: Tensor = (values / (counts[position] * classes)).sum()
    return mean


@final
class Adversarial(AbstractStepOwner):
    """Learn features by which a discriminator cannot tell the domains apart."""

    config: AdversarialConfig = AdversarialConfig()
    search: ClassVar[SearchSpace] = {
        "weight": ("lambda", Power(10, -2, 2)),
        "discriminator_weight_decay": ("weight_decay_d", Power(10, -6, -2)),
        "discriminator_steps": ("d_steps_per_g_step", Power(2, 0, 3, integer=True)),
        "gradient_penalty": ("grad_penalty", Power(10, -2, 1)),
        "beta1": ("beta1", Choice((0.0, 0.5))),
        "width": ("mlp_width", Power(2, 6, 10, integer=True)),
        "depth": ("mlp_depth", Choice((3, 4, 5))),
        "dropout": ("mlp_dropout", Choice((0.0, 0.1, 0.5))),
        "network_lr": ("lr_g", Power(10, -5, -3.5)),
        "discriminator_lr": ("lr_d", Power(10, -5, -3.5)),
        "network_weight_decay": ("weight_decay_g", Power(10, -6, -2)),
    }

    def __init__(self, config: AdversarialConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        features, generator = head_inputs(self.network.head), setting.generator
        self.discriminator = make_perceptron(
            features, setting.domains, config.width, config.depth, config.dropout, generator
        )
        match(self.discriminator, self.network)
        self.embeddings: nn.Embedding | None = None
        if config.conditional:
            with seeded(generator):
                self.embeddings = nn.Embedding(count_classes(setting), features)
            match(self.embeddings, self.network)

    def optimizers(self) -> Mapping[str, OptimizerSpec]:
        """One optimiser per player."""
        config, betas = self.config, (self.config.beta1, 0.9)
        network, rate = self.network.parameters(), config.network_lr
        embeddings = () if self.embeddings is None else self.embeddings.parameters()
        return {
            MAIN: OptimizerSpec(network, rate, config.network_weight_decay, betas),
            _DISCRIMINATOR: OptimizerSpec(
                chain(self.discriminator.parameters(), embeddings),
                config.discriminator_lr,
                config.discriminator_weight_decay,
                betas,
            ),
        }

    def discriminator_loss(
        self, z: Float[Tensor, "n d"], y: Tensor, domain: Int[Tensor, " n"]
    ) -> Float[Tensor, ""]:
        """How badly the discriminator does, with its penalty; differentiable in features too."""
        inputs = z if self.embeddings is None else z + self.embeddings(y.long())
        if not inputs.requires_grad:
            inputs = inputs.detach().requires_grad_()
        values = functional.cross_entropy(self.discriminator(inputs), domain, reduction="none")
        if self.embeddings is None:
            loss = values.mean()
        else:
            loss = _class_mean(values, y, self.config.fidelity)
        if self.config.gradient_penalty:
            (slopes,) = torch.autograd.grad(values.sum(), inputs, create_graph=True)
            loss = loss + self.config.gradient_penalty * slopes.square().sum(1).mean()
        return loss

    def update(self, step: Step, optimizers: Mapping[str, Optimizer]) -> dict[str, float]:
        """A step of one of the two."""
        discriminator = _trains_discriminator(step.number, self.config.discriminator_steps)
        with torch.set_grad_enabled(not discriminator):
            z, risk = step.z, step.statistics.risk.mean()
        adversary = self.discriminator_loss(z, step.batch.y, step.batch.domain)
        loss = adversary if discriminator else risk - self.config.weight * adversary
        follow(loss, optimizers, _DISCRIMINATOR if discriminator else MAIN)
        values = {"risk": risk, "discriminator_loss": adversary, "loss": loss}
        return {name: float(value.detach()) for name, value in values.items()}
