"""A job with everything that follows from it and from its data, and what a protocol decides.

A protocol says how a run is carried out: which options it has, what they are drawn from, which
network is trained, from which batches, by which loop, and what is measured. There are two:
`domainbed.py` for data sets of any kind and `irm.py` for Colored MNIST as the paper trains on it.
"""

from __future__ import annotations

import dataclasses
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, cast, final

import numpy as np
import torch
from torch import Tensor

from hessalign._errors import (
    ConfigurationError,
    InputError,
    UnknownNameError,
    UserError,
    Warn,
    attempt,
    some,
)
from hessalign.bench.algorithms import AbstractAlgorithm, AlgorithmInfo, find_algorithm
from hessalign.bench.algorithms.options import Value
from hessalign.bench.data import DomainDataset, Split, split_dataset
from hessalign.bench.data.catalog import COLORED_MNIST
from hessalign.bench.models import NetworkSpec
from hessalign.bench.models.backbones import MNIST_CNN, describe_random_weights
from hessalign.bench.runs.computing import Precision
from hessalign.bench.runs.job import Job
from hessalign.bench.runs.loop import Evaluate, LoopConfig
from hessalign.bench.runs.model_description import ColouredMlp, Loss
from hessalign.bench.runs.sampling import ImageInputs, Inputs, Sampler, TensorInputs
from hessalign.diagnosis.preparation import Preparation, fit_preparation

Evaluated = Literal["needed", "all"]
"""What a run evaluates: what model selection reads, or both parts of every domain."""

_MANY_DOMAINS: Final = 32
_SHOWN: Final = 5


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

    @cached_property
    def splits(self) -> tuple[Split, ...]:
        """Both parts of each domain, as indices."""
        return split_dataset(self.data, self.job.trial_seed, self.job.holdout_fraction)

    @property
    def inner(self) -> tuple[np.ndarray, ...]:
        """The larger part of each domain, as indices."""
        return tuple(split.inner for split in self.splits)

    @property
    def outer(self) -> tuple[np.ndarray, ...]:
        """The part of each domain that is held out."""
        return tuple(split.outer for split in self.splits)

    @cached_property
    def preparation(self) -> Preparation | None:
        """How the features of a table are made ready, by the samples that are trained on."""
        if self.data.table is None:
            return None
        parts = [(self.data.domains[each].inputs, self.inner[each]) for each in self.sources]
        return fit_preparation(torch.cat([cast(Tensor, x)[rows] for x, rows in parts]))

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
    def precision(self) -> Precision:
        """What features are computed in."""
        precision: Precision = getattr(self.options, "precision", 32)
        return precision

    @property
    def sources(self) -> list[int]:
        """The domains that are trained on."""
        tested = self.job.test_domains
        return [each for each in range(len(self.data.domains)) if each not in tested]


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

    def inputs(self, plan: Plan, warn: Warn) -> Inputs:
        """What gives the inputs of all domains: rows in memory, or images."""
        if isinstance(plan.data.domains[0].inputs, Tensor):
            return TensorInputs(plan.data, plan.preparation)
        size, augment = plan.options.image_size, plan.options.data_augmentation
        return ImageInputs(plan.data, size, plan.job.seed, augment=augment, warn=warn)

    @abstractmethod
    def sampler(self, plan: Plan, inputs: Inputs) -> Sampler:
        """Where the batches come from."""

    @abstractmethod
    def loop(self, plan: Plan) -> LoopConfig:
        """How the run is trained."""

    @abstractmethod
    def evaluation(self, plan: Plan, inputs: Inputs, evaluated: Evaluated) -> Evaluate:
        """What the run reports: accuracies under DomainBed's names, and what else it measures."""


def find_protocol(dataset: str) -> AbstractProtocol:
    """How runs on a data set are carried out: all but one as in DomainBed."""
    from hessalign.bench.runs.domainbed import DomainBed  # which know this file
    from hessalign.bench.runs.irm import Irm

    return Irm() if dataset == COLORED_MNIST else DomainBed()


def plan_job(job: Job, data_dir: Path | None = None) -> Plan:
    """Find the data of a job and settle its options; if much is wrong, all is told at once."""
    place = Path(job.data_dir) if data_dir is None else data_dir
    protocol = find_protocol(job.dataset)
    try:
        return _checked_plan(job, protocol, place)
    except UserError as error:
        problems = _problems_one_by_one(job, protocol, place)
        if len(problems) < 2:
            raise
        raise ConfigurationError(problems) from error


def _checked_plan(job: Job, protocol: AbstractProtocol, data_dir: Path) -> Plan:
    """A plan whose domains can be split, and of which a network and a loop can be made."""
    plan = protocol.plan(job, data_dir)
    count = len(plan.splits)
    if max(job.test_domains) >= count or len(job.test_domains) >= count:
        names = ", ".join(f"{i} {name}" for i, name in enumerate(plan.data.domain_names))
        raise InputError(
            f"Expected test domains of {plan.data.name} that leave one or more to train on, got "
            f"{list(job.test_domains)}. It has: {names}."
        )
    protocol.loop(plan)
    protocol.network(plan)
    return plan


def _problems_one_by_one(job: Job, protocol: AbstractProtocol, data_dir: Path) -> list[str]:
    """What is wrong with a job, and with each of its options on its own."""
    problems: list[str] = []
    bare = dataclasses.replace(job, steps=None, hparams=None)
    attempt(problems, _checked_plan, bare, protocol, data_dir)
    algorithm = attempt(problems, find_algorithm, job.algorithm)
    # The parts that are tried one by one stand beside what fits: neither hides the other.
    bare = dataclasses.replace(bare, test_domains=(0,))
    if algorithm is None:
        bare = dataclasses.replace(bare, algorithm=find_algorithm("erm").recorded)
    overrides = json.loads(job.hparams) if job.hparams else {}
    parts = [
        {"steps": job.steps},
        *({"hparams": json.dumps({key: overrides[key]})} for key in overrides),
    ]
    # Of an unknown algorithm nobody knows which hyper-parameters it has.
    unsaid = () if algorithm is not None else (UnknownNameError,)

    def check(part: Mapping[str, Any]) -> None:
        with suppress(*unsaid):
            _checked_plan(dataclasses.replace(bare, **part), protocol, data_dir)

    for part in parts:
        attempt(problems, check, part)
    return list(dict.fromkeys(problems))


def plan_warnings(plan: Plan) -> Iterator[str]:
    """What to tell about random weights, a table, what an official split tests on, many domains."""
    data, spec = plan.data, plan.protocol.network(plan)
    if isinstance(spec, NetworkSpec) and isinstance(spec.backbone, str):
        random = describe_random_weights(spec.backbone, spec.weights)
        if random and spec.backbone != MNIST_CNN:  # that for digits has to have them
            yield random
    yield from data.table.notes if data.table is not None else ()
    names = [data.domain_names[source] for source in plan.sources]
    if trained := [name for name in names if name in data.official_tests]:
        yield (
            f"The official split of {data.name} does not train on {some(trained, _SHOWN)}; here "
            "they are trained on. `train --test-domains official` leaves them out, and so does the "
            "option without= of data sets that have it."
        )
    if len(names) > _MANY_DOMAINS:
        size = getattr(plan.options, "batch_size", 1)
        yield (
            f"A step takes {size} samples of each of {len(names)} domains, {size * len(names):,} "
            "in all. Set a smaller batch_size, or put domains together (of WILDSiWildCam by "
            "groups=10; of your own data by naming larger domains)."
        )


def lone_domain_warning(jobs: Iterable[Job], domains: Mapping[str, int]) -> str | None:
    """What to tell about runs that align domains, if some have a single one to train on."""
    lone = [
        job
        for job in jobs
        if domains[job.dataset] - len(job.test_domains) == 1
        and find_algorithm(job.algorithm).compares_domains
    ]
    if not lone:
        return None
    which = {f"{job.dataset}: {job.algorithm}": None for job in lone}
    runs = "1 run has" if len(lone) == 1 else f"{len(lone)} runs have"
    return (
        f"{runs} only one domain to train on ({', '.join(which)}): methods that align domains have "
        "nothing to align there. Leave fewer domains out, or use data with more domains."
    )
