"""Runs and their records, read from folders, each with `results.jsonl` and perhaps `done`.

They are reduced to what selection needs, so that large sweeps fit in memory.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, NoReturn, final, get_type_hints

from hessalign._errors import InputError
from hessalign._numbers import finite
from hessalign.bench.runs.averaging import AVERAGED
from hessalign.bench.runs.records import DONE, RESULTS, parse_line

_JOB_FOLDER: Final = re.compile("[0-9a-f]{32}")
_PART: Final = re.compile(r"env\d+_(in|out)_acc")
_CONVERTED: Final = (
    " does not have the accuracies of the domains' parts, by which runs are selected; runs of "
    "version 0.1 on Colored MNIST did not measure them."
)

_NoteKind = Literal[
    "torn line", "unreadable line", "repeated record", "empty run", "run not started",
    "unfinished run", "repeated run", "unread run", "missing",
]  # fmt: skip
"""What can be odd about a sweep without making its tables wrong."""


@final
@dataclass(frozen=True, slots=True)
class Note:
    """What readers of a table should know: what it is about, and a sentence that names the file."""

    kind: _NoteKind
    text: str


@final
class Record(NamedTuple):
    """Accuracies of a run after one of its steps, from 0, by domain.

    They are on the larger part of each domain, `inner` ("in"), and on the part that was held out,
    `outer` ("out"). None, in training domains that were not measured, and NaN are only where no
    selection reads them.
    """

    step: int
    inner: tuple[float | None, ...]
    outer: tuple[float, ...]

    def test(self, domain: int) -> float:
        """The accuracy on the larger part of a test domain; reading made sure that it is there."""
        value = self.inner[domain]
        if value is None:
            raise InputError(f"Expected env{domain}_in_acc at step {self.step}, found none.")
        return value


@final
class RunKey(NamedTuple):
    """What tells a run from the others of a sweep; test domains are indices, ascending."""

    dataset: str
    algorithm: str
    test_domains: tuple[int, ...]
    trial_seed: int
    hparams_seed: int

    def __str__(self) -> str:
        return (
            f"{self.algorithm} on {self.dataset} with test domains {braces(self.test_domains)}, "
            f"trial seed {self.trial_seed}, hyper-parameter seed {self.hparams_seed}"
        )


@final
class RunProtocol(NamedTuple):
    """What all runs of a table must share, under the names that records give it.

    What is learned, how much of each domain is held out, with and without labels, and how many
    steps there are, in all and between evaluations; None for the data set's own.
    """

    task: str | None
    holdout_fraction: int | float | None
    uda_holdout_fraction: int | float | None
    steps: int | None
    checkpoint_freq: int | None


@final
@dataclass(frozen=True, slots=True)
class Run:
    """A training run, with the file that its records were read from.

    Records are by ascending step, at least one and one per step. `unreadable` has the numbers of
    lines before the last that are none. Names of domains, and how long it trained, are there if its
    records tell. `distances` are those between the Hessians of training domains at each record,
    None where they were not measured, and empty if they never were.
    """

    path: str
    key: RunKey
    protocol: RunProtocol
    hparams: Mapping[str, object]
    records: tuple[Record, ...]
    done: bool = True
    unreadable: tuple[int, ...] = ()
    domain_names: tuple[str, ...] = ()
    seconds: float | None = None
    distances: tuple[float | None, ...] = ()

    @property
    def domains(self) -> int:
        """Number of domains of the data set."""
        return len(self.records[0].inner)


_IDENTITY: Final = {
    "dataset": str, "algorithm": str, "test_envs": list, "trial_seed": int, "hparams_seed": int
}  # fmt: skip
_PROTOCOL: Final = get_type_hints(RunProtocol)  # of which type arguments are


_BRACES: Final = 100
"""More than a record has that was cut off; in a line of nothing else each would cost a look."""

_BESIDE: Final = ("seconds", "step_time", "hessian_distance")
"""What is read of records beside accuracies."""


def braces(domains: tuple[int, ...]) -> str:
    """A set of domains as messages show it, for example "{0,2}"."""
    return "{" + ",".join(map(str, domains)) + "}"


Reader = Callable[[str], tuple["Run | None", list[Note]]]
"""Reads the run in a folder; see `read_run`."""


def read_runs(
    folder: str | os.PathLike[str],
    *,
    averaged: bool = False,
    least: int = 1,
    read: Reader | None = None,
) -> tuple[list[Run], list[Note]]:
    """Read all runs below a folder.

    Args:
        folder: The folder of the sweep.
        averaged: Whether to read the accuracies of averaged weights, instead of the last ones.
        least: How many runs have to be there.
        read: What reads one; `read_run` if None.

    Returns:
        The runs by path, and what was odd about their files.

    Raises:
        InputError: If there is no such folder or no run in it, or if a record makes no sense.
    """
    if not Path(folder).is_dir():
        raise InputError(
            f"Expected the folder of a sweep, got {str(folder)!r}, which is none. Name the folder "
            "that holds the folders of its runs."
        )
    runs: list[Run] = []
    notes: list[Note] = []
    for path, folders, files in os.walk(Path(folder)):
        folders.sort()
        if RESULTS in files or _JOB_FOLDER.fullmatch(os.path.basename(path)):
            run, found = read(path) if read else read_run(path, averaged=averaged)
            notes += found
            runs += [run] if run is not None else []
    if len(runs) >= least:
        return runs, notes
    for note in notes:
        if note.text.endswith(_CONVERTED):
            raise InputError(f"Expected runs to select from, found none: {note.text}")
    raise InputError(
        f"Expected folders with records in {RESULTS} below {str(folder)!r}, found none. Name the "
        "folder that a sweep was told to write to."
    )


def read_run(
    folder: str | os.PathLike[str], *, averaged: bool = False
) -> tuple[Run | None, list[Note]]:
    """Read the records of one run.

    Lines that are not JSON are skipped: the last one if writing it was interrupted, or one in the
    middle, which the run then remembers unless the complete record follows it. Of records of the
    same step with the same accuracies one is kept.

    Returns:
        The run, None if there is no record, and what was odd about its files.

    Raises:
        InputError: If records contradict each other or make no sense.
    """
    name = os.path.join(folder, RESULTS)
    if not os.path.isfile(name):  # a pipe or a device has no end
        return None, [Note("run not started", f"{os.fspath(folder)} has no {RESULTS}.")]
    if _is_converted(name):
        return None, [Note("unread run", f"{name}{_CONVERTED}")]
    notes: list[Note] = []
    unreadable: dict[int, bytes] = {}
    found: dict[int, tuple[int, Record, Mapping[str, float | None]]] = {}
    first: Mapping[str, Any] | None = None
    for number, fields in _read_lines(name, notes, unreadable):
        where = f"{name}, line {number}"
        first = fields if first is None else first
        _check_same_run(first, fields, where)
        record = _record(fields, where, AVERAGED if averaged else "")
        beside = {name: finite(fields.get(name)) for name in _BESIDE}
        line, known, _ = found.setdefault(record.step, (number, record, beside))
        if known != record:
            raise InputError(
                f"Expected one record per step, got two different ones of step {record.step}: "
                f"{name}, line {line} and {where}. Remove the lines of the attempt that was "
                "abandoned."
            )
        if line != number:
            text = f"{where} repeats step {record.step} of line {line}."
            notes.append(Note("repeated record", text))
    notes += [
        Note("unreadable line", f"{name}, line {each} is not a record.") for each in unreadable
    ]
    if first is None:
        return None, [*notes, Note("empty run", f"{name} has no records.")]
    steps = sorted(found)
    seconds, times, distances = (tuple(found[step][2][name] for step in steps) for name in _BESIDE)
    run = Run(
        name,
        *_identity(first["args"], name),
        _entry(first, "hparams", {}, "names with values", name),
        tuple(found[step][1] for step in steps),
        done=os.path.exists(os.path.join(folder, DONE)),
        unreadable=tuple(unreadable),
        domain_names=tuple(map(str, _entry(first, "domain_names", [], "a list", name))),
        seconds=_seconds(steps, times) if seconds[-1] is None else seconds[-1],
        distances=distances if any(each is not None for each in distances) else (),
    )
    _check_accuracies(run)
    return run, notes


def _seconds(steps: Sequence[int], times: Sequence[float | None]) -> float | None:
    """How long a run trained, by its mean time of a step since the last record."""
    pairs = zip(steps, (-1, *steps), times, strict=False)
    found = [None if each is None else (now - before) * each for now, before, each in pairs]
    return None if None in found else math.fsum(filter(None, found))


def _is_converted(name: str) -> bool:
    """Whether records have accuracies, but not those by which runs are selected."""
    with open(name, "rb") as file:
        fields = parse_line(next(filter(bytes.strip, file), b"")) or {}
    return "test_accuracy" in fields and not any(map(_PART.fullmatch, fields))


def _read_lines(
    name: str, notes: list[Note], unreadable: dict[int, bytes]
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """What lines hold, by their numbers; what is odd, and lines that are lost, are added."""
    with open(name, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            where = f"{name}, line {number}"
            fields = parse_line(line)
            if fields is None and (fields := _after_tear(line)) is not None:
                text = f"{where} begins with a record that was cut off; the complete one is read."
                notes.append(Note("torn line", text))
            if fields is not None:
                if line.startswith(unreadable.get(number - 1, b"\n")):
                    del unreadable[number - 1]
                    text = f"{name}, line {number - 1} was cut off; the complete record follows it."
                    notes.append(Note("torn line", text))
                yield number, fields
            elif line.endswith(b"\n"):
                unreadable[number] = line.rstrip()
            else:
                notes.append(Note("torn line", f"{where} was cut off; it is skipped."))


def _after_tear(line: bytes) -> Mapping[str, Any] | None:
    """The record that a later process wrote on the line of one that was cut off."""
    start = 0
    for _ in range(_BRACES):
        start = line.find(b"{", start + 1)
        fields = parse_line(line[start:]) if start > 0 else None
        if start < 0 or (fields is not None and "args" in fields and "step" in fields):
            return fields
    return None


def _refuse(text: str) -> NoReturn:
    raise InputError(f"{text} Remove the run's folder, or train it again.")


def _entry(fields: Mapping[str, Any], name: str, empty: Any, said: str, where: str) -> Any:  # noqa: ANN401
    """An entry of the type of `empty`, which may be missing."""
    found = fields.get(name) or empty
    if not isinstance(found, type(empty)):
        _refuse(f"Expected {name!r} as {said} in {where}.")
    return found


def _check_same_run(first: Mapping[str, Any], fields: Mapping[str, Any], where: str) -> None:
    if not isinstance(fields.get("args"), dict):
        _refuse(f"Expected a record with the arguments of its run as 'args' in {where}.")
    if fields["args"] != first["args"]:
        identity = _identity(fields["args"], where)
        if identity != _identity(first["args"], where):
            raise InputError(
                f"Expected the records of one run per file, got those of another in {where}: "
                f"{identity[0]}. Give each run a folder of its own."
            )
    if fields.get("hparams") != first.get("hparams"):
        raise InputError(
            f"Expected the same hyper-parameters in all records of a run, got others in {where}. "
            "Give each run a folder of its own, or remove the lines of one of them."
        )


def _identity(args: Mapping[str, Any], where: str) -> tuple[RunKey, RunProtocol]:
    if wrong := _mistyped(args, _IDENTITY):
        _refuse(
            "Expected the arguments of a run to have names as 'dataset' and 'algorithm', a list as "
            "'test_envs' and whole numbers as 'trial_seed' and 'hparams_seed', got "
            f"{wrong} in {where}."
        )
    dataset, algorithm, domains, trial_seed, hparams_seed = (args[name] for name in _IDENTITY)
    if not all(isinstance(each, int) for each in domains) or len({*domains}) < len(domains):
        _refuse(f"Expected numbers of test domains, each once, got {domains} in {where}.")
    if wrong := _mistyped(args, _PROTOCOL):
        _refuse(f"Expected arguments as DomainBed records them, got {wrong} in {where}.")
    key = RunKey(dataset, algorithm, tuple(sorted(domains)), trial_seed, hparams_seed)
    return key, RunProtocol(*map(args.get, _PROTOCOL))


def _mistyped(args: Mapping[str, Any], types: Mapping[str, Any]) -> str:
    """Arguments that are not of their type, with their values."""
    found = [name for name, kind in types.items() if not isinstance(args.get(name), kind)]
    return ", ".join(f"{name}={args.get(name)!r}" for name in found)


def _record(fields: Mapping[str, Any], where: str, kind: str) -> Record:
    step = fields.get("step")
    if not isinstance(step, int) or step < 0:
        _refuse(f"Expected a step of 0 or more in {where}, got {step!r}.")
    outer: list[float] = []
    while (value := _accuracy(fields, f"{kind}env{len(outer)}_out_acc", where)) is not None:
        outer.append(value)
    if kind and not outer:
        raise InputError(
            f"Expected accuracies of averaged weights, such as {kind}env0_out_acc, in {where}, "
            "found none: the run was trained without `average`. Leave --averaged out."
        )
    domains = range(len(outer))
    inner = tuple(_accuracy(fields, f"{kind}env{domain}_in_acc", where) for domain in domains)
    if not outer or f"env{len(outer)}_in_acc" in fields:
        _refuse(
            f"Expected env0_out_acc, env1_out_acc and so on, one for each domain, in {where}, got "
            f"{len(outer)}."
        )
    return Record(step, inner, tuple(outer))


def _accuracy(fields: Mapping[str, Any], name: str, where: str) -> float | None:
    value = fields.get(name)
    if isinstance(value, float) and math.isnan(value):
        return math.nan  # one object, so that records that have it can be equal
    if name in fields and not (isinstance(value, int | float) and 0 <= value <= 1):
        _refuse(f"Expected {name} from 0 to 1 in {where}, got {value!r}.")
    return value


def _check_accuracies(run: Run) -> None:
    counts = {len(record.inner) for record in run.records}
    if len(counts) > 1:
        _refuse(
            f"Expected the same domains in all records of {run.path}, got {sorted(counts)} domains."
        )
    domains = run.key.test_domains
    if not domains or not 0 <= domains[0] <= domains[-1] < run.domains:
        _refuse(
            f"Expected test domains from 0 to {run.domains - 1} in {run.path}, got {list(domains)}."
        )
    for record in run.records:
        for domain in domains:
            if record.inner[domain] is None:
                _refuse(
                    f"Expected env{domain}_in_acc, the accuracy of a test domain, in every record "
                    f"of {run.path}; step {record.step} has none."
                )
        for name, value in _read_by_selection(record, domains, record is run.records[-1]):
            if math.isnan(value):
                _refuse(
                    f"Expected {name} from 0 to 1 in {run.path}, step {record.step}, got {value}; "
                    "model selection reads it."
                )


def _read_by_selection(
    record: Record, tested: tuple[int, ...], last: bool
) -> Iterator[tuple[str, float]]:
    """The accuracies that some method of selection reads, by name."""
    for domain in tested if len(tested) <= 2 else ():
        yield f"env{domain}_in_acc", record.test(domain)
    for domain, value in enumerate(record.outer) if len(tested) == 1 else ():
        if last or domain not in tested:
            yield f"env{domain}_out_acc", value
