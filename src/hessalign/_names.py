"""Names in messages: the error for an unknown one, with the nearest that is valid, and lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import final

from hessalign._errors import InputError


@final
class UnknownNameError(InputError):
    """A name that is not one of the valid ones, which `summary` describes if there are too many."""

    def __init__(
        self, what: str, name: object, valid: Iterable[object], summary: str | None = None
    ) -> None:
        names = list(valid)
        expected = summary or f"one of: {', '.join(map(repr, names))}"
        super().__init__(
            f"Unknown {what} {name!r}. Expected {expected}.{did_you_mean(name, names)}"
        )
        self._arguments = (what, name, names, summary)

    def __reduce__(self) -> tuple[type[UnknownNameError], tuple[object, ...]]:
        return UnknownNameError, self._arguments


def did_you_mean(name: object, valid: Iterable[object]) -> str:
    """A question after the nearest of some names, with a space before it; empty if none is near."""
    spelled = {str(each).lower(): each for each in valid}
    nearest = get_close_matches(str(name).lower(), spelled, n=1)
    return f" Did you mean {spelled[nearest[0]]!r}?" if nearest else ""


def check_name(what: str, name: object, valid: Iterable[object]) -> None:
    """Refuse a name that is not one of the valid ones."""
    if name not in (names := list(valid)):
        raise UnknownNameError(what, name, names)


def some(names: Sequence[object], shown: int) -> str:
    """The first of some names, and how many more there are."""
    more = len(names) - shown
    return ", ".join(map(str, names[:shown])) + (f" and {more:,} more" if more > 0 else "")
