"""What a target says of an input, and what is a finding."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from hessalign._errors import MENDABLE

ACCEPTED, REFUSED = "accepted", "refused"

Attempt = Callable[[random.Random], str]


class FindingError(AssertionError):
    """What a reader or a function must not do."""


def judged(read: Callable[[], Any], check: Callable[[Any], None]) -> str:
    """Refused with an error that users can mend, or accepted and checked."""
    try:
        found = read()
    except MENDABLE:
        return REFUSED
    check(found)
    return ACCEPTED


def same(found: object, expected: object, what: str) -> None:
    """Raise where something was read that is not there."""
    if found != expected:
        raise FindingError(f"{what}: read {str(found)[:200]}, expected {str(expected)[:200]}")


def independent(read: Callable[[], Any], what: str) -> Any:
    """What an independent reader finds; it must not refuse what was accepted."""
    try:
        return read()
    except Exception as error:
        raise FindingError(f"accepted {what}, which another reader refuses: {error}") from error
