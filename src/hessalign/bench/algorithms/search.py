"""Hyper-parameters: where they are drawn from, and what a run of the DomainBed protocol gets.

Each hyper-parameter has a source of randomness of its own, seeded with its name, so that adding one
changes no other. Hyper-parameter seed 0 stands for the defaults.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Protocol, final, get_args

import numpy as np

from hessalign._errors import InputError
from hessalign._names import UnknownNameError
from hessalign._protocol import seed_hash as seed_hash
from hessalign.bench.data.catalog import DEFAULT_STEPS, Family

if TYPE_CHECKING:
    from hessalign.bench.algorithms.registry import AlgorithmInfo

Value = bool | int | float | str
"""What a hyper-parameter can be."""

Preset = Literal["domainbed-2022", "hgp-2023"]
"""DomainBed's ranges at the commit the paper's code started from (Mixup's are the corrected ones),
or those of the paper's code: larger batches, one value for Mixup, large weights for Hutchinson."""

_LOWEST_BATCH_EXPONENT: Final[Mapping[Preset, int]] = {"domainbed-2022": 3, "hgp-2023": 4}


class Distribution(Protocol):
    """Where values of a hyper-parameter are drawn from."""

    def draw(self, random_state: np.random.RandomState) -> Value:
        """One value."""


SearchSpace = Mapping[str, Distribution | tuple[str, Distribution]]
"""For options of an algorithm: a distribution, after DomainBed's name where that is another."""


@final
@dataclass(frozen=True)
class Uniform:
    """Uniform between two bounds, in either order.

    Attributes:
        low: The bound that is included.
        high: The other bound.
        integer: Whether to cut the value to a whole number.

    Example:
        >>> Uniform(0, 5000, integer=True).draw(np.random.RandomState(0))
        2744
    """

    low: float
    high: float
    integer: bool = False

    def draw(self, random_state: np.random.RandomState) -> int | float:
        """One value."""
        value = float(random_state.uniform(self.low, self.high))
        return int(value) if self.integer else value


@final
@dataclass(frozen=True)
class Power:
    """A base to the power of a uniform exponent.

    Attributes:
        base: The base.
        low: The bound of the exponent that is included.
        high: The other bound.
        integer: Whether to cut the value to a whole number.

    Example:
        >>> Power(2, 3, 5.5, integer=True).draw(np.random.RandomState(0))
        20
    """

    base: float
    low: float
    high: float
    integer: bool = False

    def __post_init__(self) -> None:
        if self.base <= 0:
            raise InputError(f"Expected a base above 0, got {self.base}.")

    def draw(self, random_state: np.random.RandomState) -> int | float:
        """One value."""
        value = float(self.base ** random_state.uniform(self.low, self.high))
        return int(value) if self.integer else value


FEATURES_LR: Final = Power(10, -4, -2)
"""Where learning rates are drawn from for networks on frozen features."""


@final
@dataclass(frozen=True)
class Choice:
    """One of several values, all equally likely.

    Attributes:
        values: The values.

    Example:
        >>> Choice((0.0, 0.1, 0.5)).draw(np.random.RandomState(1))
        0.1
    """

    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise InputError("Expected one or more values to choose from, got none.")

    def draw(self, random_state: np.random.RandomState) -> Value:
        """One value."""
        # The index is drawn as RandomState.choice(values) draws it; the value keeps its own type.
        return self.values[random_state.choice(len(self.values))]


@final
@dataclass(frozen=True)
class Fixed:
    """Always the same value.

    Attributes:
        value: The value.
    """

    value: Value

    def draw(self, random_state: np.random.RandomState) -> Value:
        """The value."""
        return self.value


@final
@dataclass(frozen=True)
class Hyper:
    """A hyper-parameter.

    Attributes:
        default: Its value for hyper-parameter seed 0.
        search: Where other values are drawn from.
    """

    default: Value
    search: Distribution


def draw(space: Mapping[str, Distribution], hparams_seed: int, trial_seed: int) -> dict[str, Value]:
    """Random hyper-parameters; those of one seed differ between trials.

    Args:
        space: Distributions by name.
        hparams_seed: Which draw, from 1.
        trial_seed: Which trial.

    Returns:
        A value by name.

    Raises:
        InputError: If the seed is not positive.

    Example:
        >>> draw({"lr": Power(10, -5, -3.5)}, hparams_seed=1, trial_seed=0)
        {'lr': 2.7028930742148706e-05}
    """
    if hparams_seed < 1:
        raise InputError(
            f"Expected a hparams_seed of 1 or more, got {hparams_seed}; 0 stands for the defaults, "
            "see hyper_parameters."
        )
    seed = seed_hash(hparams_seed, trial_seed)
    return {
        name: distribution.draw(np.random.RandomState(seed_hash(seed, name)))
        for name, distribution in space.items()
    }


def hyper_parameters(
    space: Mapping[str, Hyper], hparams_seed: int, trial_seed: int
) -> dict[str, Value]:
    """Hyper-parameters of a run: the defaults for seed 0, else a draw.

    Args:
        space: Hyper-parameters by name.
        hparams_seed: Which draw; 0 for the defaults.
        trial_seed: Which trial.

    Returns:
        A value by name.

    Example:
        >>> space = {"lr": Hyper(5e-5, Power(10, -5, -3.5))}
        >>> hyper_parameters(space, 0, 0), hyper_parameters(space, 1, 0)
        ({'lr': 5e-05}, {'lr': 2.7028930742148706e-05})
    """
    if hparams_seed == 0:
        return {name: hyper.default for name, hyper in space.items()}
    return draw({name: hyper.search for name, hyper in space.items()}, hparams_seed, trial_seed)


def common_space(
    family: Family, algorithm: str = "ERM", preset: Preset = "domainbed-2022"
) -> dict[str, Hyper]:
    """The hyper-parameters that every algorithm has.

    Args:
        family: The kind of data set.
        algorithm: Whose; ARM alone has a batch size of its own, except on small images.
        preset: Whose ranges; "hgp-2023" draws batches of 2⁴ samples or more instead of 2³.

    Returns:
        Hyper-parameters by name.

    Raises:
        UnknownNameError: If the family or the preset is unknown.

    Example:
        >>> common_space("big")["batch_size"]
        Hyper(default=32, search=Power(base=2, low=3, high=5.5, integer=True))
    """
    if family not in get_args(Family):
        raise UnknownNameError("family of data sets", family, get_args(Family))
    if preset not in get_args(Preset):
        raise UnknownNameError("preset", preset, get_args(Preset))
    weight_decay = Fixed(0.0) if family == "small" else Power(10, -6, -2)
    return {
        "data_augmentation": Hyper(True, Fixed(True)),
        "resnet18": Hyper(False, Fixed(False)),
        "resnet_dropout": Hyper(0.0, Choice((0.0, 0.1, 0.5))),
        "class_balanced": Hyper(False, Fixed(False)),
        "nonlinear_classifier": Hyper(False, Fixed(False)),
        "lr": learning_rate(family),
        "weight_decay": Hyper(0.0, weight_decay),
        "batch_size": _batch_size(family, algorithm, _LOWEST_BATCH_EXPONENT[preset]),
    }


def learning_rate(family: Family) -> Hyper:
    """The learning rate; that for features is ours, since only a small network is trained."""
    return {
        "small": Hyper(1e-3, Power(10, -4.5, -2.5)),
        "features": Hyper(1e-3, FEATURES_LR),
    }.get(family, Hyper(5e-5, Power(10, -5, -3.5)))


def _batch_size(family: Family, algorithm: str, lowest: int) -> Hyper:
    if family == "small":
        return Hyper(64, Power(2, lowest, 9, integer=True))
    if algorithm.lower() == "arm":
        return Hyper(8, Fixed(8))
    return Hyper(32, Power(2, lowest, 5 if family == "DomainNet" else 5.5, integer=True))


_ANNEALED: Final = "anneal_steps"
"""The option that says when a penalty sets in."""


@final
@dataclass(frozen=True)
class RunHyperParameters:
    """What a run is trained with.

    Attributes:
        values: All of them, under DomainBed's names: what records show.
        options: Those that are options of the algorithm, under our names.
    """

    values: Mapping[str, Value | None]
    options: Mapping[str, Value | None]

    def number(self, name: str, default: float = 0.0) -> float:
        """A value that has to be a number, by DomainBed's name."""
        value = self.values.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"Expected {name} as a number, got {value!r}.")
        return value

    def whole(self, name: str, default: int = 0, *, least: int = 0) -> int:
        """A value that has to be a whole number of at least `least`, by DomainBed's name."""
        value = self.number(name, default)
        if not float(value).is_integer() or value < least:
            raise InputError(f"Expected {name} as a whole number of {least} or more, got {value}.")
        return int(value)

    def truth(self, name: str, default: bool = False) -> bool:
        """A value that has to be true or false, by DomainBed's name."""
        value = self.values.get(name, default)
        if not isinstance(value, bool):
            raise InputError(f"Expected {name} as true or false, got {value!r}.")
        return value


def search_space(
    info: AlgorithmInfo, family: Family, preset: Preset
) -> dict[str, tuple[str, Distribution]]:
    """Where options are drawn from, after DomainBed's name, or their own if it has none."""
    released = info.search_released if preset == "hgp-2023" else {}
    special = {"small": info.search_small, "features": info.search_features}
    space = {**info.search, **released, **special.get(family, {})}
    return {
        option: each if isinstance(each, tuple) else (option, each)
        for option, each in space.items()
    }


def run_hyper_parameters(
    info: AlgorithmInfo,
    family: Family,
    hparams_seed: int,
    trial_seed: int,
    *,
    preset: Preset = "domainbed-2022",
    steps: int = DEFAULT_STEPS,
    overrides: Mapping[str, Value | None] | None = None,
    model_keys: tuple[str, ...] = (),
) -> RunHyperParameters:
    """Draw the hyper-parameters of a run.

    Ranges for when a penalty sets in were made for 5,001 steps. On frozen features, where runs are
    shorter, it sets in after the same share of the run; elsewhere it is left as DomainBed draws it.

    Overrides are set instead of drawn. They have DomainBed's names, the options' own names, or one
    of `model_keys`, which the network is told; every algorithm takes `fidelity="domainbed"`.

    Returns:
        The hyper-parameters.

    Raises:
        UnknownNameError: If an override is none of these.
        InputError: If drawing by class is asked for.

    Example:
        >>> from hessalign.bench.algorithms import ALGORITHMS
        >>> found = run_hyper_parameters(ALGORITHMS["vrex"], "big", 0, 0, overrides={"lr": 0.1})
        >>> found.values["lr"], found.values["vrex_lambda"], found.options["penalty_weight"]
        (0.1, 10.0, 10.0)
    """
    own = search_space(info, family, preset)
    drawn: dict[str, Value | None] = dict(
        hyper_parameters(
            common_space(family, info.recorded, preset)
            | {
                name: Hyper(getattr(info.config, option), distribution)
                for option, (name, distribution) in own.items()
            },
            hparams_seed,
            trial_seed,
        )
    )
    names = {option: name for option, (name, _) in own.items()}
    if family == "features" and _ANNEALED in names:
        drawn[names[_ANNEALED]] = round(float(drawn[names[_ANNEALED]] or 0) * steps / DEFAULT_STEPS)
    fields = [each.name for each in dataclasses.fields(info.config)]
    options: dict[str, Value | None] = {}
    overrides = overrides or {}
    for key, value in overrides.items():
        if info.is_already(key, value):
            continue
        if key in drawn:
            drawn[key] = value
        elif key in names:
            drawn[names[key]] = value
        elif key in fields:
            options[key] = drawn[key] = value
        elif key in model_keys:
            drawn[key] = value
        else:
            known = [*drawn, *fields, *model_keys]
            raise UnknownNameError(f"hyper-parameter of {info.recorded}", key, known)
    options |= {option: drawn[name] for option, name in names.items() if drawn[name] is not None}
    values = {
        name: value for name, value in drawn.items() if value is not None or name in overrides
    }
    if values["class_balanced"]:
        raise InputError("Expected class_balanced as false: drawing by class is not offered.")
    return RunHyperParameters(values, options)
