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

from hessalign._errors import InputError, InputTypeError, UserError
from hessalign._shapes import Float, Int
from hessalign.alignment.parts import Processes
from hessalign.bench.algorithms.options import Hyper, Options, SearchSpace
from hessalign.bench.models import Network
from hessalign.bench.models.sharded import RowLayers, gather, in_place
from hessalign.curvature import HeadStatistics, autograd_head, make_loss
from hessalign.curvature.domains import Domains, make_domains
from hessalign.curvature.inputs import check_targets, reads_values
from hessalign.curvature.linear import arranged_head

MAIN: Final = "main"
"""The name of the optimiser of the network, the only one most algorithms have."""

NOT_SAID: Final = "–"  # what an algorithm aligns, or who proposed it, if its class does not say

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

    @classmethod
    def shared(
        cls, own: Tensor, y: Int[Tensor, " n"], domain: Int[Tensor, " n"], processes: Processes
    ) -> Batch:
        """A batch of whose inputs this process has its own rows; the others come when asked for."""
        batch = cls(own, y, domain)
        batch.__dict__["share"] = (batch.__dict__.pop("x"), processes)
        return batch

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        if name != "x" or "share" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        own, processes = self.__dict__["share"]
        self.__dict__["x"] = gather(own, len(self.y), processes)
        return self.__dict__["x"]

    def rows(self, featurizer: nn.Module) -> Tensor:
        """The inputs, for a featurizer; if it sees each row by itself one's own are enough."""
        if "x" in self.__dict__ or not isinstance(featurizer, RowLayers):
            return self.x
        own, processes = self.__dict__["share"]
        return in_place(own, len(self.y), processes)

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

    def holding(self, x: Tensor, y: Tensor) -> Batch:
        """Other samples of the same domains, as many of each."""
        other = Batch(x, y, self.domain)
        other.__dict__["domains"] = self.domains
        return other

    def to(self, device: torch.device, like: Batch | None = None) -> Batch:
        """The same batch where the network is; domains are those of `like`, if one is there."""
        if self.y.device == device:
            return self
        y = _sent(self.y, device)
        if "x" not in self.__dict__:
            own, processes = self.__dict__["share"]
            moved = Batch.shared(_sent(own, device), y, self.domain.to(device), processes)
        elif like is not None:
            return like.holding(_sent(self.x, device), y)
        else:
            moved = Batch(_sent(self.x, device), y, self.domain.to(device))
        moved.__dict__["domains"] = self.domains.to(device)  # found here, where looking is free
        return moved

    def use_in(self, stream: torch.cuda.Stream) -> None:
        """Keep its memory until a stream, in which it was not made, is done with it."""
        for each in (self.x, self.y):
            each.record_stream(stream)

    @cached_property
    def parts(self) -> tuple[Batch, ...]:
        """The domains one by one, views of the same memory."""
        parts = (self.x.split(self.sizes), self.y.split(self.sizes), self.domain.split(self.sizes))
        return tuple(Batch(*each) for each in zip(*parts, strict=True))


def _sent(values: Tensor, device: torch.device) -> Tensor:
    """A copy on a device, which is on its way there if it can come from pinned memory."""
    pinned = values.pin_memory() if device.type == "cuda" else values
    return pinned.to(device, non_blocking=True)


Terms = Mapping[str, "float | Tensor"]
"""The terms of a loss by name, as numbers or as tensors that nobody has waited for."""


@final
@dataclass(frozen=True, eq=False)
class ObjectiveTerms:
    """The terms of a training loss; the loop adds `risk` and the scheduled weight times `penalty`.

    Attributes:
        risk: Mean over domains of the mean loss.
        penalty: What the penalty weight multiplies; None if there is none.
        parts: Named pieces of the penalty, for the log, under names that records do not have yet.
    """

    risk: Float[Tensor, ""]
    penalty: Float[Tensor, ""] | None = None
    parts: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in {"risk": self.risk, "penalty": self.penalty, **self.parts}.items():
            right = isinstance(value, Tensor) and value.numel() == 1
            if not right and not (name == "penalty" and value is None):
                found = f"shape {list(value.shape)}" if isinstance(value, Tensor) else repr(value)
                raise InputTypeError(
                    f"Expected {name!r} of the terms as a tensor of one number, got {found}."
                )


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
        return self.network.features(self.batch.rows(self.network.featurizer))

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
        return self._statistics(bias=True)

    @cached_property
    def weight_statistics(self) -> HeadStatistics:
        """As `statistics`; of a linear head's weights alone, without its bias."""
        return self._statistics(bias=False)

    def _statistics(self, bias: bool) -> HeadStatistics:
        head, batch = self.network.head, self.batch
        if not isinstance(head, nn.Linear):
            return autograd_head(head, self.z, batch.y, batch.domains, loss=self.loss)
        loss, logits = make_loss(self.loss), self.logits
        check_targets(batch.y, logits, loss, values=reads_values(logits))
        bias = bias and head.bias is not None
        return arranged_head(self.z, logits, batch.y, batch.domains, loss, bias=bias)

    @cached_property
    def losses(self) -> Float[Tensor, " n"]:
        """The loss of each sample."""
        return make_loss(self.loss).values(self.logits, self.batch.y)

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


class _MakeNetwork(Protocol):
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

    make_network: _MakeNetwork
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
        rate_factor: What its learning rate is multiplied by.
    """

    parameters: Iterable[nn.Parameter]
    learning_rate: float | None = None
    weight_decay: float | None = None
    betas: tuple[float, float] = (0.9, 0.999)
    rate_factor: float = 1.0


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
        aligns: What it aligns between domains, in words; begins with "nothing" if it aligns none.
        reference: Who proposed it.
        search: Where sweeps draw options from; they have their default elsewhere. What differs on
            small images, on features, in the paper's code and on some data sets, and the options of
            the Colored MNIST scripts, are in the attributes that `AlgorithmInfo` has for them.
        sees_batch: Whether a prediction may depend on the other samples that are predicted with it.
        generator: The only source of randomness.
        network: The network.
        gradient_scale: Of the gradients of features in float16, while a run trains with it.
    """

    config: Any = NoOptions()
    aligns: ClassVar[str] = NOT_SAID
    reference: ClassVar[str] = NOT_SAID
    search: ClassVar[SearchSpace] = {}
    search_small: ClassVar[SearchSpace] = {}
    search_features: ClassVar[SearchSpace] = {}
    search_released: ClassVar[SearchSpace] = {}
    by_dataset: ClassVar[Mapping[str, Mapping[str, Hyper]]] = {}
    released: ClassVar[Mapping[str, object]] = {}
    sees_batch: ClassVar[bool] = False
    generator: torch.Generator
    network: Network
    gradient_scale: Any

    def __init__(self, config: Any = None, setting: Setting | None = None) -> None:  # noqa: ANN401
        super().__init__()
        self.gradient_scale = None
        if setting is not None:
            self.config = config
            self.generator = setting.generator
            self.network = self.make_network(setting)

    def make_network(self, setting: Setting) -> Network:
        """The network to train; for algorithms that need another than the plain one."""
        return setting.make_network()

    @classmethod
    def differentiates_twice(cls, config: Any) -> bool:  # noqa: ANN401
        """Whether, so configured, it takes derivatives of the network's gradients."""
        return False


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
