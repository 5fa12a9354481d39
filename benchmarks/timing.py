"""Interleaved timing of several procedures, and extrapolation from few probes to many.

What is compared is measured in the same rounds, so that a machine that slows down slows all of them
down alike. The time reported is processor time of this process, which runs on one thread: waiting
for other programs does not count. Elapsed time is recorded beside it.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

import torch

from hessalign.report.progress import Progress

Run = Callable[[], object]

MINIMUM_SAMPLE = 0.02
"""Seconds a sample should last; shorter procedures are called several times in a row, after one
call that does not count and brings back the caches that the previous procedure took."""

SLOW = 0.5
"""Seconds from which a single call is enough to warm up."""

VERY_SLOW = 3.0
"""Seconds from which that call is the measurement as well."""


@final
@dataclass(frozen=True)
class Timing:
    """Repeated measurements of one procedure, milliseconds per call.

    Attributes:
        cpu: Processor time of each sample.
        wall: Elapsed time of each sample.
        calls: Calls in a row within a sample.
        probes: The two probe counts the samples were extrapolated from, if they were.
    """

    cpu: tuple[float, ...]
    wall: tuple[float, ...]
    calls: int = 1
    probes: tuple[int, int] | None = None

    @property
    def median(self) -> float:
        """Median processor time."""
        return statistics.median(self.cpu)

    @property
    def low(self) -> float:
        """First decile of the processor time: what disturbs a measurement only adds to it.

        Example:
            >>> Timing(tuple(float(i) for i in range(20, 0, -1)), (0.0,)).low
            3.0
        """
        return sorted(self.cpu)[len(self.cpu) // 10]

    @property
    def quartiles(self) -> tuple[float, float]:
        """First and third quartile of the processor time."""
        if len(self.cpu) < 2:
            return self.cpu[0], self.cpu[0]
        first, _, third = statistics.quantiles(self.cpu, n=4, method="inclusive")
        return first, third

    def record(self) -> dict[str, Any]:
        """The measurement as it is written to JSON."""
        return {
            "median_ms": self.median,
            "quartiles_ms": list(self.quartiles),
            "elapsed_median_ms": statistics.median(self.wall),
            "repeats": len(self.cpu),
            "calls_per_repeat": self.calls,
            "extrapolated_from_probes": None if self.probes is None else list(self.probes),
        }


@final
@dataclass(frozen=True)
class Effort:
    """How long to measure.

    Attributes:
        seconds: Budget of each procedure.
        fewest: Samples taken whatever they cost.
        most: Samples after which to stop even if there is budget left.
    """

    seconds: float
    fewest: int
    most: int

    def repeats(self, sample: float) -> int:
        """How many samples of the given duration fit.

        Args:
            sample: Seconds one sample takes.

        Returns:
            Their number, within the bounds.
        """
        return max(self.fewest, min(self.most, int(self.seconds / max(sample, 1e-9))))


def settle_allocator() -> None:
    """Bring the C library's allocator into the state it has in any training process.

    Until a large block has been freed once, glibc returns every few megabytes to the system at
    once, and the next call pays for page faults instead of arithmetic. Activations of a network do
    this within the first training step.
    """
    block = torch.zeros(30 << 20, dtype=torch.uint8)
    del block


def seconds(run: Run, calls: int) -> tuple[float, float]:
    """Time some calls in a row, the garbage collector held off.

    Args:
        run: The procedure.
        calls: How often to call it.

    Returns:
        Processor and elapsed seconds per call.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(calls):
            run()
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    finally:
        if enabled:
            gc.enable()
    return cpu / calls, wall / calls


def warm_up(run: Run) -> tuple[float, float]:
    """Call a procedure until it has found its pace.

    Args:
        run: The procedure.

    Returns:
        Processor and elapsed seconds of a call.
    """
    first = seconds(run, 1)
    return first if first[0] >= SLOW else min(seconds(run, 1) for _ in range(3))


def measure(procedures: Mapping[str, Run], effort: Effort, progress: Progress) -> dict[str, Timing]:
    """Time procedures in turn, round after round.

    Every procedure is called a few times beforehand; that tells how many calls make a sample and
    how many samples fit its budget. One that gets fewer samples than others is spread evenly over
    the rounds.

    Args:
        procedures: What to time, by name.
        effort: How long to measure each.
        progress: Where to report.

    Returns:
        The timing of each procedure.
    """
    calls, repeats = {}, {}
    cpu: dict[str, list[float]] = {name: [] for name in procedures}
    wall: dict[str, list[float]] = {name: [] for name in procedures}
    for name, run in procedures.items():
        progress.note(f"warming up {name}")
        pilot, elapsed = warm_up(run)
        calls[name] = max(1, math.ceil(MINIMUM_SAMPLE / max(pilot, 1e-6)))
        repeats[name] = effort.repeats(pilot * calls[name])
        if pilot >= VERY_SLOW:
            repeats[name], cpu[name], wall[name] = 0, [1e3 * pilot], [1e3 * elapsed]
    rounds = max(repeats.values())
    gc.collect()
    gc.freeze()  # what exists by now need not be looked at again in every round
    for index in range(rounds):
        gc.collect()
        for name, run in procedures.items():
            if (index + 1) * repeats[name] // rounds == index * repeats[name] // rounds:
                continue
            progress.note(f"round {index + 1} of {rounds}: {name}")
            if calls[name] > 1:
                run()
            sample = seconds(run, calls[name])
            cpu[name].append(1e3 * sample[0])
            wall[name].append(1e3 * sample[1])
    gc.unfreeze()
    return {name: Timing(tuple(cpu[name]), tuple(wall[name]), calls[name]) for name in procedures}


def extrapolate(few: float, many: float, counts: tuple[int, int], probes: int) -> float:
    """Continue the line through two measurements.

    Args:
        few: The value at the smaller number of probes.
        many: The value at the larger one.
        counts: The two numbers of probes.
        probes: The number of probes wanted.

    Returns:
        Intercept plus slope times probes.

    Example:
        >>> extrapolate(3.0, 5.0, (1, 2), 10)
        21.0
    """
    slope = (many - few) / (counts[1] - counts[0])
    return few + slope * (probes - counts[0])


def extrapolate_timing(few: Timing, many: Timing, counts: tuple[int, int], probes: int) -> Timing:
    """Continue the line through two timings, sample by sample.

    Args:
        few: Timing with the smaller number of probes.
        many: Timing with the larger one.
        counts: The two numbers of probes.
        probes: The number of probes wanted.

    Returns:
        A timing whose samples pair those of the two in the order they were taken.
    """
    cpu = [extrapolate(a, b, counts, probes) for a, b in zip(few.cpu, many.cpu, strict=False)]
    wall = [extrapolate(a, b, counts, probes) for a, b in zip(few.wall, many.wall, strict=False)]
    return Timing(tuple(cpu), tuple(wall), many.calls, counts)
