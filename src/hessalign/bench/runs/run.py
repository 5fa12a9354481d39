"""One run: a job trained, or continued, or read from its folder; its head with what enters it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, cast, final, get_args

import numpy as np
import torch
from torch import Tensor, nn

from hessalign._errors import InputError, Warn, check_name, describe_error
from hessalign._plugins import told_as_theirs
from hessalign.bench.algorithms import AbstractAlgorithm
from hessalign.bench.data import find_dataset
from hessalign.bench.data.catalog import COLORED_MNIST, catalog_entry
from hessalign.bench.models import Network
from hessalign.bench.runs.computing import Computing, computed
from hessalign.bench.runs.given_inputs import make_table_inputs
from hessalign.bench.runs.job import Job, job_from
from hessalign.bench.runs.loop import train
from hessalign.bench.runs.machine import describe_software, find_device
from hessalign.bench.runs.model_description import DESCRIPTION, ModelDescription, load_weights
from hessalign.bench.runs.plan import Evaluated, Plan, plan_job
from hessalign.bench.runs.processes import agreed, from_leader, leads
from hessalign.bench.runs.records import DONE, Record, RecordForm
from hessalign.bench.runs.run_folder import CONFIG, RunFolder, RunFolderError, read_config
from hessalign.bench.runs.sampling import in_use

_DATA_FOLDER: Final = "data_folder"  # where a run's folder tells where its data were
_USUAL: Final = Computing()


@final
@dataclass(frozen=True, eq=False)
class Run:
    """A finished run.

    Attributes:
        plan: What was run.
        records: What it reported.
        algorithm: The trained algorithm; None if a complete run was read that kept no model.
    """

    plan: Plan
    records: list[Record]
    algorithm: AbstractAlgorithm | None

    @property
    def final(self) -> Mapping[str, float]:
        """What the last evaluation measured."""
        return self.records[-1].metrics

    @property
    def network(self) -> Network:
        """The trained network, in evaluation mode."""
        if self.algorithm is None:
            raise InputError("Expected a run with its trained network, got one that kept no model.")
        return self.algorithm.network.eval()


def train_job(
    job: Job,
    folder: Path | None = None,
    *,
    evaluate: Evaluated = "needed",
    keep_model: bool = False,
    data_dir: Path | None = None,
    computing: Computing = _USUAL,
    report: Callable[[Record], None] = lambda record: None,
    warn: Warn = lambda message: None,
) -> Run:
    """Train a job, or continue it; a complete one is read, not repeated.

    In a process that is `taking_part` with others they train it together, all calling this.

    Args:
        job: What to run.
        folder: Where its records, `results.jsonl`, and checkpoints are kept; `done` is written
            last. None keeps nothing.
        evaluate: What to evaluate.
        keep_model: Whether to keep the trained parameters.
        data_dir: The folder that holds the data set, if it is not where the job says.
        computing: What changes how fast it is.
        report: Called with every record as it is made.
        warn: Called with what the user should know but need not act on.

    Returns:
        The run.

    Example:
        >>> job = Job("ColoredMNIST-IRM", "ERM", (2,), 0, 0, "", steps=3, hparams='''{
        ...     "train_images": 200, "test_images": 100, "width": 8}''')
        >>> [record.step for record in train_job(job).records]
        [0, 2]
    """
    check_name("evaluate", evaluate, get_args(Evaluated))
    plan = plan_job(job, data_dir)
    opened = None
    if folder is not None and leads():
        opened = open_folder(plan, folder, evaluate, warn, keep_model=keep_model)
    with opened or nullcontext() as kept:
        protocol = plan.protocol
        if agreed(kept is not None and kept.done):
            records, trained = from_leader([] if kept is None else kept.records()), None
            if kept is not None and (kept.path / DESCRIPTION).exists():
                trained, _ = protocol.start(plan)
                what = f"the data set {plan.data.name} in {plan.data_dir}"
                load_weights(trained.network, kept.path, what, "Use the data it was trained on.")
            return Run(plan, records, trained)
        inputs = protocol.inputs(plan, warn)
        with told_as_theirs("algorithm", plan.info.make, "made"):
            algorithm, generator = protocol.start(plan)
        device = find_device()
        algorithm.to(device)
        inputs.suit(device, computing.workers)
        sampler, loop = protocol.sampler(plan, inputs), protocol.loop(plan)
        measure = protocol.evaluation(plan, inputs, evaluate)
        with in_use(sampler), computed(algorithm, plan.precision, computing, warn):
            records = train(algorithm, sampler, measure, loop, generator, kept, report)
    return Run(plan, records, algorithm.cpu())


def open_folder(
    plan: Plan,
    folder: Path,
    evaluate: Evaluated,
    warn: Warn,
    *,
    keep_model: bool,
    software: Mapping[str, str] | None = None,
) -> RunFolder:
    """The folder of a run, to be entered; `software` is what it is trained with, if not this."""
    used = dict(describe_software() if software is None else software)
    entry = catalog_entry(plan.job.dataset)
    usual = entry is not None and entry.checkpoint_freq == plan.evaluate_every
    args = {
        "checkpoint_freq": None if usual else plan.evaluate_every,
        "hparams": None,
        "output_dir": str(folder),
        "save_model_every_checkpoint": False,
        "skip_model_save": not keep_model,
        "steps": None,
        "uda_holdout_fraction": 0,
        **plan.job.args,
    }
    extra = {"software": used, "domain_names": plan.data.domain_names}
    # An epoch sees the smallest domain once, as DomainBed counts; so does a step without a size.
    size = getattr(plan.options, "batch_size", None)
    epoch = min(map(len, plan.inner)) / float(size) if size else 1.0
    form = RecordForm(plan.values, args, epoch, extra)
    config = {**plan.job.args, "evaluate": evaluate}
    # The job names its data as the user did, which is a part of its identity; from another folder
    # the same name means another place.
    beside = {_DATA_FOLDER: str(plan.data_dir.absolute())}
    describe = partial(_describe, plan, used) if keep_model else None
    return RunFolder(folder, config, warn, form, beside, describe)


def _describe(plan: Plan, software: dict[str, str], records: list[Record]) -> ModelDescription:
    """What is needed to use the network that a run trains."""
    data, names = plan.data, plan.data.domain_names
    return ModelDescription(
        plan.protocol.network(plan),
        data.classes,
        inputs="arrays" if isinstance(data.domains[0].inputs, Tensor) else "images",
        loss=plan.loss,
        algorithm=plan.info.name,
        options=dataclasses.asdict(plan.algorithm),
        domains=names,
        trained_on=tuple(names[domain] for domain in plan.sources),
        steps=plan.steps,
        batch_size=cast("int | None", plan.values.get("batch_size")),
        job=plan.job.args,
        software=software,
        data_sha256=data.fingerprint(),
        accuracies=dict(records[-1].metrics) if records else {},
        table=None if plan.preparation is None else make_table_inputs(data, plan.preparation),
    )


def load_run(folder: Path, data_dir: Path | None = None) -> Run:
    """A complete run with its trained network and its data; `data_dir` says where these are now."""
    config = read_config(folder) if (folder / CONFIG).exists() else None
    if config is None or not (folder / DONE).exists():
        found = "none" if config is None else "a run that is not complete"
        raise RunFolderError(
            f"Expected a complete run in {folder}, found {found}. Give the folder of one, for "
            "example OUTPUT/hgp-seed0 after `hessalign train --algorithm hgp --output OUTPUT`."
        )
    try:
        job = job_from(config)
    except InputError as error:
        raise RunFolderError(f"Expected a run in {folder}: {error}") from error
    if data_dir is not None and job.dataset == COLORED_MNIST:
        raise InputError(
            f"Expected no --data-dir for {COLORED_MNIST}, which comes with the package; got "
            f"{data_dir}. Leave it out."
        )
    if not (folder / DESCRIPTION).exists():
        raise RunFolderError(
            f"Expected the trained model in {folder}, found none: runs of a sweep keep none unless "
            "asked to. Train the job again with `hessalign train`."
        )
    return train_job(
        job,
        folder,
        evaluate=config.get("evaluate", "needed"),
        keep_model=True,
        data_dir=data_dir or _find_data(job, folder, config.get(_DATA_FOLDER)),
    )


def _find_data(job: Job, folder: Path, recorded: object) -> Path:
    """Where the data of a run are: where they were when it was trained, or where it says here."""
    if job.dataset == COLORED_MNIST:  # they come with the package
        return Path(job.data_dir)
    here, problems = Path(job.data_dir), []
    places = [Path(recorded)] if isinstance(recorded, str) else []
    places += [here] if here.absolute() not in places else []
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


@final
@dataclass(frozen=True, eq=False)
class TrainedHead:
    """A linear head and samples of every domain as it sees them."""

    z: Tensor
    y: Tensor
    domain: Tensor
    head: nn.Linear
    loss: str
    names: tuple[str, ...]  # of the domains, by number
    targets: tuple[int, ...]  # the domains that were not trained on
    algorithm: str
    seed: int  # or trial

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


def trained_head(
    run: Run, samples: int | None = None, seed: int = 0, *, held_out: bool = False
) -> TrainedHead:
    """The linear head of a run with what enters it of so many samples of each domain, or all."""
    network, plan = run.network, run.plan
    if not isinstance(network.head, nn.Linear):
        raise InputError(f"Expected a run with a linear head, got {type(network.head).__name__}.")
    generator = np.random.RandomState(seed)
    z, y, domain = [], [], []
    inputs = plan.protocol.inputs(plan, lambda message: None)
    for number, data in enumerate(plan.data.domains):
        rows = generator.permutation(plan.outer[number] if held_out else len(data))[:samples]
        with torch.no_grad():
            z.append(torch.cat([network.features(x) for x in inputs.chunks(number, rows)]))
        y.append(data.labels[torch.from_numpy(rows)])
        domain.append(torch.full((len(rows),), number))
    return TrainedHead(
        torch.cat(z),
        torch.cat(y),
        torch.cat(domain),
        network.head,
        plan.loss,
        plan.data.domain_names,
        plan.job.test_domains,
        plan.info.name,
        plan.job.trial_seed,
    )
