"""One training step as an algorithm sees it: the batch, the network, and what follows from both."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import final

import torch
from torch import Tensor, nn

from hessalign._errors import InputError, UserError
from hessalign._shapes import Float, Int
from hessalign.bench.models import Network
from hessalign.curvature import HeadStatistics, autograd_head, make_loss
from hessalign.curvature.domains import Domains, make_domains
from hessalign.curvature.inputs import check_targets
from hessalign.curvature.linear import arranged_head

REMEDY = "Lower the learning rate or the penalty weight."


@final
class DivergedError(UserError, RuntimeError):
    """Training met a number that is not finite."""


@final
@dataclass(frozen=True, eq=False)
class Batch:
    """Inputs with targets and domains.

    Attributes:
        x: Inputs, samples on the first axis.
        y: Labels.
        domain: The position of each sample's domain, ascending: domains are contiguous.
    """

    x: Tensor
    y: Int[Tensor, " n"]
    domain: Int[Tensor, " n"]

    @cached_property
    def domains(self) -> Domains:
        """The grouping of the samples, found once."""
        domains = make_domains(self.domain)
        if domains.order is not None:
            raise InputError("Expected the samples of each domain together, domains ascending.")
        return domains

    @property
    def sizes(self) -> tuple[int, ...]:
        """Samples per domain, in order."""
        return self.domains.sizes

    def to(self, device: torch.device) -> Batch:
        """The same batch where the network is; this one if it is there already."""
        if self.y.device == device:
            return self
        return Batch(self.x.to(device), self.y.to(device), self.domain.to(device))

    @cached_property
    def parts(self) -> tuple[Batch, ...]:
        """The domains one by one, views of the same memory."""
        parts = (self.x.split(self.sizes), self.y.split(self.sizes), self.domain.split(self.sizes))
        return tuple(Batch(*each) for each in zip(*parts, strict=True))


@final
@dataclass(frozen=True, eq=False)
class ObjectiveTerms:
    """The terms of a training loss; the loop adds `risk` and the scheduled weight times `penalty`.

    Attributes:
        risk: Mean over domains of the mean loss.
        penalty: What the penalty weight multiplies; None if there is none.
        parts: Named pieces of the penalty, for the log.
    """

    risk: Float[Tensor, ""]
    penalty: Float[Tensor, ""] | None = None
    parts: dict[str, Tensor] = field(default_factory=dict)


@final
@dataclass(frozen=True, eq=False)
class Step:
    """A batch and the network it meets, with one forward pass shared by all who ask.

    Attributes:
        network: The network as it is at this step.
        batch: All domains in one batch.
        number: Which step this is, from 0.
        loss: Name of the loss: "cross_entropy", "binary" or "squared".
    """

    network: Network
    batch: Batch
    number: int
    loss: str

    @cached_property
    def z(self) -> Float[Tensor, "n d"]:
        """Features of the batch."""
        return self.network.features(self.batch.x)

    @cached_property
    def logits(self) -> Float[Tensor, "n k"]:
        """What the head makes of the features."""
        logits: Tensor = self.network.head(self.z)
        if not bool(logits.detach().sum().isfinite()):
            raise DivergedError(f"The logits are not finite at step {self.number}. {REMEDY}")
        return logits

    @cached_property
    def statistics(self) -> HeadStatistics:
        """Per-domain statistics of the head: closed form if it is linear, else by autograd."""
        head, batch = self.network.head, self.batch
        if not isinstance(head, nn.Linear):
            return autograd_head(head, self.z, batch.y, batch.domain, loss=self.loss)
        loss, logits = make_loss(self.loss), self.logits
        check_targets(batch.y, logits, loss)
        bias = head.bias is not None
        return arranged_head(self.z, logits, batch.y, batch.domains, loss, bias=bias)

    def risks_of(self, logits: Float[Tensor, "n k"]) -> Float[Tensor, " e"]:
        """Mean loss of each domain for these logits, of a forward pass of the algorithm's own."""
        values = make_loss(self.loss).values(logits, self.batch.y)
        return torch.stack([part.mean() for part in values.split(self.batch.sizes)])

    def risk_in(self, domain: Batch) -> Float[Tensor, ""]:
        """Mean loss in one domain of the network as it is now, from a forward pass of its own."""
        return make_loss(self.loss).values(self.network(domain.x), domain.y).mean()

    def features_by_domain(self) -> list[Float[Tensor, "n d"]]:
        """The features of each domain, views of `z`."""
        return list(self.z.split(self.batch.sizes))
