"""A job of the DomainBed protocol with everything that follows from it and from its data."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, final

import numpy as np
import torch

from hessalign._errors import InputError
from hessalign.bench.algorithms import find_algorithm
from hessalign.bench.algorithms.search import RunHyperParameters, run_hyper_parameters
from hessalign.bench.data import DomainDataset, Family, find_dataset, split_domain
from hessalign.bench.data.catalog import DEFAULT_STEPS, catalog_entry
from hessalign.bench.data.image_cache import SIZE
from hessalign.bench.data.splits import least_size
from hessalign.bench.runs.job import Job

Evaluated = Literal["needed", "all"]
"""What a run evaluates: what model selection reads, or both parts of every domain."""

AUGMENTED: Final = "augment_validation"
"""The hyper-parameter by which held-out images of training domains are changed at random too."""

MODEL_KEYS: Final = (
    "backbone",
    "weights",
    "hidden",
    "freeze_batch_norm",
    "image_size",
    AUGMENTED,
)
"""Hyper-parameters that describe the network and its images, beside DomainBed's."""

PRESET: Final = "preset"
"""The override that chooses whose search ranges apply."""

EVALUATIONS: Final = 10
"""How often a run on features is evaluated, beside its first step."""


@final
@dataclass(frozen=True, eq=False)
class JobPlan:
    """A job with everything that follows from it and from its data.

    Attributes:
        job: The job.
        data_dir: The folder that holds the data set.
        data: The data set.
        family: Which hyper-parameters it takes.
        hyper: The hyper-parameters.
        steps: Updates.
        evaluate_every: Steps between evaluations.
        inner: The larger part of each domain, as indices.
        outer: The part of each domain that is held out.
    """

    job: Job
    data_dir: Path
    data: DomainDataset
    family: Family
    hyper: RunHyperParameters
    steps: int
    evaluate_every: int
    inner: tuple[np.ndarray, ...]
    outer: tuple[np.ndarray, ...]

    @property
    def sources(self) -> list[int]:
        """The domains that are trained on."""
        return [each for each in range(len(self.inner)) if each not in self.job.test_domains]

    @property
    def batch_size(self) -> int:
        """Samples per domain and step."""
        return self.hyper.whole("batch_size", least=1)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input: that of a row, or of an image as networks take it."""
        inputs = self.data.domains[0].inputs
        if isinstance(inputs, torch.Tensor):
            return tuple(inputs.shape[1:])
        size = self.hyper.whole("image_size", SIZE, least=1)
        return (3, size, size)


def lone_domain_warning(jobs: Iterable[Job], domains: Mapping[str, int]) -> str | None:
    """What to tell about runs that align domains but have a single one to train on.

    Args:
        jobs: The runs.
        domains: How many domains each data set has.

    Returns:
        The warning, or None if there is no such run.

    Example:
        >>> job = Job("bank", "HGP", (1,), hparams_seed=0, trial_seed=0, data_dir="data")
        >>> lone_domain_warning([job], {"bank": 3}) is None
        True
        >>> str(lone_domain_warning([job], {"bank": 2})).split(":")[0]
        '1 run has only one domain to train on (bank'
    """
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


def plan_job(job: Job, data_dir: Path | None = None) -> JobPlan:
    """Find the data of a job and draw its hyper-parameters.

    Args:
        job: The job.
        data_dir: The folder that holds the data set, if it is not where the job says.

    Returns:
        Everything that is needed to train it.

    Raises:
        InputError: If the test domains do not fit the data set, or a domain is too small to be
            split.
    """
    data_dir = Path(job.data_dir) if data_dir is None else data_dir
    data = find_dataset(job.dataset, data_dir, job.seed)
    count = len(data.domains)
    if max(job.test_domains) >= count or len(job.test_domains) >= count:
        names = ", ".join(f"{i} {name}" for i, name in enumerate(data.domain_names))
        raise InputError(
            f"Expected test domains of {data.name} that leave one or more to train on, got "
            f"{list(job.test_domains)}. It has: {names}."
        )
    _check_sizes(data, job.holdout_fraction)
    overrides: dict[str, Any] = json.loads(job.hparams) if job.hparams else {}
    preset = overrides.pop(PRESET, "domainbed-2022")
    family = family_of(data)
    steps = DEFAULT_STEPS if job.steps is None else job.steps
    hyper = run_hyper_parameters(
        find_algorithm(job.algorithm),
        family,
        job.hparams_seed,
        job.trial_seed,
        preset=preset,
        steps=steps,
        overrides=overrides,
        model_keys=MODEL_KEYS,
    )
    splits = [
        split_domain(len(samples), job.trial_seed, number, job.holdout_fraction)
        for number, samples in enumerate(data.domains)
    ]
    return JobPlan(
        job,
        data_dir,
        data,
        family,
        hyper,
        steps,
        evaluation_interval(job.dataset, family, steps),
        tuple(split.inner for split in splits),
        tuple(split.outer for split in splits),
    )


def _check_sizes(data: DomainDataset, holdout_fraction: float) -> None:
    least = least_size(holdout_fraction)
    small = [f"{domain.name!r} has {len(domain)}" for domain in data.domains if len(domain) < least]
    if small:
        raise InputError(
            f"Expected {least} or more samples in each domain of {data.name}, of which "
            f"{holdout_fraction:.0%} are held out; {', '.join(small)}. Merge small domains with "
            "others, or leave them out."
        )


def family_of(data: DomainDataset) -> Family:
    """Which hyper-parameters a data set takes.

    Args:
        data: The data set.

    Returns:
        "features" for vectors, else what the catalog says; "big" for images it does not know.
    """
    inputs = data.domains[0].inputs
    if isinstance(inputs, torch.Tensor) and inputs.ndim == 2:
        return "features"
    entry = catalog_entry(data.name)
    return "big" if entry is None else entry.family


def evaluation_interval(dataset: str, family: Family, steps: int) -> int:
    """Steps between evaluations.

    Args:
        dataset: The name of the data set.
        family: Its kind.
        steps: Steps of the run.

    Returns:
        DomainBed's interval; a tenth of the run on features and on data sets of one's own.

    Example:
        >>> evaluation_interval("PACS", "big", 5001), evaluation_interval("mine", "features", 501)
        (300, 50)
    """
    entry = catalog_entry(dataset)
    if family == "features" or entry is None:
        return max(1, (steps - 1) // EVALUATIONS)
    return entry.checkpoint_freq


def evaluated_parts(plan: JobPlan, evaluated: Evaluated) -> dict[str, tuple[int, np.ndarray]]:
    """What a run evaluates.

    Selection by training domains reads the held-out parts of the training domains, the oracle that
    of the test domain, leave-one-out the larger part of a test domain; the test accuracy is that of
    the larger part. The larger part of a training domain is read by none.

    Args:
        plan: The run.
        evaluated: What selection reads, or all.

    Returns:
        Domain and indices by DomainBed's name of the accuracy.
    """
    parts: dict[str, tuple[int, np.ndarray]] = {}
    for domain, (inner, outer) in enumerate(zip(plan.inner, plan.outer, strict=True)):
        if evaluated == "all" or domain in plan.job.test_domains:
            parts[f"env{domain}_in_acc"] = (domain, inner)
        parts[f"env{domain}_out_acc"] = (domain, outer)
    return parts


def steps_per_epoch(plan: JobPlan) -> float:
    """Steps in which the smallest domain is seen once, counted as DomainBed does.

    Args:
        plan: The run.

    Returns:
        A positive number, not rounded.
    """
    return min(map(len, plan.inner)) / plan.batch_size


def record_args(plan: JobPlan, folder: Path, *, keep_model: bool) -> dict[str, object]:
    """The arguments of a run as DomainBed's records show them.

    Args:
        plan: The run.
        folder: Where it is kept.
        keep_model: Whether the trained parameters are kept.

    Returns:
        Values by name.
    """
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
