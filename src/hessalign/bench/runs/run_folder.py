"""The folder of a run: its configuration, records, checkpoints, and who is using it.

    config.json             what the run is; written first, never changed
    results.jsonl           one line per evaluation, as DomainBed writes them
    checkpoint-00000100.pt  the state before step 100; the last two are kept
    model.safetensors, .json  the trained network, once the run is complete; see `trained`
    done                    written last: the final record
    lock                    held by the process that trains

A process may be killed at any moment. The next one continues from the newest checkpoint that can
be read, and drops the records made after it: they will be made again, the same.
"""

from __future__ import annotations

import copy
import io
import json
import os
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import torch
from filelock import FileLock, Timeout
from torch.optim import Optimizer

from hessalign._errors import InputError, UserError, Warn, describe_error
from hessalign._files import PARTIAL, naming, parse_json, write_atomically
from hessalign.bench.algorithms import AbstractAlgorithm
from hessalign.bench.models import Network
from hessalign.bench.models.weights import DAMAGE, load_tensors
from hessalign.bench.runs.averaging import AbstractAverage
from hessalign.bench.runs.machine import device_of
from hessalign.bench.runs.model_description import ModelDescription, name_some, write_model
from hessalign.bench.runs.records import DONE, RESULTS, Record, RecordForm, read_lines, read_records
from hessalign.bench.runs.sampling import Sampler

CONFIG: Final = "config.json"
"""What makes a folder that of a run."""

_KEPT: Final = 2  # checkpoints kept: should the newest be damaged, there is the one before
SECONDS_BETWEEN_CHECKPOINTS: Final = 30.0

_CHECKPOINT: Final = re.compile(r"checkpoint-(\d+)\.pt")


@final
class RunFolderError(UserError, RuntimeError):
    """A folder that cannot be used for this run; `held` if another process trains in it."""

    def __init__(self, message: str, *, held: bool = False) -> None:
        super().__init__(message)
        self.held = held


def find_run(folder: Path) -> Path:
    """The folder of a run, which may be named by the folder that holds this run alone."""
    found = [folder] if (folder / CONFIG).exists() else runs_below(folder)
    if len(found) == 1:
        return found[0]
    if found:
        raise RunFolderError(
            f"Expected one run in {folder}, found {len(found)}: {name_some(found)}. Name it."
        )
    raise RunFolderError(
        f"Expected a complete run in {folder}, found none. Give the folder of one, which "
        "`hessalign train --output OUTPUT` names when it ends."
    )


def read_config(folder: Path) -> dict[str, Any]:
    """What a run is, by name, from its folder."""
    path = folder / CONFIG
    try:
        found = parse_json(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise InputError(f"found {str(found)[:60]!r} instead of names with values")
    except ValueError as error:  # neither JSON nor, perhaps, text
        raise RunFolderError(
            f"Expected a configuration in {path}: {error}. Remove {folder} to train again."
        ) from error
    return found


def runs_below(folder: Path) -> list[Path]:
    """The folders of runs in a folder, sorted."""
    return sorted(path.parent for path in folder.glob(f"*/{CONFIG}"))


@final
@dataclass(eq=False)
class TrainingState:
    """All that changes while a run trains: the learning rate does not, it follows from the step."""

    algorithm: AbstractAlgorithm
    optimizers: Mapping[str, Optimizer]
    sampler: Sampler
    generator: torch.Generator  # of the algorithm
    average: AbstractAverage | None = None  # of the iterates, where one is kept
    step: int = 0  # the next to take
    seconds: float = 0.0

    def advance(self) -> None:
        """Count the step that was taken, and what it made of the parameters."""
        if self.average is not None:
            self.average.add(self.step, self.algorithm.network)
        self.step += 1

    def state_dict(self) -> dict[str, Any]:
        """Everything as tensors, numbers and strings."""
        numpy_state: Any = np.random.get_state()
        version, words, gauss = random.getstate()
        return {
            "step": self.step,
            "seconds": self.seconds,
            "algorithm": self.algorithm.state_dict(),
            "optimizers": {name: each.state_dict() for name, each in self.optimizers.items()},
            "sampler": self.sampler.state_dict(),
            "generator": self.generator.get_state(),
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None,
            "numpy": [numpy_state[0], torch.from_numpy(numpy_state[1].copy()), *numpy_state[2:]],
            "python": [version, list(words), gauss],
            "average": None if self.average is None else self.average.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put everything back."""
        self.algorithm.load_state_dict(state["algorithm"])
        for name, optimizer in self.optimizers.items():
            _restore(optimizer, state["optimizers"][name])
        self.sampler.load_state_dict(state["sampler"])
        self.generator.set_state(state["generator"])
        torch.set_rng_state(state["torch"])
        if state.get("cuda") is not None and torch.cuda.is_available():
            torch.cuda.set_rng_state(state["cuda"])
        name, keys, *rest = state["numpy"]
        np.random.set_state((name, keys.numpy(), *rest))
        version, words, gauss = state["python"]
        random.setstate((version, tuple(words), gauss))
        if self.average is not None:
            self.average.load_state_dict(state["average"], device_of(self.algorithm))
        self.step, self.seconds = state["step"], float(state["seconds"])


def _checkpoint_name(step: int) -> str:
    """What the checkpoint before a step is called."""
    return f"checkpoint-{step:08d}.pt"


def _restore(optimizer: Optimizer, state: Any) -> None:  # noqa: ANN401
    """Put the state of an optimiser back, which torch takes without looking at most of it."""
    optimizer.load_state_dict(state)
    steps = [float(each["step"]) for each in optimizer.state.values() if "step" in each]
    if not all(step >= 0 for step in steps):
        raise InputError(f"its optimiser has taken {min(steps):g} steps")
    if not type(optimizer).__module__.startswith("torch.optim."):
        return  # others may count in their options
    for group in optimizer.param_groups:
        for key in optimizer.defaults.keys() - {"lr"}:
            if group[key] != optimizer.defaults[key]:
                raise InputError(
                    f"its optimiser has {key} {group[key]!r}, that of the run "
                    f"{optimizer.defaults[key]!r}"
                )
    for parameter, kept in optimizer.state.items():
        for name, value in kept.items():
            if value is not None and name != "step":
                value.expand_as(parameter)  # which stumbles over what is none of its moments


@final
@dataclass(eq=False)
class RunFolder:
    """Exclusive use of the folder of one run, as a context manager.

    On entering, a `RunFolderError` says if another process trains in the folder or it belongs to
    another configuration. A complete run may be read by many at once.

    Attributes:
        path: The folder; made if it does not exist.
        config: What the run is, as plain JSON values.
        warn: Called with what the user should know but need not act on.
        form: What records say of the run beside what it reports.
        beside: What to put down beside the configuration without being a part of it, such as where
            the data were.
        describe: Says of the trained network what is needed to use it; None keeps no network.
    """

    path: Path
    config: Mapping[str, object]
    warn: Warn
    form: RecordForm = field(default_factory=RecordForm)
    beside: Mapping[str, object] = field(default_factory=dict)
    describe: Callable[[list[Record]], ModelDescription] | None = None

    def __post_init__(self) -> None:
        self.config = json.loads(json.dumps(self.config))
        self._lock = FileLock(self.path / "lock", blocking=False)
        self._saved = time.monotonic()
        self._records = 0  # lines that it has

    def __enter__(self) -> RunFolder:
        if self.done:
            self._check_config()
            return self
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
        except Timeout as error:
            holder = (self.path / "lock").read_text(encoding="utf-8").strip() or "unknown"
            raise RunFolderError(
                f"Another process (number {holder}) is training in {self.path}. Wait for it, stop "
                "it, or choose another folder.",
                held=True,
            ) from error
        except OSError as error:
            raise RunFolderError(
                f"Expected a folder for the run that can be written to, got {self.path}: "
                f"{describe_error(error)}"
            ) from error
        try:
            with naming(self.path / "lock"):
                (self.path / "lock").write_text(str(os.getpid()), encoding="utf-8")
                for left in self.path.glob(f"*{PARTIAL}"):  # by a process that was killed
                    left.unlink(missing_ok=True)
            self._check_config()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def _check_config(self) -> None:
        if not (self.path / CONFIG).exists():
            content = json.dumps({**self.config, **self.beside}, indent=2)
            write_atomically(self.path / CONFIG, f"{content}\n".encode())
            return
        found = read_config(self.path)
        differences = [
            f"{key} is {found.get(key)!r} there and {self.config.get(key)!r} here"
            for key in {**self.config, **found}
            if key not in self.beside and self.config.get(key) != found.get(key)
        ]
        if differences:
            old = "seed" in found and "trial_seed" not in found
            converted = " `hessalign convert` makes runs of version 0.1 into today's." * old
            raise RunFolderError(
                f"{self.path} belongs to another configuration: {'; '.join(differences)}. Choose "
                f"another folder, or remove that one.{converted}"
            )

    @property
    def done(self) -> bool:
        """Whether the run is complete."""
        return (self.path / DONE).exists()

    def records(self) -> list[Record]:
        """The records on disk, without a torn last line; a complete run has to have some."""
        path = self.path / RESULTS
        found = read_records(path)
        if self.done and not found:
            raise RunFolderError(
                f"Expected the records of a complete run in {path}, found none. Remove {self.path} "
                "to train again."
            )
        return found

    def resume(self, state: TrainingState) -> list[Record]:
        """Give a new state that of the newest readable checkpoint; the records made before it."""
        fresh = copy.deepcopy(state.state_dict())  # it shares its tensors with what is loaded
        left, lines = self._checkpoints(), read_lines(self.path / RESULTS)
        while left:
            path = left.pop()
            try:
                state.load_state_dict(self._load(path, [record.step for _, record in lines]))
            except DAMAGE as error:
                reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
                none = "There is no other: the run begins afresh"
                instead = f"Trying {left[-1].name} instead" if left else none
                self.warn(f"Cannot use {path}: {reason}. {instead}.")
                state.load_state_dict(fresh)
            else:
                break
        kept = [pair for pair in lines if pair[1].step < state.step]
        path, content = self.path / RESULTS, "".join(f"{line}\n" for line, _ in kept).encode()
        if content != (path.read_bytes() if path.exists() else b""):
            write_atomically(path, content)
        self._records = len(kept)
        return [record for _, record in kept]

    def _load(self, path: Path, steps: Sequence[int]) -> dict[str, Any]:
        """The state in a checkpoint, if the records that were made before it are all there."""
        content = load_tensors(path)
        if not isinstance(content, dict) or not isinstance(content.get("state"), dict):
            raise InputError("it is no checkpoint")
        if content["config"] != json.dumps(self.config, sort_keys=True):
            raise InputError("it belongs to another configuration")
        state = dict(content["state"])
        if path.name != _checkpoint_name(state["step"]):
            raise InputError(f"it is of step {state['step']}")
        found = sum(step < state["step"] for step in steps)
        if content.get("records", found) != found:  # a power failure may take what was appended
            raise InputError(f"it follows {content['records']} records, of which {found} are left")
        return state

    def append(self, records: list[Record]) -> None:
        """Put down the last of all records so far."""
        path = self.path / RESULTS
        with naming(path), path.open("a", encoding="utf-8") as file:
            file.write(self.form.line(records) + "\n")
        self._records = len(records)

    def is_due(self, state: TrainingState, every: int | None) -> bool:
        """Whether a checkpoint is due, `every` so many steps, or half a minute after the last."""
        if every is None:
            return time.monotonic() - self._saved >= SECONDS_BETWEEN_CHECKPOINTS
        return state.step % every == 0

    def save(self, state: TrainingState) -> Path:
        """Write a checkpoint, then remove those that are no longer needed."""
        path = self.path / _checkpoint_name(state.step)
        config = json.dumps(self.config, sort_keys=True)
        content = {"config": config, "state": state.state_dict(), "records": self._records}
        buffer = io.BytesIO()
        torch.save(content, buffer)
        with self._keeping_checkpoints():
            write_atomically(path, buffer.getvalue())
        for old in self._checkpoints()[:-_KEPT]:
            old.unlink(missing_ok=True)
        self._saved = time.monotonic()
        return path

    def finish(self, network: Network, records: list[Record]) -> None:
        """Keep the trained model and mark the run as complete."""
        if self.describe is not None:
            with self._keeping_checkpoints():
                write_model(self.path, self.describe(records), network)
        last = self.form.line(records) if records else "{}"
        write_atomically(self.path / DONE, f"{last}\n".encode())
        for path in self._checkpoints():
            path.unlink(missing_ok=True)

    def newest_checkpoint(self) -> Path | None:
        """The newest checkpoint, if there is one."""
        return next(reversed(self._checkpoints()), None)

    @contextmanager
    def _keeping_checkpoints(self) -> Iterator[None]:
        """Let an error of writing say which checkpoint is there to continue from."""
        try:
            yield
        except OSError as error:
            newest = self.newest_checkpoint()
            kept = f"The previous checkpoint {newest} is intact" if newest else "There is none yet"
            raise RunFolderError(f"Could not write {describe_error(error)} {kept}.") from error

    def _checkpoints(self) -> list[Path]:
        """Checkpoints, oldest first."""
        matches = map(_CHECKPOINT.fullmatch, os.listdir(self.path))
        found = {int(match[1]): self.path / match[0] for match in matches if match}
        return [found[step] for step in sorted(found)]
