"""What a run reports while it goes: one record per evaluation, one JSON line each."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, final

from hessalign._errors import InputError


@final
@dataclass(frozen=True)
class Record:
    """One evaluation of a run.

    Attributes:
        step: The step at which it was made, from 0.
        seconds: Training time up to then, over all sessions of an interrupted run.
        terms: The terms of the loss at this step: "loss", "risk", and what the algorithm names.
        metrics: What the evaluation measured, for example "train_accuracy".
    """

    step: int
    seconds: float
    terms: Mapping[str, float]
    metrics: Mapping[str, float]

    def to_json(self, header: Mapping[str, object] | None = None) -> str:
        """The record as one line of JSON.

        Args:
            header: What describes the run and is repeated on every line.

        Returns:
            A line without its end.

        Example:
            >>> Record(3, 0.5, {"loss": 1.0}, {}).to_json()
            '{"step": 3, "seconds": 0.5, "terms": {"loss": 1.0}, "metrics": {}}'
        """
        return json.dumps(asdict(self) | dict(header or {}))


class RecordForm(Protocol):
    """How a run writes its records down."""

    @property
    def records(self) -> str:
        """The name of the file they are in."""

    @property
    def done(self) -> str:
        """The name of the file that marks the run as complete."""

    def line(self, records: Sequence[Record]) -> str:
        """The last of the records as a line without its end.

        Args:
            records: All records of the run up to this one.

        Returns:
            One line of JSON.
        """

    def parse(self, line: str) -> Record:
        """The record in a line.

        Args:
            line: What `line` gave. A line that is no record raises an InputError.

        Returns:
            The record.
        """


@final
@dataclass(frozen=True)
class OwnForm:
    """Terms and metrics apart, what describes the run on every line.

    Attributes:
        header: What describes the run.
    """

    header: Mapping[str, object]
    records: str = "records.jsonl"
    done: str = "done.json"

    def line(self, records: Sequence[Record]) -> str:
        """The last of the records.

        Args:
            records: All records of the run up to this one.

        Returns:
            One line of JSON.
        """
        return records[-1].to_json(self.header)

    def parse(self, line: str) -> Record:
        """The record in a line.

        Args:
            line: What `line` gave.

        Returns:
            The record.
        """
        entry = _entries(line)
        return _checked(entry, entry.get("terms"), entry.get("metrics"))


_ACCURACY: Final = re.compile(r"env\d+_(in|out)_acc")


@final
@dataclass(frozen=True)
class DomainBedForm:
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
        >>> form = DomainBedForm({"lr": 0.1}, {"dataset": "PACS"}, steps_per_epoch=50)
        >>> record = Record(100, 2.0, {"loss": 0.5}, {"env0_in_acc": 0.75})
        >>> line = form.line([record])
        >>> json.loads(line)["epoch"], form.parse(line) == record
        (2.0, True)
    """

    hparams: Mapping[str, object]
    args: Mapping[str, object]
    steps_per_epoch: float
    extra: Mapping[str, object] = field(default_factory=dict)
    records: str = "results.jsonl"
    done: str = "done"

    def line(self, records: Sequence[Record]) -> str:
        """The last of the records.

        Args:
            records: All records of the run up to this one.

        Returns:
            One line of JSON.
        """
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
        """The record in a line.

        Args:
            line: What `line` gave.

        Returns:
            The record.
        """
        entry = _entries(line)
        known = {"step", "epoch", "step_time", "seconds", "hparams", "args", *self.extra}
        rest = {key: value for key, value in entry.items() if key not in known}
        metrics = {key: value for key, value in rest.items() if _ACCURACY.fullmatch(key)}
        terms = {key: value for key, value in rest.items() if key not in metrics}
        return _checked(entry, terms, metrics)


def _entries(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise InputError(f"It is not JSON: {error}.") from error
    if not isinstance(found, dict):
        raise InputError("It holds no names with values.")
    return found


def _checked(entry: Mapping[str, Any], terms: object, metrics: object) -> Record:
    step, seconds = entry.get("step"), entry.get("seconds")
    if not isinstance(step, int) or not isinstance(seconds, int | float):
        raise InputError(f"Expected a step and seconds, got {step!r} and {seconds!r}.")
    for values in (terms, metrics):
        if not isinstance(values, dict) or not all(
            isinstance(value, int | float) for value in values.values()
        ):
            raise InputError(f"Expected numbers by name, got {str(values)[:60]}.")
    return Record(step, seconds, terms, metrics)  # type: ignore[arg-type]


def read_lines(path: Path, form: RecordForm) -> list[tuple[str, Record]]:
    """The lines of a run with their records; see `read_records`.

    Args:
        path: A file of JSON lines.
        form: How they are written.

    Returns:
        Lines without their ends, and what they say.

    Raises:
        InputError: If another line than the last is not a record.
    """
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
    """The records of a run; a half-written last line, left by a killed process, is passed over.

    Args:
        path: A file of JSON lines; another line than the last that is not a record raises a
            ValueError.
        form: How they are written; our own form if None.

    Returns:
        The records in the order of the file; none if there is no file.
    """
    return [record for _, record in read_lines(path, OwnForm({}) if form is None else form)]
