"""The three kinds of algorithm, and what each provides to the training loop.

Every algorithm is a module that holds the network it trains and whatever state of its own must
survive a restart (as parameters or buffers). It is one of

- an *objective*: it gives the terms of a loss, the loop differentiates and updates;
- a *gradient rule*: the loop differentiates every domain's risk, it combines the gradients;
- a *step owner*: it updates the parameters itself, with optimisers the loop makes and keeps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hessalign.bench.algorithms.step import ObjectiveTerms, Step
from hessalign.bench.models import Network

MAIN = "main"
"""The name of the optimiser of the network, the only one most algorithms have."""


class MakeNetwork(Protocol):
    """Builds the network to be trained; algorithms that need a larger one say so."""

    def __call__(self, *, extra_channels: int = 0, head_factor: int = 1) -> Network:
        """A new network.

        Args:
            extra_channels: Channels the algorithm adds to the inputs.
            head_factor: How many times the features the head receives.

        Returns:
            The network.
        """


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
    """What an Adam optimiser of the loop works on; None stands for the loop's own setting.

    Attributes:
        parameters: What it updates.
        learning_rate: Its learning rate.
        weight_decay: Its weight decay.
        betas: Decay rates of its averages.
    """

    parameters: Iterable[nn.Parameter]
    learning_rate: float | None = None
    weight_decay: float | None = None
    betas: tuple[float, float] = (0.9, 0.999)


class AbstractAlgorithm(nn.Module, ABC):
    """What every algorithm has: the network that it trains and that makes predictions."""

    network: Network


class AbstractObjective(AbstractAlgorithm):
    """An algorithm that is fully described by the loss it minimises."""

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
