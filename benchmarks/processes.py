"""What processes use, as Linux tells it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def descendants(process: int) -> set[int]:
    """Children of a process, and theirs.

    Args:
        process: Its number.

    Returns:
        Their numbers; processes that have ended are left out.
    """
    parents: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended since
        if fields[0] != "Z":
            parents[int(status.parent.name)] = int(fields[1])
    found, fresh = set(), {process}
    while fresh:
        fresh = {child for child, parent in parents.items() if parent in fresh}
        found |= fresh
    return found


def cpu_seconds(processes: Iterable[int]) -> float:
    """Processor time that some processes have used so far.

    Args:
        processes: Their numbers.

    Returns:
        Seconds in their own code and in the system's on their behalf.
    """
    total = 0
    for process in processes:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


def resident_megabytes(process: int) -> float:
    """Memory of a process that is in use, pages shared with others included.

    Args:
        process: Its number.

    Returns:
        Megabytes.
    """
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0
