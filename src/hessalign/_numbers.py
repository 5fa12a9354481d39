"""Numbers that users give: of the right kind, in range, and small enough to be multiplied."""

from __future__ import annotations

import math
from numbers import Integral, Real

import numpy as np
import torch
from torch import Tensor

from hessalign._errors import InputError

LARGEST_SINGLE = 1e18
"""Of float32 features: their squares, and sums of these, are finite in float32."""

LARGEST_DOUBLE = 1e75
"""Of float64 features: Hessians are compared by fourth powers of features."""


def number(value: object) -> float:
    """The value of a number.

    Returns:
        Its value; NaN, which is in no range, for what is no number, such as text or a bool.

    Example:
        >>> number(np.float32(0.5)), number(10**400), number("1"), number(True)
        (0.5, inf, nan, nan)
    """
    if isinstance(value, Tensor | np.ndarray):
        value = value.item() if value.ndim == 0 else None
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf  # type: ignore[operator] # a long int


def is_whole(value: object) -> bool:
    """Whether something is an integer; a bool is not.

    Returns:
        Whether it can count.

    Example:
        >>> is_whole(np.int64(3)), is_whole(3.0), is_whole(True), is_whole("3")
        (True, False, False, False)
    """
    return isinstance(value, Integral) and not isinstance(value, bool)


def shown(value: object) -> str:
    """A value that was not expected, to end a message with.

    Returns:
        The number; or what stands in its place, and what to do.

    Example:
        >>> shown(-1), shown("1")
        ('-1.', "'1', a str. Give a number.")
    """
    if is_whole(value) or not math.isnan(number(value)) or isinstance(value, float):
        return f"{value}."
    return f"{value!r}, a {type(value).__name__}. Give a number."


def check_not_negative(value: object, name: str) -> None:
    """Refuse what is not a finite number of 0 or more."""
    if not 0 <= number(value) < math.inf:
        raise InputError(f"Expected a finite {name} of 0 or more, got {shown(value)}")


def check_positive(value: object, name: str) -> None:
    """Refuse what is not a finite number above 0."""
    if not 0 < number(value) < math.inf:
        raise InputError(f"Expected a positive, finite {name}, got {shown(value)}")


def check_number(
    value: object,
    name: str,
    low: float = 0.0,
    high: float = math.inf,
    open_low: bool = False,
    open_high: bool = False,
) -> None:
    """A finite number in a range.

    Raises:
        InputError: If it is not.

    Example:
        >>> check_number(1.5, "tau", 0, 1)
        Traceback (most recent call last):
            ...
        hessalign._errors.InputError: Expected tau as a number of at least 0 and at most 1, got 1.5.
    """
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


def check_count(value: object, name: str, least: int | None = 1) -> None:
    """Refuse what is not a whole number, or below `least`, where there is one."""
    bound = "" if least is None else f" of {least} or more"
    if not is_whole(value):
        raise InputError(f"Expected {name} as a whole number{bound}, got {shown(value)}")
    if least is not None and number(value) < least:
        raise InputError(f"Expected {name}{bound}, got {shown(value)}")


def largest(dtype: torch.dtype) -> float:
    """The largest features whose products can be represented."""
    return LARGEST_DOUBLE if dtype == torch.float64 else LARGEST_SINGLE


def check_size(values: Tensor, what: str) -> None:
    """Features whose products can be represented.

    Raises:
        InputError: If one is so large that its products overflow.

    Example:
        >>> check_size(torch.tensor([[1.0], [3e20]], dtype=torch.float64), "features z")
        >>> try:
        ...     check_size(torch.tensor([[1.0], [3e20]]), "features z")
        ... except InputError as error:
        ...     print(str(error).split(":")[0])
        Expected features z of at most 1e+18 in size, found 3e+20 in row 1
    """
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
