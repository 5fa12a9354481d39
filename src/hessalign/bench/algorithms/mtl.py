r"""Marginal transfer learning, MTL (Blanchard et al., 2021).

The classifier sees where a sample comes from: next to its features z it receives an embedding of
the distribution of its domain, the (kernel) mean embedding $\mu_e$ in feature space,

$$f(x) = h(z(x), \mu_e), \qquad
\mu_e \leftarrow s \cdot \text{mean}_{n \in e}\, z_n + (1 - s)\, \mu_e$$

with the share s of the new batch. The first batch of a domain is its first average. Derivatives go
through the new batch, not through the past. A batch to be predicted is taken as one domain, whose
embedding is the mean of the batch's own features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn

from hessalign._shapes import Float
from hessalign.bench.algorithms.auxiliary import head_inputs
from hessalign.bench.algorithms.kinds import AbstractObjective, ObjectiveTerms, Setting, Step
from hessalign.bench.algorithms.options import Choice, Fidelity, Options, Range, SearchSpace
from hessalign.bench.models import Network


@final
@dataclass(frozen=True)
class _MtlConfig(Options):
    # Share s of the new batch in the moving average; 1 forgets the past.
    ema: Annotated[float, Range(0, 1, open_low=True)] = 0.99
    # "domainbed" overwrites the embedding of every sample with standard normal noise of its own, as
    # a slip in its code does; when predicting too, then with a fixed seed, so that predictions can
    # be repeated. It also adds the domains' risks up instead of taking their mean, which Adam
    # notices only beside a weight decay.
    fidelity: Fidelity = "paper"


@final
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
            embedding = _noise(z, torch.Generator().manual_seed(0))
        return torch.cat([z, embedding], dim=1)


def _noise(z: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(z.shape, generator=generator, device=generator.device).to(z)


@final
class Mtl(AbstractObjective):
    """Minimise the risk of a classifier that knows the domain's mean features."""

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

    @property
    def _domainbed(self) -> bool:
        return self.config.fidelity == "domainbed"

    def make_network(self, setting: Setting) -> Network:
        """A network whose head also receives the embedding."""
        inner = setting.make_network(head_factor=2)
        return Network(_EmbeddedFeaturizer(inner.featurizer, self._domainbed), inner.head)

    def _embeddings(self, z: Float[Tensor, "n d"], sizes: tuple[int, ...]) -> Float[Tensor, "n d"]:
        """The embedding of each sample's domain; the averages move on."""
        if self._domainbed:
            return _noise(z, self.generator)
        new = torch.stack([part.mean(0) for part in z.split(sizes)])
        share, past = self.config.ema, self.average.to(z.dtype)
        seen = (self.seen > 0).unsqueeze(1)
        average = torch.where(seen, share * new + (1 - share) * past, new)
        self.average = average.detach().to(self.average.dtype)
        self.seen = self.seen + 1
        return average.repeat_interleave(
            torch.tensor(sizes, device=z.device), dim=0, output_size=len(z)
        )

    def terms(self, step: Step) -> ObjectiveTerms:
        """The mean risk, or the sum of the risks in DomainBed's reading."""
        z = step.z[:, : self.width]
        embeddings = self._embeddings(z, step.batch.sizes)
        logits = step.network.head(torch.cat([z, embeddings], dim=1))
        risks = step.risks_of(logits)
        return ObjectiveTerms(risks.sum() if self._domainbed else risks.mean())
