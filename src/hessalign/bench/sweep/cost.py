"""What a sweep will cost, from a short measurement of each algorithm."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import numpy as np

from hessalign.bench.data.catalog import DEFAULT_STEPS
from hessalign.bench.runs.job import Job
from hessalign.bench.sweep.execution import Work
from hessalign.bench.sweep.selection.reading import RESULTS

_LENGTHS: Final = (1, 16, 64)
"""Steps of the measured runs."""

_LONG_ENOUGH: Final = 0.5
"""Seconds that the longest measured run should take; short ones are followed by longer ones."""

_MOST_STEPS: Final = 4096


@final
@dataclass(frozen=True)
class RunCost:
    """What one run costs.

    Attributes:
        start: Seconds before the first step, once a process has read the data.
        step: Seconds for each step.
        evaluation: Seconds for each evaluation.
        record: Bytes of each record.
        files: Bytes of everything else.
    """

    start: float
    step: float
    evaluation: float
    record: float
    files: float

    def seconds(self, steps: int, evaluations: int) -> float:
        """How long a run takes, in seconds."""
        return self.start + steps * self.step + evaluations * self.evaluation

    def size(self, evaluations: int) -> float:
        """What a run leaves on the disk."""
        return self.files + evaluations * self.record


def measure_cost(job: Job, work: Work, clock: Callable[[], float] = time.perf_counter) -> RunCost:
    """Measure what a run of a job costs by some that are very short.

    A run of n steps with k evaluations takes start + n step + k evaluation seconds; k is the number
    of records it wrote. The three are fitted, none below zero. A first run, which is not counted,
    reads the data.

    Args:
        job: What to measure; its own number of steps is the most that is tried.
        work: What does it.
        clock: What tells the time.

    Returns:
        The cost.
    """
    from scipy.optimize import nnls

    rows: list[tuple[int, int, int]] = []
    seconds: list[float] = []
    most = min(_MOST_STEPS, DEFAULT_STEPS if job.steps is None else job.steps)
    lengths = [length for length in _LENGTHS if length < most] or [1]
    with tempfile.TemporaryDirectory(prefix="hessalign-plan-") as name:
        work(dataclasses.replace(job, steps=1), Path(name) / "first")
        while lengths:
            length = lengths.pop(0)
            folder = Path(name) / str(length)
            start = clock()
            work(dataclasses.replace(job, steps=length), folder)
            seconds.append(clock() - start)
            records = (folder / RESULTS).read_bytes().count(b"\n")
            rows.append((1, length, records))
            if not lengths and seconds[-1] < _LONG_ENOUGH and 4 * length <= most:
                lengths.append(4 * length)
        written = (folder / RESULTS).stat().st_size
        files = sum(path.stat().st_size for path in folder.iterdir()) - written
    (begin, step, evaluation), _ = nnls(np.array(rows, dtype=float), np.array(seconds))
    return RunCost(float(begin), float(step), float(evaluation), written / records, files)


def evaluations(steps: int, every: int) -> int:
    """How often a run is evaluated.

    Returns:
        The number of its records.

    Example:
        >>> evaluations(5001, 300), evaluations(5001, 1000), evaluations(5001, 100)
        (18, 6, 51)
    """
    return len(range(0, steps, every)) + ((steps - 1) % every != 0)
