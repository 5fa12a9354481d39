"""What a run reports while it goes: a record per evaluation, a JSON line each, as in DomainBed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

from hessalign._errors import InputError

RESULTS: Final = "results.jsonl"
"""The file that holds the records of a run."""

DONE: Final = "done"
"""The file that marks a run as complete: its last record."""

_METRIC: Final = re.compile(r"env\d+_(in|out)_acc|(train|test)_(accuracy|loss)|hessian_distance")
"""What evaluations measure; other numbers of a line are terms of the loss."""


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

    Attributes:
        hparams: Hyper-parameters of the run.
        args: Its arguments, under DomainBed's names.
        steps_per_epoch: Steps in which the smallest domain is seen once.
        extra: Further entries of every line.

    Example:
        >>> form = RecordForm({"lr": 0.1}, {"dataset": "PACS"}, steps_per_epoch=50)
        >>> record = Record(100, 2.0, {"loss": 0.5}, {"env0_in_acc": 0.75})
        >>> line = form.line([record])
        >>> json.loads(line)["epoch"], form.parse(line) == record
        (2.0, True)
    """

    hparams: Mapping[str, object] = field(default_factory=dict)
    args: Mapping[str, object] = field(default_factory=dict)
    steps_per_epoch: float = 1.0
    extra: Mapping[str, object] = field(default_factory=dict)

    def line(self, records: Sequence[Record]) -> str:
        """The last of all records so far as one line of JSON, without its end."""
        record = records[-1]
        steps, seconds = record.step + 1, record.seconds
        if len(records) > 1:
            steps, seconds = record.step - records[-2].step, seconds - records[-2].seconds
        entries = {
            "step": record.step,
            "epoch": record.step / self.steps_per_epoch,
            "step_time": seconds / steps,
            "seconds": record.seconds,
            "hparams": self.hparams,
            "args": self.args,
        }
        return json.dumps(
            {**self.extra, **record.terms, **record.metrics, **entries}, sort_keys=True
        )

    def parse(self, line: str) -> Record:
        """The record in a line; an InputError if it holds none."""
        entry = _entries(line)
        known = {"step", "epoch", "step_time", "seconds", "hparams", "args", "software"}
        known |= {"domain_names", *self.extra}
        rest = {key: value for key, value in entry.items() if key not in known}
        metrics = {key: value for key, value in rest.items() if _METRIC.fullmatch(key)}
        terms = {key: value for key, value in rest.items() if key not in metrics}
        step, seconds = entry.get("step"), entry.get("seconds")
        if not isinstance(step, int) or not isinstance(seconds, int | float):
            raise InputError(f"Expected a step and seconds, got {step!r} and {seconds!r}.")
        if not all(isinstance(value, int | float) for value in rest.values()):
            raise InputError(f"Expected numbers by name, got {str(rest)[:60]}.")
        return Record(step, seconds, terms, metrics)


def _entries(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise InputError(f"It is not JSON: {error}.") from error
    if not isinstance(found, dict):
        raise InputError("It holds no names with values.")
    return found


def read_lines(path: Path, form: RecordForm | None = None) -> list[tuple[str, Record]]:
    """The lines of a run, without ends, with their records; a half-written last one is left out.

    Returns:
        Lines without their ends, and what they say; none if there is no file.

    Raises:
        InputError: If another line than the last is not a record.
    """
    form = form or RecordForm()
    if not path.exists():
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
            found.append((line, form.parse(line)))
        except InputError as error:
            if number == len(lines):
                break
            raise InputError(
                f"Expected a record on line {number} of {path}, found {line[:60]!r}. Remove the "
                "line, or the run's folder to start afresh."
            ) from error
    return found


def read_records(path: Path, form: RecordForm | None = None) -> list[Record]:
    """The records of a run, in the order of its file; see `read_lines`."""
    return [record for _, record in read_lines(path, form)]
