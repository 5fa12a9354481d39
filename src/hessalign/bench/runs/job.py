"""One run, with the seed and folder name that DomainBed gives it; how users write one down."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, Final, final

from hessalign._errors import ConfigurationError, InputError
from hessalign._files import parse_json
from hessalign._numbers import is_whole
from hessalign._protocol import seed_hash
from hessalign.bench.algorithms.options import check_options
from hessalign.bench.data.samples import HOLDOUT_FRACTION

_MOST_VALUES: Final = 100_000  # of a configuration; a few lines of anchors can stand for billions


@final
@dataclass(frozen=True)
class Job:
    """One training run of a sweep. Two jobs are the same if and only if their folders are.

    Attributes:
        dataset: Name of the data set.
        algorithm: Name of the algorithm.
        test_domains: Indices of the domains that are not trained on, ascending.
        hparams_seed: Which draw of hyper-parameters; 0 for the defaults.
        trial_seed: Which trial: splits and draws depend on it.
        data_dir: Where the data sets are.
        holdout_fraction: How much of each domain is held out.
        task: What is learned.
        steps: Steps of training; None for the data set's own.
        hparams: Hyper-parameters to override, as JSON; None for none.

    Example:
        >>> job = Job("VLCS", "ERM", (1, 2), hparams_seed=1, trial_seed=0, data_dir="data")
        >>> job.seed, job.folder
        (360234358, '74b108bb6da5488f68be2a11cfbef053')
    """

    dataset: str
    algorithm: str
    test_domains: tuple[int, ...]
    hparams_seed: int
    trial_seed: int
    data_dir: str
    holdout_fraction: float = HOLDOUT_FRACTION
    task: str = "domain_generalization"
    steps: int | None = None
    hparams: str | None = None

    def __post_init__(self) -> None:
        found = self.test_domains
        if not found or any(domain < 0 for domain in found) or list(found) != sorted(set(found)):
            raise InputError(
                "Expected test_domains as one or more indices, each once and ascending, "
                f"got {found}."
            )

    @property
    def seed(self) -> int:
        """The seed of everything random in the run, except splits and hyper-parameters."""
        tested = list(self.test_domains)
        return seed_hash(self.dataset, self.algorithm, tested, self.hparams_seed, self.trial_seed)

    @property
    def args(self) -> dict[str, object]:
        """The arguments that identify the job, under DomainBed's names."""
        optional = {"steps": self.steps, "hparams": self.hparams}
        return {
            "dataset": self.dataset,
            "algorithm": self.algorithm,
            "test_envs": list(self.test_domains),
            "holdout_fraction": self.holdout_fraction,
            "hparams_seed": self.hparams_seed,
            "data_dir": self.data_dir,
            "task": self.task,
            "trial_seed": self.trial_seed,
            "seed": self.seed,
            **{name: value for name, value in optional.items() if value is not None},
        }

    @property
    def folder(self) -> str:
        """Name of the folder of the run: the MD5 sum of its arguments."""
        text = json.dumps(self.args, sort_keys=True)
        return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()

    def describe(self) -> str:
        """The job in one line for people, as "ERM on VLCS, test domains 1 2, trial 0, draw 1"."""
        plural = "s" if len(self.test_domains) > 1 else ""
        domains = " ".join(map(str, self.test_domains))
        return (
            f"{self.algorithm} on {self.dataset}, test domain{plural} {domains}, "
            f"trial {self.trial_seed}, draw {self.hparams_seed}"
        )


def _fits(field: str, value: Any) -> bool:  # noqa: ANN401
    """Whether an argument of a job is of the kind that its field has."""
    try:
        if field == "test_domains":
            return isinstance(value, list) and all(map(is_whole, value))
        if field == "hparams":
            return value is None or isinstance(parse_json(value), dict)
        check_options(Job, {field: value})
        return field != "holdout_fraction" or 0 < value < 1
    except (TypeError, ValueError):
        return False


def job_from(args: Mapping[str, Any]) -> Job:
    """The job that some arguments identify; an InputError if they are not those of a job."""
    names = {each.name: each.name for each in dataclasses.fields(Job)}
    names["test_domains"] = "test_envs"
    required = (each.name for each in dataclasses.fields(Job) if each.default is MISSING)
    missing = [names[field] for field in required if names[field] not in args]
    if missing:
        raise InputError(f"Expected the arguments of a job, missing: {', '.join(missing)}.")
    values = {field: args[name] for field, name in names.items() if name in args}
    for field, value in values.items():
        if not _fits(field, value):
            raise InputError(f"Expected the arguments of a job, got {names[field]} = {value!r}.")
    job = Job(**values | {"test_domains": tuple(values["test_domains"])})
    if args.get("seed", job.seed) != job.seed:
        raise InputError(f"Expected the seed {job.seed} for this job, got {args['seed']}.")
    return job


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
    return entries


def parse_words(words: Iterable[str]) -> dict[str, object]:
    """Entries from `key=value` words, values written as in YAML; each key once."""
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
            entries[key] = _yaml(text)
        except InputError:
            problems.append(f"Expected a value after {key}=, got {text!r}.")
    if problems:
        raise ConfigurationError(problems)
    return entries


def _yaml(text: str) -> object:
    import yaml

    try:
        if _values(yaml.compose(text, yaml.SafeLoader), {}) > _MOST_VALUES:
            raise InputError(f"it has more than {_MOST_VALUES:,} values, with all that is repeated")
        return _plain(yaml.safe_load(text))
    except Exception as error:  # values such as 2020-99-99 make its readers stumble in any way
        raise InputError(str(error)) from error


def _values(node: Any, counts: dict[int, float]) -> float:  # noqa: ANN401 - yaml has no types
    """How many values a node of YAML stands for, wherever an anchor repeats them."""
    if id(node) not in counts:
        counts[id(node)] = math.inf  # of one that holds itself
        below = node.value if isinstance(getattr(node, "value", None), list) else []
        parts = (part for each in below for part in (each if isinstance(each, tuple) else [each]))
        counts[id(node)] = 1 + sum(_values(part, counts) for part in parts)
    return counts[id(node)]


def _plain(value: object) -> object:
    """A value as people mean it: YAML 1.1 takes 1e-3, which has no point, and none for text."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if not isinstance(value, str):
        return value
    try:
        return None if value == "none" else float(value)
    except ValueError:
        return value
