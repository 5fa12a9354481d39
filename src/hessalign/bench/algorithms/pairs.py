"""Methods that bring samples of one class in different domains together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, ClassVar, Final, final

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from hessalign._shapes import Bool, Float, Int
from hessalign.bench.algorithms.auxiliary import (
    count_classes,
    detached,
    draw_beta,
    draw_uniform,
    follow,
    fresh_copy,
    head_inputs,
    make_perceptron,
    match,
    seeded,
    sum_over_rows,
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
    Choice,
    Count,
    Fidelity,
    Fixed,
    NonNegative,
    Options,
    Range,
    SearchSpace,
)
from hessalign.bench.models.network import make_nonlinear
from hessalign.curvature import make_loss


def _shuffled_in_class(y: Int[Tensor, " n"], keys: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
    """For each sample another of its class: within each class a permutation, ordered by keys."""
    by_key = keys.argsort()
    shuffled = by_key[y[by_key].argsort(stable=True)]  # by class, then by key
    return torch.zeros_like(shuffled).scatter(0, y.argsort(stable=True), shuffled)


@dataclass(frozen=True)
class _SelfRegConfig(Options):
    # DomainBed has no options. Its optimiser is made before the projection, which "domainbed"
    # therefore never trains.
    fidelity: Fidelity = "paper"


@final
class SelfReg(AbstractStepOwner):
    r"""Self-supervised contrastive regularisation: samples of a class are to be alike.

    Every sample is compared with another of its class, n', and with a mixture of two, n' and n'',
    drawn at random (a permutation within the class each; n itself may be drawn). With a projection
    f and $\gamma \sim \text{Beta}(\frac12, \frac12)$, one draw for the batch,

    $$\bar L + \min(1, \bar L)\,
    \Big(\gamma\, (A_1 + 0.3\, Z_1) + (1 - \gamma)\, (A_2 + 0.3\, Z_2)\Big)$$

    where $\bar L$ as a factor is a constant, $A_1$ the mean square of $a_n - a_{n'}$, $A_2$ that of
    $a_n - \gamma a_{n'} - (1 - \gamma) a_{n''}$, both over all entries, and Z the same with $z_n$
    on the left and $f(z)$ on the right. f has three linear layers, each with batch normalisation,
    the first two with ReLU, twice as wide as the features, or as wide if there are 2048. A batch of
    one sample has no such term. The paper's averaging of weights and its curriculum of domains are
    left out, as in DomainBed.
    """

    aligns = "logits and features given the class"
    reference = "Kim et al., 2021, arXiv 2104.09841"
    config: _SelfRegConfig = _SelfRegConfig()

    def __init__(self, config: _SelfRegConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        count_classes(setting)  # refuses regression
        features = head_inputs(self.network.head)
        width = features if features == 2048 else 2 * features
        layers: list[nn.Module] = []
        with seeded(setting.generator):
            for before, after in ((features, width), (width, width), (width, features)):
                layers += [nn.Linear(before, after), nn.BatchNorm1d(after), nn.ReLU()]
        self.projection = nn.Sequential(*layers[:-1])
        match(self.projection, self.network)
        self.projection.requires_grad_(config.fidelity == "paper")

    def optimizers(self) -> Mapping[str, OptimizerSpec]:
        """One of the network and of the projection, if that is trained."""
        trained = () if self.config.fidelity == "domainbed" else self.projection.parameters()
        return {MAIN: OptimizerSpec(chain(self.network.parameters(), trained))}

    def update(self, step: Step, optimizers: Mapping[str, Optimizer]) -> Terms:
        """A step down the regularised risk."""
        risk = step.statistics.risk.mean()
        penalty = self._penalty(step) if len(step.z) > 1 else torch.zeros_like(risk)
        loss = follow(risk + risk.detach().clamp(max=1) * penalty, optimizers, MAIN)
        return detached(risk=risk, penalty=penalty, loss=loss)

    def _penalty(self, step: Step) -> Float[Tensor, ""]:
        """What the factor min(1, L) is in front of."""
        share, y = draw_beta(0.5, self.generator), step.batch.y
        keys = (draw_uniform(self.generator, len(y)).to(y.device) for _ in range(2))
        first, second = (_shuffled_in_class(y, each) for each in keys)

        def compared(left: Tensor, right: Tensor) -> Tensor:
            mixed = share * right[first] + (1 - share) * right[second]
            single = (left - right[first]).square().mean()
            return share * single + (1 - share) * (left - mixed).square().mean()

        projected = self.projection(step.z)
        return compared(step.logits, step.logits) + 0.3 * compared(step.z, projected)


_DISCRIMINATOR: Final = "discriminator"
_TEMPERATURE: Final = 0.07
_GUARD: Final = 1e-5


def _contrastive_loss(z: Float[Tensor, "n d"], y: Int[Tensor, " n"]) -> Float[Tensor, ""]:
    """S: samples of a class are close, others far."""
    z, places = functional.normalize(z, dim=1), torch.arange(len(z), device=z.device)

    def part(own: Tensor) -> Tensor:
        """For some samples the sum of what they add, and how many of them have others."""
        itself = own.unsqueeze(1) == places
        half = (0.5 * (z[own] @ z.T / _TEMPERATURE).exp()).masked_fill(itself, 0.0)
        logs = (half / (half.sum(1, keepdim=True) + _GUARD) + _GUARD).log()
        positive = (y[own].unsqueeze(1) == y) & ~itself
        counts = positive.sum(1)
        means = (logs * positive).sum(1) / counts.clamp(min=1)
        return torch.stack([-means.sum(), (counts > 0).sum().to(means.dtype)])

    sums = sum_over_rows(part, places)
    return sums[0] / (sums[1] + 1)


def _pick(allowed: Bool[Tensor, "c n"], keys: Float[Tensor, " n"]) -> Int[Tensor, " c"]:
    """In each row the one that is allowed and has the highest key; any if none is allowed."""
    return keys.expand_as(allowed).masked_fill(~allowed, -1.0).argmax(1)


def _remix_pairs(
    y: Int[Tensor, " n"],
    domain: Int[Tensor, " n"],
    counts: tuple[int, int],  # of classes and of domains
    keys: Sequence[Float[Tensor, " n"]],
    fidelity: Fidelity = "paper",
) -> tuple[Int[Tensor, " c"], Int[Tensor, " c"], Bool[Tensor, " c"]]:
    """For each class whose u and whose z' are added, and whether there is such a pair."""
    of_class, in_domain = (
        torch.arange(count, device=y.device).unsqueeze(1) == each
        for count, each in zip(counts, (y, domain), strict=True)
    )
    if fidelity == "domainbed":
        places = torch.arange(len(y), device=y.device)
        allowed = places < of_class.sum(1, keepdim=True)
        first = _pick(allowed, keys[0])
        partners = allowed & (places != first.unsqueeze(1))
    else:
        samples = of_class.float() @ in_domain.float().T
        elsewhere = samples.sum(1, keepdim=True) - samples
        allowed = of_class & (elsewhere[:, domain] > 0)
        first = _pick(allowed, keys[0])
        partners = of_class & (domain[first].unsqueeze(1) != domain)
    return first, _pick(partners, keys[1]), allowed.any(1) & partners.any(1)


@dataclass(frozen=True)
class _AdrmxConfig(Options):
    contrast_weight: NonNegative = 1.0  # λ_c
    domain_weight: NonNegative = 1.0  # λ_d
    adversary_weight: NonNegative = 0.75  # λ_a
    remix_weight: NonNegative = 1.0  # λ_r
    discriminator_steps: Count = 2  # s, per step of the network
    # Adam's first decay rate in both optimisers; the second is 0.9.
    beta1: Annotated[float, Range(0, 1, open_high=True)] = 0.5
    width: Count = 256  # of the discriminator
    depth: Annotated[int, Range(2)] = 9  # its linear layers
    dropout: Annotated[float, Range(0, 1, open_high=True)] = 0.0
    # "domainbed" draws, for a class with k samples, two of the first k samples of the batch, of
    # whatever class and domain, and has no weight decay.
    fidelity: Fidelity = "paper"


@final
class Adrmx(AbstractStepOwner):
    r"""Learn what is left of the features without those of the domain.

    It takes features of the domain, z', by a second featurizer, away from those of the label, z;
    what is left, u = z − z', should not tell the domains apart. A discriminator is trained to do
    so, in s of s + 1 steps, as in DANN. In the other the network and all else minimise

    $$\ell(h(z)) + \ell(h'(u)) + \lambda_d\, \ell_D(h_D(z')) + \lambda_r\, R
    + \lambda_c\, (S(z) + S(u)) - \lambda_a\, \mathcal D(u)$$

    with $\ell$ the mean risk, $\ell_D$ and $\mathcal D$ the cross-entropies of the domains by a
    classifier and by the discriminator. R, the remix, is $\frac1C$ times the sum over classes of
    the loss of $h(u_n + z'_m)$, with the label of n, for a random pair n, m of samples of the class
    from different domains, where there is one. S is a supervised contrastive loss: with the cosines
    $c_{nm}$ of the samples divided by 0.07 and half weights for both kinds of pairs, in and across
    domains,

    $$S = \frac{1}{N^+ + 1} \sum_n -\text{mean}_{m \in P_n} \log\left(\frac{\frac12 e^{c_{nm}}}
    {10^{-5} + \frac12 \sum_{k \neq n} e^{c_{nk}}} + 10^{-5}\right)$$

    where $P_n$ are the others of the class of n, and $N^+$ counts the samples that have any.
    Predictions are made by h(z). The head h is that of the network, h' another like it, $h_D$ has
    ReLU layers of a half and a quarter of the features; DomainBed's h and h' have these too
    (`nonlinear_classifier: true`).
    """

    aligns = "the distribution of features less those of the domain"
    reference = "Demirel et al., 2023, arXiv 2308.06624"
    config: _AdrmxConfig = _AdrmxConfig()
    search: ClassVar[SearchSpace] = {
        "contrast_weight": ("cnt_lambda", Fixed(1.0)),
        "domain_weight": ("dclf_lambda", Fixed(1.0)),
        "adversary_weight": ("disc_lambda", Fixed(0.75)),
        "remix_weight": ("rmxd_lambda", Fixed(1.0)),
        "discriminator_steps": ("d_steps_per_g_step", Fixed(2)),
        "beta1": ("beta1", Fixed(0.5)),
        "width": ("mlp_width", Fixed(256)),
        "depth": ("mlp_depth", Choice((8, 9, 10))),
        "dropout": ("mlp_dropout", Fixed(0.0)),
    }

    def __init__(self, config: _AdrmxConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        self.classes, generator = count_classes(setting), setting.generator
        self.domains = setting.domains
        head, features = self.network.head, head_inputs(self.network.head)
        self.domain_featurizer = setting.make_network().featurizer
        self.second_head = fresh_copy(head, generator)
        with seeded(generator):
            self.domain_head = make_nonlinear(features, setting.domains)
        self.discriminator = make_perceptron(
            features, setting.domains, config.width, config.depth, config.dropout, generator
        )
        for module in (self.domain_head, self.discriminator):
            match(module, self.network)

    def optimizers(self) -> Mapping[str, OptimizerSpec]:
        """One of the discriminator, one of all else."""
        parts = (self.network, self.domain_featurizer, self.second_head, self.domain_head)
        network = chain.from_iterable(part.parameters() for part in parts)
        decay = 0.0 if self.config.fidelity == "domainbed" else None
        betas = (self.config.beta1, 0.9)
        return {
            MAIN: OptimizerSpec(network, None, decay, betas),
            _DISCRIMINATOR: OptimizerSpec(self.discriminator.parameters(), None, decay, betas),
        }

    def update(self, step: Step, optimizers: Mapping[str, Optimizer]) -> Terms:
        """A step of the discriminator or of all else."""
        steps, config, batch = self.config.discriminator_steps, self.config, step.batch
        discriminator = (step.number + 1) % (steps + 1) < steps
        with torch.set_grad_enabled(not discriminator):
            foreign = self.domain_featurizer(batch.x)
            own, risk = step.z - foreign, step.statistics.risk.mean()
        adversary = functional.cross_entropy(self.discriminator(own), batch.domain)
        terms = {"risk": risk.detach(), "discriminator_loss": adversary.detach()}
        if discriminator:
            return {**terms, "loss": follow(adversary, optimizers, _DISCRIMINATOR)}
        domains = functional.cross_entropy(self.domain_head(foreign), batch.domain)
        contrast = _contrastive_loss(step.z, batch.y) + _contrastive_loss(own, batch.y)
        loss = (
            risk
            + step.risks_of(self.second_head(own)).mean()
            + config.domain_weight * domains
            + config.remix_weight * self._remix_loss(step, own, foreign)
            + config.contrast_weight * contrast
            - config.adversary_weight * adversary
        )
        return {**terms, "loss": follow(loss, optimizers, MAIN)}

    def _remix_loss(
        self, step: Step, own: Float[Tensor, "n d"], foreign: Float[Tensor, "n d"]
    ) -> Float[Tensor, ""]:
        """R, the risk of the head on features that were put together from two samples."""
        batch, counts = step.batch, (self.classes, self.domains)
        keys = [draw_uniform(self.generator, len(own)).to(own.device) for _ in range(2)]
        first, second, there = _remix_pairs(
            batch.y, batch.domain, counts, keys, self.config.fidelity
        )
        logits = step.network.head(own[first] + foreign[second])
        values = make_loss(step.loss).values(logits, batch.y[first])
        return (values * there).sum() / self.classes
