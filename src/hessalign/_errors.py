"""The errors that users can mend; anything else that is raised is a bug."""

from __future__ import annotations


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
