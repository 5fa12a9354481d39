"""What users bring themselves: objects named `package.module:name`, and entry points."""

from __future__ import annotations

import importlib
import os
import re
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final

from hessalign._errors import InputError, UserError
from hessalign._names import UnknownNameError

_PATH: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def is_path(name: str) -> bool:
    """Whether a name says in which module something is, and what it is called there.

    Returns:
        Whether it has the form `package.module:name`.

    Example:
        >>> [is_path(name) for name in ("lab.nets:small", "nets:Net.tiny", "PACS", "C:/data", ":a")]
        [True, True, False, False, False]
    """
    return _PATH.fullmatch(name) is not None


def load_object(path: str, what: str) -> Any:  # noqa: ANN401
    """An object by the module it is in and its name there.

    The module is looked for as Python does, and in the current folder.

    Returns:
        The object.

    Raises:
        InputError: If the path is of another form, the module is not found or cannot be imported.
        UnknownNameError: If the module has nothing of that name.

    Example:
        >>> load_object("math:pi", "number")
        3.141592653589793
        >>> load_object("math:sqr", "function")
        Traceback (most recent call last):
        hessalign._names.UnknownNameError: Unknown function in math 'sqr'. Expected a name that \
the module defines. Did you mean 'sqrt'?
    """
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
        raise InputError(_failure(path, what, "made", error)) from error


def find_entry_point(group: str, name: str) -> Any | None:  # noqa: ANN401
    """What an installed package offers under a name; None if none does. Two are refused."""
    found = {each.value: each for each in entry_points(group=group, name=name)}
    if len(found) > 1:
        raise InputError(
            f"Expected one package to offer {name!r} ({group}), found {', '.join(sorted(found))}. "
            "Name the one you mean in this form."
        )
    what = group.rpartition(".")[2].removesuffix("s")
    return next((load_object(value, what) for value in found), None)


def find_plugin(group: str, name: str, what: str) -> Any | None:  # noqa: ANN401
    """What a user brings under a name: by its module, or by an installed package, if any."""
    return load_object(name, what) if is_path(name) else find_entry_point(group, name)


def entry_point_names(group: str) -> list[str]:
    """The names that installed packages offer.

    Returns:
        The names, sorted.

    Example:
        >>> entry_point_names("hessalign.nothing")
        []
    """
    return sorted(entry_points(group=group).names)


def _import(module: str, path: str, what: str) -> Any:  # noqa: ANN401
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module)
    except UserError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            raise InputError(
                f"Cannot find the {what} '{path}': {error}. Expected 'package.module:name', with a "
                "module that is installed or in this folder."
            ) from error
        raise InputError(_failure(path, what, "loaded", error)) from error
    except Exception as error:  # the user's own code may raise anything
        raise InputError(_failure(path, what, "loaded", error)) from error


def _failure(path: str, what: str, done: str, error: Exception) -> str:
    """What a user's code raised, and where; the frames of importlib and of ours tell nothing."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _is_ours(frame.filename)]
    where = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    text = " ".join(str(error).split())
    return f"The {what} '{path}' cannot be {done}; it raised {type(error).__name__}: {text}{where}"


def _is_ours(file: str) -> bool:
    return file.startswith("<frozen") or Path(file).is_relative_to(Path(__file__).parent)
