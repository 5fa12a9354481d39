"""Configurations from files and `key=value` words, checked as a whole: all errors at once."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hessalign._errors import ConfigurationError, InputError
from hessalign._names import UnknownNameError
from hessalign.bench.algorithms import ALGORITHMS
from hessalign.bench.runs.colored_mnist import ColoredMnistConfig

SCHEDULED = {"penalty_weight": "penalty_weight", "anneal_steps": "jump"}
"""Options by which algorithms schedule their penalty, and the keys of the experiment that do so."""


def read_file(path: Path) -> dict[str, object]:
    """The entries of a YAML file.

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


def make_configuration(entries: Mapping[str, object]) -> ColoredMnistConfig:
    """A checked configuration; keys of the algorithm may stand beside those of the experiment.

    Args:
        entries: Values by key.

    Returns:
        The configuration.

    Raises:
        ConfigurationError: With everything that is wrong.

    Example:
        >>> make_configuration({"algorithm": "hutchinson", "probes": 10}).options
        {'probes': 10}
    """
    hints = get_type_hints(ColoredMnistConfig)
    name = entries.get("algorithm", ColoredMnistConfig.algorithm)
    problems: list[str] = []
    known_name = isinstance(name, str) and name in ALGORITHMS
    if not known_name:
        problems.append(str(UnknownNameError("algorithm", name, ALGORITHMS)))
    default = ALGORITHMS[str(name)].config if known_name else None
    own = {} if default is None else get_type_hints(type(default))

    fields: dict[str, object] = {}
    given = entries.get("options") or {}
    if not isinstance(given, Mapping):
        problems.append(f"Expected options as a mapping of names to values, got {given!r}.")
        given = {}
    options: dict[str, object] = dict(given)
    for key, value in entries.items():
        if key == "options":
            continue
        if key in hints:
            fields[key] = value
        elif key in own:
            options[key] = value
        elif default is not None:
            problems.append(_unknown_key(key, list(hints), list(own), str(name)))
    problems += _problems_one_by_one(ColoredMnistConfig(), fields, hints)
    problems += [
        f"Expected no option {key!r}: the experiment's own {ours!r} decides when and how the "
        "weight of the penalty changes."
        for key, ours in SCHEDULED.items()
        if key in options and key in own
    ]
    if default is not None:
        problems += [
            _unknown_key(key, [], list(own), str(name)) for key in options if key not in own
        ]
        known = {key: value for key, value in options.items() if key in own}
        problems += _problems_one_by_one(default, known, own)
        options.update(known)
    if problems:
        raise ConfigurationError(problems)
    return ColoredMnistConfig(**{**fields, "options": options})  # type: ignore[arg-type]


def _unknown_key(key: str, experiment: list[str], algorithm: list[str], name: str) -> str:
    nearest = get_close_matches(key, [*experiment, *algorithm], n=1)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    keys = f"The algorithm {name!r} has: {', '.join(algorithm) or 'no options'}."
    if experiment:
        keys = f"The experiment has: {', '.join(experiment)}. {keys}"
    return f"Unknown key {key!r}.{hint} {keys}"


def _problems_one_by_one(
    default: Any,  # noqa: ANN401 - any configuration dataclass
    values: dict[str, object],
    hints: Mapping[str, Any],
) -> list[str]:
    """What is wrong with each value on its own, and if nothing is, with all together."""
    # Whole numbers where fractions are expected are converted in place.
    problems = []
    for key, value in list(values.items()):
        problem = _type_problem(key, value, hints[key])
        if problem is None:
            values[key] = float(value) if hints[key] is float else value  # type: ignore[arg-type]
            problem = _value_problem(default, {key: values[key]})
        if problem is not None:
            problems.append(problem)
    if not problems:
        problem = _value_problem(default, values)
        problems += [problem] if problem is not None else []
    return problems


def _value_problem(default: Any, values: Mapping[str, object]) -> str | None:  # noqa: ANN401
    try:
        dataclasses.replace(default, **values)
    except InputError as error:
        return str(error)
    return None


def _type_problem(key: str, value: object, hint: Any) -> str | None:  # noqa: ANN401
    """A complaint if the value is not of the type; unknown names are left to the configuration."""
    if get_origin(hint) in {Union, types.UnionType}:
        parts = get_args(hint)
        return (
            None
            if any(_type_problem(key, value, part) is None for part in parts)
            else (f"Expected {key} as {' or '.join(map(_type_name, parts))}, got {value!r}.")
        )
    if get_origin(hint) is Literal:
        matches = isinstance(value, str)
    elif get_origin(hint) is not None:
        matches = isinstance(value, get_origin(hint))
    elif hint is float:
        matches = isinstance(value, int | float) and not isinstance(value, bool)
    elif hint is int:
        matches = isinstance(value, int) and not isinstance(value, bool)
    else:
        matches = isinstance(value, hint)
    return None if matches else f"Expected {key} as {_type_name(hint)}, got {value!r}."


def _type_name(hint: Any) -> str:  # noqa: ANN401
    if get_origin(hint) is Literal:
        return " or ".join(map(repr, get_args(hint)))
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a name"}
    names[types.NoneType] = "none"
    return names.get(hint, str(typing.get_origin(hint) or hint))
