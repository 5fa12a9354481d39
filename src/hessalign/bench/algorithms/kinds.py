"""The three kinds of algorithm, what each provides to the training loop, and the step it meets.

Every algorithm is a module that holds the network it trains and whatever state of its own must
survive a restart (as parameters or buffers). It is one of

- an *objective*: it gives the terms of a loss, the loop differentiates and updates; how the weight
  of a penalty changes is a part of its configuration;
- a *gradient rule*: the loop differentiates every domain's risk, it combines the gradients;
- a *step owner*: it updates the parameters itself, with optimisers the loop makes and keeps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Final, Protocol, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hessalign._errors import InputError, UserError
from hessalign._shapes import Float, Int
from hessalign.bench.algorithms.options import Options, SearchSpace
from hessalign.bench.models import Network
from hessalign.curvature import HeadStatistics, autograd_head, make_loss
from hessalign.curvature.domains import Domains, make_domains
from hessalign.curvature.inputs import check_targets, reads_values
from hessalign.curvature.linear import arranged_head

MAIN: Final = "main"
"""The name of the optimiser of the network, the only one most algorithms have."""

REMEDY: Final = "Lower the learning rate or the penalty weight."


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
        moved = Batch(self.x.to(device), self.y.to(device), self.domain.to(device))
        moved.__dict__["domains"] = self.domains.to(device)  # found here, where looking is free
        return moved

    @cached_property
    def parts(self) -> tuple[Batch, ...]:
        """The domains one by one, views of the same memory."""
        parts = (self.x.split(self.sizes), self.y.split(self.sizes), self.domain.split(self.sizes))
        return tuple(Batch(*each) for each in zip(*parts, strict=True))


Terms = Mapping[str, "float | Tensor"]
"""The terms of a loss by name, as numbers or as tensors that nobody has waited for."""


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
        if reads_values(logits) and not bool(logits.detach().sum().isfinite()):
            raise DivergedError(f"The logits are not finite at step {self.number}. {REMEDY}")
        return logits

    @cached_property
    def statistics(self) -> HeadStatistics:
        """Per-domain statistics of the head: closed form if it is linear, else by autograd."""
        head, batch = self.network.head, self.batch
        if not isinstance(head, nn.Linear):
            return autograd_head(head, self.z, batch.y, batch.domains, loss=self.loss)
        loss, logits = make_loss(self.loss), self.logits
        check_targets(batch.y, logits, loss, values=reads_values(logits))
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


class MakeNetwork(Protocol):
    """Builds the network to be trained; algorithms that need a larger one say so."""

    def __call__(self, *, extra_channels: int = 0, head_factor: int = 1) -> Network:
        """A new network with further input channels and a multiple of the features for its head."""


@final
@dataclass(frozen=True, eq=False)
class Setting:
    """What an algorithm is built for.

    Attributes:
        make_network: Builds the network.
        outputs: Outputs of the head: classes, or 1 for a binary loss.
        domains: Source domains.
        loss: Name of the loss.
        steps: Updates of the whole run.
        generator: Source of the algorithm's own randomness; the loop saves and restores it.
        input_shape: Shape of one input: channels, height and width of an image, or the length of a
            vector, or channels and pixels of flattened images. Only algorithms with a network of
            their own for the inputs (ARM) need it.
        batch_size: Samples of each domain in a training batch, where that is fixed. Only algorithms
            that cut a batch to be predicted into as many (ARM) need it.
    """

    make_network: MakeNetwork
    outputs: int
    domains: int
    loss: str
    steps: int
    generator: torch.Generator
    input_shape: tuple[int, ...] | None = None
    batch_size: int | None = None


@final
@dataclass(frozen=True, eq=False)
class OptimizerSpec:
    """What an optimiser of the loop works on; None stands for the loop's own setting.

    Attributes:
        parameters: What it updates.
        learning_rate: Its learning rate, which follows the schedule of the loop.
        weight_decay: Its weight decay.
        betas: Decay rates of its averages, where it is Adam or AdamW.
    """

    parameters: Iterable[nn.Parameter]
    learning_rate: float | None = None
    weight_decay: float | None = None
    betas: tuple[float, float] = (0.9, 0.999)


@final
@dataclass(frozen=True)
class NoOptions(Options):
    """The configuration of an algorithm that has no hyper-parameters of its own."""


class AbstractAlgorithm(nn.Module, ABC):
    """What every algorithm has: the network that it trains and that makes predictions.

    Args:
        config: The options; None if the class sets its own `config` and `network`.
        setting: What to train on.

    Attributes:
        config: On the class the default options, a frozen dataclass with a hint for each field; on
            an algorithm its own.
        search: Where sweeps draw options from; they have their default elsewhere.
        sees_batch: Whether a prediction may depend on the other samples that are predicted with it.
        generator: The only source of randomness.
        network: The network.
    """

    config: Any = NoOptions()
    search: ClassVar[SearchSpace] = {}
    sees_batch: ClassVar[bool] = False
    generator: torch.Generator
    network: Network

    def __init__(self, config: Any = None, setting: Setting | None = None) -> None:  # noqa: ANN401
        super().__init__()
        if setting is not None:
            self.config = config
            self.generator = setting.generator
            self.network = self.make_network(setting)

    def make_network(self, setting: Setting) -> Network:
        """The network to train; for algorithms that need another than the plain one."""
        return setting.make_network()


class AbstractObjective(AbstractAlgorithm):
    """An algorithm that is fully described by the loss it minimises.

    Attributes:
        constants: What of its loss counts as constant, in words: where something does, derivatives
            are not those of the loss's values.
    """

    constants: ClassVar[str] = ""

    @abstractmethod
    def terms(self, step: Step) -> ObjectiveTerms:
        """Risk and penalty at this step, differentiable in the parameters of the algorithm."""


class AbstractGradientRule(AbstractAlgorithm):
    """An algorithm that combines the gradients of the domains' risks."""

    @abstractmethod
    def combine(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """For each parameter one gradient to follow, out of its gradients with domains first."""


class AbstractStepOwner(AbstractAlgorithm):
    """An algorithm that updates the parameters itself."""

    def optimizers(self) -> Mapping[str, OptimizerSpec]:
        """The optimisers it wants, by name: here one of all the network, called `MAIN`."""
        return {MAIN: OptimizerSpec(self.network.parameters())}

    @abstractmethod
    def update(self, step: Step, optimizers: Mapping[str, Optimizer]) -> Terms:
        """One update of all parameters, by those optimisers; what to log, at least "risk"."""
