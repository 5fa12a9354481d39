"""Training: one loop, top to bottom, for every algorithm."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import partial
from numbers import Real
from typing import Annotated, Any, Final, Literal, final

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from hessalign._errors import InputError, InputTypeError, UnknownNameError, check_name, some
from hessalign._plugins import call_plugin, is_path, load_object, told_as_theirs
from hessalign._processes import Interruption
from hessalign._shapes import Float
from hessalign.bench.algorithms import (
    MAIN,
    AbstractAlgorithm,
    AbstractGradientRule,
    AbstractObjective,
    AbstractStepOwner,
    DivergedError,
    ObjectiveTerms,
    OptimizerSpec,
    PenaltySchedule,
    Step,
    Terms,
)
from hessalign.bench.algorithms.kinds import REMEDY
from hessalign.bench.algorithms.options import Count, NonNegative, Range, Whole
from hessalign.bench.models import Network
from hessalign.bench.models.sharded import LostProcessError
from hessalign.bench.runs.averaging import AVERAGED, AverageOptions, Mean, averaged, install
from hessalign.bench.runs.machine import device_of
from hessalign.bench.runs.processes import agreed, check_same, follow_leader
from hessalign.bench.runs.records import Record, is_entry
from hessalign.bench.runs.run_folder import RunFolder, TrainingState
from hessalign.bench.runs.sampling import Ahead, Sampler
from hessalign.curvature.losses import LABEL_LOSSES

Evaluate = Callable[[Network], Mapping[str, float]]
"""Measures a network; called in evaluation mode and without a graph."""

_OPTIMIZERS: Final = ("adam", "adamw", "sgd")


@dataclass(frozen=True, kw_only=True)
class LoopOptions(AverageOptions):
    """What all protocols leave to users of how gradients are followed, and which average is kept.

    Attributes:
        optimizer: "adam", "adamw", "sgd", or `package.module:Name` of a class of one's own, which
            is called with parameters, `lr` and `weight_decay`.
        momentum: Of "sgd".
        lr_schedule: "constant", or "cosine" to fall to nearly 0 from the warm-up to the last step.
        warmup_steps: Steps in which the learning rate rises first.
    """

    optimizer: str = "adam"
    momentum: Annotated[float, Range(0, 1, open_high=True)] = 0.9
    lr_schedule: Literal["constant", "cosine"] = "constant"
    warmup_steps: Whole = 0

    @property
    def loop_options(self) -> dict[str, Any]:
        """These options by name, also of one who has others too."""
        return {each.name: getattr(self, each.name) for each in fields(LoopOptions)}


@final
@dataclass(frozen=True)
class LoopConfig(LoopOptions):
    """How to train; the average of `LoopOptions` is measured too, and is the network in the end.

    Attributes:
        steps: Updates of the parameters.
        learning_rate: Of the optimiser, before the schedule.
        loss: Name of the loss: "cross_entropy", "binary" or "squared".
        weight_decay: Of the optimiser.
        l2: Factor of the sum of squares of all parameters, added to the loss.
        clip: Largest norm of the gradient of all parameters; None does not limit it.
        schedule: Weight of the penalty by step.
        evaluate_every: Evaluate when the step is a multiple of this, and at the last step.
        evaluate_before: Evaluations describe the network before the update of their step, as the
            published Colored MNIST numbers do, instead of after it, as DomainBed's do.
        checkpoint_every: Write a checkpoint after so many steps; None: every half minute.

    Raises:
        InputError: If a number is out of its range, or a name is not known.
    """

    steps: Count
    learning_rate: NonNegative
    loss: str
    weight_decay: NonNegative = 0.0
    l2: float = 0.0
    clip: float | None = None
    schedule: PenaltySchedule = field(default_factory=PenaltySchedule)
    evaluate_every: int = 100
    evaluate_before: bool = False
    checkpoint_every: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_name("loss", self.loss, LABEL_LOSSES)
        if is_path(self.optimizer):
            load_object(self.optimizer, "optimizer")
        elif self.optimizer not in _OPTIMIZERS:
            known = (*_OPTIMIZERS, "package.module:Name")
            raise UnknownNameError("optimizer", self.optimizer, known)
        if self.optimizer != "sgd" and self.momentum != LoopOptions.momentum:
            raise InputError(
                f"Expected momentum with optimizer=sgd only, got momentum={self.momentum} with "
                f"{self.optimizer}, which does not take it."
            )
        if self.warmup_steps > self.steps:
            raise InputError(
                f"Expected warmup_steps of at most the {self.steps} steps of the run, got "
                f"{self.warmup_steps}."
            )
        self.make_average(self.steps)  # refuses what does not fit

    def learning_rate_factor(self, step: int) -> float:
        """What learning rates are multiplied by at a step, on which alone it depends."""
        # It rises evenly over w steps of warm-up, (t + 1) / w at step t < w. After it the factor is
        # 1, or falls as half a cosine, (1 + cos(π (t − w) / (T − w))) / 2, to nearly 0 at the end.
        warmup = self.warmup_steps
        if step < warmup:
            return (step + 1) / warmup
        if self.lr_schedule == "constant":
            return 1.0
        return (1 + math.cos(math.pi * (step - warmup) / (self.steps - warmup))) / 2


def train(
    algorithm: AbstractAlgorithm,
    sampler: Sampler,
    evaluate: Evaluate,
    config: LoopConfig,
    generator: torch.Generator,
    folder: RunFolder | None = None,
    report: Callable[[Record], None] = lambda record: None,
) -> list[Record]:
    """Train an algorithm, or continue where an earlier process stopped.

    A loss that is not finite raises `DivergedError`; Ctrl-C saves the state before it stops. Where
    an average of the iterates is asked for, it is what the network is in the end; records have what
    was measured of it under names that begin with `AVERAGED`.

    Args:
        algorithm: What to train; a module, changed in place. Batches go where its parameters are.
        sampler: The source of batches.
        evaluate: Measures the network.
        config: How to train.
        generator: The algorithm's source of randomness.
        folder: Where to keep records and checkpoints; None keeps nothing.
        report: Called with every record as it is made.

    Returns:
        One record per evaluation.

    Raises:
        KeyboardInterrupt: If it was asked to stop.
    """
    device = device_of(algorithm)
    sampler = Ahead(sampler, device)
    optimizers, average = start_optimizers(algorithm, config), config.make_average(config.steps)
    state = TrainingState(algorithm, optimizers, sampler, generator, average)
    records = follow_leader(state, [] if folder is None else folder.resume(state))
    clock, watch = time.perf_counter() - state.seconds, _Watch(device)
    with Interruption() as interruption, _naming_the_checkpoint(folder):
        for number in range(state.step, config.steps):
            if config.schedule.starts_afresh(number):
                state.optimizers = start_optimizers(algorithm, config)
            _set_learning_rates(state.optimizers, config, number)
            step = Step(algorithm.network, sampler.draw(), number, config.loss)
            due = number % config.evaluate_every == 0 or number == config.steps - 1

            metrics = None
            if due and config.evaluate_before:
                watch.check()
                metrics = _measure_both(state, evaluate, number)
            with told_as_theirs("algorithm", type(algorithm), "trained"):
                terms = update(algorithm, step, state.optimizers, config)
            sampler.fetch()
            watch.look(terms, number)
            state.advance()

            if due:
                watch.check()
                check_same(algorithm)
                metrics = metrics or _measure_both(state, evaluate, number)
                state.seconds = time.perf_counter() - clock
                values = {name: float(value) for name, value in terms.items()}
                records.append(Record(number, state.seconds, values, metrics))
                report(records[-1])
            # Asked once, so that nothing stops that is not saved, and processes stop together.
            stopping = agreed(interruption.requested)
            if folder is not None:
                if due:
                    folder.append(records)
                if stopping or folder.is_due(state, config.checkpoint_every):
                    watch.check()
                    _check_parameters(algorithm, number)
                    state.seconds = time.perf_counter() - clock
                    folder.save(state)
            if stopping:
                raise KeyboardInterrupt
        watch.check()
        _check_parameters(algorithm, config.steps - 1)
        install(algorithm.network, Mean() if average is None else average.mean(), sampler)
        if folder is not None:
            folder.finish(algorithm.network, records)
    return records


class _Watch:
    """Looks whether the terms of losses are finite, without waiting for the device that has them.

    What the first bad step had is kept there, and read when somebody asks; on the CPU, where that
    costs nothing, at once.
    """

    def __init__(self, device: torch.device) -> None:
        self.waits = device.type == "cpu"
        self.names: tuple[str, ...] = ()
        self.first = torch.full((), -1, device=device)  # the first bad step
        self.values = torch.zeros((), dtype=torch.float64, device=device)  # the terms it had

    def look(self, terms: Terms, step: int) -> None:
        """Take note of the terms of a step."""
        if self.waits:
            _check_finite("loss", {name: float(value) for name, value in terms.items()}, step)
            return
        self.names = tuple(terms)
        values = torch.stack(
            [torch.as_tensor(value, device=self.first.device).double() for value in terms.values()]
        )
        bad = (self.first < 0) & ~values.isfinite().all()
        self.first = torch.where(bad, step, self.first)
        self.values = torch.where(bad, values, self.values)

    def check(self) -> None:
        """Stop if a step had terms that are not finite."""
        step = -1 if self.waits else int(self.first)
        if step >= 0:
            values = dict(zip(self.names, self.values.tolist(), strict=True))
            _check_finite("loss", values, step)


@contextmanager
def _naming_the_checkpoint(folder: RunFolder | None) -> Iterator[None]:
    """Let a run that diverges, or loses a process, say which checkpoint was made before."""
    try:
        yield
    except (DivergedError, LostProcessError) as error:
        newest = None if folder is None else folder.newest_checkpoint()
        if newest is None:
            raise
        raise type(error)(f"{error} The checkpoint before it is {newest}.") from error


@torch.no_grad()
def measure(network: Network, evaluate: Evaluate, step: int) -> dict[str, float]:
    """Evaluate a network without leaving a trace on it; what is not finite is refused."""
    training = network.training
    network.eval()
    try:
        metrics = {name: float(value) for name, value in evaluate(network).items()}
    finally:
        network.train(training)
    _check_finite("evaluation", metrics, step)
    return metrics


def _measure_both(state: TrainingState, evaluate: Evaluate, step: int) -> dict[str, float]:
    """Evaluate the last iterate, and the average of iterates if one is kept."""
    network, average = state.algorithm.network, state.average
    metrics = measure(network, evaluate, step)
    if average is None:
        return metrics
    average.judge(metrics)
    found, mean = metrics, average.mean()
    if mean.weight:
        with averaged(network, mean, state.sampler):
            found = measure(network, evaluate, step)
    return metrics | {f"{AVERAGED}{name}": value for name, value in found.items()}


def update(
    algorithm: AbstractAlgorithm,
    step: Step,
    optimizers: Mapping[str, Optimizer],
    config: LoopConfig,
) -> Terms:
    """One update of all parameters; the terms of the loss before it."""
    if isinstance(algorithm, AbstractStepOwner):
        terms = _logged(f"{type(algorithm).__name__}.update", algorithm.update(step, optimizers))
    else:
        terms = _update_by_gradient(algorithm, step, optimizers[MAIN], config)
    if algorithm.gradient_scale is not None:
        algorithm.gradient_scale.adapt(step.number)
    return terms


def _logged(whose: str, terms: Terms, ours: Collection[str] = ()) -> Terms:
    """What is given to be logged, without its graph; only numbers under names of their own are."""
    if not isinstance(terms, Mapping):
        raise InputTypeError(f"Expected {whose} to return terms, got {terms!r}.")
    for name, value in terms.items():
        found: object = value
        if isinstance(value, Tensor) and value.numel() != 1:
            found = f"shape {list(value.shape)}"
        if not isinstance(found, Tensor | Real):
            raise InputTypeError(f"Expected {name!r} of {whose} as one number, got {found}.")
        if name in ours or is_entry(name):
            raise InputError(
                f"Expected another name than {name!r} of {whose}: records say something else by it."
            )
    return {
        name: value.detach() if isinstance(value, Tensor) else value
        for name, value in terms.items()
    }


def _update_by_gradient(
    algorithm: AbstractAlgorithm, step: Step, optimizer: Optimizer, config: LoopConfig
) -> Terms:
    """The update of an objective or a gradient rule."""
    optimizer.zero_grad()
    if isinstance(algorithm, AbstractGradientRule):
        terms = _combine_gradients(algorithm, step, config)
    elif isinstance(algorithm, AbstractObjective):
        terms = _differentiate_objective(algorithm, step, config)
    else:
        raise InputTypeError(
            "Expected an objective, a gradient rule or a step owner, got "
            f"{type(algorithm).__name__}."
        )
    if config.clip is not None:
        nn.utils.clip_grad_norm_(algorithm.parameters(), config.clip)
    optimizer.step()
    return terms


def _differentiate_objective(algorithm: AbstractObjective, step: Step, config: LoopConfig) -> Terms:
    """Leave the gradient of an objective's loss in the parameters; the terms of the loss."""
    # The loss is (risk + l2 ‖θ‖² + weight · penalty) / divisor, the last three of the schedule;
    # without a penalty nothing is divided.
    terms = algorithm.terms(step)
    if not isinstance(terms, ObjectiveTerms):
        raise InputTypeError(
            f"Expected {type(algorithm).__name__}.terms to return ObjectiveTerms, got "
            f"{type(terms).__name__}."
        )
    loss = terms.risk
    if config.l2:
        loss = loss + config.l2 * _sum_of_squares(algorithm)
    whose = f"the parts of {type(algorithm).__name__}.terms"
    parts = _logged(whose, terms.parts, ours=("risk", "penalty", "loss"))
    values = {"risk": terms.risk}
    if terms.penalty is not None:
        loss = loss + config.schedule.weight(step.number) * terms.penalty
        loss = loss / config.schedule.divisor(step.number)
        values["penalty"] = terms.penalty
    loss.backward()
    values["loss"] = loss
    return {**parts, **{name: value.detach() for name, value in values.items()}}


def _combine_gradients(algorithm: AbstractGradientRule, step: Step, config: LoopConfig) -> Terms:
    """Leave a gradient rule's combination of the domains' gradients in the parameters."""
    parameters = [each for each in algorithm.network.parameters() if each.requires_grad]
    risk = step.statistics.risk
    each = [torch.autograd.grad(value, parameters, retain_graph=True) for value in risk]
    stacked = [torch.stack(grads) for grads in zip(*each, strict=True)]
    combined = list(algorithm.combine(stacked) or ())
    shapes = [tuple(parameter.shape) for parameter in parameters]
    found = [tuple(gradient.shape) for gradient in combined]
    if found != shapes:
        raise InputTypeError(
            f"Expected {type(algorithm).__name__}.combine to return one gradient for each "
            f"parameter, of shapes {some(shapes, 4)}, got {some(found, 4) or 'none'}."
        )
    for parameter, gradient in zip(parameters, combined, strict=True):
        parameter.grad = gradient + 2 * config.l2 * parameter.detach()
    mean = risk.detach().mean().double()
    return {"risk": mean, "loss": mean + config.l2 * _sum_of_squares(algorithm).detach().double()}


def start_optimizers(algorithm: AbstractAlgorithm, config: LoopConfig) -> dict[str, Optimizer]:
    """New optimisers, by name; a part without parameters has none."""
    specs: Mapping[str, OptimizerSpec] = {MAIN: OptimizerSpec(algorithm.parameters())}
    if isinstance(algorithm, AbstractStepOwner):
        specs = algorithm.optimizers()
    made = {name: _make_optimizer(spec, config) for name, spec in specs.items()}
    optimizers = {name: optimizer for name, optimizer in made.items() if optimizer is not None}
    if isinstance(algorithm, AbstractStepOwner):  # its losses know neither l2 nor a limit
        for optimizer in optimizers.values():
            optimizer.register_step_pre_hook(partial(_regularize, config))
    if algorithm.gradient_scale is not None:
        for optimizer in optimizers.values():
            algorithm.gradient_scale.watch(optimizer)
    return optimizers


def _set_learning_rates(optimizers: Mapping[str, Optimizer], config: LoopConfig, step: int) -> None:
    """Give every optimiser the rate it was made with, or the schedule's, times the factor."""
    factor, late = config.learning_rate_factor(step), config.schedule.learning_rate(step)
    for optimizer in optimizers.values():
        for group in optimizer.param_groups:
            group["lr"] = (optimizer.defaults["lr"] if late is None else late) * factor


def _make_optimizer(spec: OptimizerSpec, config: LoopConfig) -> Optimizer | None:
    path, parameters = config.optimizer, list(spec.parameters)
    lr = config.learning_rate if spec.learning_rate is None else spec.learning_rate
    lr *= spec.rate_factor
    decay = config.weight_decay if spec.weight_decay is None else spec.weight_decay
    if not parameters:
        return None
    if path == "sgd":
        return SGD(parameters, lr, config.momentum, weight_decay=decay)
    if path in _OPTIMIZERS:
        kind = Adam if path == "adam" else AdamW
        return kind(parameters, lr, spec.betas, weight_decay=decay)
    own = load_object(path, "optimizer")
    made = call_plugin(path, "optimizer", own, parameters, lr=lr, weight_decay=decay)
    if not isinstance(made, Optimizer):
        raise InputError(
            f"Expected {path!r} to make an optimiser, a torch.optim.Optimizer, got "
            f"{type(made).__name__}."
        )
    return made


def _regularize(config: LoopConfig, optimizer: Optimizer, *_: object) -> None:
    """Before a step of an optimiser, add the loop's l2 term to the gradient and limit its norm."""
    groups = optimizer.param_groups
    moved = [each for group in groups for each in group["params"] if each.grad is not None]
    if config.l2:
        for parameter in moved:
            parameter.grad += 2 * config.l2 * parameter.detach()
    if config.clip is not None:
        nn.utils.clip_grad_norm_(moved, config.clip)


def _sum_of_squares(module: nn.Module) -> Float[Tensor, ""]:
    """Squared norm of all parameters."""
    return torch.stack([parameter.square().sum() for parameter in module.parameters()]).sum()


def _check_finite(what: str, values: Mapping[str, float], step: int) -> None:
    """Stop a run whose numbers are no longer finite, and say which went bad."""
    bad = [f"{name} = {value}" for name, value in values.items() if not math.isfinite(value)]
    if bad:
        raise DivergedError(f"The {what} is not finite at step {step}: {', '.join(bad)}. {REMEDY}")


def _check_parameters(algorithm: AbstractAlgorithm, step: int) -> None:
    """Refuse parameters that are not finite: a finite loss may have a gradient that is not."""
    bad = [name for name, each in algorithm.named_parameters() if not bool(each.isfinite().all())]
    if bad:
        raise DivergedError(
            f"The update of step {step} or one shortly before made parameters that are not finite: "
            f"{', '.join(bad)}. {REMEDY}"
        )
