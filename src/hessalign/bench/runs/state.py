"""All that changes while a run trains, and nothing else: what a checkpoint holds."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch.optim import Adam, Optimizer

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
        """Everything as tensors, numbers and strings.

        Returns:
            What `load_state_dict` takes.
        """
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
        """Put everything back.

        Args:
            state: What `state_dict` gave.
        """
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


def make_optimizers(
    algorithm: AbstractAlgorithm, learning_rate: float, weight_decay: float
) -> dict[str, Optimizer]:
    """The optimisers of an algorithm.

    Args:
        algorithm: The algorithm.
        learning_rate: Of every optimiser that does not set its own.
        weight_decay: Likewise.

    Returns:
        Adam optimisers by name; most algorithms have one, for all their parameters. A part without
        parameters, such as a featurizer that passes features on, has none.
    """
    specs: Mapping[str, OptimizerSpec] = {MAIN: OptimizerSpec(algorithm.parameters())}
    if isinstance(algorithm, AbstractStepOwner):
        specs = algorithm.optimizers()
    parameters = {name: list(spec.parameters) for name, spec in specs.items()}
    return {
        name: Adam(
            parameters[name],
            lr=learning_rate if spec.learning_rate is None else spec.learning_rate,
            weight_decay=weight_decay if spec.weight_decay is None else spec.weight_decay,
            betas=spec.betas,
        )
        for name, spec in specs.items()
        if parameters[name]
    }
