"""The protocol of the IRM setup, by which the paper trains on Colored MNIST.

The setup is that of Arjovsky et al. (2019), which Hemati et al. (2023) use unchanged in sections
5.2 to 5.4: full batches, one logit, Adam, a sudden rise of the penalty's weight, the
hyper-parameters found by a search for IRM, evaluation before the update.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Final, cast, final, get_args, get_type_hints

import numpy as np
import torch
from torch import Tensor

from hessalign._errors import InputError, UnknownNameError, check_name
from hessalign._numbers import check_count, is_whole
from hessalign._protocol import LARGEST_SEED
from hessalign.alignment import distances, inner_products
from hessalign.bench.algorithms import (
    AbstractAlgorithm,
    Batch,
    PenaltySchedule,
    Setting,
    find_algorithm,
)
from hessalign.bench.algorithms.options import (
    Count,
    Distribution,
    NonNegative,
    Power,
    Range,
    Uniform,
    Value,
    Whole,
)
from hessalign.bench.algorithms.search import draw, search_space
from hessalign.bench.data import colored_mnist
from hessalign.bench.data.catalog import COLORED_MNIST, default_steps
from hessalign.bench.models import Network
from hessalign.bench.runs.averaging import VALIDATION_LOSS, AverageOptions
from hessalign.bench.runs.job import Job
from hessalign.bench.runs.loop import Evaluate, LoopConfig, LoopOptions
from hessalign.bench.runs.machine import device_of, keep_freed_memory
from hessalign.bench.runs.model_description import ColouredMlp, Loss
from hessalign.bench.runs.plan import AbstractProtocol, Evaluated, Plan
from hessalign.bench.runs.sampling import FullBatch, Inputs, Sampler
from hessalign.curvature import LinearHead, make_loss
from hessalign.curvature.linear import arranged_head

STEPS: Final = default_steps(COLORED_MNIST)
"""Updates where nothing else is asked for."""

TARGET: Final = 2
"""The domain that is tested on."""

_SCHEDULED: Final = {
    "penalty_weight": "penalty_weight",
    "anneal_steps": "jump",
    "late_lr": "learning_rate",
}
"""Options by which algorithms schedule their penalty, and those of the protocol that do so."""


@final
@dataclass(frozen=True)
class IrmOptions(LoopOptions):
    """What a run is trained with, beside `LoopOptions` and the options of its algorithm.

    The defaults are as published.

    Attributes:
        imbalance: None, or which imbalanced version: "paper" or "released".
        train_images: Images in the training pool.
        test_images: Images of the unseen domain.
        jump: Step at which the penalty weight jumps.
        penalty_weight: The weight after the jump; before it is 1.
        learning_rate: Of Adam.
        l2: Factor of the sum of squares of all parameters.
        width: Width of both hidden layers.
        evaluate_every: Steps between evaluations.
        hessian_distance: Whether to measure the distance between Hessians at evaluations.
        initial_seed: Of the network's initial weights, for runs that are to share them; None takes
            the run's own.
    """

    imbalance: colored_mnist.Imbalance | None = None
    train_images: Count = colored_mnist.TRAIN_POOL
    test_images: Count = colored_mnist.TEST_POOL
    jump: Whole = 190
    penalty_weight: NonNegative = 91257.18613115903
    learning_rate: Annotated[float, Range(0, open_low=True)] = 0.0004898536566546834
    l2: NonNegative = 0.00110794568
    width: Count = 390
    evaluate_every: Count = 10
    hessian_distance: bool = False
    initial_seed: Whole | None = None

    @property
    def loss(self) -> Loss:
        """One logit tells the two classes apart."""
        return "binary"


_USUAL: Final = IrmOptions()
_UNSAID: Final = ("initial_seed", *(each.name for each in dataclasses.fields(AverageOptions)))
"""Options that records show only where they are not the usual ones."""

SEARCH: Final[Mapping[str, Distribution]] = {
    "learning_rate": Power(10, -3.5, -2.5),
    "l2": Power(10, -5, -2),
    "jump": Uniform(50, 250, integer=True),
    "penalty_weight": Power(10, 2, 6),
}
"""Where sweeps draw from. The published values came from a search too, whose ranges are not known;
these are ours and contain them."""


@final
class Irm(AbstractProtocol):
    """The IRM setup, on Colored MNIST at 14×14 pixels."""

    def plan(self, job: Job, data_dir: Path) -> Plan:
        """Settle the options and make the data; the trial is the seed of everything."""
        if job.trial_seed > LARGEST_SEED:
            raise InputError(f"Expected a seed up to {LARGEST_SEED}, got {job.trial_seed}.")
        check_count(job.trial_seed, "seed", 0)
        steps = STEPS if job.steps is None else job.steps
        options, config = settle(job)
        images = options.imbalance, options.train_images, options.test_images
        colored_mnist.check_images(*images)
        data = colored_mnist.make_colored_mnist_domains(job.trial_seed, *images)
        values = {**dataclasses.asdict(config), **dataclasses.asdict(options)}
        for name in _UNSAID:
            if values[name] == getattr(_USUAL, name):
                del values[name]
        every = options.evaluate_every
        return Plan(job, self, data_dir, data, options, config, values, steps, every)

    def start(self, plan: Plan) -> tuple[AbstractAlgorithm, torch.Generator]:
        """The algorithm, which follows the released scripts where options do not say otherwise."""
        spec, seed, initial = self.network(plan), plan.job.trial_seed, plan.options.initial_seed
        # A source of randomness of its own for each purpose, all determined by the seed.
        generator, weights = (
            torch.Generator().manual_seed((each << 8) + stream)
            for each, stream in ((seed, 1), (seed if initial is None else initial, 2))
        )
        make, domains, shape = partial(spec.make, weights), len(plan.sources), spec.row_shape
        setting = Setting(make, 1, domains, plan.loss, plan.steps, generator, input_shape=shape)
        return plan.info.make(plan.algorithm, setting), generator

    def network(self, plan: Plan) -> ColouredMlp:
        """Two hidden layers and one logit."""
        shape = cast(Tensor, plan.data.domains[0].inputs).shape[1:]
        return ColouredMlp(tuple(shape), plan.options.width)

    def sampler(self, plan: Plan, inputs: Inputs) -> Sampler:
        """All images of the training domains at every step."""
        keep_freed_memory()
        return FullBatch(image_batch(plan, plan.inner, plan.sources))

    def loop(self, plan: Plan) -> LoopConfig:
        """Adam, the jump of the penalty's weight, evaluation before updates."""
        options = plan.options
        return LoopConfig(
            steps=plan.steps,
            learning_rate=options.learning_rate,
            loss=plan.loss,
            l2=options.l2,
            schedule=PenaltySchedule(1.0, options.penalty_weight, options.jump, rescale=True),
            evaluate_every=plan.evaluate_every,
            evaluate_before=True,
            **options.loop_options,
        )

    def evaluation(self, plan: Plan, inputs: Inputs, evaluated: Evaluated) -> Evaluate:
        """Accuracy and loss where it trains and where it does not, as the paper reports them."""
        # "train_accuracy" is the mean over training domains of that on the images trained on,
        # "test_accuracy" that on all images of the test domains.
        tested = plan.job.test_domains
        every = [np.arange(len(domain)) for domain in plan.data.domains]
        source = image_batch(plan, plan.inner, plan.sources)
        target = image_batch(plan, every, tested)
        held_out = image_batch(plan, plan.outer, plan.sources)

        def evaluate(network: Network) -> dict[str, float]:
            metrics: dict[str, float] = {}
            right = {}
            for name, batch in (("train", source), ("test", target)):
                head, right[name] = measure(network, batch)
                if head is None:
                    return {f"{name}_loss": math.nan}
                metrics[f"{name}_accuracy"] = fmean(float(each.mean()) for each in right[name])
                metrics[f"{name}_loss"] = float(head.risk.mean())
                if name == "train" and plan.options.hessian_distance:
                    products = inner_products(head, "hessian", centred=True)
                    metrics["hessian_distance"] = float(distances(products).max())
            head, right["held out"] = measure(network, held_out)
            if plan.options.average == "swad" and head is not None:
                metrics[VALIDATION_LOSS] = float(head.risk.mean())
            parts = [*zip(plan.sources, right["train"], right["held out"], strict=True)]
            for domain, part in zip(tested, right["test"], strict=True):
                parts.append((domain, part[plan.inner[domain]], part[plan.outer[domain]]))
            for domain, inner, outer in parts:
                metrics[f"env{domain}_in_acc"] = float(inner.mean())
                metrics[f"env{domain}_out_acc"] = float(outer.mean())
            return metrics

        return evaluate


def irm_job(algorithm: str, seed: int, values: Mapping[str, object]) -> Job:
    """The job of a run on Colored MNIST as published, but for steps and options of either kind.

    The same run has the same job, however it is written: values that are the protocol's own are
    left out.

    Returns:
        The job.

    Raises:
        InputError: If there is no such value, or it is of another kind.

    Example:
        >>> irm_job("hgp", 3, {"width": 390, "jump": 100, "penalty_weight": 2}).hparams
        '{"jump": 100, "penalty_weight": 2.0}'
    """
    info = find_algorithm(algorithm)
    given = dict(values)
    ours, theirs = dataclasses.asdict(IrmOptions()), dataclasses.asdict(info.config)
    for key in given:
        check_name("key", key, list(dict.fromkeys(["steps", *ours, *theirs])))
    steps = given.pop("steps", STEPS)
    if not isinstance(steps, int) or not is_whole(steps):
        raise InputError(f"Expected steps as a whole number, got {steps!r}.")
    job = Job(
        COLORED_MNIST,
        info.recorded,
        (TARGET,),
        hparams_seed=0,
        trial_seed=seed,
        data_dir="",
        steps=None if steps == STEPS else steps,
        hparams=json.dumps(given),
    )
    settle(job)  # refuses what does not fit
    hints = {**get_type_hints(type(info.config)), **get_type_hints(IrmOptions)}
    kept = {key: _as_typed(given[key], hints[key]) for key in sorted(given)}
    kept = {key: value for key, value in kept.items() if key not in ours or value != ours[key]}
    return dataclasses.replace(job, hparams=json.dumps(kept) if kept else None)


def _as_typed(value: object, hint: object) -> object:
    """A whole number as a fraction, where an option is one."""
    kinds = {hint, *get_args(hint)}
    fraction = float in kinds and int not in kinds
    return float(cast(int, value)) if fraction and is_whole(value) else value


def settle(job: Job) -> tuple[IrmOptions, Any]:
    """The options of the protocol and of the algorithm: drawn, then overridden."""
    info = find_algorithm(job.algorithm)
    ours = [each.name for each in dataclasses.fields(IrmOptions)]
    theirs = [each.name for each in dataclasses.fields(info.config) if each.name not in ours]
    given: dict[str, Value | None] = json.loads(job.hparams) if job.hparams else {}
    for key in given:
        if key in _SCHEDULED and key in theirs:
            raise InputError(
                f"Expected no option {key!r}: the protocol's own {_SCHEDULED[key]!r} decides when "
                "and how the weight of the penalty and the learning rate change."
            )
        if key not in (*ours, *theirs):
            raise UnknownNameError(f"hyper-parameter of {info.recorded}", key, [*ours, *theirs])
    drawn: dict[str, Value] = {}
    if job.hparams_seed != 0:  # the weights of penalties are left to the schedule
        space = search_space(info, "small", "domainbed-2022").items()
        fixed = {*_SCHEDULED, *info.released}
        own = {option: found for option, (_, found) in space if option not in fixed}
        drawn = draw({**SEARCH, **own}, job.hparams_seed, job.trial_seed)
    values = {**drawn, **given}
    options: dict[str, Any] = {key: values[key] for key in values if key in ours}
    rest = {key: value for key, value in values.items() if key in theirs}
    return IrmOptions(**options), info.configure({**info.released, **rest})


def image_batch(plan: Plan, rows: Sequence[np.ndarray], domains: Sequence[int]) -> Batch:
    """Some images of some domains as one batch."""
    pairs = [(plan.data.domains[each], torch.from_numpy(rows[each])) for each in domains]
    sizes = torch.tensor([len(chosen) for _, chosen in pairs])
    return Batch(
        x=torch.cat([cast(Tensor, domain.inputs)[each] for domain, each in pairs]),
        y=torch.cat([domain.labels[each] for domain, each in pairs]),
        domain=torch.arange(len(domains)).repeat_interleave(sizes),
    )


def measure(network: Network, batch: Batch) -> tuple[LinearHead | None, list[Tensor]]:
    """The head's statistics, None if logits are not finite, and which images are right (0 or 1)."""
    batch = batch.to(device_of(network))
    z = network.features(batch.x)
    logits = network.head(z)
    right = ((logits.squeeze(1) > 0) == (batch.y == 1)).double().cpu().split(batch.sizes)
    if not bool(logits.sum().isfinite()):
        return None, list(right)
    return arranged_head(z, logits, batch.y, batch.domains, make_loss("binary")), list(right)
