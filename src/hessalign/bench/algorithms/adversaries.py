"""Methods with an adversary, a discriminator that features have to deceive."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, ClassVar, Final, Literal, final

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import softplus
from torch.optim import Optimizer

from hessalign._shapes import Float, Int
from hessalign.bench.algorithms.auxiliary import (
    count_classes,
    detached,
    draw_uniform,
    follow,
    head_inputs,
    make_perceptron,
    match,
    seeded,
)
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
    Count,
    Fidelity,
    Fixed,
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


def _class_mean(
    values: Float[Tensor, " n"], y: Int[Tensor, " n"], fidelity: Fidelity = "paper"
) -> Float[Tensor, ""]:
    """Mean over the classes that occur of the mean over their samples."""
    counts = (y.unsqueeze(1) == y).sum(1)  # of each sample's class, without a look at values
    present = (1 / counts.double()).sum().round().long()
    classes = present if fidelity == "paper" else y.max() + 1
    return (values / (counts * classes)).sum()


@final
class Adversarial(AbstractStepOwner):
    r"""Learn features by which a discriminator cannot tell the domains apart: DANN and CDANN.

    The discriminator D tells the domains by the features z; the featurizer learns to deceive it:

    $$\min_D\; \mathcal D + \rho\, \text{mean}_n \|\nabla_{u_n} \ell_n\|^2, \qquad
    \min_{\text{network}}\; \frac1E \sum_e L_e - \lambda \left(\mathcal D + \rho\,
    \text{mean}_n \|\nabla_{u_n} \ell_n\|^2\right), \qquad
    \mathcal D = \sum_n w_n \ell_n$$

    with $\ell_n$ the cross-entropy of $D(u_n)$ and the domain of sample n. DANN has $u_n = z_n$ and
    $w_n = 1/N$ over all N samples. CDANN adds a learned embedding of the class, $u_n = z_n +
    v_{y_n}$, and gives each class that occurs the same weight, $w_n = 1 / (C\, N_{y_n})$ with C
    such classes, so that the features of each class are aligned. A single logit stands for two
    classes. DomainBed's C is one more than the highest class that occurs, so where classes are
    absent its $w_n$ add up to less than 1.

    Of every s + 1 steps s train the discriminator and one the network: step number t, from 0,
    trains the discriminator if (t + 1) mod (s + 1) < s.
    """

    aligns = "the distribution of features"
    reference = "Ganin et al., 2016"
    config: AdversarialConfig = AdversarialConfig(fidelity="domainbed")  # as DANN has no other
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
    search_small: ClassVar[SearchSpace] = {
        "network_lr": ("lr_g", Power(10, -4.5, -2.5)),
        "discriminator_lr": ("lr_d", Power(10, -4.5, -2.5)),
        "network_weight_decay": ("weight_decay_g", Fixed(0.0)),
    }
    search_features: ClassVar[SearchSpace] = {
        "network_lr": ("lr_g", FEATURES_LR),
        "discriminator_lr": ("lr_d", FEATURES_LR),
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

    def update(self, step: Step, optimizers: Mapping[str, Optimizer]) -> Terms:
        """A step of one of the two."""
        steps = self.config.discriminator_steps
        discriminator = (step.number + 1) % (steps + 1) < steps
        with torch.set_grad_enabled(not discriminator):
            z, risk = step.z, step.statistics.risk.mean()
        adversary = self.discriminator_loss(z, step.batch.y, step.batch.domain)
        loss = adversary if discriminator else risk - self.config.weight * adversary
        follow(loss, optimizers, _DISCRIMINATOR if discriminator else MAIN)
        return detached(risk=risk, discriminator_loss=adversary, loss=loss)


@dataclass(frozen=True)
class _MdanConfig(Options):
    weight: NonNegative = 0.01  # μ, of deceiving the discriminators; the authors' code has this
    # γ of the soft maximum, likewise; None for the hard one.
    gamma: Annotated[float, Range(0, open_low=True)] | None = 10.0


@final
class Mdan(AbstractStepOwner):
    r"""Minimise the worst domain's risk, where a domain is bad if it can be told from the others.

    Multi-source domain adversarial networks bound the risk on a target by the worst source, which
    is one with a high risk or unlike the target. Here, where there is no target, the other sources
    stand for it: a linear discriminator $d_e$ of each domain e tells it from them, with the loss

    $$D_e = \text{mean}_{n \in e} \log(1 + e^{-d_e(z_n)}) + \frac{1}{E-1} \sum_{f \neq e}
    \text{mean}_{n \in f} \log(1 + e^{d_e(z_n)})$$

    and in one step, with the gradient of the discriminators reversed, the game is

    $$\min_{\text{network}}\, \max_{d}\; \max_e\, (L_e - \mu D_e) \qquad\text{or}\qquad
    \min_{\text{network}}\, \max_{d}\; \frac1\gamma \log \sum_e e^{\gamma (L_e - \mu D_e)}$$

    the hard and the soft maximum. With one domain $D_e = 0$.
    """

    aligns = "the distribution of features, of the worst domain"
    reference = "Zhao et al., 2018, arXiv 1705.09684"
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
        return detached(risk=risk.mean(), discriminator_loss=adversary.mean(), loss=loss)


@dataclass(frozen=True)
class _UrmConfig(Options):
    # What is fixed in all of DomainBed's draws is no option: Adam, no smoothing of labels.
    weight: NonNegative = 0.1  # λ
    output: Literal["tanh", "relu"] = "tanh"  # what features go through, and the range of noise
    hidden_layers: Whole = 1  # of the discriminator, after the first; 100 units and leaky ReLU each
    discriminator_lr: NonNegative | None = None  # None for the loop's


@final
class Urm(AbstractStepOwner):
    r"""Uniform risk minimisation: features that a discriminator cannot tell from uniform noise.

    The features of a network are bounded, $\tanh(z)$ or $\max(0, z)$; the noise u is uniform on
    [−1, 1] or [0, 1] in every feature. It looks at no domains. One step of the network, then one of
    the discriminator D on the same features, as in the authors' code on DomainBed:

    $$\min_{\text{network}}\; \frac1E \sum_e L_e + \lambda\, \text{mean}_n \log(1 + e^{-D(z_n)})$$
    $$\min_D\; \text{mean}_n \log(1 + e^{-D(u_n)}) + \lambda\, \text{mean}_n \log(1 + e^{D(z_n)})$$
    """

    aligns = "nothing; features are made uniform"
    reference = "Krishnamachari et al., 2024, TMLR"
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
        layers = OrderedDict(featurizer=inner.featurizer, activation=activation)
        return Network(nn.Sequential(layers), inner.head)

    def optimizers(self) -> Mapping[str, OptimizerSpec]:
        """One optimiser per player."""
        discriminator = self.discriminator.parameters()
        return {
            MAIN: OptimizerSpec(self.network.parameters()),
            _DISCRIMINATOR: OptimizerSpec(discriminator, self.config.discriminator_lr),
        }

    def _noise(self, z: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Uniform noise in the range of the features."""
        noise = draw_uniform(self.generator, *z.shape).to(z)
        return 2 * noise - 1 if self.config.output == "tanh" else noise

    def update(self, step: Step, optimizers: Mapping[str, Optimizer]) -> Terms:
        """A step of the network, then one of the discriminator."""
        weight, judge, z = self.config.weight, self.discriminator, step.z
        risk = step.statistics.risk.mean()
        deception = softplus(-judge(z)).mean()
        loss = follow(risk + weight * deception, optimizers, MAIN)
        real, made = softplus(-judge(self._noise(z))).mean(), softplus(judge(z.detach())).mean()
        adversary = follow(real + weight * made, optimizers, _DISCRIMINATOR)
        return detached(risk=risk, deception=deception, discriminator_loss=adversary, loss=loss)
