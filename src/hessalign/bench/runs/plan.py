"""A job with everything that follows from it and from its data, and what a protocol decides.

A protocol says how a run is carried out: which options it has, what they are drawn from, which
network is trained, from which batches, by which loop, and what is measured. There are two:
`domainbed.py` for data sets of any kind and `irm.py` for Colored MNIST as the paper trains on it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import torch

from hessalign._errors import InputError
from hessalign.bench.algorithms import AbstractAlgorithm, AlgorithmInfo, find_algorithm
from hessalign.bench.algorithms.options import Value
from hessalign.bench.data import DomainDataset
from hessalign.bench.data.catalog import catalog_entry
from hessalign.bench.models import NetworkSpec
from hessalign.bench.runs.inputs import Inputs
from hessalign.bench.runs.job import Job
from hessalign.bench.runs.loop import Evaluate, LoopConfig
from hessalign.bench.runs.model_description import ColouredMlp, Loss
from hessalign.bench.runs.sampling import Sampler

Evaluated = Literal["needed", "all"]
"""What a run evaluates: what model selection reads, or both parts of every domain."""


@final
@dataclass(frozen=True, eq=False)
class Plan:
    """A job with everything that follows from it and from its data.

    Attributes:
        job: The job.
        protocol: How it is carried out.
        data_dir: The folder that holds the data set.
        data: The data set.
        options: The options of the protocol, a dataclass of its own.
        algorithm: The configuration of the algorithm, in which every option is settled.
        values: What records show of both, under DomainBed's names.
        steps: Updates.
        evaluate_every: Steps between evaluations.
        inner: The larger part of each domain, as indices.
        outer: The part of each domain that is held out.
    """

    job: Job
    protocol: AbstractProtocol
    data_dir: Path
    data: DomainDataset
    options: Any
    algorithm: Any
    values: Mapping[str, Value | None]
    steps: int
    evaluate_every: int
    inner: tuple[np.ndarray, ...]
    outer: tuple[np.ndarray, ...]

    @property
    def info(self) -> AlgorithmInfo:
        """The row of the algorithm."""
        return find_algorithm(self.job.algorithm)

    @property
    def loss(self) -> Loss:
        """Name of the loss that is trained with."""
        loss: Loss = self.options.loss
        return loss

    @property
    def sources(self) -> list[int]:
        """The domains that are trained on."""
        return [each for each in range(len(self.inner)) if each not in self.job.test_domains]


class AbstractProtocol(ABC):
    """What a protocol decides."""

    @abstractmethod
    def plan(self, job: Job, data_dir: Path) -> Plan:
        """Find the data of a job and settle its options; what does not fit is refused."""

    @abstractmethod
    def start(self, plan: Plan) -> tuple[AbstractAlgorithm, torch.Generator]:
        """The algorithm with an untrained network, and its source of randomness, all seeded."""

    @abstractmethod
    def network(self, plan: Plan) -> NetworkSpec | ColouredMlp:
        """The network that is trained, described so that it can be made again."""

    @abstractmethod
    def inputs(self, plan: Plan, warn: Callable[[str], None]) -> Inputs:
        """What gives the inputs of all domains, to be closed after use."""

    @abstractmethod
    def sampler(self, plan: Plan, inputs: Inputs) -> Sampler:
        """Where the batches come from."""

    @abstractmethod
    def loop(self, plan: Plan) -> LoopConfig:
        """How the run is trained."""

    @abstractmethod
    def evaluation(self, plan: Plan, inputs: Inputs, evaluated: Evaluated) -> Evaluate:
        """What the run reports: accuracies under DomainBed's names, and what else it measures."""

    @abstractmethod
    def steps_per_epoch(self, plan: Plan) -> float:
        """Steps in which the smallest domain is seen once, not rounded."""


def check_test_domains(job: Job, data: DomainDataset) -> None:
    """Refuse test domains that the data set does not have, or that leave none to train on."""
    count = len(data.domains)
    if max(job.test_domains) >= count or len(job.test_domains) >= count:
        names = ", ".join(f"{i} {name}" for i, name in enumerate(data.domain_names))
        raise InputError(
            f"Expected test domains of {data.name} that leave one or more to train on, got "
            f"{list(job.test_domains)}. It has: {names}."
        )


def record_args(plan: Plan, folder: Path, *, keep_model: bool) -> dict[str, object]:
    """The arguments of a run as DomainBed's records show them, by name."""
    entry = catalog_entry(plan.job.dataset)
    usual = entry is not None and entry.checkpoint_freq == plan.evaluate_every
    return {
        "checkpoint_freq": None if usual else plan.evaluate_every,
        "hparams": None,
        "output_dir": str(folder),
        "save_model_every_checkpoint": False,
        "skip_model_save": not keep_model,
        "steps": None,
        "uda_holdout_fraction": 0,
        **plan.job.args,
    }
