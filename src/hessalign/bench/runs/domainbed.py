"""DomainBed's protocol: minibatches, cross-entropy, evaluation after the update.

Splits, seeds, hyper-parameters and records are DomainBed's, so results of both can stand in one
table. What a run evaluates is by default what model selection reads, not everything.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Final, final

import numpy as np
import torch
from torch import Tensor, nn

from hessalign._errors import InputError
from hessalign._protocol import seed_hash
from hessalign.alignment import hessian_distance
from hessalign.bench.algorithms import AbstractAlgorithm, Setting, find_algorithm
from hessalign.bench.algorithms.options import Count, NonNegative, Whole, penalty_schedule
from hessalign.bench.algorithms.search import common_space, run_hyper_parameters
from hessalign.bench.data import Family, find_dataset
from hessalign.bench.data.catalog import DEFAULT_STEPS, catalog_entry
from hessalign.bench.data.image_cache import SIZE
from hessalign.bench.models import Network, NetworkSpec, make_network
from hessalign.bench.models.backbones import MNIST_CNN, is_published
from hessalign.bench.models.weights import IMAGENET
from hessalign.bench.runs.averaging import VALIDATION_LOSS
from hessalign.bench.runs.computing import Precision
from hessalign.bench.runs.job import Job
from hessalign.bench.runs.loop import Evaluate, LoopConfig, LoopOptions
from hessalign.bench.runs.machine import device_of
from hessalign.bench.runs.model_description import Loss
from hessalign.bench.runs.plan import AbstractProtocol, Evaluated, Plan
from hessalign.bench.runs.sampling import Inputs, Sampler, accuracy_and_loss
from hessalign.bench.runs.trained import load
from hessalign.curvature import make_loss

PRESET: Final = "preset"
"""The override that chooses whose search ranges apply."""

_EVALUATIONS: Final = 10
"""How often a run on features is evaluated, beside its first step."""

_AUTO: Final = "auto"

_MOST_COMPARED: Final = 256  # samples of each domain by which Hessians are compared


@final
@dataclass(frozen=True)
class TrainingOptions(LoopOptions):
    """What a run is trained with, beside `LoopOptions` and the options of its algorithm.

    Attributes:
        data_augmentation: Whether images of training domains are changed at random.
        resnet18: Take the smaller of DomainBed's backbones.
        resnet_dropout: Share of the features that is dropped before the head in training.
        class_balanced: DomainBed's, not offered.
        nonlinear_classifier: Two ReLU layers in the head.
        lr: Learning rate.
        weight_decay: Of the optimiser.
        batch_size: Samples per domain and step.
        backbone: What makes features of images; "auto" is DomainBed's choice.
        weights: Of the backbone; "auto" takes published ones where there are some.
        head: A function of one's own that makes the head, as `package.module:name`.
        hidden: Units of a ReLU layer between the backbone's features and the head.
        freeze_batch_norm: Keep the statistics of the backbone's batch normalisation as they are.
        image_size: Pixels along the sides of an image.
        augment_validation: Change held-out images of training domains at random too, as DomainBed
            does.
        loss: "cross_entropy", or "binary" for two classes by one logit.
        hessian_distance: Whether evaluations measure the largest distance between the Hessians of
            two training domains, on held-out samples; of a linear head.
        precision: What features are computed in: 32, or under autocast "bf16" or "fp16".
        evaluate_every: Steps between evaluations; None for the data set's own.
        initial_seed: Of the network's initial weights, for runs that are to share them; None takes
            the run's own.
        initial_head: The folder of a trained model whose head the network begins with, such as one
            that was fitted on the features of the same backbone.
    """

    data_augmentation: bool = True
    resnet18: bool = False
    resnet_dropout: float = 0.0
    class_balanced: bool = False
    nonlinear_classifier: bool = False
    lr: NonNegative = 5e-5
    weight_decay: NonNegative = 0.0
    batch_size: Count = 32
    backbone: str | None = _AUTO
    weights: str | None = _AUTO
    head: str | None = None
    hidden: Whole = 0
    freeze_batch_norm: bool = True
    image_size: Count = SIZE
    augment_validation: bool = False
    loss: Loss = "cross_entropy"
    hessian_distance: bool = False
    precision: Precision = 32
    evaluate_every: Count | None = None
    initial_seed: Whole | None = None
    initial_head: str | None = None


MODEL_KEYS: Final = tuple(
    each.name for each in fields(TrainingOptions) if each.name not in common_space("big")
)
"""Options that DomainBed does not have."""


@final
class DomainBed(AbstractProtocol):
    """DomainBed's protocol, on data sets of any kind."""

    def plan(self, job: Job, data_dir: Path) -> Plan:
        """Find the data, draw the hyper-parameters, and override them."""
        data = find_dataset(job.dataset, data_dir, job.seed)
        overrides: dict[str, Any] = json.loads(job.hparams) if job.hparams else {}
        preset = overrides.pop(PRESET, "domainbed-2022")
        entry, info = catalog_entry(data.name), find_algorithm(job.algorithm)
        family: Family = "big" if entry is None else entry.family
        inputs = data.domains[0].inputs
        if isinstance(inputs, Tensor) and inputs.ndim == 2:
            family = "features"
        steps = DEFAULT_STEPS if job.steps is None else job.steps
        hyper = run_hyper_parameters(
            info,
            family,
            job.hparams_seed,
            job.trial_seed,
            preset=preset,
            dataset=job.dataset,
            steps=steps,
            overrides=overrides,
            model_keys=MODEL_KEYS,
        )
        own = {each.name for each in fields(TrainingOptions)}
        values: dict[str, Any] = {key: hyper.values[key] for key in hyper.values if key in own}
        options, algorithm = TrainingOptions(**values), info.configure(hyper.options)
        if options.precision == "fp16" and info.make.differentiates_twice(algorithm):
            raise InputError(
                f"Expected precision=32 or bf16 for {info.title}, which differentiates the network "
                "twice: in float16 what the second pass needs is too small to be kept."
            )
        every = options.evaluate_every or evaluation_interval(job.dataset, family, steps)
        return Plan(job, self, data_dir, data, options, algorithm, hyper.values, steps, every)

    def start(self, plan: Plan) -> tuple[AbstractAlgorithm, torch.Generator]:
        """The algorithm, every source of randomness seeded by the job."""
        seed, initial = plan.job.seed, plan.options.initial_seed
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed if initial is None else initial)
        generator = torch.Generator().manual_seed(seed_hash(seed, "algorithm"))
        spec = self.network(plan)
        setting = Setting(
            partial(make_network, spec),
            outputs=spec.outputs,
            domains=len(plan.sources),
            loss=plan.loss,
            steps=plan.steps,
            generator=generator,
            input_shape=spec.input_shape,
            batch_size=plan.options.batch_size,
        )
        algorithm = plan.info.make(plan.algorithm, setting)
        if plan.options.initial_head is not None:
            _take_head(algorithm.network, plan.options.initial_head, plan.data.classes)
        if initial is not None:
            torch.manual_seed(seed)
        return algorithm, generator

    def network(self, plan: Plan) -> NetworkSpec:
        """Backbone and head by the options."""
        options, inputs = plan.options, plan.data.domains[0].inputs
        shape: tuple[int, ...] = (3, options.image_size, options.image_size)
        if isinstance(inputs, Tensor):
            shape = tuple(inputs.shape[1:])
        if plan.preparation is not None:
            shape = tuple(plan.preparation.mean.shape)
        backbone, weights = options.backbone, options.weights
        if backbone == _AUTO:
            backbone = default_backbone(shape, resnet18=options.resnet18)
        if weights == _AUTO:
            weights = IMAGENET if backbone is not None and is_published(backbone) else None
        outputs = len(plan.data.classes)
        if options.loss == "binary":
            if outputs != 2:
                raise InputError(
                    f"Expected two classes for the loss 'binary', {plan.data.name} has {outputs}. "
                    "Use loss=cross_entropy."
                )
            outputs = 1
        return NetworkSpec(
            shape,
            outputs,
            hidden=options.hidden,
            dropout=0.0 if backbone == MNIST_CNN else options.resnet_dropout,
            backbone=backbone,
            weights=weights,
            freeze_batch_norm=options.freeze_batch_norm,
            nonlinear_head=options.nonlinear_classifier,
            head=options.head,
        )

    def sampler(self, plan: Plan, inputs: Inputs) -> Sampler:
        """Minibatches, drawn with replacement."""
        rows = {domain: plan.inner[domain] for domain in plan.sources}
        return inputs.sampler(rows, plan.options.batch_size, seed_hash(plan.job.seed, "batches"))

    def loop(self, plan: Plan) -> LoopConfig:
        """Adam, the schedule of the algorithm's penalty, evaluation after updates."""
        return LoopConfig(
            steps=plan.steps,
            learning_rate=plan.options.lr,
            loss=plan.loss,
            weight_decay=plan.options.weight_decay,
            schedule=penalty_schedule(plan.algorithm),
            evaluate_every=plan.evaluate_every,
            **plan.options.loop_options,
        )

    def evaluation(self, plan: Plan, inputs: Inputs, evaluated: Evaluated) -> Evaluate:
        """Accuracies of the parts of domains; for SWAD the validation loss too."""
        # DomainBed changes all images of training domains at random, also those it validates on.
        strict, swad = plan.options.augment_validation, plan.options.average == "swad"
        measured, loss = {}, make_loss(plan.loss)
        for name, (domain, rows) in evaluated_parts(plan, evaluated).items():
            source = domain in plan.sources
            labels = plan.data.domains[domain].labels[torch.from_numpy(rows)]
            judged = swad and source and name.endswith("_out_acc")
            chunks = inputs.chunks(domain, rows, augmented=strict and source)
            measured[name] = (chunks, labels, judged)

        def evaluate(network: Network) -> dict[str, float]:
            metrics: dict[str, float] = {}
            losses = []
            for name, (chunks, labels, judged) in measured.items():
                asked = loss if judged else None
                metrics[name], mean = accuracy_and_loss(network, chunks, labels, asked)
                if judged:
                    losses.append(mean)
            if swad:
                metrics[VALIDATION_LOSS] = fmean(losses)
            if plan.options.hessian_distance:
                metrics["hessian_distance"] = _largest_distance(plan, inputs, network)
            return metrics

        return evaluate


def _largest_distance(plan: Plan, inputs: Inputs, network: Network) -> float:
    """The largest Frobenius distance between the head's Hessians of two training domains."""
    if not isinstance(network.head, nn.Linear):
        raise InputError(
            "Expected a linear head for hessian_distance=true, got "
            f"{type(network.head).__name__}. Leave it out."
        )
    device, z = device_of(network), []
    for domain in plan.sources:
        chunks = inputs.chunks(domain, plan.outer[domain][:_MOST_COMPARED])
        z.append(torch.cat([network.features(x.to(device)) for x in chunks]))
    domains = torch.arange(len(z)).repeat_interleave(torch.tensor([len(each) for each in z]))
    logits = network.head(torch.cat(z))
    bias = network.head.bias is not None
    kept = (torch.cat(z), logits, domains.to(device))
    return float(hessian_distance(*kept, loss=plan.loss, bias=bias).max())


def _take_head(network: Network, folder: str, classes: tuple[str, ...]) -> None:
    """Give a network, in place, the head of a trained model."""
    model = load(folder)
    ours, theirs = network.head.state_dict(), model.network.head.state_dict()
    shapes = [{name: tuple(value.shape) for name, value in each.items()} for each in (ours, theirs)]
    if shapes[0] != shapes[1] or classes != model.description.classes:
        raise InputError(
            f"Expected a head for {len(classes)} classes with parameters {shapes[0]} in {folder}, "
            f"found one for {len(model.description.classes)} with {shapes[1]}. Train it on "
            "features of the same backbone, with the same classes."
        )
    network.head.load_state_dict(theirs)


def evaluation_interval(dataset: str, family: Family, steps: int) -> int:
    """Steps between evaluations: DomainBed's; of features and data of one's own a tenth of all."""
    entry = catalog_entry(dataset)
    if family == "features" or entry is None:
        return max(1, (steps - 1) // _EVALUATIONS)
    return entry.checkpoint_freq


def evaluated_parts(plan: Plan, evaluated: Evaluated) -> dict[str, tuple[int, np.ndarray]]:
    """What a run evaluates: domain and indices, by DomainBed's name of the accuracy."""
    # Selection by training domains reads the held-out parts of the training domains, the oracle
    # that of the test domain, leave-one-out the larger part of a test domain; the test accuracy is
    # that of the larger part. The larger part of a training domain is read by none.
    parts: dict[str, tuple[int, np.ndarray]] = {}
    for domain, (inner, outer) in enumerate(zip(plan.inner, plan.outer, strict=True)):
        if evaluated == "all" or domain in plan.job.test_domains:
            parts[f"env{domain}_in_acc"] = (domain, inner)
        parts[f"env{domain}_out_acc"] = (domain, outer)
    return parts


def default_backbone(input_shape: tuple[int, ...], *, resnet18: bool = False) -> str | None:
    """What makes features of inputs, as in DomainBed, unless a backbone is asked for: a name."""
    if len(input_shape) != 3:
        return None
    if input_shape[1:] == (28, 28):
        return MNIST_CNN
    return "resnet18" if resnet18 else "resnet50"
