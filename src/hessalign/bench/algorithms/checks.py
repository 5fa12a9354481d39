"""Checks of numbers in configurations, with messages that say what was expected."""

from __future__ import annotations

import math

from hessalign._errors import InputError


def check_number(
    name: str,
    value: float,
    low: float = 0.0,
    high: float = math.inf,
    *,
    open_low: bool = False,
    open_high: bool = False,
) -> None:
    """Refuse what is not a finite number in a range.

    Args:
        name: What the number is called.
        value: What was given.
        low: The least value.
        high: The greatest value.
        open_low: Whether the least value is itself refused.
        open_high: Whether the greatest value is itself refused.

    Raises:
        InputError: If it is no number, not finite or out of range.

    Example:
        >>> check_number("tau", 1.5, 0, 1)
        Traceback (most recent call last):
            ...
        hessalign._errors.InputError: Expected tau as a number of at least 0 and at most 1, got 1.5.
    """
    if (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and (value > low if open_low else value >= low)
        and (value < high if open_high else value <= high)
    ):
        return
    bounds = f"{'above' if open_low else 'of at least'} {low:g}"
    if math.isfinite(high):
        bounds += f" and {'below' if open_high else 'at most'} {high:g}"
    raise InputError(f"Expected {name} as a number {bounds}, got {value!r}.")


def check_count(name: str, value: int, low: int = 1) -> None:
    """Refuse what is not a whole number of some size.

    Args:
        name: What the number is called.
        value: What was given.
        low: The least value.

    Raises:
        InputError: If it is no whole number or too small.

    Example:
        >>> check_count("depth", 1, 2)
        Traceback (most recent call last):
            ...
        hessalign._errors.InputError: Expected depth as a whole number of 2 or more, got 1.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise InputError(f"Expected {name} as a whole number of {low} or more, got {value!r}.")
