"""One run of the DomainBed protocol: some domains to train on, the others to test on.

Splits, seeds, hyper-parameters and records are DomainBed's, so results of both can stand in one
table. What a run evaluates is by default what model selection reads, not everything.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, final, get_args

import numpy as np
import torch
from torch import Tensor

from hessalign._errors import (
    ConfigurationError,
    InputError,
    UserError,
    attempt,
    describe_error,
)
from hessalign._names import UnknownNameError, check_name
from hessalign._seeds import seed_hash
from hessalign.bench.algorithms import AbstractAlgorithm, Setting, find_algorithm, make_config
from hessalign.bench.algorithms.schedule import penalty_schedule
from hessalign.bench.algorithms.search import RunHyperParameters, Value
from hessalign.bench.data import find_dataset
from hessalign.bench.models import Network, NetworkSpec, make_network
from hessalign.bench.models.backbones import MNIST_CNN, describe_random_weights, is_published
from hessalign.bench.models.weights import IMAGENET
from hessalign.bench.runs.device import find_device
from hessalign.bench.runs.image_inputs import ImageInputs
from hessalign.bench.runs.inputs import Inputs, TensorInputs, accuracy
from hessalign.bench.runs.job import Job, job_from
from hessalign.bench.runs.job_plan import (
    AUGMENTED,
    Evaluated,
    JobPlan,
    evaluated_parts,
    plan_job,
    record_args,
    steps_per_epoch,
)
from hessalign.bench.runs.loop import Evaluate, LoopConfig, train
from hessalign.bench.runs.provenance import describe_software
from hessalign.bench.runs.records import DomainBedForm, Record
from hessalign.bench.runs.run_folder import CONFIG, MODEL, RunFolder, RunFolderError, read_config

DATA_FOLDER: Final = "data_folder"
"""Where a run's folder tells where its data were."""


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


def train_job(
    job: Job,
    folder: Path,
    *,
    evaluate: Evaluated = "needed",
    keep_model: bool = False,
    data_dir: Path | None = None,
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
        data_dir: The folder that holds the data set, if it is not where the job says.
        report: Called with every record as it is made.
        warn: Called with what the user should know but need not act on.

    Returns:
        The run.
    """
    check_name("evaluate", evaluate, get_args(Evaluated))
    plan = checked_plan(job, data_dir)
    form = DomainBedForm(
        plan.hyper.values,
        record_args(plan, folder, keep_model=keep_model),
        steps_per_epoch(plan),
        {"software": describe_software(), "domain_names": plan.data.domain_names},
    )
    config = {**job.args, "evaluate": evaluate}
    # The job names its data as the user did, which is a part of its identity; from another folder
    # the same name means another place.
    beside = {DATA_FOLDER: str(plan.data_dir.absolute())}
    with RunFolder(folder, config, warn, form, keep_model, beside) as opened:
        if opened.done:
            return DomainRun(plan, opened.records(), _trained(plan, opened))
        with closing(open_inputs(plan, warn)) as inputs:
            algorithm, generator = start_algorithm(plan)
            algorithm.to(find_device())
            records = train(
                algorithm,
                inputs.sampler(
                    [(domain, plan.inner[domain]) for domain in plan.sources],
                    plan.batch_size,
                    seed_hash(job.seed, "batches"),
                ),
                make_evaluation(inputs, plan, evaluate),
                make_loop(plan),
                generator,
                opened,
                report,
            )
    return DomainRun(plan, records, algorithm.cpu())


def checked_plan(job: Job, data_dir: Path | None = None) -> JobPlan:
    """Plan a job and try everything that a run makes of its hyper-parameters before it trains.

    Args:
        job: The job.
        data_dir: The folder that holds the data set, if it is not where the job says.

    Returns:
        The plan.

    Raises:
        UserError: If something does not fit.
        ConfigurationError: With everything that is wrong, if it is more than one thing.
    """
    try:
        return _tried_plan(job, data_dir)
    except UserError as error:
        problems = _problems_one_by_one(job, data_dir)
        if len(problems) < 2:
            raise
        raise ConfigurationError(problems) from error


def _problems_one_by_one(job: Job, data_dir: Path | None) -> list[str]:
    """What is wrong with a job, and with each of its hyper-parameters on its own."""
    problems: list[str] = []
    bare = dataclasses.replace(job, steps=None, hparams=None)
    attempt(problems, _tried_plan, bare, data_dir)
    algorithm = attempt(problems, find_algorithm, job.algorithm)
    # The parts that are tried one by one stand beside what fits: neither hides the other.
    bare = dataclasses.replace(bare, test_domains=(0,))
    if algorithm is None:
        bare = dataclasses.replace(bare, algorithm=find_algorithm("erm").recorded)
    parts = [dataclasses.replace(bare, steps=job.steps)]
    overrides = json.loads(job.hparams) if job.hparams else {}
    parts += [
        dataclasses.replace(bare, hparams=json.dumps({key: value}))
        for key, value in overrides.items()
    ]
    for part in parts:
        try:
            _tried_plan(part, data_dir)
        except UserError as error:
            # Of an unknown algorithm nobody knows which hyper-parameters it has.
            if algorithm is not None or not isinstance(error, UnknownNameError):
                problems.append(str(error))
        except OSError as error:
            problems.append(describe_error(error))
    return list(dict.fromkeys(problems))


def _tried_plan(job: Job, data_dir: Path | None) -> JobPlan:
    plan = plan_job(job, data_dir)
    make_loop(plan)
    network_spec(plan.hyper, plan.input_shape, len(plan.data.classes))
    for name in ("data_augmentation", AUGMENTED):
        plan.hyper.truth(name)
    _ = plan.batch_size
    return plan


def describe_untrained(plan: JobPlan) -> str | None:
    """What users should know of a run whose backbone has random weights.

    Args:
        plan: The run.

    Returns:
        A sentence; None if they are not random, or have to be: DomainBed's network for digits.
    """
    spec = network_spec(plan.hyper, plan.input_shape, len(plan.data.classes))
    if not isinstance(spec.backbone, str) or spec.backbone == MNIST_CNN:
        return None
    return describe_random_weights(spec.backbone, spec.weights)


def load_domain_run(folder: Path, data_dir: Path | None = None) -> DomainRun:
    """A complete run with its trained network, from its folder.

    Args:
        folder: What `train_job` was given.
        data_dir: The folder that holds the data set; None if it is where it was.

    Returns:
        The run.

    Raises:
        RunFolderError: If there is no complete run of this protocol, or it kept no model.
    """
    path = folder / CONFIG
    if not path.exists() or not (folder / "done").exists():
        found = "a run that is not complete" if path.exists() else "none"
        raise RunFolderError(f"Expected a complete run in {folder}, found {found}.")
    config = read_config(folder)
    try:
        job = job_from(config)
    except InputError as error:
        raise RunFolderError(
            f"Expected a run of the DomainBed protocol in {folder}: {error}"
        ) from error
    if not (folder / MODEL).exists():
        raise RunFolderError(
            f"Expected the trained model in {folder}, found none: runs of a sweep keep none unless "
            "asked to. Train the job again with `hessalign train`."
        )
    return train_job(
        job,
        folder,
        evaluate=config.get("evaluate", "needed"),
        keep_model=True,
        data_dir=data_dir or _find_data(job, folder, config.get(DATA_FOLDER)),
    )


def _find_data(job: Job, folder: Path, recorded: object) -> Path:
    """Where the data of a run are: where they were when it was trained, or where it says here."""
    places = [Path(recorded)] if isinstance(recorded, str) else []
    places += [Path(job.data_dir)] if Path(job.data_dir).absolute() not in places else []
    problems = []
    for place in places:
        try:
            find_dataset(job.dataset, place, job.seed)
        except FileNotFoundError as error:
            problems.append(describe_error(error))
        else:
            return place
    raise RunFolderError(
        f"Cannot find the data of the run in {folder}. {' '.join(problems)} If they were moved, "
        "name the folder that holds them with --data-dir."
    )


def head_samples(
    run: DomainRun, samples: int | None = None, seed: int = 0, *, held_out: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """What enters the head of a trained run.

    Args:
        run: The run.
        samples: Samples of each domain, at most; all if None.
        seed: Of the draw.
        held_out: Whether to draw only from the part of each domain that is held out.

    Returns:
        Features, labels and the number of the domain, of samples of every domain.

    Raises:
        InputError: If the run has no trained network.
    """
    if run.algorithm is None:
        raise InputError("Expected a run with its trained network, got one that kept no model.")
    network, inputs = run.algorithm.network.eval(), open_inputs(run.plan)
    generator = np.random.RandomState(seed)
    z, y, domain = [], [], []
    for number, data in enumerate(run.plan.data.domains):
        rows = generator.permutation(run.plan.outer[number] if held_out else len(data))[:samples]
        with torch.no_grad():
            z.append(torch.cat([network.features(x) for x in inputs.chunks(number, rows)]))
        y.append(data.labels[torch.from_numpy(rows)])
        domain.append(torch.full((len(rows),), number))
    return torch.cat(z), torch.cat(y), torch.cat(domain)


def _trained(plan: JobPlan, folder: RunFolder) -> AbstractAlgorithm | None:
    if not (folder.path / MODEL).exists():
        return None
    algorithm, _ = start_algorithm(plan)
    folder.load_model(
        algorithm,
        f"the data set {plan.data.name} in {plan.data_dir}",
        "Use the data it was trained on.",
    )
    return algorithm


def open_inputs(plan: JobPlan, warn: Callable[[str], None] = lambda message: None) -> Inputs:
    """The inputs of a run.

    Args:
        plan: The run.
        warn: Called with what the user should know but need not act on.

    Returns:
        What gives training batches, and inputs to evaluate; to be closed after use.
    """
    if isinstance(plan.data.domains[0].inputs, Tensor):
        return TensorInputs(plan.data)
    return ImageInputs(
        plan.data,
        plan.input_shape[-1],
        plan.job.seed,
        augment=plan.hyper.truth("data_augmentation"),
        warn=warn,
    )


def start_algorithm(plan: JobPlan) -> tuple[AbstractAlgorithm, torch.Generator]:
    """The algorithm of a run with an untrained network, all generators seeded.

    Args:
        plan: The run.

    Returns:
        The algorithm and its source of randomness.
    """
    job = plan.job
    random.seed(job.seed)
    np.random.seed(job.seed)
    torch.manual_seed(job.seed)
    generator = torch.Generator().manual_seed(seed_hash(job.seed, "algorithm"))
    spec = network_spec(plan.hyper, plan.input_shape, len(plan.data.classes))
    setting = Setting(
        partial(make_network, spec),
        outputs=spec.outputs,
        domains=len(plan.sources),
        loss="cross_entropy",
        steps=plan.steps,
        generator=generator,
        input_shape=plan.input_shape,
        batch_size=plan.hyper.whole("batch_size", least=1),
    )
    info = find_algorithm(job.algorithm)
    return info.make(make_config(info.name, plan.hyper.options), setting), generator


def network_spec(
    hyper: RunHyperParameters, input_shape: tuple[int, ...], classes: int
) -> NetworkSpec:
    """The network that some hyper-parameters ask for.

    Args:
        hyper: Hyper-parameters.
        input_shape: Shape of one input.
        classes: Number of classes.

    Returns:
        Its description.
    """
    values = hyper.values
    backbone = values.get("backbone", default_backbone(values, input_shape))
    pretrained = backbone is not None and is_published(str(backbone))
    weights = values.get("weights", IMAGENET if pretrained else None)
    return NetworkSpec(
        input_shape,
        classes,
        hidden=hyper.whole("hidden"),
        dropout=0.0 if backbone == MNIST_CNN else hyper.number("resnet_dropout"),
        backbone=None if backbone is None else str(backbone),
        weights=None if weights is None else str(weights),
        freeze_batch_norm=hyper.truth("freeze_batch_norm", default=True),
        nonlinear_head=hyper.truth("nonlinear_classifier"),
    )


def default_backbone(
    values: Mapping[str, Value | None], input_shape: tuple[int, ...]
) -> str | None:
    """What makes features of inputs unless another backbone is asked for.

    Args:
        values: Hyper-parameters.
        input_shape: Shape of one input.

    Returns:
        DomainBed's choice: its small network for images of 28 pixels, a ResNet for larger ones;
        None for vectors.

    Example:
        >>> default_backbone({"resnet18": False}, (3, 224, 224)), default_backbone({}, (1280,))
        ('resnet50', None)
    """
    if len(input_shape) != 3:
        return None
    if input_shape[1:] == (28, 28):
        return MNIST_CNN
    return "resnet18" if values["resnet18"] else "resnet50"


def make_loop(plan: JobPlan) -> LoopConfig:
    """How a run is trained.

    Args:
        plan: The run.

    Returns:
        Adam, the schedule of the algorithm's penalty, evaluation after updates.
    """
    info = find_algorithm(plan.job.algorithm)
    return LoopConfig(
        steps=plan.steps,
        learning_rate=plan.hyper.number("lr"),
        loss="cross_entropy",
        weight_decay=plan.hyper.number("weight_decay"),
        schedule=penalty_schedule(make_config(info.name, plan.hyper.options)),
        evaluate_every=plan.evaluate_every,
    )


def make_evaluation(inputs: Inputs, plan: JobPlan, evaluated: Evaluated) -> Evaluate:
    """The accuracies that a run reports.

    Args:
        inputs: The inputs of all domains.
        plan: The run.
        evaluated: What to evaluate.

    Returns:
        The evaluation.
    """
    # DomainBed changes all images of training domains at random, also those it validates on.
    strict = plan.hyper.truth(AUGMENTED)
    measured = {}
    for name, (domain, rows) in evaluated_parts(plan, evaluated).items():
        augmented = strict and domain in plan.sources
        labels = plan.data.domains[domain].labels[torch.from_numpy(rows)]
        measured[name] = (inputs.chunks(domain, rows, augmented=augmented), labels)

    def evaluate(network: Network) -> dict[str, float]:
        return {name: accuracy(network, *each) for name, each in measured.items()}

    return evaluate
