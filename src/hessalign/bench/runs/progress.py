"""A live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from statistics import fmean
from typing import Final, TextIO, final

from hessalign.bench.runs.records import Record

SECONDS_BETWEEN_LINES: Final = 10.0

AGREEMENT: Final = 1.5
"""By which factor two measurements of a speed may differ before it is shown."""

ACCURACIES: Final = {
    "train_accuracy": "train",
    "validation_accuracy": "validation",
    "test_accuracy": "OOD",
}
"""What accuracies are called in a line."""


@final
class Pace:
    """How fast work goes, once that can be told.

    What it takes to get going, such as reading data and starting processes, makes the speed since
    the beginning too low; processes that begin together report together, which makes the speed
    since the first report too high. Where both agree neither matters any more.

    Example:
        >>> pace = Pace()
        >>> [pace.rate(done, seconds) for done, seconds in ((1, 60.0), (2, 60.5), (200, 150.0))]
        [None, None, None]
        >>> round(pace.rate(500, 300.0), 2)
        1.87
    """

    def __init__(self) -> None:
        self.first: tuple[float, float] | None = None

    def rate(self, done: float, seconds: float) -> float | None:
        """Take a measurement.

        Args:
            done: How much was done since the beginning.
            seconds: How long that took.

        Returns:
            How much is done in a second; None if that cannot be told yet.
        """
        if done <= 0 or seconds <= 0:
            return None
        if self.first is None:
            self.first = (done, seconds)
        newly, since = done - self.first[0], seconds - self.first[1]
        if newly <= 0 or since <= 0:
            return None
        rates = sorted((done / seconds, newly / since))
        return sum(rates) / 2 if rates[1] < AGREEMENT * rates[0] else None


def describe(record: Record, steps: int, rate: float | None = None) -> str:
    """A record as one line for people.

    Args:
        record: The record.
        steps: Steps of the whole run.
        rate: Steps in a second, if that can be told.

    Returns:
        Step, accuracies, loss terms, Hessian distance, speed and time left.

    Example:
        >>> terms = {"loss": 0.7, "risk": 0.5, "penalty": 0.1, "hessian": 0.1}
        >>> record = Record(9, 3.0, terms, {"train_accuracy": 0.8, "test_accuracy": 0.2})
        >>> print(describe(record, 20, rate=3.3))
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
    if rate is not None:
        parts.append(f"{rate:.1f} steps/s")
        parts += [f"{duration((steps - done) / rate)} left"] if done < steps else []
    return "  ".join(parts)


@final
class RunsProgress:
    """Shows many runs, some of which go on at the same time.

    Args:
        total: How many runs.
        steps: Steps of each run.
        stream: Where to write; a terminal gets one line for all that is rewritten in place.
        jobs: How many go on at the same time.
    """

    def __init__(self, total: int, steps: int, stream: TextIO, jobs: int = 1) -> None:
        self.total = total
        self.steps = steps
        self.stream = stream
        self.jobs = jobs
        self.live = stream.isatty()
        self.newest: dict[str, Record] = {}
        self.reached: dict[str, int] = {}
        self.paces: dict[str, Pace] = {}
        self.rates: dict[str, float] = {}
        self.finished = 0
        self.last = time.monotonic()
        self.width = 0

    def __call__(self, title: str, record: Record) -> None:
        """Show a record.

        Args:
            title: The run it belongs to.
            record: Its newest record.
        """
        self.reached[title] = record.step + 1
        self.newest[title] = record
        rate = self.paces.setdefault(title, Pace()).rate(record.step + 1, record.seconds)
        if rate is not None:
            self.rates[title] = rate
        finished = record.step + 1 >= self.steps
        if finished:
            self.finished += 1
            del self.newest[title]
        now = time.monotonic()
        if self.live:
            line = "   ".join([self._summary(), *map(self._state, self.newest)])
            end = "\n" if self.finished == self.total else ""
            self.stream.write("\r" + line.ljust(self.width) + end)
            self.width = len(line)
        elif finished or now - self.last >= SECONDS_BETWEEN_LINES:
            self.stream.write(f"{self._summary()}   {title} {describe(record, self.steps, rate)}\n")
            self.last = now
        self.stream.flush()

    def _summary(self) -> str:
        """Runs done and time left, once the speed of as many runs is known as go on at once."""
        done = f"{self.finished}/{self.total} runs"
        rest = self.total * self.steps - sum(self.reached.values())
        if not rest or len(self.rates) < min(self.jobs, self.total):
            return done
        seconds = fmean(1 / rate for rate in self.rates.values())
        left = rest * seconds / min(self.jobs, self.total - self.finished)
        return f"{done}, {duration(left)} left"

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
        self.pace = Pace()
        self.last = time.monotonic()

    def __call__(self, record: Record) -> None:
        """Show a record.

        Args:
            record: The newest record.
        """
        final_record = record.step + 1 >= self.steps
        rate = self.pace.rate(record.step + 1, record.seconds)
        line = f"{self.title:<12} {describe(record, self.steps, rate)}"
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
        self.pace = Pace()
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
        rate = self.pace.rate(done - self.begun, now - self.start)
        line = describe_count(self.title, self.unit, done, total, rate)
        if self.live:
            self.stream.write("\r" + line.ljust(self.width) + ("\n" if done == total else ""))
            self.width = len(line)
        elif done == total or now - self.last >= SECONDS_BETWEEN_LINES:
            self.stream.write(line + "\n")
            self.last = now
        self.stream.flush()


def describe_count(title: str, unit: str, done: int, total: int, rate: float | None) -> str:
    """How far a long piece of work is, as one line for people.

    Args:
        title: What is going on.
        unit: What is counted.
        done: How many are done.
        total: How many there are.
        rate: How many are done in a second, if that can be told.

    Returns:
        A bar, numbers, and speed and time left once they are known.

    Example:
        >>> print(describe_count("checking", "images", 500, 2000, 50.0))
        checking [#####---------------]   500/2000 images  50 images/s  30 s left
        >>> print(describe_count("checking", "images", 2000, 2000, None))
        checking [####################]  2000/2000 images
    """
    filled = 20 * done // max(1, total)
    bar = "#" * filled + "-" * (20 - filled)
    line = f"{title} [{bar}]  {done:>{len(str(total))}}/{total} {unit}"
    if rate is not None:
        line += f"  {speed(rate, unit)}"
        line += f"  {duration((total - done) / rate)} left" if done < total else ""
    return line


def speed(rate: float, unit: str) -> str:
    """A speed in the unit of time in which people would count.

    Args:
        rate: How many are done in a second.
        unit: What is counted.

    Returns:
        How many in a second, a minute or an hour.

    Example:
        >>> speed(50, "images"), speed(0.2, "runs"), speed(0.001, "runs")
        ('50 images/s', '12 runs/min', '3.6 runs/h')
    """
    for factor, time_unit in ((1, "s"), (60, "min")):
        if rate * factor >= 2:
            return f"{rate * factor:.0f} {unit}/{time_unit}"
    return f"{rate * 3600:.3g} {unit}/h"
