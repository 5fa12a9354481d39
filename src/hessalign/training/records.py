"""What a run reports while it goes: one record per evaluation, one JSON line each."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import final


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


def read_records(path: Path) -> list[Record]:
    """The records of a run; a half-written last line, left by a killed process, is passed over.

    Args:
        path: A file of JSON lines.

    Returns:
        The records in the order of the file; none if there is no file.

    Raises:
        ValueError: If another line than the last is not a record.
    """
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    records = []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            entry = json.loads(line)
            records.append(Record(*(entry[key] for key in ("step", "seconds", "terms", "metrics"))))
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines):
                break
            raise ValueError(
                f"Expected a record on line {number} of {path}, found {line[:60]!r}. Remove the "
                "line, or the run's folder to start afresh."
            ) from error
    return records


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file all at once: a reader, or a crash, sees the old content or the new.

    Args:
        path: The file; its folder exists.
        content: What it is to hold.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
