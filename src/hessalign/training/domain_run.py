"""One run of the DomainBed protocol: some domains to train on, the others to test on.

Splits, seeds, hyper-parameters and records are DomainBed's, so results of both can stand in one
table. What a run evaluates is by default what model selection reads, not everything.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, final, get_args

import numpy as np
import torch

from hessalign._names import check_name
from hessalign._seeds import seed_hash
from hessalign.algorithms import AbstractAlgorithm, Setting, find_algorithm, make_config
from hessalign.algorithms.hyper_parameters import RunHyperParameters, run_hyper_parameters
from hessalign.algorithms.schedule import penalty_schedule
from hessalign.algorithms.search import Value
from hessalign.data import DomainDataset, Family, find_dataset, split_domain
from hessalign.data.catalog import DEFAULT_STEPS, catalog_entry
from hessalign.models import Network, NetworkSpec, make_network
from hessalign.training.inputs import Inputs, TensorInputs
from hessalign.training.job import Job
from hessalign.training.loop import Evaluate, LoopConfig, train
from hessalign.training.provenance import describe_software
from hessalign.training.records import DomainBedForm, Record
from hessalign.training.run_folder import RunFolder

Evaluated = Literal["needed", "all"]
"""What a run evaluates: what model selection reads, or both parts of every domain."""

MODEL_KEYS: Final = ("hidden",)
"""Hyper-parameters that describe the network, beside DomainBed's."""

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
        data: The data set.
        family: Which hyper-parameters it takes.
        hyper: The hyper-parameters.
        steps: Updates.
        evaluate_every: Steps between evaluations.
        inner: The larger part of each domain, as indices.
        outer: The part of each domain that is held out.
    """

    job: Job
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


@final
@dataclass(frozen=True, eq=False)
class DomainRun:
    """A finished run.

    Attributes:
        plan: What was run.
        records: What it reported.
        algorithm: The trained algorithm; None if a complete run was read that kept no model.
    """

    plan: JobPlan
    records: list[Record]
    algorithm: AbstractAlgorithm | None


def plan_job(job: Job) -> JobPlan:
    """Find the data of a job and draw its hyper-parameters.

    Args:
        job: The job.

    Returns:
        Everything that is needed to train it.

    Raises:
        ValueError: If the test domains do not fit the data set.
    """
    data = find_dataset(job.dataset, job.data_dir, job.seed)
    count = len(data.domains)
    if max(job.test_domains) >= count or len(job.test_domains) >= count:
        names = ", ".join(f"{i} {name}" for i, name in enumerate(data.domain_names))
        raise ValueError(
            f"Expected test domains of {data.name} that leave one or more to train on, got "
            f"{list(job.test_domains)}. It has: {names}."
        )
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
        data,
        family,
        hyper,
        steps,
        evaluation_interval(job.dataset, family, steps),
        tuple(split.inner for split in splits),
        tuple(split.outer for split in splits),
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


def train_job(
    job: Job,
    folder: Path,
    *,
    evaluate: Evaluated = "needed",
    keep_model: bool = False,
    report: Callable[[Record], None] = lambda record: None,
    warn: Callable[[str], None] = lambda message: None,
) -> DomainRun:
    """Train a job, or continue it; a complete one is read, not repeated.

    Args:
        job: What to run.
        folder: Where its records, `results.jsonl`, and checkpoints are kept; `done` is written
            last.
        evaluate: What to evaluate.
        keep_model: Whether to keep the trained parameters.
        report: Called with every record as it is made.
        warn: Called with what the user should know but need not act on.

    Returns:
        The run.
    """
    check_name("evaluate", evaluate, get_args(Evaluated))
    plan = plan_job(job)
    form = DomainBedForm(
        plan.hyper.values,
        record_args(plan, folder, keep_model=keep_model),
        steps_per_epoch(plan),
        {"software": describe_software()},
    )
    config = {**job.args, "evaluate": evaluate}
    with RunFolder(folder, config, warn, form, keep_model) as opened:
        if opened.done:
            return DomainRun(plan, opened.records(), _trained(plan, opened))
        inputs = open_inputs(plan)
        algorithm, generator = start_algorithm(plan, inputs.shape)
        records = train(
            algorithm,
            inputs.sampler(
                [(domain, plan.inner[domain]) for domain in plan.sources],
                int(plan.hyper.values["batch_size"]),
                seed_hash(job.seed, "batches"),
            ),
            make_evaluation(inputs, evaluated_parts(plan, evaluate)),
            make_loop(plan),
            generator,
            opened,
            report,
        )
    return DomainRun(plan, records, algorithm)


def _trained(plan: JobPlan, folder: RunFolder) -> AbstractAlgorithm | None:
    if not (folder.path / "model.pt").exists():
        return None
    algorithm, _ = start_algorithm(plan, open_inputs(plan).shape)
    algorithm.load_state_dict(folder.model())
    return algorithm


def open_inputs(plan: JobPlan) -> Inputs:
    """The inputs of a run.

    Args:
        plan: The run.

    Returns:
        What gives training batches and accuracies.
    """
    return TensorInputs(plan.data)


def start_algorithm(
    plan: JobPlan, input_shape: tuple[int, ...]
) -> tuple[AbstractAlgorithm, torch.Generator]:
    """The algorithm of a run with an untrained network, all generators seeded.

    Args:
        plan: The run.
        input_shape: Shape of one input.

    Returns:
        The algorithm and its source of randomness.
    """
    job, values = plan.job, plan.hyper.values
    random.seed(job.seed)
    np.random.seed(job.seed)
    torch.manual_seed(job.seed)
    generator = torch.Generator().manual_seed(seed_hash(job.seed, "algorithm"))
    spec = network_spec(values, input_shape, len(plan.data.classes))
    setting = Setting(
        partial(make_network, spec),
        outputs=spec.outputs,
        domains=len(plan.sources),
        loss="cross_entropy",
        steps=plan.steps,
        generator=generator,
        input_shape=input_shape,
    )
    info = find_algorithm(job.algorithm)
    return info.make(make_config(info.name, plan.hyper.options), setting), generator


def network_spec(
    values: Mapping[str, Value], input_shape: tuple[int, ...], classes: int
) -> NetworkSpec:
    """The network that some hyper-parameters ask for.

    Args:
        values: Hyper-parameters.
        input_shape: Shape of one input.
        classes: Number of classes.

    Returns:
        Its description.
    """
    return NetworkSpec(
        input_shape,
        classes,
        hidden=int(values.get("hidden", 0)),
        dropout=float(values["resnet_dropout"]),
    )


def make_loop(plan: JobPlan) -> LoopConfig:
    """How a run is trained.

    Args:
        plan: The run.

    Returns:
        Adam, the schedule of the algorithm's penalty, evaluation after updates.
    """
    info, values = find_algorithm(plan.job.algorithm), plan.hyper.values
    return LoopConfig(
        steps=plan.steps,
        learning_rate=float(values["lr"]),
        loss="cross_entropy",
        weight_decay=float(values["weight_decay"]),
        schedule=penalty_schedule(make_config(info.name, plan.hyper.options)),
        evaluate_every=plan.evaluate_every,
    )


def make_evaluation(inputs: Inputs, parts: Mapping[str, tuple[int, np.ndarray]]) -> Evaluate:
    """The accuracies of some parts of domains.

    Args:
        inputs: The inputs of all domains.
        parts: Domain and indices by name; empty ones are left out.

    Returns:
        The evaluation.
    """

    def evaluate(network: Network) -> dict[str, float]:
        return {
            name: inputs.accuracy(network, domain, rows)
            for name, (domain, rows) in parts.items()
            if len(rows)
        }

    return evaluate


def steps_per_epoch(plan: JobPlan) -> float:
    """Steps in which the smallest domain is seen once, counted as DomainBed does.

    Args:
        plan: The run.

    Returns:
        A positive number, not rounded.
    """
    return min(map(len, plan.inner)) / math.floor(float(plan.hyper.values["batch_size"]))


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
