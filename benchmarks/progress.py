"""Progress of a benchmark, on the standard error stream."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import final


@final
@dataclass
class Progress:
    """Lines that say what is being measured and since when.

    Attributes:
        every: Seconds between two ticks that are shown.
    """

    every: float = 5.0
    _stage: str = field(default="", init=False)
    _start: float = field(default_factory=time.monotonic, init=False)
    _shown: float = field(default=float("-inf"), init=False)

    def stage(self, name: str) -> None:
        """Begin a stage; what follows belongs to it.

        Args:
            name: What the stage measures.
        """
        self._stage = name

    def say(self, message: str) -> None:
        """Show a line.

        Args:
            message: What to show.
        """
        now = time.monotonic()
        sys.stderr.write(f"[{now - self._start:6.1f} s] {self._stage}: {message}\n")
        sys.stderr.flush()
        self._shown = now

    def tick(self, message: str) -> None:
        """Show a line unless one was shown a moment ago.

        Args:
            message: What to show.
        """
        if time.monotonic() - self._shown >= self.every:
            self.say(message)
