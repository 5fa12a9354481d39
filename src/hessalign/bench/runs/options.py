"""Options from files and `key=value` words, checked by their types: all errors at once."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from hessalign._errors import ConfigurationError, InputError
from hessalign._names import UnknownNameError

Options = TypeVar("Options")


def read_file(path: Path) -> dict[str, object]:
    """The entries of a YAML file, by key.

    Args:
        path: The file.

    Returns:
        Values by key.

    Raises:
        ConfigurationError: If the file cannot be read, is not YAML, or holds no mapping.
    """
    try:
        entries = _yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError([f"Cannot read {path}: {error.strerror}."]) from error
    except (InputError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigurationError([f"Expected YAML in {path}: {reason}."]) from error
    if not isinstance(entries, dict) or not all(isinstance(key, str) for key in entries):
        raise ConfigurationError([f"Expected `key: value` lines in {path}, got {entries!r:.60}."])
    return {key: _plain(value) for key, value in entries.items()}


def parse_words(words: Iterable[str]) -> dict[str, object]:
    """Entries from `key=value` words, values written as in YAML.

    Args:
        words: The words.

    Returns:
        Values by key.

    Raises:
        ConfigurationError: If a word has no `=`, its value is not YAML, or a key comes twice.

    Example:
        >>> parse_words(["probes=100", "lr=1e-3", "shared_probes=true", "hessian=none"])
        {'probes': 100, 'lr': 0.001, 'shared_probes': True, 'hessian': None}
    """
    entries: dict[str, object] = {}
    problems = []
    for word in words:
        key, equals, text = word.partition("=")
        if not equals:
            problems.append(f"Expected KEY=VALUE, got {word!r}.")
            continue
        if key in entries:
            problems.append(f"Expected each key once, got {key!r} twice.")
        try:
            value = _yaml(text)
        except InputError:
            problems.append(f"Expected a value after {key}=, got {text!r}.")
            continue
        entries[key] = _plain(value)
    if problems:
        raise ConfigurationError(problems)
    return entries


def _yaml(text: str) -> object:
    import yaml

    try:
        return yaml.safe_load(text)
    except Exception as error:  # values such as 2020-99-99 make its readers stumble in any way
        raise InputError(str(error)) from error


def _plain(value: object) -> object:
    """A value as people mean it: YAML 1.1 takes 1e-3, which has no point, and none for text."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if not isinstance(value, str):
        return value
    if value == "none":
        return None
    try:
        return float(value)
    except ValueError:
        return value


def make_options(default: Options, values: Mapping[str, object], what: str) -> Options:
    """Options of a dataclass whose values have the types that it declares.

    Args:
        default: The options that hold where nothing else is asked for.
        values: What is asked for, by name; whole numbers serve as fractions.
        what: What the options are those of, for messages.

    Returns:
        The options.

    Raises:
        UnknownNameError: If there is no such option; an InputError, as is one about a value of
            another type, or one that the options themselves refuse.
        ConfigurationError: With everything that is wrong, if it is more than one thing.
    """
    hints = get_type_hints(type(default))
    problems: list[InputError] = []
    fields: dict[str, object] = {}
    for key, value in values.items():
        try:
            if key not in hints:
                raise UnknownNameError(f"option of {what}", key, hints)
            _check_type(key, value, hints[key])
            fields[key] = float(value) if hints[key] is float else value  # type: ignore[arg-type]
            _replaced(default, {key: fields[key]})
        except InputError as error:
            problems.append(error)
    if not problems:
        return _replaced(default, fields)
    if len(problems) == 1:
        raise problems[0]
    raise ConfigurationError(map(str, problems))


def _replaced(default: Options, fields: Mapping[str, object]) -> Options:
    return dataclasses.replace(default, **fields)  # type: ignore[type-var]


def _check_type(key: str, value: object, hint: Any) -> None:  # noqa: ANN401
    """Refuse a value of another type; unknown names are left to the options themselves."""
    parts = get_args(hint) if get_origin(hint) in {Union, types.UnionType} else (hint,)
    if not any(_is_a(value, part) for part in parts):
        expected = " or ".join(map(_type_name, parts))
        raise InputError(f"Expected {key} as {expected}, got {value!r}.")


def _is_a(value: object, hint: Any) -> bool:  # noqa: ANN401
    if get_origin(hint) is Literal:
        return isinstance(value, str)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, get_origin(hint) or hint)


def _type_name(hint: Any) -> str:  # noqa: ANN401
    if get_origin(hint) is Literal:
        return " or ".join(map(repr, get_args(hint)))
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a name"}
    names[types.NoneType] = "none"
    return names.get(hint, str(typing.get_origin(hint) or hint))
