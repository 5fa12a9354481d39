"""Methods whose network sees the batch a sample comes from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn

from hessalign._errors import InputError
from hessalign._shapes import Float
from hessalign.bench.algorithms.auxiliary import (
    draw_normal,
    head_inputs,
    make_perceptron,
    match,
    seeded,
)
from hessalign.bench.algorithms.kinds import AbstractObjective, ObjectiveTerms, Setting, Step
from hessalign.bench.algorithms.options import Choice, Count, Fidelity, Options, Range, SearchSpace
from hessalign.bench.models import Network


@dataclass(frozen=True)
class _MtlConfig(Options):
    # Share s of the new batch in the moving average; 1 forgets the past.
    ema: Annotated[float, Range(0, 1, open_low=True)] = 0.99
    # "domainbed" overwrites the embedding of every sample with standard normal noise of its own, as
    # a slip in its code does; when predicting too, then with a fixed seed, so that predictions can
    # be repeated. It also adds the domains' risks up instead of taking their mean, which Adam
    # notices only beside a weight decay.
    fidelity: Fidelity = "paper"


class _EmbeddedFeaturizer(nn.Module):
    """Features followed by the embedding of the batch, or by noise in its place."""

    def __init__(self, featurizer: nn.Module, noise: bool) -> None:
        super().__init__()
        self.featurizer = featurizer
        self.noise = noise

    def forward(self, x: Tensor) -> Float[Tensor, "n twice_d"]:
        z: Tensor = self.featurizer(x)
        embedding = z.mean(0).expand_as(z)
        if self.noise:
            embedding = draw_normal(z, torch.Generator().manual_seed(0))
        return torch.cat([z, embedding], dim=1)


@final
class Mtl(AbstractObjective):
    r"""Minimise the risk of a classifier that knows the domain's mean features.

    Marginal transfer learning, MTL, shows the classifier where a sample comes from: next to its
    features z it receives an embedding of the distribution of its domain, the (kernel) mean
    embedding $\mu_e$ in feature space,

    $$f(x) = h(z(x), \mu_e), \qquad
    \mu_e \leftarrow s \cdot \text{mean}_{n \in e}\, z_n + (1 - s)\, \mu_e$$

    with the share s of the new batch. The first batch of a domain is its first average. Derivatives
    go through the new batch, not through the past. A batch to be predicted is taken as one domain,
    whose embedding is the mean of the batch's own features.
    """

    aligns = "nothing; the head sees the mean feature"
    reference = "Blanchard et al., 2021"
    config: _MtlConfig = _MtlConfig()
    sees_batch: ClassVar[bool] = True
    search: ClassVar[SearchSpace] = {"ema": ("mtl_ema", Choice((0.5, 0.9, 0.99, 1.0)))}
    average: Tensor
    seen: Tensor

    def __init__(self, config: _MtlConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        self.width = head_inputs(self.network.head) // 2
        example = next(self.network.head.parameters())
        self.register_buffer("average", example.new_zeros(setting.domains, self.width))
        self.register_buffer("seen", torch.zeros(setting.domains, dtype=torch.long))

    def make_network(self, setting: Setting) -> Network:
        """A network whose head also receives the embedding."""
        inner, noise = setting.make_network(head_factor=2), self.config.fidelity == "domainbed"
        return Network(_EmbeddedFeaturizer(inner.featurizer, noise), inner.head)

    def _embeddings(self, z: Float[Tensor, "n d"], sizes: tuple[int, ...]) -> Float[Tensor, "n d"]:
        """The embedding of each sample's domain; the averages move on."""
        new = torch.stack([part.mean(0) for part in z.split(sizes)])
        share, past = self.config.ema, self.average.to(z.dtype)
        seen = (self.seen > 0).unsqueeze(1)
        average = torch.where(seen, share * new + (1 - share) * past, new)
        self.average = average.detach().to(self.average.dtype)
        self.seen = self.seen + 1
        counts = torch.tensor(sizes, device=z.device)
        return average.repeat_interleave(counts, dim=0, output_size=len(z))

    def terms(self, step: Step) -> ObjectiveTerms:
        """The mean risk, or the sum of the risks in DomainBed's reading."""
        z, domainbed = step.z[:, : self.width], self.config.fidelity == "domainbed"
        mean = (
            draw_normal(z, self.generator) if domainbed else self._embeddings(z, step.batch.sizes)
        )
        risks = step.risks_of(step.network.head(torch.cat([z, mean], dim=1)))
        return ObjectiveTerms(risks.sum() if domainbed else risks.mean())


@dataclass(frozen=True)
class _ArmConfig(Options):
    # None are searched: DomainBed fixes the batch size instead, see `common_space`.
    channels: Count = 1  # of the context
    width: Count = 64  # channels or units of the hidden layers of the context network
    fidelity: Fidelity = "paper"


def _make_context(
    input_shape: tuple[int, ...], config: _ArmConfig, generator: torch.Generator
) -> nn.Module:
    """The context network: from images to images, else from vectors to vectors."""
    if len(input_shape) != 3:
        outputs = config.channels * math.prod(input_shape[1:])
        return make_perceptron(math.prod(input_shape), outputs, config.width, 2, 0.0, generator)
    layers: list[nn.Module] = []
    with seeded(generator):
        for channels in (input_shape[0], config.width):
            layers.append(nn.Conv2d(channels, config.width, 5, padding=2))
            if config.fidelity == "domainbed":
                layers.append(nn.BatchNorm2d(config.width))
            layers.append(nn.ReLU())
        return nn.Sequential(*layers, nn.Conv2d(config.width, config.channels, 5, padding=2))


class _ContextFeaturizer(nn.Module):
    """A featurizer that sees each input together with the context of its batch."""

    def __init__(
        self, featurizer: nn.Module, context: nn.Module, flat: bool, support: int | None
    ) -> None:
        super().__init__()
        self.featurizer = featurizer
        self.context = context
        self.flat = flat
        self.support = support  # cut batches to be predicted into parts of so many inputs

    def forward(self, x: Tensor, sizes: tuple[int, ...] | None = None) -> Float[Tensor, "n d"]:
        if sizes is not None:
            return self._in_parts(x, sizes)
        count = x.shape[0]  # len() would fix the size of batches in a network that is exported
        if self.support is None or count % self.support:
            return self._in_parts(x, (count,))
        return self._in_parts(x, (self.support,) * (count // self.support))

    def _in_parts(self, x: Tensor, sizes: tuple[int, ...]) -> Float[Tensor, "n d"]:
        """Features of inputs that see the mean context of their part of the batch."""
        inputs = x.flatten(1) if self.flat else x
        contexts = [
            part.mean(0, keepdim=True).expand_as(part) for part in self.context(inputs).split(sizes)
        ]
        z: Tensor = self.featurizer(torch.cat([inputs, torch.cat(contexts)], dim=1))
        return z


@final
class Arm(AbstractObjective):
    r"""Minimise the mean risk of a network that adapts to each domain's batch.

    Adaptive risk minimisation with a context network, ARM-CML, trains the network to adapt to a
    batch of one domain: a context network φ, averaged over the batch, says where the samples come
    from and is appended to each of them,

    $$f(x_n) = h\big(x_n,\; \text{mean}_{m \in e}\, \varphi(x_m)\big)$$

    with derivatives through both. A batch to be predicted is taken as one domain; no labels are
    used. For images `[n, c, h, w]` φ has three convolutions of 5×5 with ReLU between them, and its
    outputs are further channels of the same height and width. Other inputs are flattened; φ then
    has one hidden ReLU layer and its outputs are appended to the vector: `channels` numbers for
    vectors, that many whole channels for flattened images. The paper's batch normalisation within φ
    is left out, so that the mean over the batch is the only way in which samples see each other.

    DomainBed's ARM, which is for images alone, differs in three ways. Its φ has batch normalisation
    before each ReLU, over all domains of a training batch together. Its φ is never trained: the
    optimiser is made before φ is. And a batch to be predicted is cut into parts of as many samples
    as a domain has in training, each with a context of its own, if that divides it; else it is one.
    """

    aligns = "nothing; the network sees the batch"
    reference = "Zhang et al., 2021"
    config: _ArmConfig = _ArmConfig()
    sees_batch: ClassVar[bool] = True

    def make_network(self, setting: Setting) -> Network:
        """A network that sees the context, from a setting that says the shape of the inputs."""
        if setting.input_shape is None:
            raise InputError(
                "Expected a setting that says the shape of the inputs, which the context network "
                "needs, got none. Use Setting(..., input_shape=(channels, height, width))."
            )
        inner = setting.make_network(extra_channels=self.config.channels)
        context = _make_context(setting.input_shape, self.config, setting.generator)
        match(context, inner)
        flat, support = len(setting.input_shape) != 3, None
        if self.config.fidelity == "domainbed":
            context.requires_grad_(False)
            support = setting.batch_size
        return Network(_ContextFeaturizer(inner.featurizer, context, flat, support), inner.head)

    def terms(self, step: Step) -> ObjectiveTerms:
        """The mean risk, each domain with its own context."""
        if self.config.fidelity == "domainbed":
            z = step.network.features(step.batch.x, step.batch.sizes)
            return ObjectiveTerms(step.risks_of(step.network.head(z)).mean())
        risks = [step.risk_in(domain) for domain in step.batch.parts]
        return ObjectiveTerms(torch.stack(risks).mean())
