"""The errors that users can mend, and names in their messages; any other error is a bug."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Final, TypeVar, final

_Returned = TypeVar("_Returned")


class UserError(Exception):
    """What was given is not what was expected; the message says what to do.

    The command line shows the message alone. Errors of the operating system, such as a full disk,
    are shown so too; every other error is a bug, and its traceback is kept.
    """


class InputError(UserError, ValueError):
    """A value that cannot be used."""


class InputTypeError(UserError, TypeError):
    """A value of a kind that cannot be used."""


class MissingPackageError(UserError, ImportError):
    """A package that is not installed, or is not what it should be."""


@final
class ConfigurationError(InputError):
    """Everything that is wrong with a configuration, a line each."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = list(dict.fromkeys(problems))
        count = f"{len(self.problems)} problem{'s' if len(self.problems) > 1 else ''}"
        super().__init__("\n- ".join([f"{count} in the configuration:", *self.problems]))

    def __reduce__(self) -> tuple[type[ConfigurationError], tuple[list[str]]]:
        return ConfigurationError, (self.problems,)


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


Warn = Callable[[str], None]
"""Told what users should know but need not act on."""

MENDABLE: Final = (UserError, OSError)  # what users can mend
BUG: Final = "unexpected "  # how the description of a bug begins

_MAKE_ROOM: Final = "Make room, then give the same command again."
_PERMISSIONS: Final = "Change who may use it, or choose another place."
_REMEDIES: Final[Mapping[int, str]] = {
    errno.EROFS: "Choose another place, on a file system that can be written to.",
    errno.ENOSPC: _MAKE_ROOM,
    errno.EDQUOT: _MAKE_ROOM,
    errno.EACCES: _PERMISSIONS,
    errno.EPERM: _PERMISSIONS,
    errno.ENOENT: "Check the path: nothing is there.",
    errno.ENOTDIR: "Check the path: a part of it is a file, not a folder.",
    errno.EISDIR: "Check the path: a file was expected there.",
    errno.EEXIST: "Choose another place, or remove what is there.",
    errno.EMFILE: "Let processes open more files (ulimit -n), or use fewer processes.",
    errno.ENOMEM: "Use fewer processes, or less data at a time.",
    errno.EIO: "The disk cannot be read or written there: copy the file from elsewhere.",
}


def attempt(
    problems: list[str], read: Callable[..., _Returned], *arguments: object
) -> _Returned | None:
    """Do something; None if users can mend why it is refused, which is added to `problems`."""
    try:
        return read(*arguments)
    except ConfigurationError as error:
        problems += error.problems
    except MENDABLE as error:
        problems.append(describe_error(error))
    return None


def describe_error(error: BaseException) -> str:
    """An error as users should read it.

    Returns:
        What to mend, if they can, with its file and what to do if it is the operating system's.

    Example:
        >>> describe_error(OSError(errno.ENOSPC, "No space left on device", "runs/model.pt"))
        'runs/model.pt: No space left on device. Make room, then give the same command again.'
        >>> describe_error(KeyError("steps"))
        "unexpected KeyError: 'steps'"
    """
    if isinstance(error, OSError) and error.errno is not None and error.strerror:
        files = [str(name) for name in (error.filename, error.filename2) if name is not None]
        parts = [" → ".join(files)] if files else []
        remedy = _REMEDIES.get(error.errno, "")
        return f"{': '.join([*parts, error.strerror])}. {remedy}".rstrip()
    if isinstance(error, MENDABLE):
        return str(error) or type(error).__name__
    return f"{BUG}{type(error).__name__}: {' '.join(str(error).split())}"


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
