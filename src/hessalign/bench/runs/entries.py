"""Entries from files and `key=value` words: all errors at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from hessalign._errors import ConfigurationError, InputError


def read_file(path: Path) -> dict[str, object]:
    """The entries of a YAML file, by key; all that is wrong with it is a ConfigurationError."""
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
