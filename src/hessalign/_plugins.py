"""What others bring: objects named `package.module:name`, entry points, packages to install."""

from __future__ import annotations

import importlib
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final

from hessalign._errors import MENDABLE, InputError, MissingPackageError, UnknownNameError, UserError

_PATH: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def is_path(name: str) -> bool:
    """Whether a name has the form `package.module:name`; "C:/data" and ":a" have not."""
    return _PATH.fullmatch(name) is not None


def load_object(path: str, what: str) -> Any:  # noqa: ANN401
    """An object by its name in a module, looked for as Python does and in the current folder."""
    if not is_path(path):
        raise InputError(f"Expected the {what} as 'package.module:name', got {path!r}.")
    module, _, name = path.partition(":")
    found: Any = _import(module, path, what)
    for part in name.split("."):
        if not hasattr(found, part):
            public = [each for each in dir(found) if not each.startswith("_")]
            expected = "a name that the module defines"
            raise UnknownNameError(f"{what} in {module}", name, public, expected)
        found = getattr(found, part)
    return found


def call_plugin(
    path: str, what: str, make: Callable[..., Any], *given: object, **named: object
) -> Any:  # noqa: ANN401
    """Call what a user brought; an error in it (no UserError) is told as theirs, with its place."""
    try:
        return make(*given, **named)
    except UserError:
        raise
    except Exception as error:  # the user's own code may raise anything
        raise _failure(path, what, "made", error) from error


@contextmanager
def told_as_theirs(what: str, kind: type, done: str) -> Iterator[None]:
    """Tell an error in what another's class does as theirs, with its place."""
    try:
        yield
    except MENDABLE:
        raise
    except Exception as error:  # the user's own code may raise anything
        if kind.__module__.startswith("hessalign."):
            raise
        raise _failure(f"{kind.__module__}:{kind.__qualname__}", what, done, error) from error


def find_plugin(group: str, name: str, what: str) -> Any | None:  # noqa: ANN401
    """What a user brings under a name: by its module, or by one installed package, if any."""
    if is_path(name):
        return load_object(name, what)
    found = {each.value: each for each in entry_points(group=group, name=name)}
    if len(found) > 1:
        raise InputError(
            f"Expected one package to offer {name!r} ({group}), found {', '.join(sorted(found))}. "
            "Name the one you mean in this form."
        )
    offered = group.rpartition(".")[2].removesuffix("s")
    return next((load_object(value, offered) for value in found), None)


def import_optional(module: str, lacking: str) -> Any:  # noqa: ANN401
    """A module of a package that need not be installed; `lacking` says what to do without it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingPackageError(lacking) from error


def entry_point_names(group: str) -> list[str]:
    """The names that installed packages offer, sorted."""
    return sorted(entry_points(group=group).names)


def _import(module: str, path: str, what: str) -> Any:  # noqa: ANN401
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module)
    except UserError:
        raise
    except Exception as error:  # the user's own code may raise anything
        lacks = error.name if isinstance(error, ModuleNotFoundError) else None
        if lacks is not None and f"{module}.".startswith(f"{lacks}."):
            raise InputError(
                f"Cannot find the {what} '{path}': {error}. Expected 'package.module:name', with a "
                "module that is installed or in this folder."
            ) from error
        raise _failure(path, what, "loaded", error) from error


def _failure(path: str, what: str, done: str, error: Exception) -> InputError:
    """What a user's code raised, and where; the frames of importlib and of ours tell nothing."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = ("<frozen", f"{Path(__file__).parent}{os.sep}")
    own = [frame for frame in frames if not frame.filename.startswith(ours)]
    where = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    raised = f"{type(error).__name__}: {' '.join(str(error).split())}{where}"
    return InputError(f"The {what} '{path}' cannot be {done}; it raised {raised}")
