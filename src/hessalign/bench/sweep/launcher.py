"""What a launcher is, the simplest one, and what those that use several processes share."""

from __future__ import annotations

import dataclasses
import heapq
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Protocol, final

from hessalign.bench.runs.interruption import Interruption
from hessalign.bench.sweep.execution import Outcome, Task, Work, execute, fail

Begin = Callable[[Task], None]
"""Told of a task that is about to begin, or to be begun again."""


def nothing(task: Task) -> None:
    """For those who need not be told."""


class Launcher(Protocol):
    """Has tasks done, somewhere.

    Attributes:
        parallel: How many at a time, as far as is known.
    """

    parallel: int

    def run(
        self, tasks: Sequence[Task], work: Work, begin: Begin = nothing
    ) -> Generator[Outcome, None, None]:
        """Have tasks done.

        Each is carried out by `execute`, which decides whether there is anything to do. Ctrl-C or
        a SIGTERM begins no further task, lets those that go on save what they have, and then raises
        KeyboardInterrupt; a second one stops at once.

        Args:
            tasks: The tasks, those to begin with first.
            work: What does a job.
            begin: Called in this process with each task before it begins, or is queued where only
                a cluster knows when it does; a task whose worker was lost comes again.

        Returns:
            How each ended, as they end.
        """


@final
@dataclass(frozen=True)
class Retries:
    """How often a task is tried again when its worker is lost, and after how long.

    Attributes:
        attempts: Workers that may be lost over one task.
        delay: Seconds before the second attempt; they double from one to the next.
        longest: No wait is longer than this many seconds.

    Example:
        >>> [Retries().seconds(attempt) for attempt in (1, 2, 3)]
        [0.5, 1.0, 2.0]
    """

    attempts: int = 5
    delay: float = 0.5
    longest: float = 60.0

    def seconds(self, attempt: int) -> float:
        """How long to wait before an attempt, after so many workers were lost."""
        return min(self.longest, self.delay * 2.0 ** (attempt - 1))


@final
class Waiting:
    """Tasks that are not begun: some at once, some only after a while.

    Args:
        tasks: Those that may be begun at once, in their order.
        retries: What happens to those whose worker is lost.
    """

    def __init__(self, tasks: Sequence[Task], retries: Retries) -> None:
        self._ready = deque(tasks)
        self._later: list[tuple[float, int, Task]] = []
        self._count = 0
        self.retries = retries

    def __bool__(self) -> bool:
        return bool(self._ready or self._later)

    def next(self) -> Task | None:
        """Take the task to begin with now; None if there is none, or none yet."""
        if self._later and self._later[0][0] <= time.monotonic():
            return heapq.heappop(self._later)[2]
        return self._ready.popleft() if self._ready else None

    def lost(self, task: Task, seconds: float, reason: str) -> Outcome | None:
        """Put back a task whose worker was lost; too often, and that is its outcome."""
        attempt = task.attempt + 1
        if attempt >= self.retries.attempts:
            return fail(
                task,
                seconds,
                f"Its worker was lost {attempt} times, most recently: {reason}. If memory ran out, "
                "try fewer at once.",
            )
        again = dataclasses.replace(task, attempt=attempt)
        due = time.monotonic() + self.retries.seconds(attempt)
        self._count += 1
        heapq.heappush(self._later, (due, self._count, again))
        return None


@final
class SerialLauncher:
    """One task after the other, in this process, with a single thread."""

    parallel = 1

    def run(
        self, tasks: Sequence[Task], work: Work, begin: Begin = nothing
    ) -> Generator[Outcome, None, None]:
        """Have tasks done."""
        import torch

        torch.set_num_threads(1)
        with Interruption() as interruption:
            for task in tasks:
                interruption.raise_if_requested()
                begin(task)
                yield execute(task, work)
