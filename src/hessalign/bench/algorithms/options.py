"""Options of algorithms and of training, checked against the type hints of their dataclass.

A range stands in the type, so a configuration is a list of fields:

    tau: Share = 1.0
    depth: Annotated[int, Range(2)] = 3
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, final, get_args, get_origin, get_type_hints

from hessalign._errors import InputError
from hessalign._names import UnknownNameError, check_name
from hessalign._numbers import check_count, check_number


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


def check_options(kind: type, values: Mapping[str, object]) -> None:
    """Refuse values that a configuration cannot have.

    Raises:
        UnknownNameError: If it has no such field. An InputError is raised for a value that is not
            of the type, or not in the range, that its hint says.

    Example:
        >>> @dataclass(frozen=True)
        ... class Mask:
        ...     tau: Share = 1.0
        >>> check_options(Mask, {"tau": 1.5})
        Traceback (most recent call last):
            ...
        hessalign._errors.InputError: Expected tau as a number of at least 0 and at most 1, got 1.5.
    """
    known = [each.name for each in dataclasses.fields(kind)]
    hints = get_type_hints(kind, include_extras=True)
    for name, value in values.items():
        if name not in known:
            raise UnknownNameError(f"option of {kind.__name__}", name, known)
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
