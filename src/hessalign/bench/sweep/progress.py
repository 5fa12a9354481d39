"""A sweep while it goes on: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Final, TextIO, final

from hessalign.bench.runs.progress import SECONDS_BETWEEN_LINES, duration, speed
from hessalign.bench.sweep import JobStatus, Launcher, Outcome
from hessalign.bench.sweep.status import mean_seconds, seconds_left

SECONDS_BETWEEN_UPDATES: Final = 0.2

LEAST_TIMED: Final = 2
"""How many runs are timed before the time to go is told."""


@final
class SweepProgress:
    """Shows how many runs are done, failed, going on and left, how fast, and the time to go.

    Args:
        statuses: The jobs as they are before the launcher begins.
        launcher: What has them done.
        stream: Where to write; a terminal gets one line that is rewritten in place.
    """

    def __init__(self, statuses: Sequence[JobStatus], launcher: Launcher, stream: TextIO) -> None:
        self.statuses = {status.job.folder: status for status in statuses}
        self.launcher = launcher
        self.stream = stream
        self.live = stream.isatty()
        self.start = time.monotonic()
        self.executed = 0
        self.last = 0.0
        self.width = 0
        self._write(self.line())

    def __call__(self, outcome: Outcome) -> None:
        """Count an outcome.

        Args:
            outcome: How a task ended.
        """
        job = outcome.task.job
        state = "running" if outcome.state == "elsewhere" else outcome.state
        seconds = outcome.seconds or None
        self.statuses[job.folder] = JobStatus(job, state, seconds, outcome.error)
        self.executed += outcome.state == "done" and outcome.seconds > 0
        if outcome.state == "failed":
            self._say(f"failed: {job.describe()}: {outcome.error}")
        pause = SECONDS_BETWEEN_UPDATES if self.live else SECONDS_BETWEEN_LINES
        if time.monotonic() - self.last >= pause:
            self._write(self.line())

    @property
    def failed(self) -> bool:
        """Whether runs failed."""
        return any(status.state == "failed" for status in self.statuses.values())

    def completed(self, status: JobStatus) -> JobStatus:
        """What a folder tells of a run, or that it failed, if that could not be kept there.

        Args:
            status: What the folder tells.

        Returns:
            What is known.
        """
        seen = self.statuses[status.job.folder]
        return seen if (status.state, seen.state) == ("left", "failed") else status

    def line(self) -> str:
        """How far the sweep is.

        Returns:
            One line.
        """
        statuses = list(self.statuses.values())
        counts = Counter(status.state for status in statuses)
        going = min(self.launcher.parallel, counts["left"]) + counts["running"]
        left = counts["left"] + counts["running"] - going
        parts = [f"{counts['done']}/{len(statuses)} runs done"]
        parts += [f"{counts['failed']} failed"] if counts["failed"] else []
        parts += [f"{going} running", f"{left} left"]
        seconds = time.monotonic() - self.start
        if self.executed and seconds > 0:
            parts.append(speed(self.executed / seconds, "runs"))
        parts += self._rest(statuses)
        return "  ".join(parts)

    def _rest(self, statuses: Sequence[JobStatus]) -> list[str]:
        """The time to go, once as many runs were timed as go on at once: the first are quick."""
        timed = sum(status.seconds is not None for status in statuses)
        if timed < max(LEAST_TIMED, self.launcher.parallel):
            return []
        rest = seconds_left(statuses, mean_seconds(statuses), self.launcher.parallel)
        return [f"{duration(rest)} to go"] if rest else []

    def close(self) -> None:
        """Show the last state, and leave the line."""
        self._write(self.line())
        if self.live:
            self.stream.write("\n")
            self.stream.flush()

    def _say(self, text: str) -> None:
        """A line that stays."""
        if self.live:
            self.stream.write("\r" + text.ljust(self.width) + "\n")
            self._write(self.line())
        else:
            self.stream.write(text + "\n")

    def _write(self, line: str) -> None:
        self.last = time.monotonic()
        if self.live:
            self.stream.write("\r" + line.ljust(self.width))
            self.width = len(line)
        else:
            self.stream.write(line + "\n")
        self.stream.flush()
