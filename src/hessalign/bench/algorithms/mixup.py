r"""Mixup between domains (Zhang et al., 2018; between domains: Yan et al., 2020).

Train on convex combinations of samples of two domains:

$$x = \lambda x_i + (1 - \lambda) x_j, \qquad
\lambda\, \ell(f(x), y_i) + (1 - \lambda)\, \ell(f(x), y_j), \qquad
\lambda \sim \text{Beta}(a, a)$$

The domains are put in a random order and each is mixed with the next one, the last with the first,
so every domain is i once and j once. One λ is drawn per pair of domains. The risk is the mean over
the E pairs of the mean over their samples. With one domain it is mixed with itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, final

import torch
from torch import Tensor

from hessalign.bench.algorithms.auxiliary import draw_beta, draw_order
from hessalign.bench.algorithms.kinds import AbstractObjective, Batch, ObjectiveTerms, Step
from hessalign.bench.algorithms.options import Fidelity, Options, Power, Range, SearchSpace
from hessalign.curvature.losses import make_loss


@final
@dataclass(frozen=True)
class _MixupConfig(Options):
    # The parameter a of the Beta distribution; small values hardly mix.
    alpha: Annotated[float, Range(0, open_low=True)] = 0.2
    # "paper" mixes every sample of i with a sample of j drawn at random. "domainbed" mixes the
    # first sample of i with the first of j and so on, and leaves out those that the larger of the
    # two domains has more.
    fidelity: Fidelity = "paper"


RELEASED_SEARCH: Final[SearchSpace] = {"alpha": ("mixup_alpha", Power(10, -1, -1))}
"""In the code published with the paper: a constant."""


@final
class Mixup(AbstractObjective):
    """Minimise the mean risk on mixtures of domains."""

    config: _MixupConfig = _MixupConfig()
    search: ClassVar[SearchSpace] = {"alpha": ("mixup_alpha", Power(10, -1, 1))}
    """As DomainBed has it since January 2023; until then the exponent lay between −1 and −1."""

    def _partners(self, first: Batch, second: Batch) -> Tensor:
        """Which samples of the second domain the first ones of the first are mixed with."""
        sizes, generator = (len(first.y), len(second.y)), self.generator
        if self.config.fidelity == "domainbed":
            return torch.arange(min(sizes), device=first.y.device)
        drawn = torch.randint(sizes[1], sizes[:1], generator=generator, device=generator.device)
        return drawn.to(first.y.device)

    def terms(self, step: Step) -> ObjectiveTerms:
        """The mean risk on mixtures."""
        domains, loss = step.batch.parts, make_loss(step.loss)
        order = draw_order(len(domains), self.generator)
        risks = []
        for i, j in zip(order, order[1:] + order[:1], strict=True):
            share = draw_beta(self.config.alpha, self.generator)
            partners = self._partners(domains[i], domains[j])
            x, y = domains[i].x[: len(partners)], domains[i].y[: len(partners)]
            other_x, other_y = domains[j].x[partners], domains[j].y[partners]
            logits = step.network(share * x + (1 - share) * other_x)
            values = share * loss.values(logits, y) + (1 - share) * loss.values(logits, other_y)
            risks.append(values.mean())
        return ObjectiveTerms(torch.stack(risks).mean())
