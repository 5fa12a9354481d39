"""What a run reports while it goes: a record per evaluation, a JSON line each, as in DomainBed.

People see a line of each as it comes; `trackers` send them elsewhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TextIO, final

from hessalign._errors import InputError
from hessalign._files import parse_json
from hessalign.report.progress import Progress

RESULTS: Final = "results.jsonl"
"""The file that holds the records of a run."""

DONE: Final = "done"
"""The file that marks a run as complete: its last record."""

_METRIC: Final = re.compile(
    r"(avg_)?(env\d+_(in|out)_acc|(train|test)_(accuracy|loss)|validation_loss|hessian_distance)"
)
"""What evaluations measure, also of averaged weights; other numbers are terms of the loss."""

_OTHERS: Final = {
    "step", "epoch", "step_time", "seconds", "hparams", "args", "software", "domain_names",
}  # fmt: skip
"""What else a line says."""


def is_entry(name: str) -> bool:
    """Whether a line says something else by this name than a term of the loss."""
    return name in _OTHERS or _METRIC.fullmatch(name) is not None


@final
@dataclass(frozen=True)
class Record:
    """One evaluation of a run.

    Attributes:
        step: The step at which it was made, from 0.
        seconds: Training time up to then, over all sessions of an interrupted run.
        terms: The terms of the loss at this step: "loss", "risk", and what the algorithm names.
        metrics: What the evaluation measured, for example "env0_in_acc".
    """

    step: int
    seconds: float
    terms: Mapping[str, float]
    metrics: Mapping[str, float]


@final
@dataclass(frozen=True)
class RecordForm:
    """The flat lines that DomainBed writes and its collector reads.

    Two entries are ours: "seconds", the training time so far, and what `extra` says. The step time
    includes the evaluation; terms of the loss are those of the step, not means since the last
    record.
    """

    hparams: Mapping[str, object] = field(default_factory=dict)
    args: Mapping[str, object] = field(default_factory=dict)  # under DomainBed's names
    steps_per_epoch: float = 1.0  # steps in which the smallest domain is seen once
    extra: Mapping[str, object] = field(default_factory=dict)  # further entries of every line

    def line(self, records: Sequence[Record]) -> str:
        """The last of all records so far as one line of JSON, without its end."""
        record = records[-1]
        steps, seconds = record.step + 1, record.seconds
        if len(records) > 1:
            steps, seconds = record.step - records[-2].step, seconds - records[-2].seconds
        entries = {
            **self.extra,
            **record.terms,
            **record.metrics,
            "step": record.step,
            "epoch": record.step / self.steps_per_epoch,
            "step_time": seconds / steps,
            "seconds": record.seconds,
            "hparams": self.hparams,
            "args": self.args,
        }
        return json.dumps(entries, sort_keys=True)


def parse_line(line: str | bytes) -> Mapping[str, Any] | None:
    """The entries of a line by name; None if it holds none."""
    try:
        entries = parse_json(line if isinstance(line, str) else line.decode())
    except ValueError:  # includes bytes that are not UTF-8
        return None
    return entries if isinstance(entries, dict) else None


def _parse(line: str) -> Record:
    """The record in a line; a ValueError if it holds none."""
    entry = parse_line(line)
    if entry is None:
        raise InputError("Expected names with values.")
    rest = {key: value for key, value in entry.items() if key not in _OTHERS}
    metrics = {key: value for key, value in rest.items() if _METRIC.fullmatch(key)}
    terms = {key: value for key, value in rest.items() if key not in metrics}
    step, seconds = entry.get("step"), entry.get("seconds")
    if not isinstance(step, int) or not isinstance(seconds, int | float):
        raise InputError(f"Expected a step and seconds, got {step!r} and {seconds!r}.")
    if not all(isinstance(value, int | float) for value in rest.values()):
        raise InputError(f"Expected numbers by name, got {str(rest)[:60]}.")
    return Record(step, seconds, terms, metrics)


def read_lines(path: Path) -> list[tuple[str, Record]]:
    """The lines of a run, without ends, with their records; a half-written last one is left out."""
    if not path.is_file():
        return []
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise InputError(
            f"Expected records in {path}, found bytes that are no text. Remove the run's folder to "
            "start afresh."
        ) from error
    found = []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            found.append((line, _parse(line)))
        except ValueError as error:
            if number == len(lines):
                break
            raise InputError(
                f"Expected a record on line {number} of {path}, found {line[:60]!r}. Remove the "
                "line, or the run's folder to start afresh."
            ) from error
    return found


def read_records(path: Path) -> list[Record]:
    """The records of a run, in the order of its file, none if there is no such file."""
    return [record for _, record in read_lines(path)]


_ACCURACIES: Final = {
    "train_accuracy": "train",
    "validation_accuracy": "validation",
    "test_accuracy": "OOD",
    "avg_test_accuracy": "averaged OOD",
}
"""What accuracies are called in a line."""


def _describe(record: Record) -> str:
    """What was measured at a step, for people: accuracies, loss terms and Hessian distance."""
    parts = [
        f"{title} {100 * record.metrics[name]:.1f} %"
        for name, title in _ACCURACIES.items()
        if name in record.metrics
    ]
    for name, value in record.terms.items():
        if name not in {"loss", "penalty"}:
            parts.append(f"{name} {value:.3f}" if name == "risk" else f"{name} {value:.1e}")
    if "hessian_distance" in record.metrics:
        parts.append(f"‖H₁−H₂‖ {record.metrics['hessian_distance']:.2e}")
    return "  ".join(parts)


def run_progress(title: str, steps: int, stream: TextIO | None = None) -> Callable[[Record], None]:
    """What shows the records of a run as they come, by default on the standard error stream."""
    progress = Progress(f"{title:<12}", "steps", stream)

    def show(record: Record) -> None:
        progress(record.step + 1, steps, _describe(record), seconds=record.seconds)

    return show
