"""The three kinds of algorithm, and what each provides to the training loop.

Every algorithm is a module that holds the network it trains and whatever state of its own must
survive a restart (as parameters or buffers). It is one of

- an *objective*: it gives the terms of a loss, the loop differentiates and updates; how the weight
  of a penalty changes is a part of its configuration;
- a *gradient rule*: the loop differentiates every domain's risk, it combines the gradients;
- a *step owner*: it updates the parameters itself, with optimisers the loop makes and keeps.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, final, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hessalign._errors import InputError
from hessalign.bench.algorithms.options import Options
from hessalign.bench.algorithms.search import SearchSpace
from hessalign.bench.algorithms.step import ObjectiveTerms, Step
from hessalign.bench.models import Network

MAIN = "main"
"""The name of the optimiser of the network, the only one most algorithms have."""


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
        """The terms of the loss.

        Args:
            step: The current step.

        Returns:
            Risk and penalty, differentiable in the parameters of the algorithm.
        """


class AbstractGradientRule(AbstractAlgorithm):
    """An algorithm that combines the gradients of the domains' risks."""

    @abstractmethod
    def combine(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """One gradient out of one per domain.

        Args:
            gradients: For each parameter of the network its gradients, domains on the first axis.

        Returns:
            For each parameter the gradient to follow.
        """


class AbstractStepOwner(AbstractAlgorithm):
    """An algorithm that updates the parameters itself."""

    @abstractmethod
    def optimizers(self) -> Mapping[str, OptimizerSpec]:
        """The optimisers it wants.

        Returns:
            By name; the network's own is called `MAIN`.
        """

    @abstractmethod
    def update(self, step: Step, optimizers: Mapping[str, Optimizer]) -> dict[str, float]:
        """One update of all parameters.

        Args:
            step: The current step.
            optimizers: Those asked for, by name.

        Returns:
            What to log: at least "risk".
        """


@final
@dataclass(frozen=True)
class PenaltySchedule:
    """One weight first, then suddenly another.

    Attributes:
        before: The weight before the jump.
        after: The weight from step `jump` on.
        jump: The step at which it changes.
        rescale: Divide the whole loss by the weight where that is above 1, so that gradients stay
            in a usual range (the IRM setup of Colored MNIST).
        reset: Start the optimiser afresh at the jump, because its averages of past gradients
            belong to another loss (DomainBed).

    Example:
        >>> schedule = PenaltySchedule(before=1.0, after=100.0, jump=190, rescale=True)
        >>> schedule.weight(189), schedule.weight(190), schedule.divisor(190)
        (1.0, 100.0, 100.0)
    """

    before: float = 1.0
    after: float = 1.0
    jump: int = 0
    rescale: bool = False
    reset: bool = False

    def __post_init__(self) -> None:
        for name, weight in (("before", self.before), ("after", self.after)):
            if not (math.isfinite(weight) and weight >= 0):
                raise InputError(
                    f"Expected the penalty weight {name} the jump to be a finite number of 0 or "
                    f"more, got {weight!r}."
                )
        if self.jump < 0:
            raise InputError(
                f"Expected the penalty weight to jump at step 0 or later, got {self.jump}."
            )

    def weight(self, step: int) -> float:
        """The weight of the penalty at a step, from 0."""
        return self.after if step >= self.jump else self.before

    def divisor(self, step: int) -> float:
        """What the whole loss is divided by: a weight above 1, if it is rescaled, else 1."""
        return max(1.0, self.weight(step)) if self.rescale else 1.0

    def starts_afresh(self, step: int) -> bool:
        """Whether the optimiser is reset before this step; a jump at step 0 needs no reset."""
        return self.reset and step == self.jump > 0


@runtime_checkable
class _Scheduled(Protocol):
    """A configuration whose penalty has a weight of its own that may change."""

    @property
    def schedule(self) -> PenaltySchedule:
        """How the weight of the penalty changes."""


def penalty_schedule(config: object) -> PenaltySchedule:
    """The schedule that a configuration asks for; the weight 1 throughout if it has none."""
    return config.schedule if isinstance(config, _Scheduled) else PenaltySchedule()
