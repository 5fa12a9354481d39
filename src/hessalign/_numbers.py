"""Numbers that users give: of the right kind, in range, and small enough to be multiplied."""

from __future__ import annotations

import math
from numbers import Integral, Real

import numpy as np
import torch
from torch import Tensor

from hessalign._errors import InputError


def number(value: object) -> float:
    """The value of a number; NaN, which is in no range, for what is none, as text or a bool."""
    if isinstance(value, Tensor | np.ndarray):
        value = value.item() if value.ndim == 0 else None
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf  # type: ignore[operator] # a long int


def finite(value: object) -> float | None:
    """The value of a finite number; None for anything else."""
    found = number(value)
    return found if math.isfinite(found) else None


def is_whole(value: object) -> bool:
    """Whether something is an integer, of Python or numpy; a bool is not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def shown(value: object) -> str:
    """How a message about an unexpected value ends: '-1.', or "'1', a str. Give a number."."""
    if is_whole(value) or not math.isnan(number(value)) or isinstance(value, float):
        return f"{value}."
    return f"{value!r}, a {type(value).__name__}. Give a number."


HUGE = 1e30
"""Weights, tolerances and radii above this are refused as if infinite: their products overflow."""


def check_not_negative(value: object, name: str) -> None:
    """Refuse what is not a finite number of 0 or more."""
    if not 0 <= number(value) <= HUGE:
        raise InputError(f"Expected a finite {name} of 0 or more, got {shown(value)}")


def check_positive(value: object, name: str) -> None:
    """Refuse what is not a finite number above 0."""
    if not 0 < number(value) <= HUGE:
        raise InputError(f"Expected a positive, finite {name}, got {shown(value)}")


def check_number(
    value: object,
    name: str,
    low: float = 0.0,
    high: float = math.inf,
    open_low: bool = False,
    open_high: bool = False,
) -> None:
    """Refuse what is not a finite number in a range."""
    found = number(value)
    above = found > low if open_low else found >= low
    below = found < high if open_high else found <= high
    if above and below and math.isfinite(found):
        return
    expected = "a finite number"
    if math.isfinite(high):
        least = f"{'above' if open_low else 'of at least'} {low:g}"
        expected = f"a number {least} and {'below' if open_high else 'at most'} {high:g}"
    elif math.isfinite(low):
        expected += f" above {low:g}" if open_low else f" of {low:g} or more"
    raise InputError(f"Expected {name} as {expected}, got {shown(value)}")


def check_count(value: object, name: str, least: int | None = 1, most: float = math.inf) -> None:
    """Refuse what is not a whole number, or below `least`, where there is one, or above `most`."""
    upto = "or more" if most == math.inf else f"to {most:,}"
    bound = "" if least is None else f" of {least} {upto}"
    if not is_whole(value):
        raise InputError(f"Expected {name} as a whole number{bound}, got {shown(value)}")
    if least is not None and not least <= number(value) <= most:
        raise InputError(f"Expected {name}{bound}, got {shown(value)}")


def largest(dtype: torch.dtype) -> float:
    """The largest features whose products can be represented."""
    # In float32 their squares, and sums of these, are finite; in float64 their fourth powers, by
    # which Hessians are compared.
    return 1e75 if dtype == torch.float64 else 1e18


def check_size(values: Tensor, what: str) -> None:
    """Refuse features so large that their products overflow."""
    limit = largest(values.dtype)
    rows = values.detach().abs().flatten(1).amax(1)
    if bool((rows <= limit).all()):
        return
    row = int((rows > limit).int().argmax())
    raise InputError(
        f"Expected {what} of at most {limit:g} in size, found {float(rows[row]):.3g} in row {row}: "
        "products of such numbers overflow. Look for wrong units or codes for missing values "
        "there, or scale the features, for example to mean 0 and variance 1."
    )
