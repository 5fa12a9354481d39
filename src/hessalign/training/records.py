"""What a run reports while it goes: one record per evaluation, one JSON line each."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import final


@final
@dataclass(frozen=True)
class Record:
    """The state of a run before the update of a step.

    Attributes:
        step: The step, from 0.
        loss: The loss that is minimised.
        risk: Mean over domains of the mean loss.
        penalty: The penalty before its weight; 0 if the algorithm has none.
        parts: Named pieces of the penalty.
        train_accuracy: Mean accuracy over the training domains.
        test_accuracy: Accuracy on the unseen domain.
        test_loss: Mean loss on the unseen domain.
        hessian_distance: ‖H₁ − H₂‖ between the training domains, if asked for.
        seconds: Time since the start of training.
    """

    step: int
    loss: float
    risk: float
    penalty: float
    parts: dict[str, float]
    train_accuracy: float
    test_accuracy: float
    test_loss: float
    hessian_distance: float | None
    seconds: float

    def to_json(self) -> str:
        """The record as one line of JSON.

        Returns:
            A line without its end.
        """
        return json.dumps(asdict(self))


def write_records(path: Path, records: list[Record]) -> None:
    """Write records as JSON lines, all or nothing.

    Args:
        path: The file; an existing one is replaced only once the new one is complete.
        records: The records.
    """
    partial = path.with_name(path.name + ".partial")
    partial.write_text("".join(record.to_json() + "\n" for record in records))
    partial.replace(path)
