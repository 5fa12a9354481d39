"""The Colored MNIST experiment: data, network, algorithm and schedule of the IRM setup.

The setup is that of Arjovsky et al. (2019), which Hemati et al. (2023) use unchanged in sections
5.2 to 5.4: full batches, Adam, the hyper-parameters found by a search for IRM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, final

import torch

from hessalign.algorithms import find_algorithm, make_objective
from hessalign.data import ColoredDomain, make_colored_mnist
from hessalign.data.colored_mnist import TEST_POOL, TRAIN_POOL, Imbalance
from hessalign.models import Network, make_coloured_images, make_coloured_mlp
from hessalign.training.loop import Batch, LoopConfig, train
from hessalign.training.records import Record
from hessalign.training.schedule import PenaltySchedule

CHANNELS: Final = 2
PIXELS: Final = 14 * 14


@final
@dataclass(frozen=True)
class ColoredMnistConfig:
    """One run of the experiment; the defaults are the published protocol.

    Attributes:
        algorithm: A name in `hessalign.algorithms.ALGORITHMS`.
        options: Options of the algorithm that differ from its default.
        seed: Determines data, initial weights and probes.
        imbalance: None, or which imbalanced version: "paper" or "released".
        train_images: Images in the training pool.
        test_images: Images of the unseen domain.
        steps: Updates.
        jump: Step at which the penalty weight jumps.
        penalty_weight: The weight after the jump; before it is 1.
        learning_rate: Of Adam.
        l2: Factor of the sum of squares of all parameters.
        width: Width of both hidden layers.
        evaluate_every: Steps between evaluations.
        hessian_distance: Whether to measure the distance between Hessians at evaluations.
    """

    algorithm: str = "hutchinson"
    options: Mapping[str, object] = field(default_factory=dict)
    seed: int = 0
    imbalance: Imbalance | None = None
    train_images: int = TRAIN_POOL
    test_images: int = TEST_POOL
    steps: int = 501
    jump: int = 190
    penalty_weight: float = 91257.18613115903
    learning_rate: float = 0.0004898536566546834
    l2: float = 0.00110794568
    width: int = 390
    evaluate_every: int = 10
    hessian_distance: bool = False

    def __post_init__(self) -> None:
        for name in ("steps", "width", "evaluate_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"Expected {name} of 1 or more, got {getattr(self, name)}.")
        for name in ("jump", "penalty_weight", "l2", "seed"):
            if getattr(self, name) < 0:
                raise ValueError(f"Expected {name} of 0 or more, got {getattr(self, name)}.")
        if not self.learning_rate > 0:
            raise ValueError(f"Expected a positive learning_rate, got {self.learning_rate}.")


@final
@dataclass(frozen=True, eq=False)
class Run:
    """A finished run.

    Attributes:
        config: What was run.
        records: What it reported.
        network: The trained network.
    """

    config: ColoredMnistConfig
    records: list[Record]
    network: Network


def train_colored_mnist(
    config: ColoredMnistConfig, report: Callable[[Record], None] = lambda record: None
) -> Run:
    """Run the experiment.

    Args:
        config: What to run.
        report: Called with every record as it is made.

    Returns:
        The records and the trained network.

    Example:
        >>> config = ColoredMnistConfig("erm", train_images=200, test_images=100, steps=3)
        >>> run = train_colored_mnist(config)
        >>> [record.step for record in run.records]
        [0, 2]
    """
    options = {**released_fidelity(config.algorithm), **config.options}
    objective = make_objective(config.algorithm, options, _generator(config.seed, 1))
    data = make_colored_mnist(
        config.seed,
        imbalance=config.imbalance,
        train_images=config.train_images,
        test_images=config.test_images,
    )
    network = make_coloured_mlp(CHANNELS, PIXELS, config.width, _generator(config.seed, 2))
    loop = LoopConfig(
        steps=config.steps,
        learning_rate=config.learning_rate,
        l2=config.l2,
        schedule=PenaltySchedule(1.0, config.penalty_weight, config.jump),
        evaluate_every=config.evaluate_every,
        hessian_distance=config.hessian_distance,
    )
    target = make_batch((data.test,))
    records = train(network, make_batch(data.train), target, objective, loop, report)
    return Run(config, records, network)


def released_fidelity(algorithm: str) -> dict[str, object]:
    """The option by which an algorithm follows the released Colored MNIST scripts.

    Args:
        algorithm: Its name.

    Returns:
        The option, where the scripts differ from the algorithm's paper.
    """
    released = "released" in find_algorithm(algorithm).fidelities
    return {"fidelity": "released"} if released else {}


def make_batch(domains: tuple[ColoredDomain, ...]) -> Batch:
    """All images of some domains as one batch, sorted by domain and then by colour.

    Args:
        domains: The domains.

    Returns:
        Inputs, labels and the position of each sample's domain.
    """
    orders = [torch.argsort(domain.colour, stable=True) for domain in domains]
    pairs = list(zip(domains, orders, strict=True))
    grey = torch.cat([domain.images[order].flatten(1) for domain, order in pairs])
    colour = torch.cat([domain.colour[order] for domain, order in pairs])
    sizes = torch.tensor([len(domain) for domain in domains])
    return Batch(
        x=make_coloured_images(grey, colour, CHANNELS),
        y=torch.cat([domain.label[order] for domain, order in pairs]),
        domain=torch.arange(len(domains)).repeat_interleave(sizes),
    )


def _generator(seed: int, stream: int) -> torch.Generator:
    """A source of randomness of its own for each purpose, all determined by the seed."""
    return torch.Generator().manual_seed((seed << 8) + stream)
