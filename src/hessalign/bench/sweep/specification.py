"""What a sweep is: which runs, by which protocol. From a YAML file or from flags."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, final

from hessalign._errors import ConfigurationError, InputError, UnknownNameError, attempt, check_name
from hessalign.bench.algorithms import ALGORITHMS, find_algorithm
from hessalign.bench.algorithms.options import Count, check_options
from hessalign.bench.algorithms.search import Preset
from hessalign.bench.runs.computing import Computing, take_computing
from hessalign.bench.runs.domainbed import PRESET
from hessalign.bench.runs.plan import Evaluated
from hessalign.bench.sweep.selection import SELECTIONS

_ALL: Final = "all"
DEFAULT_PRESET: Final[Preset] = "domainbed-2022"

_Domain = str | int  # a domain by its name or its number


@final
@dataclass(frozen=True)
class SweepSpec:
    """A sweep. `make_specification` checks what users write.

    Attributes:
        datasets: Names of data sets.
        algorithms: Names of algorithms.
        data_dir: The folder that holds the data sets.
        test_domains: The domains to test on, by data set; all where it is not named.
        trials: How many trials: splits and initial networks differ between them.
        draws: How many choices of hyper-parameters; the first is the defaults.
        preset: Whose hyper-parameter ranges.
        steps: Steps of training; None for the data set's own.
        selections: Methods of model selection the sweep is for; leave-one-out needs more runs.
        overrides: Hyper-parameters that are set instead of drawn, in all runs; and what `Computing`
            has, which is no part of what runs are.
        evaluate: "needed": what model selection reads; "all": both parts of every domain.
        keep_models: Whether to keep the trained parameters.
        output: The folder of the sweep, if it is named.
        data_folder: Where `data_dir` was when the sweep was begun; it may be a relative path.

    Example:
        >>> spec = make_specification({"datasets": "PACS", "algorithms": ["erm", "HGP"]})
        >>> spec.algorithms, spec.needs_pairs, spec.hparams
        (('erm', 'hgp'), False, None)
    """

    datasets: tuple[str, ...]
    algorithms: tuple[str, ...]
    data_dir: str = "data"
    test_domains: Mapping[str, tuple[_Domain, ...]] = field(default_factory=dict)
    trials: Count = 3
    draws: Count = 20
    preset: Preset = DEFAULT_PRESET
    steps: Count | None = None
    selections: tuple[str, ...] = ("training-domain", "oracle")
    overrides: Mapping[str, object] = field(default_factory=dict)
    evaluate: Evaluated = "needed"
    keep_models: bool = False
    output: str | None = None
    data_folder: str | None = None

    @property
    def place(self) -> Path:
        """Where the data are: where they were when the sweep was begun, or where it says here."""
        if self.data_folder is not None and Path(self.data_folder).is_dir():
            return Path(self.data_folder)
        return Path(self.data_dir).absolute()

    @property
    def needs_pairs(self) -> bool:
        """Whether runs that leave out two domains are needed."""
        return any(SELECTIONS[name].pairs for name in self.selections)

    @property
    def hparams(self) -> str | None:
        """What the runs' hyper-parameters are overridden with, as their identity has it."""
        preset = {} if self.preset == DEFAULT_PRESET else {PRESET: self.preset}
        values = {**take_computing(self.overrides)[1], **preset}
        return json.dumps(values, sort_keys=True) if values else None

    @property
    def protocol(self) -> dict[str, object]:
        """What all runs in one folder must share."""
        shared = ("data_dir", "preset", "steps", "overrides", "evaluate")
        values = {name: getattr(self, name) for name in shared}
        return values | {"overrides": take_computing(self.overrides)[1]}

    @property
    def computing(self) -> Computing:
        """What changes how fast the runs are."""
        return take_computing(self.overrides)[0]

    def to_yaml(self) -> str:
        """The specification as `make_specification` reads it, as YAML."""
        import yaml

        entries = json.loads(json.dumps(dataclasses.asdict(self)))  # YAML knows no tuples
        entries["test_domains"] = entries["test_domains"] or _ALL
        text: str = yaml.safe_dump(entries, sort_keys=False)
        return text


def make_specification(entries: Mapping[str, object]) -> SweepSpec:
    """A checked specification.

    Args:
        entries: Values by key: the attributes of `SweepSpec`. A list of one may be written without
            brackets, `algorithms` and `test_domains` may be "all", and a plain list of
            `test_domains` holds for every data set.

    Returns:
        The specification.

    Raises:
        ConfigurationError: With everything that is wrong.
    """
    problems: list[str] = []
    known = [each.name for each in dataclasses.fields(SweepSpec)]
    values: dict[str, object] = {}
    for key, value in entries.items():
        if key not in known:
            problems.append(str(UnknownNameError("key of a sweep", key, known)))
            continue
        if value is None and key not in {"datasets", "algorithms"}:
            continue  # an empty entry stands for the default
        found = attempt(problems, _READERS.get(key, _plain), key, value)
        values |= {} if found is None else {key: found}
    problems += [f"Expected {key}." for key in ("datasets", "algorithms") if key not in entries]
    if "datasets" in values and "test_domains" in values:
        domains = values["test_domains"]
        values["test_domains"] = attempt(problems, _by_dataset, domains, values["datasets"])
    if problems:
        raise ConfigurationError(problems)
    return SweepSpec(**values)  # type: ignore[arg-type]


def _plain(key: str, value: object) -> object:
    check_options(SweepSpec, {key: value})
    return value


def _names(key: str, value: object) -> tuple[str, ...]:
    names = value if isinstance(value, list | tuple) else [value]
    if not names or not all(isinstance(name, str) and name for name in names):
        raise InputError(f"Expected {key} as one or more names, got {value!r}.")
    return tuple(dict.fromkeys(names))


def _algorithms(key: str, value: object) -> tuple[str, ...]:
    if value == _ALL:
        return tuple(ALGORITHMS)
    problems: list[str] = []
    found = [attempt(problems, find_algorithm, name) for name in _names(key, value)]
    if problems:
        raise ConfigurationError(problems)
    return tuple(dict.fromkeys(info.name for info in found if info is not None))


def _selections(key: str, value: object) -> tuple[str, ...]:
    if value == _ALL:
        return tuple(SELECTIONS)
    names = _names(key, value)
    for name in names:
        check_name("selection method", name, SELECTIONS)
    return names


def _domains(key: str, value: object) -> object:
    """A list for every data set, a mapping, or None for all; see `_by_dataset`."""
    if value == _ALL:
        return None
    if isinstance(value, Mapping):
        return {name: _domains(f"{key} of {name}", domains) for name, domains in value.items()}
    domains = value if isinstance(value, list | tuple) else [value]
    named = [each for each in domains if isinstance(each, str)]
    numbers = [each for each in domains if type(each) is int and each >= 0]
    if not domains or len(named) + len(numbers) < len(domains):
        raise InputError(
            f"Expected {key} as names or numbers from 0, 'all', or a mapping from data sets to "
            f"these, got {value!r}."
        )
    return tuple(domains)


def _by_dataset(domains: object, datasets: object) -> dict[str, object]:
    assert isinstance(datasets, tuple)
    if not isinstance(domains, dict):
        return {} if domains is None else dict.fromkeys(datasets, domains)
    for name in domains:
        check_name("data set of test_domains", name, datasets)
    return {name: value for name, value in domains.items() if value is not None}


def _path(key: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise InputError(f"Expected {key} as a path, got {value!r}.")
    return value


def _overrides(key: str, value: object) -> dict[str, object]:
    if not isinstance(value, Mapping):
        raise InputError(f"Expected {key} as a mapping of names to values, got {value!r}.")
    for name, each in value.items():
        if not isinstance(name, str) or not isinstance(each, int | float | str | None):
            raise InputError(f"Expected {key} as names with one value each, got {name}: {each!r}.")
    if PRESET in value:
        raise InputError(f"Expected {PRESET} as a key of the sweep, not among its {key}.")
    take_computing(value)  # refuses what it cannot be
    return dict(value)


_READERS: Final[Mapping[str, Callable[[str, object], object]]] = {
    "datasets": _names,
    "algorithms": _algorithms,
    "data_dir": _path,
    "test_domains": _domains,
    "selections": _selections,
    "overrides": _overrides,
    "output": _path,
    "data_folder": _path,
}
"""What reads the keys of which a type does not say enough."""
