"""Records as TensorBoard curves."""

from __future__ import annotations

from pathlib import Path
from typing import final

from hessalign._errors import MissingPackageError
from hessalign.bench.runs import Record


@final
class TensorBoard:
    """Writes the records of a run for TensorBoard.

    Args:
        folder: Where to; `tensorboard --logdir` shows it.

    Raises:
        MissingPackageError: If TensorBoard is not installed.
    """

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
