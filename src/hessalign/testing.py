"""Checks for algorithms of one's own; those of the package pass the same.

In a test of yours:

    from hessalign.testing import check_algorithm

    def test_my_algorithm():
        check_algorithm(MyAlgorithm)
"""

from __future__ import annotations

import copy
import dataclasses
import io
import math
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, final
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from hessalign._errors import InputError
from hessalign.bench.algorithms import (
    AbstractAlgorithm,
    AbstractObjective,
    AlgorithmInfo,
    Batch,
    ObjectiveTerms,
    Setting,
    Step,
    find_algorithm,
)
from hessalign.bench.algorithms.options import penalty_schedule
from hessalign.bench.algorithms.registry import make_row
from hessalign.bench.algorithms.search import common_space, draw, search_space
from hessalign.bench.models import Network
from hessalign.bench.runs import FullBatch, LoopConfig
from hessalign.bench.runs.loop import measure, start_optimizers, update
from hessalign.bench.runs.run_folder import TrainingState

INPUTS: Final = 3
FEATURES: Final = 3
_OUTPUTS: Final[Mapping[str, int]] = {"cross_entropy": 3, "binary": 1, "squared": 1}
_STEPS: Final = 3


@final
class CheckFailedError(AssertionError):
    """What an algorithm does is not what it should; the message says what to do."""


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise CheckFailedError(otherwise)


@final
@dataclass(frozen=True)
class Situation:
    """What an algorithm meets: a few samples of each domain, and a small network."""

    sizes: tuple[int, ...]
    loss: str
    head: str = "linear"  # or "mlp", with a hidden layer
    one_class: tuple[int, ...] = ()  # domains in which all labels are the same
    normalized: bool = False  # whether the network has running statistics
    shape: tuple[int, ...] = (INPUTS,)
    dtype: torch.dtype = torch.float64

    def batch(self, seed: int) -> Batch:
        """Samples of all domains."""
        generator = torch.Generator().manual_seed(seed)
        domain = torch.arange(len(self.sizes)).repeat_interleave(torch.tensor(self.sizes))
        x = torch.randn(len(domain), *self.shape, generator=generator, dtype=torch.float64)
        place = domain.view(-1, *[1] * len(self.shape))
        x = (x * (1 + 0.3 * place) + 0.2 * place).to(self.dtype)
        if self.loss == "squared":
            return Batch(x, x.flatten(1).sum(1), domain)
        y = torch.randint(max(2, _OUTPUTS[self.loss]), domain.shape, generator=generator)
        for index in self.one_class:
            y[domain == index] = 1
        return Batch(x, y, domain)

    def setting(self, seed: int = 0) -> Setting:
        """What an algorithm is built for, with a seed of initial weights and of its generator."""
        weights = torch.Generator().manual_seed(seed)
        outputs = _OUTPUTS[self.loss]

        def make_network(*, extra_channels: int = 0, head_factor: int = 1) -> Network:
            with torch.random.fork_rng(devices=[]):
                inputs = (self.shape[0] + extra_channels) * math.prod(self.shape[1:])
                body = nn.Sequential(nn.Flatten(), nn.Linear(inputs, FEATURES), nn.Tanh())
                if self.normalized:
                    body.append(nn.BatchNorm1d(FEATURES))
                head: nn.Module = nn.Linear(head_factor * FEATURES, outputs)
                if self.head == "mlp":
                    hidden = nn.Linear(head_factor * FEATURES, 2)
                    head = nn.Sequential(hidden, nn.Tanh(), nn.Linear(2, outputs))
            network = Network(body, head).to(self.dtype)
            with torch.no_grad():
                for parameter in network.parameters():
                    drawn = torch.randn(parameter.shape, generator=weights, dtype=torch.float64)
                    parameter.copy_(0.7 * drawn)
            return network

        generator, domains = torch.Generator().manual_seed(seed + 1), len(self.sizes)
        return Setting(
            make_network, outputs, domains, self.loss, _STEPS, generator, input_shape=self.shape
        )


_SITUATIONS: Final[Mapping[str, Situation]] = {
    "three domains": Situation((5, 4, 7), "cross_entropy"),
    "three domains, float32": Situation((5, 4, 7), "cross_entropy", dtype=torch.float32),
    "two domains, one logit": Situation((5, 4), "binary"),
    "a domain with one class": Situation((4, 3), "cross_entropy", one_class=(0,)),
    "domains with one class each, one logit, a hidden layer in the head": Situation(
        (3, 4, 2), "binary", "mlp", one_class=(0, 2), dtype=torch.float32
    ),
    "one domain": Situation((6,), "cross_entropy"),
    "one sample": Situation((1,), "binary"),
    "one sample in each domain": Situation((1, 1), "cross_entropy", dtype=torch.float32),
    "five uneven domains": Situation((3, 2, 1, 5, 2), "binary"),
    "regression": Situation((4, 3, 5), "squared"),
    "images": Situation((3, 2), "cross_entropy", shape=(2, 3, 2), dtype=torch.float32),
}
"""What every algorithm is tried on, in words."""

_USUAL: Final = _SITUATIONS["three domains"]


@dataclass(eq=False)
class _Trial:
    """An algorithm that is trained step by step."""

    info: AlgorithmInfo
    situation: Situation = _USUAL
    options: Mapping[str, object] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        self.setting = self.situation.setting(self.seed)
        config = self.info.configure(self.options)
        self.algorithm: AbstractAlgorithm = self.info.make(config, self.setting)
        schedule = penalty_schedule(config)
        self.config = LoopConfig(2 * _STEPS, 0.01, self.situation.loss, schedule=schedule)
        self.optimizers = start_optimizers(self.algorithm, self.config)

    def step(self, number: int) -> Step:
        """What the algorithm meets at a step."""
        situation = self.situation
        return Step(self.algorithm.network, situation.batch(number), number, situation.loss)

    def train(self, *numbers: int) -> list[dict[str, float]]:
        """Take some steps; the terms of each."""
        found = []
        for number in numbers:
            terms = update(self.algorithm, self.step(number), self.optimizers, self.config)
            found.append({name: float(value) for name, value in terms.items()})
        return found

    def state(self) -> dict[str, Tensor]:
        """A copy of the algorithm's state, and that of its generator."""
        state = copy.deepcopy(self.algorithm.state_dict())
        return {**state, "its generator": self.setting.generator.get_state()}


def check_algorithm(algorithm: type[AbstractAlgorithm] | AlgorithmInfo | str) -> None:
    """Put an algorithm through everything that runs and sweeps rely on.

    The checks are in `ALGORITHM_CHECKS`, by name. It is built with its default options on a few
    samples of made-up domains, so this takes seconds.

    Args:
        algorithm: The class, a row for it, or a name that `find_algorithm` takes.

    Raises:
        CheckFailedError: With every check that failed, why, and what to do.

    Example:
        >>> from hessalign.bench.algorithms.risks import Vrex
        >>> check_algorithm(Vrex)
    """
    if isinstance(algorithm, str):
        info = find_algorithm(algorithm)
    elif isinstance(algorithm, AlgorithmInfo):
        info = algorithm
    else:
        path = [getattr(algorithm, key, "?") for key in ("__module__", "__qualname__")]
        info = make_row(":".join(path), algorithm)
    problems: list[str] = []
    told: dict[str, str] = {}  # the check that told something first
    first: BaseException | None = None
    for name, check in ALGORITHM_CHECKS.items():
        try:
            with _untouched_generators():
                check(info)
        except Exception as error:  # what is checked may raise anything
            failed = isinstance(error, CheckFailedError)
            first = first or (error.__cause__ if failed else None) or error
            what = str(error) if failed else _raised(error)
            same = told.setdefault(what, name)
            problems.append(f"{name}: {what if same == name else f'The same as {same}.'}")
    if problems:
        count = f"{len(problems)} of {len(ALGORITHM_CHECKS)} checks of {info.name} failed:"
        raise CheckFailedError("\n- ".join([count, *problems])) from first


def _raised(error: Exception) -> str:
    return f"It raised {type(error).__name__}: {error}"


def _check_that_options_can_be_recorded(info: AlgorithmInfo) -> None:
    """Defaults are plain values that can be given, and none has the name of what every run has."""
    common = common_space("big")
    for name in _options(info):
        value = getattr(info.config, name)
        _require(
            isinstance(value, bool | int | float | str | None),
            f"The option {name} is {value!r}. Records hold true or false, numbers, text and None: "
            "use one of these.",
        )
        try:
            info.configure({name: value})
        except InputError as error:
            raise CheckFailedError(
                f"The default {value!r} of {name} is refused: {error}"
            ) from error
        _require(
            name not in common,
            f"Every run has a hyper-parameter called {name}. Call the option otherwise.",
        )


def _check_that_wrong_options_are_refused(info: AlgorithmInfo) -> None:
    """A value of the wrong type, or an unknown name, is refused with the name in the message."""
    for name in [*_options(info), "no_such_option"]:
        try:
            info.configure({name: [object()]})
        except InputError as error:
            _require(
                name in str(error),
                f"A list as {name} is refused by {str(error)!r}, which does not name the option.",
            )
        else:
            raise CheckFailedError(
                f"A list as {name} is accepted. Give the field a hint that says what it can be: "
                "bool, int, float, str, Literal[...], one of these or None, or a number with a "
                "Range."
            )


def _check_that_drawn_options_are_accepted(info: AlgorithmInfo) -> None:
    """What sweeps draw from the search space are values of options that can be trained with."""
    for options in _drawn(info):
        try:
            info.configure(options)
        except InputError as error:
            raise CheckFailedError(
                f"The search space gave {options}, which is refused: {error} Change the "
                "name or the distribution, or what the option can be."
            ) from error
        if options:
            _finite_terms(_Trial(info, options=options), 0, f"{options}, of the search space")


def _options(info: AlgorithmInfo) -> list[str]:
    return [each.name for each in dataclasses.fields(info.config)]


def _drawn(info: AlgorithmInfo) -> Iterator[dict[str, object]]:
    for family in ("big", "small", "features"):
        space = search_space(info, family, "domainbed-2022")
        for seed in range(1, 6):
            values = draw(dict(space.values()), seed, 0)
            yield {option: values[name] for option, (name, _) in space.items()}


def _check_that_it_trains_anywhere(info: AlgorithmInfo) -> None:
    """In every situation it trains and everything stays finite, or its constructor refuses it."""
    for name, situation in _SITUATIONS.items():
        try:
            trial = _Trial(info, situation)
        except InputError as error:
            if situation.loss != "squared":
                raise CheckFailedError(f"It refuses to be built for {name}: {error}") from error
            continue  # it needs classes, and says so
        before = trial.state()
        for number in range(_STEPS):
            terms = _finite_terms(trial, number, name)
            _require("risk" in terms, f"What it reports has no 'risk', only {[*terms]} ({name}).")
        after = trial.state()
        _require(
            before.keys() == after.keys(),
            f"Parameters or buffers came or went in training ({name}): a checkpoint of another "
            "step does not fit. Register all of them in the constructor.",
        )
        wrong = ", ".join(key for key, value in after.items() if not bool(value.isfinite().all()))
        _require(not wrong, f"After {_STEPS} steps {wrong} is not finite ({name}).")


def _finite_terms(trial: _Trial, number: int, situation: str) -> dict[str, float]:
    """The terms of a step that is taken; what goes wrong is told with the situation."""
    try:
        (terms,) = trial.train(number)
    except Exception as error:  # what is checked may raise anything
        raise CheckFailedError(f"With {situation}: {_raised(error)}") from error
    bad = {term: value for term, value in terms.items() if not math.isfinite(value)}
    _require(
        not bad,
        f"What it reports should be finite numbers, but {bad} is not ({situation}). Guard roots "
        "and quotients against 0, and return floats.",
    )
    return terms


def _check_that_parameters_move(info: AlgorithmInfo) -> None:
    """With its default options, or else with some that are drawn, the network learns."""
    for options in ({}, *_drawn(info)):
        trial = _Trial(info, options=options)
        before = copy.deepcopy(trial.algorithm.network.state_dict())
        trial.train(*range(_STEPS))
        if _differences(before, trial.algorithm.network.state_dict()):
            return
    raise CheckFailedError(
        f"No parameter of the network changed in {_STEPS} steps. Is the loss connected to "
        "step.network, and is an optimiser asked to step?"
    )


def _check_that_its_generator_decides(info: AlgorithmInfo) -> None:
    """Randomness comes from the generator of the setting, and from nowhere else."""
    states = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        before = _global_states()
        trial = _Trial(info)
        trial.train(*range(_STEPS))
        moved = [name for name, value in _global_states().items() if value != before[name]]
        _require(
            not moved,
            f"It drew from the global generator of {' and '.join(moved)}. Draw from "
            "self.generator, and make modules of your own inside "
            "`with seeded(setting.generator)` (hessalign.bench.algorithms.auxiliary).",
        )
        states.append(trial.state())
    different = _differences(*states)
    _require(
        not different,
        f"Two runs with the same seed differ in {different}. Use no randomness but that of "
        "self.generator (nor Python's random), and nothing that depends on time or on the order "
        "of sets.",
    )


def _check_that_a_restart_changes_nothing(info: AlgorithmInfo) -> None:
    """Stopped in the middle and continued by objects of another seed, it ends at the same bits."""
    situation = dataclasses.replace(_USUAL, normalized=True)
    whole, first, second = (_Trial(info, situation, seed=seed) for seed in (0, 0, 1))
    batch = situation.batch(0)
    whole.train(*range(2 * _STEPS))
    first.train(*range(_STEPS))
    state, continued = (
        TrainingState(each.algorithm, each.optimizers, FullBatch(batch), each.setting.generator)
        for each in (first, second)
    )
    saved = io.BytesIO()
    torch.save(state.state_dict(), saved)
    saved.seek(0)
    continued.load_state_dict(torch.load(saved, weights_only=True))
    second.train(*range(_STEPS, 2 * _STEPS))
    different = _differences(whole.state(), second.state())
    _require(
        not different,
        f"A run that was stopped and continued differs from one that was not in {different}. "
        "Keep everything that changes from step to step in buffers (register_buffer) that keep the "
        "shape and type they begin with, and leave the network in train().",
    )


def _check_that_batches_stay_as_they_are(info: AlgorithmInfo) -> None:
    """Nothing is changed in place: full batches come again at every step."""
    trial = _Trial(info)
    step, given = trial.step(0), trial.situation.batch(0)
    update(trial.algorithm, step, trial.optimizers, trial.config)
    for name in ("x", "y", "domain"):
        _require(
            torch.equal(getattr(step.batch, name), getattr(given, name)),
            f"It changed {name} of the batch in place. Change a copy: step.batch.{name}.clone().",
        )


def _check_that_tensors_are_made_where_the_network_is(info: AlgorithmInfo) -> None:
    """On the "meta" device, which refuses to meet the processor, a step can be taken."""
    meta = torch.device("meta")
    trial = _Trial(info, Situation((4, 4, 4), "cross_entropy"))
    trial.algorithm.to(meta)
    optimizers = start_optimizers(trial.algorithm, trial.config)
    batch = trial.situation.batch(0).to(meta)
    step = Step(trial.algorithm.network, batch, 0, trial.situation.loss)
    readers: dict[str, Any] = {name: _reader(name) for name in _READERS}
    try:
        with mock.patch.multiple(Tensor, **readers):
            update(trial.algorithm, step, optimizers, trial.config)
    except NotImplementedError:
        return  # operations whose results depend on values do not exist there
    except RuntimeError as error:
        if "meta tensor without output_size" in str(error):
            return  # likewise
        if "device" not in str(error):
            raise
        raise CheckFailedError(
            f"On another device than the processor it fails: {error} Make tensors with "
            "device=step.z.device, or by new_zeros and the like."
        ) from error


_READERS: Final = {"__bool__": True, "__float__": 1.0, "__int__": 1, "item": 1.0}
"""What tensors of the meta device answer to whoever reads them."""


def _reader(name: str) -> Callable[..., object]:
    read = getattr(Tensor, name)
    return lambda self, *given: _READERS[name] if self.is_meta else read(self, *given)


def _check_that_the_gradient_is_that_of_the_loss(info: AlgorithmInfo) -> None:
    """Of an objective: the derivative in a random direction, against finite differences."""
    if not issubclass(info.make, AbstractObjective) or info.make.constants:
        return
    trial = _Trial(info)
    algorithm = trial.algorithm
    parameters = [each for each in algorithm.parameters() if each.requires_grad]
    source = torch.Generator().manual_seed(0)
    direction = [torch.randn(p.shape, generator=source, dtype=p.dtype) for p in parameters]
    state, drawn = copy.deepcopy(algorithm.state_dict()), trial.setting.generator.get_state()

    def loss(distance: float) -> Tensor:
        algorithm.load_state_dict(state)
        trial.setting.generator.set_state(drawn)
        with torch.no_grad():
            for parameter, way in zip(parameters, direction, strict=True):
                parameter.add_(way, alpha=distance)
        terms: ObjectiveTerms = algorithm.terms(trial.step(0))  # type: ignore[operator]
        return terms.risk if terms.penalty is None else terms.risk + terms.penalty

    gradients = torch.autograd.grad(loss(0.0), parameters, materialize_grads=True)
    slope = sum(float((g * way).sum()) for g, way in zip(gradients, direction, strict=True))
    size = 1e-5
    expected = float((loss(size) - loss(-size)).detach()) / (2 * size)
    _require(
        math.isclose(slope, expected, rel_tol=1e-4, abs_tol=1e-6),
        f"Along a random direction the loss rises by {expected:.6g}, its gradient says "
        f"{slope:.6g}. If something of the loss counts as constant on purpose, say what in the "
        "class attribute `constants`; else look for detach(), no_grad() and float().",
    )


def _check_that_evaluation_leaves_no_trace(info: AlgorithmInfo) -> None:
    """Predictions change nothing, and can be repeated."""
    situation = dataclasses.replace(_USUAL, normalized=True)
    trial = _Trial(info, situation)
    trial.train(0)
    predictions: list[Tensor] = []

    def evaluate(network: nn.Module) -> dict[str, float]:
        predictions.append(network(situation.batch(9).x))
        return {}

    network = trial.algorithm.network.train()
    before, numbers = trial.state(), _global_states()
    for _ in range(2):
        measure(network, evaluate, 0)
    different = _differences(before, trial.state())
    _require(
        not different and numbers == _global_states(),
        f"Predicting changed {different or 'a global generator'}. In eval() the network may "
        "neither draw nor keep anything.",
    )
    _require(torch.equal(*predictions), "The same batch was predicted differently a second time.")
    outputs, shape = _OUTPUTS[situation.loss], list(predictions[0].shape)
    _require(
        shape == [sum(situation.sizes), outputs],
        f"Expected one row of {outputs} logits per sample, got the shape {shape}.",
    )


def _check_that_predictions_stand_alone(info: AlgorithmInfo) -> None:
    """A prediction does not depend on what else is predicted, unless the class says so."""
    if info.make.sees_batch:
        return
    trial = _Trial(info)
    trial.train(0)
    network, x = trial.algorithm.network.eval(), trial.situation.batch(9).x
    with torch.no_grad():
        together = network(x)
        alone = torch.cat([network(each) for each in x.split(1)])
    _require(
        torch.allclose(together, alone, rtol=1e-9, atol=1e-9),
        "A sample is predicted differently alone than in a batch. If that is meant, set the class "
        "attribute `sees_batch` to True.",
    )


_PREFIX: Final = "_check_that_"

ALGORITHM_CHECKS: Final[Mapping[str, Callable[[AlgorithmInfo], None]]] = {
    name.removeprefix(_PREFIX).replace("_", " "): check
    for name, check in list(globals().items())
    if name.startswith(_PREFIX)
}
"""What `check_algorithm` checks, by name; each can be called with a row."""


def _differences(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> str:
    """The names under which two states differ."""
    return ", ".join(key for key, value in first.items() if not torch.equal(value, second[key]))


def _global_states() -> dict[str, object]:
    """Of torch and numpy; Python's own is drawn from by others too, such as checkers of types."""
    numpy_state: Any = np.random.get_state()
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": (numpy_state[1].tobytes(), numpy_state[2]),
    }


@contextmanager
def _untouched_generators() -> Iterator[None]:
    """Put the global generators back."""
    numpy_state, python_state = np.random.get_state(), random.getstate()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)
