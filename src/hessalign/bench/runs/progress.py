"""What the display of a run, or of several at once, says about them."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean
from typing import Final, TextIO, final

from hessalign.bench.runs.records import Record
from hessalign.report.progress import Pace, Progress

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
    """What shows the records of one run as they come.

    Args:
        title: What is running.
        steps: Steps of the whole run.
        stream: Where to write; None for the standard error stream.

    Returns:
        A function to call with every record.
    """
    progress = Progress(f"{title:<12}", "steps", stream)

    def show(record: Record) -> None:
        progress(record.step + 1, steps, _describe(record), seconds=record.seconds)

    return show


@final
class RunsProgress:
    """Shows many runs, some of which go on at the same time.

    Args:
        total: How many runs.
        steps: Steps of each run.
        stream: Where to write; None for the standard error stream.
        jobs: How many go on at the same time.
    """

    def __init__(self, total: int, steps: int, stream: TextIO | None = None, jobs: int = 1) -> None:
        self._total = total
        self._steps = steps
        self._jobs = jobs
        self._progress = Progress("", "runs", stream)
        self._newest: dict[str, Record] = {}
        self._reached: dict[str, int] = {}
        self._paces: dict[str, Pace] = {}
        self._rates: dict[str, float] = {}

    def __call__(self, title: str, record: Record) -> None:
        """Show a record of a run."""
        reached = self._reached[title] = record.step + 1
        self._newest[title] = record
        rate = self._paces.setdefault(title, Pace()).rate(reached, record.seconds)
        if rate is not None:
            self._rates[title] = rate
        ended = reached >= self._steps
        if ended:
            del self._newest[title]
        text = f"{title} {reached}/{self._steps}  {_describe(record)}"
        if self._progress.live:
            text = "   ".join(map(self._state, self._newest))
        done = sum(reached >= self._steps for reached in self._reached.values())
        self._progress(done, self._total, text, left=self._left(done), now=ended)

    def _left(self, done: int) -> float | None:
        """Seconds left, once the speed of as many runs is known as go on at once."""
        rest = self._total * self._steps - sum(self._reached.values())
        if not rest or len(self._rates) < min(self._jobs, self._total):
            return None
        seconds = fmean(1 / rate for rate in self._rates.values())
        return rest * seconds / min(self._jobs, self._total - done)

    def _state(self, title: str) -> str:
        record = self._newest[title]
        accuracy = 100 * record.metrics["test_accuracy"]
        return f"{title} {record.step + 1:>3}/{self._steps} OOD {accuracy:4.1f} %"
