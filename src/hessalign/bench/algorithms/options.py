"""Options of algorithms and of training: what they can be, and where sweeps draw them from.

They are checked against the type hints of their dataclass. A range stands in the type, so a
configuration is a list of fields:

    tau: Share = 1.0
    depth: Annotated[int, Range(2)] = 3
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NamedTuple,
    Protocol,
    Union,
    final,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np

from hessalign._errors import InputError, check_name
from hessalign._numbers import check_count, check_number

Fidelity = Literal["paper", "domainbed"]
"""Which implementation a method follows: its paper, or DomainBed where that deviates."""


@final
@dataclass(frozen=True)
class Range:
    """The values that a number may have; they have to be finite in any case.

    Attributes:
        low: The least value.
        high: The greatest value, for numbers that need not be whole.
        open_low: Whether the least value is itself refused.
        open_high: Whether the greatest value is itself refused.
    """

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False


NonNegative = Annotated[float, Range(0)]
Share = Annotated[float, Range(0, 1)]
Whole = Annotated[int, Range(0)]
Count = Annotated[int, Range(1)]


def check_options(kind: type, values: Mapping[str, object], whose: str = "") -> None:
    """Refuse what a configuration has no field for, or what the hint of a field does not allow."""
    known = [each.name for each in dataclasses.fields(kind)]
    for name in values:
        check_name(f"option of {whose or kind.__name__}", name, known)
    hints = get_type_hints(kind, include_extras=True)
    for name, value in values.items():
        _check(name, value, hints[name])


class Options:
    """The base of configurations: frozen dataclasses that refuse values their hints do not allow.

    Example:
        >>> @dataclass(frozen=True)
        ... class Mask(Options):
        ...     tau: Share = 1.0
        >>> Mask(tau="half")
        Traceback (most recent call last):
            ...
        hessalign._errors.InputError: Expected tau as a number of at least 0 and at most 1, got \
'half', a str. Give a number.
    """

    def __post_init__(self) -> None:
        check_options(type(self), vars(self))


def _check(name: str, value: object, hint: Any, allowed: Range | None = None) -> None:  # noqa: ANN401
    """Refuse a value that is not of a type; hints that are no plain types let everything pass."""
    kind, parts = get_origin(hint), get_args(hint)
    if kind is Annotated:
        ranges = [each for each in parts[1:] if isinstance(each, Range)]
        _check(name, value, parts[0], *ranges[:1])
    elif kind in {Union, types.UnionType}:
        _check_union(name, value, parts)
    elif kind is Literal:
        check_name(name, value, parts)
    elif hint is float:
        check_number(value, name, *dataclasses.astuple(allowed or Range()))
    elif hint is int:
        least = -math.inf if allowed is None else allowed.low
        check_count(value, name, None if least == -math.inf else int(least))
    elif hint is not Any and isinstance(kind or hint, type) and not isinstance(value, kind or hint):
        expected = {bool: "true or false", str: "text"}.get(hint, f"a {hint}")
        raise InputError(f"Expected {name} as {expected}, got {value!r}.")


def _check_union(name: str, value: object, parts: tuple[Any, ...]) -> None:
    """Refuse a value that is of none of some types, as the first of them does."""
    if value is None and types.NoneType in parts:
        return
    errors = []
    for part in parts:
        if part is types.NoneType:
            continue
        try:
            return _check(name, value, part)
        except InputError as error:
            errors.append(error)
    raise errors[0]


# ------------------------------------------------------------------------- the weight of a penalty


@final
@dataclass(frozen=True)
class PenaltySchedule(Options):
    """One weight first, then suddenly another.

    Attributes:
        before: The weight before the jump.
        after: The weight from step `jump` on.
        jump: The step at which it changes.
        rescale: Divide the whole loss by the weight where that is above 1, so that gradients stay
            in a usual range (the IRM setup of Colored MNIST).
        reset: Start the optimiser afresh at the jump, because its averages of past gradients
            belong to another loss (DomainBed).
        resets: Further steps at which it starts afresh, where a second weight jumps.
        rate: The learning rate from the jump on; None leaves it as it is.

    Example:
        >>> schedule = PenaltySchedule(before=1.0, after=100.0, jump=190, rescale=True)
        >>> schedule.weight(189), schedule.weight(190), schedule.divisor(190)
        (1.0, 100.0, 100.0)
    """

    before: NonNegative = 1.0
    after: NonNegative = 1.0
    jump: Whole = 0
    rescale: bool = False
    reset: bool = False
    resets: tuple[int, ...] = ()
    rate: NonNegative | None = None

    def weight(self, step: int) -> float:
        """The weight of the penalty at a step, from 0."""
        return self.after if step >= self.jump else self.before

    def divisor(self, step: int) -> float:
        """What the whole loss is divided by: a weight above 1, if it is rescaled, else 1."""
        return max(1.0, self.weight(step)) if self.rescale else 1.0

    def starts_afresh(self, step: int) -> bool:
        """Whether the optimiser is reset before this step; a jump at step 0 needs no reset."""
        return step > 0 and ((self.reset and step == self.jump) or step in self.resets)

    def learning_rate(self, step: int) -> float | None:
        """What stands in for the loop's learning rate at a step; None if nothing does."""
        return self.rate if step >= self.jump else None


def penalty_schedule(config: object) -> PenaltySchedule:
    """The schedule that a configuration asks for; the weight 1 throughout if it has none."""
    schedule: PenaltySchedule = getattr(config, "schedule", PenaltySchedule())
    return schedule


@dataclass(frozen=True)
class PenaltyOptions(Options):
    """A penalty with one weight throughout."""

    penalty_weight: NonNegative = 1.0

    @property
    def schedule(self) -> PenaltySchedule:
        """How the weight of the penalty changes."""
        return PenaltySchedule(after=self.penalty_weight)


@final
@dataclass(frozen=True)
class PenaltyFidelity(PenaltyOptions):
    """A penalty with one weight throughout, as in its paper or in DomainBed."""

    fidelity: Fidelity = "paper"


@dataclass(frozen=True)
class AnnealedOptions(PenaltyOptions):
    """A penalty with the weight `before` for `anneal_steps` steps, then with `penalty_weight`."""

    before = 1.0  # no option: it is not annotated
    anneal_steps: Whole = 500

    @property
    def schedule(self) -> PenaltySchedule:
        """How the weight of the penalty changes."""
        return PenaltySchedule(self.before, self.penalty_weight, self.anneal_steps, reset=True)


# ------------------------------------------------------------------------------------ distributions

Value = bool | int | float | str
"""What a hyper-parameter can be."""


class Distribution(Protocol):
    """Where values of a hyper-parameter are drawn from."""

    def draw(self, random_state: np.random.RandomState) -> Value:
        """One value."""


class Hyper(NamedTuple):
    """A hyper-parameter: its value for hyper-parameter seed 0, and where others are drawn from."""

    default: Value
    search: Distribution


SearchSpace = Mapping[str, Distribution | tuple[str, Distribution]]
"""For options of an algorithm: a distribution, after DomainBed's name where that is another."""


_WHOLE: Final = ", whole"


@final
@dataclass(frozen=True)
class Uniform:
    """Uniform from `low`, which is included, to `high`, in either order; `integer` cuts the value.

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

    def __str__(self) -> str:
        low, high = sorted((self.low, self.high))
        return f"{low:g} to {high:g}{_WHOLE * self.integer}"


@final
@dataclass(frozen=True)
class Power:
    """A base to the power of a uniform exponent, whose bounds are as those of `Uniform`.

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

    def __str__(self) -> str:
        low, high = sorted((self.low, self.high))
        return f"{self.base:g}^{low:g} to {self.base:g}^{high:g}{_WHOLE * self.integer}"


@final
@dataclass(frozen=True)
class Choice:
    """One of several values, all equally likely.

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

    def __str__(self) -> str:
        return "one of " + ", ".join(map(str, self.values))


@final
@dataclass(frozen=True)
class Fixed:
    """Always the same value."""

    value: Value

    def draw(self, random_state: np.random.RandomState) -> Value:
        """The value."""
        return self.value

    def __str__(self) -> str:
        return f"always {self.value}"


FEATURES_LR: Final = Power(10, -4, -2)
"""Where learning rates are drawn from for networks on frozen features."""
