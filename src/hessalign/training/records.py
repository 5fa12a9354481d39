"""What a run reports while it goes: one record per evaluation, one JSON line each."""

from __future__ import annotations

import json
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
