"""The Colored MNIST experiment: data, network, algorithm and schedule of the IRM setup.

The setup is that of Arjovsky et al. (2019), which Hemati et al. (2023) use unchanged in sections
5.2 to 5.4: full batches, Adam, the hyper-parameters found by a search for IRM.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Final, final, get_args

import torch
from torch import Tensor

from hessalign._errors import InputError
from hessalign._names import check_name
from hessalign._seeds import LARGEST_SEED
from hessalign.alignment import distances, inner_products
from hessalign.bench.algorithms import (
    AbstractAlgorithm,
    Batch,
    PenaltySchedule,
    Setting,
    find_algorithm,
    make_config,
)
from hessalign.bench.data import ColoredDomain, ColoredMnist, make_colored_mnist
from hessalign.bench.data.colored_mnist import TEST_POOL, TRAIN_POOL, Imbalance
from hessalign.bench.models import Network, make_coloured_images, make_coloured_mlp
from hessalign.bench.runs.loop import Evaluate, LoopConfig, train
from hessalign.bench.runs.memory import keep_freed_memory
from hessalign.bench.runs.model_description import ColouredMlp, ModelDescription
from hessalign.bench.runs.provenance import describe_software
from hessalign.bench.runs.records import OwnForm, Record
from hessalign.bench.runs.run_folder import RunFolder, RunFolderError, read_config
from hessalign.bench.runs.sampling import FullBatch
from hessalign.curvature import make_loss
from hessalign.curvature.linear import arranged_head

CHANNELS: Final = 2
IMAGE: Final = (14, 14)
PIXELS: Final = 14 * 14
LOSS: Final = "binary"


@final
@dataclass(frozen=True)
class ColoredMnistConfig:
    """One run of the experiment; the defaults are the published protocol.

    Attributes:
        algorithm: A name in `hessalign.bench.algorithms.ALGORITHMS`.
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
        for name in ("train_images", "test_images", "steps", "width", "evaluate_every"):
            if getattr(self, name) < 1:
                raise InputError(f"Expected {name} of 1 or more, got {getattr(self, name)}.")
        for name in ("jump", "penalty_weight", "l2", "seed"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(f"Expected {name} of 0 or more, got {getattr(self, name)}.")
        if self.seed > LARGEST_SEED:
            raise InputError(f"Expected a seed up to {LARGEST_SEED}, got {self.seed}.")
        check_name("imbalance", self.imbalance, (*get_args(Imbalance), None))
        if not 0 < self.learning_rate < math.inf:
            raise InputError(f"Expected a positive learning_rate, got {self.learning_rate}.")


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

    @property
    def final(self) -> Mapping[str, float]:
        """What the last evaluation measured."""
        return self.records[-1].metrics


def train_colored_mnist(
    config: ColoredMnistConfig,
    folder: Path | None = None,
    report: Callable[[Record], None] = lambda record: None,
    warn: Callable[[str], None] = lambda message: None,
) -> Run:
    """Run the experiment, or continue it.

    Args:
        config: What to run.
        folder: Where to keep records and checkpoints; a complete run there is read, not repeated.
        report: Called with every record as it is made.
        warn: Called with what the user should know but need not act on.

    Returns:
        The records and the trained network.

    Example:
        >>> config = ColoredMnistConfig("erm", train_images=200, test_images=100, steps=3)
        >>> run = train_colored_mnist(config)
        >>> [record.step for record in run.records]
        [0, 2]
    """
    generator = _generator(config.seed, 1)
    algorithm = make_algorithm_for(config, generator)
    loop = make_loop(config)
    if folder is None:
        records = _train(config, algorithm, loop, generator, None, report)
        return Run(config, records, algorithm.network)
    describe = partial(describe_model, config)
    values = dataclasses.asdict(config)
    with RunFolder(folder, values, warn, form=_form(config), describe=describe) as opened:
        if opened.done:
            opened.load_model(algorithm)
            return Run(config, opened.records(), algorithm.network)
        records = _train(config, algorithm, loop, generator, opened, report)
    return Run(config, records, algorithm.network)


def describe_model(config: ColoredMnistConfig, records: list[Record]) -> ModelDescription:
    """What is needed to use the network that a run trains.

    Args:
        config: What was run.
        records: What it reported.

    Returns:
        Its description; images of the test domain were not trained on.
    """
    return ModelDescription(
        ColouredMlp((CHANNELS, *IMAGE), config.width),
        ("digit from 5", "digit below 5"),
        loss=LOSS,
        algorithm=config.algorithm,
        options=dataclasses.asdict(_algorithm_config(config)),
        domains=("source 1", "source 2", "target"),
        trained_on=("source 1", "source 2"),
        steps=config.steps,
        setting_shape=(CHANNELS, PIXELS),
        job=dataclasses.asdict(config),
        software=describe_software(),
        accuracies={k: v for k, v in records[-1].metrics.items() if k.endswith("accuracy")},
    )


def load_run(folder: Path) -> Run:
    """A complete run from its folder.

    Args:
        folder: What `train_colored_mnist` was given.

    Returns:
        The run.

    Raises:
        RunFolderError: If there is no complete run of this experiment.
    """
    path = folder / "config.json"
    if not path.exists() or not (folder / "done.json").exists():
        found = "a run that is not complete" if path.exists() else "none"
        raise RunFolderError(
            f"Expected a complete run in {folder}, found {found}. Give the folder of one, for "
            "example OUTPUT/hgp-seed0 after `hessalign train --algorithm hgp --output OUTPUT`."
        )
    entries = read_config(folder)
    names = {field.name for field in dataclasses.fields(ColoredMnistConfig)}
    try:
        check_name("key of its configuration", next(iter({*entries} - names), "seed"), names)
        config = ColoredMnistConfig(**entries)
    except (InputError, TypeError) as error:  # of values of another kind
        raise RunFolderError(f"Expected a Colored MNIST run in {folder}: {error}") from error
    return train_colored_mnist(config, folder)


def make_data(config: ColoredMnistConfig) -> ColoredMnist:
    """The data of a run.

    Args:
        config: What to run.

    Returns:
        The training domains and the unseen one.
    """
    return make_colored_mnist(
        config.seed,
        imbalance=config.imbalance,
        train_images=config.train_images,
        test_images=config.test_images,
    )


def make_loop(config: ColoredMnistConfig) -> LoopConfig:
    """How the experiment trains.

    Args:
        config: What to run.

    Returns:
        The protocol: one loss, Adam, the jump of the penalty weight, evaluation before updates.
    """
    return LoopConfig(
        steps=config.steps,
        learning_rate=config.learning_rate,
        loss=LOSS,
        l2=config.l2,
        schedule=PenaltySchedule(1.0, config.penalty_weight, config.jump, rescale=True),
        evaluate_every=config.evaluate_every,
        evaluate_before=True,
    )


def make_algorithm_for(config: ColoredMnistConfig, generator: torch.Generator) -> AbstractAlgorithm:
    """The algorithm with an untrained network.

    Args:
        config: What to run.
        generator: The algorithm's source of randomness.

    Returns:
        The algorithm, which follows the released scripts where its options do not say otherwise.
    """
    weights = _generator(config.seed, 2)

    def make_network(*, extra_channels: int = 0, head_factor: int = 1) -> Network:
        channels = CHANNELS + extra_channels
        return make_coloured_mlp(channels, PIXELS, config.width, weights, head_factor)

    shape = (CHANNELS, PIXELS)
    setting = Setting(make_network, 1, 2, LOSS, config.steps, generator, input_shape=shape)
    return find_algorithm(config.algorithm).make(_algorithm_config(config), setting)


def _algorithm_config(config: ColoredMnistConfig) -> Any:  # noqa: ANN401 - each has its own
    options = {**find_algorithm(config.algorithm).released, **config.options}
    return make_config(config.algorithm, options)


def _form(config: ColoredMnistConfig) -> OwnForm:
    """Records that name every option of the algorithm, also those that were not chosen."""
    return OwnForm(
        {
            "config": dataclasses.asdict(config),
            "algorithm": dataclasses.asdict(_algorithm_config(config)),
            "software": describe_software(),
        }
    )


def _train(
    config: ColoredMnistConfig,
    algorithm: AbstractAlgorithm,
    loop: LoopConfig,
    generator: torch.Generator,
    folder: RunFolder | None,
    report: Callable[[Record], None],
) -> list[Record]:
    keep_freed_memory()
    data = make_data(config)
    source, target = make_batch(data.train), make_batch((data.test,))
    evaluate = make_evaluation(source, target, config.hessian_distance)
    return train(algorithm, FullBatch(source), evaluate, loop, generator, folder, report)


def make_evaluation(source: Batch, target: Batch, hessian_distance: bool) -> Evaluate:
    """What the experiment measures: accuracy and loss where it trains and where it does not.

    Args:
        source: The training domains.
        target: The unseen domain.
        hessian_distance: Whether to measure the largest distance between their Hessians too.

    Returns:
        The evaluation; accuracies are means over domains.
    """

    def evaluate(network: Network) -> dict[str, float]:
        metrics = {}
        for name, batch in (("train", source), ("test", target)):
            z = network.features(batch.x)
            logits = network.head(z)
            if not bool(logits.sum().isfinite()):
                return {f"{name}_loss": math.nan}
            head = arranged_head(z, logits, batch.y, batch.domains, make_loss(LOSS))
            right = ((logits.squeeze(1) > 0) == (batch.y == 1)).double().split(batch.sizes)
            metrics[f"{name}_accuracy"] = fmean(float(part.mean()) for part in right)
            metrics[f"{name}_loss"] = float(head.risk.mean())
            if name == "train" and hessian_distance:
                metrics["hessian_distance"] = float(
                    distances(inner_products(head, "hessian", centred=True)).max()
                )
        return metrics

    return evaluate


def head_inputs(
    trained: Run,
    samples: int | None,
    seed: int,
    domains: tuple[ColoredDomain, ...] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """What enters the head: features, labels and domains of some images of every domain.

    Args:
        trained: The run.
        samples: Images of each domain, at most; all if None.
        seed: Of the draw.
        domains: The domains; by default those of the run, the sources before the target.

    Returns:
        Features, labels, and the domain: 0 or 1 for the sources and 2 for the target.
    """
    if domains is None:
        data = make_data(trained.config)
        domains = (*data.train, data.test)
    generator = torch.Generator().manual_seed(seed)
    batch = make_batch(domains)
    with torch.no_grad():
        z = trained.network.features(batch.x)
    rows, start = [], 0
    for size in batch.sizes:
        rows.append(start + torch.randperm(size, generator=generator)[:samples])
        start += size
    chosen = torch.cat(rows)
    return z[chosen], batch.y[chosen], batch.domain[chosen]


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
