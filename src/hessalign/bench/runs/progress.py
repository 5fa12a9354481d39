"""The records of a run as they come: a line for people, curves for TensorBoard."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, TextIO, final

from hessalign._errors import MissingPackageError
from hessalign.bench.runs.records import Record
from hessalign.report.progress import Progress

_ACCURACIES: Final = {
    "train_accuracy": "train",
    "validation_accuracy": "validation",
    "test_accuracy": "OOD",
}
"""What accuracies are called in a line."""


def _describe(record: Record) -> str:
    """What was measured at a step, for people.

    Returns:
        Accuracies, loss terms and Hessian distance.

    Example:
        >>> terms = {"loss": 0.7, "risk": 0.5, "penalty": 0.1, "hessian": 0.1}
        >>> _describe(Record(9, 3.0, terms, {"train_accuracy": 0.8, "test_accuracy": 0.2}))
        'train 80.0 %  OOD 20.0 %  risk 0.500  hessian 1.0e-01'
    """
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


@final
class TensorBoard:
    """Writes the records of a run into a folder that `tensorboard --logdir` shows."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingPackageError(
                "Logging to TensorBoard needs tensorboard: pip install 'hessalign[tensorboard]'."
            ) from error
        self._writer = SummaryWriter(str(folder))

    def __call__(self, record: Record) -> None:
        """Write a record."""
        for group, values in (("terms", record.terms), ("metrics", record.metrics)):
            for name, value in values.items():
                self._writer.add_scalar(f"{group}/{name}", value, record.step)
        self._writer.flush()
