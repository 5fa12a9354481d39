"""All that changes while a run trains, and nothing else: what a checkpoint holds.

The learning rate is not in it: it follows from the step.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, final

import numpy as np
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from hessalign._errors import InputError
from hessalign._names import UnknownNameError
from hessalign._plugins import call_plugin, is_path, load_object
from hessalign.bench.algorithms import MAIN, AbstractAlgorithm, AbstractStepOwner, OptimizerSpec
from hessalign.bench.runs.sampling import Sampler


@final
@dataclass(eq=False)
class TrainingState:
    """The moving parts of a run.

    Attributes:
        algorithm: The algorithm with its network and its own state.
        optimizers: By name.
        sampler: The source of batches.
        generator: The algorithm's source of randomness.
        step: The next step to take.
        seconds: Training time so far.
    """

    algorithm: AbstractAlgorithm
    optimizers: Mapping[str, Optimizer]
    sampler: Sampler
    generator: torch.Generator
    step: int = 0
    seconds: float = 0.0

    def state_dict(self) -> dict[str, Any]:
        """Everything as tensors, numbers and strings."""
        numpy_state: Any = np.random.get_state()
        version, words, gauss = random.getstate()
        return {
            "step": self.step,
            "seconds": self.seconds,
            "algorithm": self.algorithm.state_dict(),
            "optimizers": {name: each.state_dict() for name, each in self.optimizers.items()},
            "sampler": self.sampler.state_dict(),
            "generator": self.generator.get_state(),
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None,
            "numpy": [numpy_state[0], torch.from_numpy(numpy_state[1].copy()), *numpy_state[2:]],
            "python": [version, list(words), gauss],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put everything back."""
        self.algorithm.load_state_dict(state["algorithm"])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        self.sampler.load_state_dict(state["sampler"])
        self.generator.set_state(state["generator"])
        torch.set_rng_state(state["torch"])
        if state.get("cuda") is not None and torch.cuda.is_available():
            torch.cuda.set_rng_state(state["cuda"])
        name, keys, *rest = state["numpy"]
        np.random.set_state((name, keys.numpy(), *rest))
        version, words, gauss = state["python"]
        random.setstate((version, tuple(words), gauss))
        self.step, self.seconds = state["step"], state["seconds"]


LrSchedule = Literal["constant", "cosine"]
"""How the learning rate changes after the warm-up."""

_OPTIMIZERS: Final = ("adam", "adamw", "sgd")


def check_optimizer(name: str) -> None:
    """Refuse what is neither "adam", "adamw", "sgd" nor a `package.module:Name` that is found."""
    if name in _OPTIMIZERS:
        return
    if not is_path(name):
        known = (*_OPTIMIZERS, "package.module:Name")
        raise UnknownNameError("optimizer", name, known)
    load_object(name, "optimizer")


def make_optimizers(
    algorithm: AbstractAlgorithm,
    learning_rate: float,
    weight_decay: float,
    optimizer: str = "adam",
    momentum: float = 0.9,
) -> dict[str, Optimizer]:
    """The optimisers of an algorithm.

    Returns:
        Optimisers by name; most algorithms have one, for all their parameters. A part without
        parameters, such as a featurizer that passes features on, has none.
    """
    specs: Mapping[str, OptimizerSpec] = {MAIN: OptimizerSpec(algorithm.parameters())}
    if isinstance(algorithm, AbstractStepOwner):
        specs = algorithm.optimizers()
    parameters = {name: list(spec.parameters) for name, spec in specs.items()}
    return {
        name: _maker(optimizer, momentum, spec.betas)(
            parameters[name],
            lr=learning_rate if spec.learning_rate is None else spec.learning_rate,
            weight_decay=weight_decay if spec.weight_decay is None else spec.weight_decay,
        )
        for name, spec in specs.items()
        if parameters[name]
    }


def _maker(optimizer: str, momentum: float, betas: tuple[float, float]) -> Callable[..., Optimizer]:
    """What makes an optimiser of parameters, a learning rate and a weight decay."""
    check_optimizer(optimizer)
    if optimizer == "sgd":
        return partial(SGD, momentum=momentum)
    if optimizer in _OPTIMIZERS:
        return partial(Adam if optimizer == "adam" else AdamW, betas=betas)
    return partial(_own_optimizer, optimizer)


def _own_optimizer(path: str, parameters: Iterable[nn.Parameter], **options: float) -> Optimizer:
    made = call_plugin(path, "optimizer", load_object(path, "optimizer"), parameters, **options)
    if not isinstance(made, Optimizer):
        raise InputError(
            f"Expected {path!r} to make an optimiser, a torch.optim.Optimizer, got "
            f"{type(made).__name__}."
        )
    return made


def learning_rate_factor(
    step: int, steps: int, schedule: LrSchedule = "constant", warmup_steps: int = 0
) -> float:
    r"""What the learning rate is multiplied by.

    It rises evenly over the warm-up, $(t + 1) / w$ at step t < w. After it the factor is 1, or
    falls as half a cosine, $\frac12 (1 + \cos \pi \frac{t - w}{T - w})$, from 1 to nearly 0 at the
    last of T steps.

    Returns:
        A factor above 0 and at most 1.

    Example:
        >>> [round(learning_rate_factor(t, 6, "cosine", 2), 3) for t in range(6)]
        [0.5, 1.0, 1.0, 0.854, 0.5, 0.146]
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if schedule == "constant":
        return 1.0
    return (1 + math.cos(math.pi * (step - warmup_steps) / (steps - warmup_steps))) / 2


def set_learning_rates(optimizers: Mapping[str, Optimizer], factor: float) -> None:
    """Give every optimiser the learning rate it was made with times a factor."""
    for optimizer in optimizers.values():
        for group in optimizer.param_groups:
            group["lr"] = optimizer.defaults["lr"] * factor
