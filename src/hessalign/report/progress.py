"""How far a long piece of work is: a live line on a terminal, whole lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TextIO, final
from weakref import WeakSet

from hessalign.report.tables import plain, plain_lines

_SECONDS_BETWEEN_LINES: Final = 10.0  # where lines stay, but for the last
_SECONDS_BETWEEN_UPDATES: Final = 0.2
_AGREEMENT: Final = 1.5  # factor by which two measurements of a speed may differ when it is shown
_BAR: Final = 20


@final
class Pace:
    """How fast work goes, once that can be told.

    What it takes to get going, such as reading data and starting processes, makes the speed since
    the beginning too low; processes that begin together report together, which makes the speed
    since the first report too high. Where both agree neither matters any more.
    """

    def __init__(self) -> None:
        self._first: tuple[float, float] | None = None

    def rate(self, done: float, seconds: float) -> float | None:
        """Take a measurement."""
        if done <= 0 or seconds <= 0:
            return None
        if self._first is None:
            self._first = (done, seconds)
        newly, since = done - self._first[0], seconds - self._first[1]
        if newly <= 0 or since <= 0:
            return None
        rates = sorted((done / seconds, newly / since))
        return sum(rates) / 2 if rates[1] < _AGREEMENT * rates[0] else None


@final
class Progress:
    """Shows how much is done, what there is to know, how fast it goes, and the time left.

    A terminal gets one line, cut to its width, that is rewritten in place; anything else gets whole
    lines now and then, and the last. Leaving it, as a context, ends the line and shows what was
    not shown yet, also after an error. `live` tells which it is. Stages are few and of unequal
    length: each is shown, with the time since the first in place of speed and time left.

    Example:
        >>> with Progress("counting", "sheep", sys.stdout) as progress:
        ...     progress(1, 12, "all white so far")
        ...     progress(2, 12, "one is black")
        counting  2/12 sheep  one is black
    """

    def __init__(
        self,
        title: str = "",
        unit: str = "",
        stream: TextIO | None = None,
        *,
        bar: bool = False,
        stages: bool = False,
    ) -> None:
        self.title = title
        self._unit = unit
        self._stream = sys.stderr if stream is None else stream
        self.live = self._stream.isatty()
        self._bar = bar
        self._stages = stages
        self._pace = Pace()
        self._begun: int | None = None
        self._start = self._shown_at = time.monotonic()
        self._latest = self._shown = ""
        self._width = 0  # of the live line, while it is not ended

    def __call__(
        self,
        done: int,
        total: int,
        text: str = "",
        *,
        seconds: float | None = None,
        left: float | None = None,
        now: bool = False,
    ) -> None:
        """Show how far it is."""
        clock = time.monotonic()
        if self._begun is None:  # the speed is that of what follows
            self._begun, self._start = done, clock
        if self._stages:
            words = [text, f"{clock - self._start:.0f} s"]
        else:
            if seconds is None:
                rate = self._pace.rate(done - self._begun, clock - self._start)
            else:
                rate = self._pace.rate(done, seconds)
            words = [_describe_pace(done, total, self._unit, rate, left), text]
        last = done >= total
        count = f"{done:>{len(str(total))}}/{total} {self._unit}".rstrip()
        if self._bar:
            filled = _BAR * done // max(1, total)
            count = f"[{'#' * filled + '-' * (_BAR - filled)}]  {count}"
        line = "  ".join(filter(None, (f"{self.title} {count}".strip(), *words)))
        self._show(line, now=now or last or self._stages)
        if last:
            self._end()

    def note(self, text: str) -> None:
        """Show what goes on where nothing is counted, and for how long it has."""
        self._show(f"{self.title}: {text}  {time.monotonic() - self._start:.0f} s", now=False)

    def say(self, text: str) -> None:
        """Write a line that stays."""
        line = plain_lines(f"{self.title}: {text}" if self.title else text)
        before = self._shown if self._width else ""
        start = "\r" if before else ""
        self._stream.write(f"{start}{line.ljust(self._width)}\n")
        self._width = 0
        if before:
            self._write(before)
        self._stream.flush()

    @property
    def due(self) -> bool:
        """Whether it is time to show something again, for callers to whom that is work."""
        pause = _SECONDS_BETWEEN_UPDATES if self.live else _SECONDS_BETWEEN_LINES
        return time.monotonic() - self._shown_at >= pause

    def close(self) -> None:
        """Show what was not shown yet, and end the line."""
        if self._latest != self._shown:
            self._write(self._latest)
        self._end()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _show(self, line: str, *, now: bool) -> None:
        self._latest = line = plain(line)
        _begun.add(self)
        if self.live or now or self.due:
            self._write(line)

    def _write(self, line: str) -> None:
        self._shown, self._shown_at = line, time.monotonic()
        if self.live:
            columns = _columns(self._stream)
            if columns and len(line) >= columns:  # it would go on below, and not be rewritten
                line = line[: columns - 2] + "…"
            self._stream.write("\r" + line.ljust(self._width))
            self._width = len(line)
        else:
            self._stream.write(line + "\n")
        self._stream.flush()

    def _end(self) -> None:
        if self._width:
            self._stream.write("\n")
            self._stream.flush()
        self._width = 0
        _begun.discard(self)


_begun: Final[WeakSet[Progress]] = WeakSet()
"""Displays that may have something left to show, or a line to end."""


@contextmanager
def whole_lines() -> Iterator[None]:
    """Close the displays that were begun in the block, however it is left.

    What comes next on the terminal, such as an error, then has a line of its own.
    """
    before = set(_begun)
    try:
        yield
    finally:
        for progress in set(_begun) - before:
            progress.close()


def warn(message: str) -> None:
    """Tell the user something that is not an error."""
    sys.stderr.write(f"hessalign: {plain_lines(message)}\n")


def _describe_pace(
    done: int, total: int, unit: str, rate: float | None, left: float | None = None
) -> str:
    """How fast something goes and how long it will take, as far as that can be told."""
    if left is None and rate is not None:
        left = (total - done) / rate
    parts = [] if rate is None else [_speed(rate, unit)]
    if left is not None and done < total:
        parts.append(f"{duration(left)} left")
    return "  ".join(parts)


def duration(seconds: float) -> str:
    """A time span in the unit people would use: seconds, minutes or hours."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _speed(rate: float, unit: str) -> str:
    """A speed in the unit of time in which people would count."""
    for factor, time_unit in ((1, "s"), (60, "min")):
        count = rate * factor
        if count >= 2:
            return f"{count:.{int(count < 10)}f} {unit}/{time_unit}"
    return f"{rate * 3600:.3g} {unit}/h"


def _columns(stream: TextIO) -> int:
    """Width of a terminal; 0 if it does not tell."""
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return 0
