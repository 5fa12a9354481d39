"""The head of a trained run with what enters it, whichever experiment the run belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import torch
from torch import Tensor, nn

from hessalign._errors import InputError
from hessalign.bench.algorithms import find_algorithm
from hessalign.bench.data import ColoredDomain
from hessalign.bench.data.colored_mnist import TEST_COLOUR_NOISE, TRAIN_COLOUR_NOISE
from hessalign.bench.runs.colored_mnist import LOSS, Run, head_inputs, load_run, make_data
from hessalign.bench.runs.domain_run import DomainRun, head_samples, load_domain_run
from hessalign.bench.runs.run_folder import find_run, read_config

COLORED_MNIST_NAMES: Final = ("source 1", "source 2", "target")


@final
@dataclass(frozen=True, eq=False)
class TrainedHead:
    """A linear head and samples of every domain as it sees them.

    Attributes:
        z: Features that enter the head.
        y: Targets.
        domain: The number of each sample's domain.
        head: The head.
        loss: The loss it was trained with, by name.
        names: Of the domains, by number.
        targets: Numbers of the domains that were not trained on.
        algorithm: Name of the algorithm it was trained with.
        seed: The seed or trial.
    """

    z: Tensor
    y: Tensor
    domain: Tensor
    head: nn.Linear
    loss: str
    names: tuple[str, ...]
    targets: tuple[int, ...]
    algorithm: str
    seed: int

    @property
    def logits(self) -> Tensor:
        """What the head makes of the samples."""
        with torch.no_grad():
            outputs: Tensor = self.head(self.z)
        return outputs

    @property
    def sources(self) -> tuple[int, ...]:
        """Numbers of the domains that were trained on."""
        return tuple(each for each in range(len(self.names)) if each not in self.targets)


def load_trained_head(
    folder: Path, samples: int | None = None, seed: int = 0, data_dir: Path | None = None
) -> TrainedHead:
    """The head of a complete run, from its folder.

    Args:
        folder: Of a run of Colored MNIST or of the DomainBed protocol that kept its model, see
            `find_run`.
        samples: Samples of each domain, at most; all if None.
        seed: Of the draw.
        data_dir: The folder that holds the data set now; None if it is where it was.

    Returns:
        The head.

    Raises:
        InputError: If a folder is named for data that come with the package. Where there is no such
            run, or its data are not found, a RunFolderError is raised.
    """
    folder = find_run(folder)
    if "test_envs" in read_config(folder):
        return domain_run_head(load_domain_run(folder, data_dir), samples, seed)
    if data_dir is not None:
        raise InputError(
            f"Expected no folder of data for {folder}: the data of Colored MNIST come with the "
            "package. Leave --data-dir out."
        )
    return colored_mnist_head(load_run(folder), samples, seed)


def colored_mnist_head(
    run: Run, samples: int | None = None, seed: int = 0, *, held_out: bool = False
) -> TrainedHead:
    """The head of a run of Colored MNIST.

    Args:
        run: The run.
        samples: Samples of each domain, at most; all if None.
        seed: Of the draw.
        held_out: Whether to take images that were not trained on: those of the unseen domain, a
            third of them coloured like each domain.

    Returns:
        The head.
    """
    domains = held_out_domains(run) if held_out else None
    z, y, domain = head_inputs(run, samples, seed, domains)
    head = _linear(run.network.head)
    config, names = run.config, COLORED_MNIST_NAMES
    return TrainedHead(z, y, domain, head, LOSS, names, (2,), config.algorithm, config.seed)


def held_out_domains(run: Run) -> tuple[ColoredDomain, ...]:
    """Images that were not trained on, coloured like each of the three domains.

    Args:
        run: A run on the balanced data.

    Returns:
        Disjoint thirds of the unseen domain's images.

    Raises:
        InputError: If the run is on imbalanced data, which colours alone do not describe.
    """
    if run.config.imbalance is not None:
        raise InputError(
            "Expected a run on balanced Colored MNIST to make held-out images for, got imbalance "
            f"{run.config.imbalance!r}."
        )
    test = make_data(run.config).test
    generator = torch.Generator().manual_seed(run.config.seed)
    noises = (*TRAIN_COLOUR_NOISE, TEST_COLOUR_NOISE)
    return tuple(
        test.every(len(noises), number).recoloured(1 - 2 * noise, generator)
        for number, noise in enumerate(noises)
    )


def domain_run_head(
    run: DomainRun, samples: int | None = None, seed: int = 0, *, held_out: bool = False
) -> TrainedHead:
    """The head of a run of the DomainBed protocol.

    Args:
        run: The run, with its trained network.
        samples: Samples of each domain, at most; all if None.
        seed: Of the draw.
        held_out: Whether to take only the part of each domain that is held out.

    Returns:
        The head.

    Raises:
        InputError: If the run has no trained network.
    """
    if run.algorithm is None:
        raise InputError("Expected a run with its trained network, got one that kept no model.")
    job = run.plan.job
    z, y, domain = head_samples(run, samples, seed, held_out=held_out)
    return TrainedHead(
        z,
        y,
        domain,
        _linear(run.algorithm.network.head),
        "cross_entropy",
        tuple(run.plan.data.domain_names),
        job.test_domains,
        find_algorithm(job.algorithm).name,
        job.trial_seed,
    )


def _linear(head: nn.Module) -> nn.Linear:
    if not isinstance(head, nn.Linear):
        raise InputError(f"Expected a run with a linear head, got {type(head).__name__}.")
    return head
