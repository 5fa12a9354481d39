"""A live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import Final, TextIO, final

from hessalign.training import ColoredMnistConfig, Record

SECONDS_BETWEEN_LINES: Final = 10.0
ACCURACIES: Final = {
    "train_accuracy": "train",
    "validation_accuracy": "validation",
    "test_accuracy": "OOD",
}
"""What accuracies are called in a line."""


def describe(record: Record, steps: int) -> str:
    """A record as one line for people.

    Args:
        record: The record.
        steps: Steps of the whole run.

    Returns:
        Step, accuracies, loss terms, Hessian distance, speed and time left.

    Example:
        >>> terms = {"loss": 0.7, "risk": 0.5, "penalty": 0.1, "hessian": 0.1}
        >>> record = Record(9, 3.0, terms, {"train_accuracy": 0.8, "test_accuracy": 0.2})
        >>> print(describe(record, 20))
        step  10/20  train 80.0 %  OOD 20.0 %  risk 0.500  hessian 1.0e-01  3.3 steps/s  3 s left
    """
    done = record.step + 1
    parts = [f"step {done:>{len(str(steps)) + 1}}/{steps}"]
    for name, title in ACCURACIES.items():
        if name in record.metrics:
            parts.append(f"{title} {100 * record.metrics[name]:.1f} %")
    for name, value in record.terms.items():
        if name not in {"loss", "penalty"}:
            parts.append(f"{name} {value:.3f}" if name == "risk" else f"{name} {value:.1e}")
    if "hessian_distance" in record.metrics:
        parts.append(f"‖H₁−H₂‖ {record.metrics['hessian_distance']:.2e}")
    if record.seconds > 0:
        rate = done / record.seconds
        parts += [f"{rate:.1f} steps/s", f"{(steps - done) / rate:.0f} s left"]
    return "  ".join(parts)


@final
class RunsProgress:
    """Shows many runs, some of which go on at the same time.

    Args:
        total: How many runs.
        steps: Steps of each run.
        stream: Where to write; a terminal gets one line for all that is rewritten in place.
    """

    def __init__(self, total: int, steps: int, stream: TextIO) -> None:
        self.total = total
        self.steps = steps
        self.stream = stream
        self.live = stream.isatty()
        self.start = time.monotonic()
        self.newest: dict[str, Record] = {}
        self.begun: dict[str, int] = {}
        self.finished = 0
        self.last = self.start
        self.width = 0

    def __call__(self, config: ColoredMnistConfig, record: Record) -> None:
        """Show a record.

        Args:
            config: The run it belongs to.
            record: Its newest record.
        """
        options = (f"{name}={value}" for name, value in config.options.items())
        words = (config.imbalance or "", config.algorithm, *options, f"#{config.seed}")
        title = " ".join(words).strip()
        self.begun.setdefault(title, record.step)
        self.newest[title] = record
        finished = record.step + 1 >= self.steps
        if finished:
            self.finished += 1
            del self.newest[title]
        now = time.monotonic()
        if self.live:
            line = "   ".join([self._summary(now), *map(self._state, self.newest)])
            end = "\n" if self.finished == self.total else ""
            self.stream.write("\r" + line.ljust(self.width) + end)
            self.width = len(line)
        elif finished or now - self.last >= SECONDS_BETWEEN_LINES:
            self.stream.write(f"{self._summary(now)}   {title} {describe(record, self.steps)}\n")
            self.last = now
        self.stream.flush()

    def _summary(self, now: float) -> str:
        """Runs done and time left, from the steps taken so far in this session."""
        going = sum(r.step + 1 - self.begun[title] for title, r in self.newest.items())
        taken = self.finished * self.steps + going
        left = (self.total * self.steps - taken) * (now - self.start) / max(1, taken)
        return f"{self.finished}/{self.total} runs, {duration(left)} left"

    def _state(self, title: str) -> str:
        record = self.newest[title]
        accuracy = 100 * record.metrics["test_accuracy"]
        return f"{title} {record.step + 1:>3}/{self.steps} OOD {accuracy:4.1f} %"


def duration(seconds: float) -> str:
    """A time span in the unit people would use.

    Args:
        seconds: How long.

    Returns:
        Seconds, minutes or hours.

    Example:
        >>> duration(90), duration(1800), duration(9000)
        ('90 s', '30 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


@final
class Progress:
    """Shows the records of one run as they come.

    Args:
        title: What is running.
        steps: Steps of the whole run.
        stream: Where to write; a terminal gets one line that is rewritten in place.
    """

    def __init__(self, title: str, steps: int, stream: TextIO) -> None:
        self.title = title
        self.steps = steps
        self.stream = stream
        self.live = stream.isatty()
        self.width = 0
        self.last = time.monotonic()

    def __call__(self, record: Record) -> None:
        """Show a record.

        Args:
            record: The newest record.
        """
        final_record = record.step + 1 >= self.steps
        line = f"{self.title:<12} {describe(record, self.steps)}"
        if self.live:
            self.stream.write("\r" + line.ljust(self.width) + ("\n" if final_record else ""))
            self.width = len(line)
        elif final_record or time.monotonic() - self.last >= SECONDS_BETWEEN_LINES:
            self.stream.write(line + "\n")
            self.last = time.monotonic()
        self.stream.flush()


@final
class StageProgress:
    """Shows which of several stages is going on, and for how long it has been.

    Args:
        title: What is going on.
        stream: Where to write; a terminal gets one line that is rewritten in place.
    """

    def __init__(self, title: str, stream: TextIO) -> None:
        self.title = title
        self.stream = stream
        self.live = stream.isatty()
        self.start = time.monotonic()
        self.width = 0

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Show the stage that begins.

        Args:
            stage: What it does.
            done: How many stages are done.
            total: How many there are.
        """
        seconds = time.monotonic() - self.start
        line = f"{self.title} {done}/{total}  {stage}  {seconds:.0f} s"
        if self.live:
            self.stream.write("\r" + line.ljust(self.width) + ("\n" if done == total else ""))
            self.width = len(line)
        else:
            self.stream.write(line + "\n")
        self.stream.flush()


@final
class CountProgress:
    """Shows how many of many things are done, how fast, and the time left.

    Args:
        title: What is going on.
        unit: What is counted.
        stream: Where to write; a terminal gets one line that is rewritten in place.
    """

    def __init__(self, title: str, unit: str, stream: TextIO) -> None:
        self.title = title
        self.unit = unit
        self.stream = stream
        self.live = stream.isatty()
        self.start = time.monotonic()
        self.begun: int | None = None
        self.last = self.start
        self.width = 0

    def __call__(self, done: int, total: int) -> None:
        """Show how far it is.

        Args:
            done: How many are done.
            total: How many there are.
        """
        now = time.monotonic()
        if self.begun is None:  # the speed is that of what follows
            self.begun, self.start = done, now
        line = describe_count(
            self.title, self.unit, done, total, done - self.begun, now - self.start
        )
        if self.live:
            self.stream.write("\r" + line.ljust(self.width) + ("\n" if done == total else ""))
            self.width = len(line)
        elif done == total or now - self.last >= SECONDS_BETWEEN_LINES:
            self.stream.write(line + "\n")
            self.last = now
        self.stream.flush()


def describe_count(title: str, unit: str, done: int, total: int, newly: int, seconds: float) -> str:
    """How far a long piece of work is, as one line for people.

    Args:
        title: What is going on.
        unit: What is counted.
        done: How many are done.
        total: How many there are.
        newly: How many of them were done in this session.
        seconds: How long that took.

    Returns:
        A bar, numbers, and speed and time left once they are known.

    Example:
        >>> print(describe_count("checking", "images", 500, 2000, 500, 10.0))
        checking [#####---------------]   500/2000 images  50 images/s  30 s left
        >>> print(describe_count("checking", "images", 2000, 2000, 0, 10.0))
        checking [####################]  2000/2000 images
    """
    filled = 20 * done // max(1, total)
    bar = "#" * filled + "-" * (20 - filled)
    line = f"{title} [{bar}]  {done:>{len(str(total))}}/{total} {unit}"
    if newly > 0 and seconds > 0:
        rate = newly / seconds
        line += f"  {rate:.0f} {unit}/s  {duration((total - done) / rate)} left"
    return line
