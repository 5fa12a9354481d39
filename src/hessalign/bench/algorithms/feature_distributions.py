r"""Methods that align the distribution of the features: CORAL, MMD, DDC, CausIRL, DANN and CDANN.

CORAL (Sun & Saenko, 2016) aligns their covariances:

$$\frac{2}{E(E-1)} \sum_{e<f} \frac{1}{4 d^2} \|C_e - C_f\|_F^2, \qquad
C_e = \frac{1}{n_e - 1} \sum_{n \in e} (z_n - \bar z_e)(z_n - \bar z_e)^\top$$

The paper has one source and one target; with several source domains it is the mean over their
pairs. A domain with one sample has covariance 0. With fewer samples than features the d×d
covariances are never formed: for rows $a_n$, centred and divided by $\sqrt{n_e - 1}$, inner
products are $\langle C_e, C_f \rangle = \sum_{n \in e, m \in f} (a_n \cdot a_m)^2$, and the mean
over pairs is the sum over all pairs of samples of
$\frac{2}{E-1} (\delta_{ef} - \frac1E) (a_n \cdot a_m)^2$.

Maximum mean discrepancy, MMD (Gretton et al., 2012; for domains: Li et al., 2018, MMD-AAE), is the
squared distance of the domains' mean embeddings in the space of a kernel, averaged over pairs:

$$\frac{2}{E(E-1)} \sum_{e<f} \left(K_{ee} + K_{ff} - 2 K_{ef}\right), \qquad
K_{ef} = \text{mean}_{n \in e,\, m \in f}\; k(z_n, z_m), \qquad
k(z, z') = \sum_\gamma e^{-\gamma \|z - z'\|^2}$$

with γ from 10⁻³ to 10³ in powers of ten. $K_{ee}$ includes the pairs n = m (the biased estimate,
which is never below 0). Of the adversarial autoencoder of Li et al. only this term is taken, as in
DomainBed. With one domain both penalties are 0.

Deep domain confusion, DDC (Tzeng et al., 2014, arXiv 1412.3474, eq. 1 and 2), is MMD with a linear
kernel, the squared distance of the domains' mean features, averaged over pairs. Its adaptation
layer is whatever layer makes the features.

CausIRL (Chevalley et al., 2022, arXiv 2206.11646) asks that features have one distribution whatever
the mixture of the domains. Each domain is cut in two at random, which is before sample
$\lfloor u_e n_e \rfloor$ for uniform $u_e$; all first parts make one mixture, all second parts
another, and the penalty is CORAL's or MMD's for the two. It is 0 where a mixture has less than two
samples.

In domain-adversarial training, DANN (Ganin et al., 2016) and CDANN (Li et al., 2018), a
discriminator D tells the domains apart by the features z; the featurizer learns to deceive it:

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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, ClassVar, Final, final

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from hessalign._shapes import Float, Int
from hessalign.alignment import squared_distances
from hessalign.bench.algorithms.auxiliary import (
    count_classes,
    follow,
    head_inputs,
    make_perceptron,
    match,
    seeded,
    sum_over_rows,
)
from hessalign.bench.algorithms.kinds import (
    MAIN,
    AbstractObjective,
    AbstractStepOwner,
    ObjectiveTerms,
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
    PenaltyOptions,
    Power,
    Range,
    SearchSpace,
)
from hessalign.curvature.domains import domain_layout
from hessalign.curvature.gram import gram

_GAMMAS: Final = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)  # inverse squared widths of MMD's kernels
_SEARCH: Final[SearchSpace] = {"penalty_weight": ("mmd_gamma", Power(10, -1, 1))}


@final
@dataclass(frozen=True)
class _CoralConfig(PenaltyOptions):
    # "domainbed" for the mean of squared differences of the means' d entries plus that of the
    # covariances' d² entries, averaged over pairs.
    fidelity: Fidelity = "paper"


def _covariance(z: Float[Tensor, "n d"]) -> Float[Tensor, "d d"]:
    """Covariance of the features, unbiased; 0 for a single sample."""
    centred = z - z.mean(0)
    return centred.T @ centred / max(1, len(z) - 1)


def _mean_pair_distance(points: Float[Tensor, " e *p"]) -> Float[Tensor, ""]:
    """Mean over pairs of domains of the squared distance: 2 / (E − 1) Σ ‖a_e − ā‖²."""
    return 2 * (points - points.mean(0)).square().sum() / max(1, len(points) - 1)


def _covariance_distance(features: Sequence[Float[Tensor, "n d"]]) -> Float[Tensor, ""]:
    """Mean over pairs of domains of the squared distance of their covariances."""
    sizes = [len(z) for z in features]
    if sum(sizes) >= features[0].shape[1]:
        return _mean_pair_distance(torch.stack([_covariance(z) for z in features]))
    rows = torch.cat([(z - z.mean(0)) / max(1, len(z) - 1) ** 0.5 for z in features])
    squares = gram(rows).square()
    domain = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    same = (domain[:, None] == domain).to(squares)
    weights = 2 * (same - 1 / len(sizes)) / max(1, len(sizes) - 1)
    return (weights * squares).sum().to(rows.dtype)


def _coral_penalty(
    features: Sequence[Float[Tensor, "n d"]], fidelity: Fidelity = "paper"
) -> Float[Tensor, ""]:
    width = features[0].shape[1]
    distance = _covariance_distance(features) / width**2
    if fidelity == "paper":
        return distance / 4
    return distance + _mean_pair_distance(torch.stack([z.mean(0) for z in features])) / width


@final
class Coral(AbstractObjective):
    """Minimise the mean risk and the distance of covariances."""

    config: _CoralConfig = _CoralConfig()
    search: ClassVar[SearchSpace] = _SEARCH

    def terms(self, step: Step) -> ObjectiveTerms:
        """Risk and penalty."""
        penalty = _coral_penalty(step.features_by_domain(), self.config.fidelity)
        return ObjectiveTerms(step.statistics.risk.mean(), penalty)


def squared_discrepancy(
    z: Float[Tensor, "n d"], averaging: Float[Tensor, "e n"], gammas: Sequence[float] = _GAMMAS
) -> Float[Tensor, ""]:
    """Mean over pairs of distributions, by weights that add up to 1, of their squared MMD."""
    # `gammas` are the inverse squared widths of kernels that are added up.
    domains = len(averaging)
    if domains == 1:
        return z.new_zeros(()) * z.sum()
    z = z.to(averaging.dtype)
    z = z - z.detach().mean(0)  # leaves distances as they are and keeps their digits

    def part(rows: Tensor, weights: Tensor) -> Tensor:
        norms = rows.square().sum(1).unsqueeze(1) + z.square().sum(1)
        squares = (norms - 2 * rows @ z.T).clamp(min=0)
        kernel = torch.stack([torch.exp(-gamma * squares) for gamma in gammas]).sum(0)
        return weights.T @ kernel @ averaging.T

    means = sum_over_rows(part, z, averaging.T)
    return squared_distances(means).sum() / (domains * (domains - 1))


@final
class Mmd(AbstractObjective):
    """Minimise the mean risk and the discrepancy of the features."""

    config: PenaltyOptions = PenaltyOptions()
    search: ClassVar[SearchSpace] = _SEARCH

    def terms(self, step: Step) -> ObjectiveTerms:
        """Risk and penalty."""
        penalty = squared_discrepancy(step.z, step.batch.domains.weights.averaging)
        return ObjectiveTerms(step.statistics.risk.mean(), penalty)


@final
@dataclass(frozen=True)
class _DdcConfig(PenaltyOptions):
    penalty_weight: NonNegative = 0.25  # the paper's


@final
class Ddc(AbstractObjective):
    """Minimise the mean risk and the distance of mean features."""

    config: _DdcConfig = _DdcConfig()
    search: ClassVar[SearchSpace] = {"penalty_weight": Power(10, -1, 1)}  # ours, as for MMD

    def terms(self, step: Step) -> ObjectiveTerms:
        """Risk and penalty."""
        means = torch.stack([z.mean(0) for z in step.features_by_domain()])
        return ObjectiveTerms(step.statistics.risk.mean(), _mean_pair_distance(means))


def _two_mixtures(step: Step, generator: torch.Generator) -> list[Float[Tensor, "n d"]] | None:
    """The first parts and the second parts of domains cut in two at random; None if too small."""
    features, device = step.features_by_domain(), generator.device
    shares = torch.rand(len(features), generator=generator, device=device).tolist()
    cuts = [int(share * len(z)) for share, z in zip(shares, features, strict=True)]
    first = torch.cat([z[:cut] for z, cut in zip(features, cuts, strict=True)])
    second = torch.cat([z[cut:] for z, cut in zip(features, cuts, strict=True)])
    return [first, second] if min(len(first), len(second)) > 1 else None


@final
class CausIrlCoral(AbstractObjective):
    """Minimise the mean risk and CORAL's distance of two random mixtures of the domains."""

    config: _CoralConfig = _CoralConfig()
    search: ClassVar[SearchSpace] = _SEARCH

    def terms(self, step: Step) -> ObjectiveTerms:
        """Risk and penalty."""
        risk, mixtures = step.statistics.risk.mean(), _two_mixtures(step, self.generator)
        if mixtures is None:
            return ObjectiveTerms(risk, torch.zeros_like(risk))
        return ObjectiveTerms(risk, _coral_penalty(mixtures, self.config.fidelity))


@final
class CausIrlMmd(AbstractObjective):
    """Minimise the mean risk and the MMD of two random mixtures of the domains."""

    config: PenaltyOptions = PenaltyOptions()
    search: ClassVar[SearchSpace] = _SEARCH

    def terms(self, step: Step) -> ObjectiveTerms:
        """Risk and penalty."""
        risk, mixtures = step.statistics.risk.mean(), _two_mixtures(step, self.generator)
        if mixtures is None:
            return ObjectiveTerms(risk, torch.zeros_like(risk))
        averaging = domain_layout(tuple(map(len, mixtures)), step.z.device).weights.averaging
        return ObjectiveTerms(risk, squared_discrepancy(torch.cat(mixtures), averaging))


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
        return {
            "risk": risk.detach(),
            "discriminator_loss": adversary.detach(),
            "loss": loss.detach(),
        }
