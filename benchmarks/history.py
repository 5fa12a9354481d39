"""What earlier runs measured, one line of JSON each, and what has become worse since."""

from __future__ import annotations

import json
import statistics
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.targets import Target
from hessalign._files import write_atomically

LAST = 5
"""So many earlier runs are compared with, by their median."""

WORSE = 1.2
"""From this factor on a number is told to be worse."""

Entry = dict[str, Any]


def make_entry(record: dict[str, Any], targets: list[Target]) -> Entry:
    """A run in a line: when, of which commit, where, and every number that has a target.

    Args:
        record: The report, with `machine` and `quick`.
        targets: What was measured.

    Returns:
        The line, as JSON knows it.
    """
    machine = dict(record["machine"])
    return {
        "date": machine.pop("date"),
        "commit": _commit(),
        "machine": machine,
        "quick": record["quick"],
        "measured": {target.what: target.measured for target in targets},
    }


def read_history(file: Path) -> list[Entry]:
    """The lines of a history, the oldest first; none if there is no file."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [json.loads(line) for line in lines if line.strip()]


def append_entry(file: Path, entry: Entry) -> None:
    """Add a line, in one piece.

    Args:
        file: The history.
        entry: The line.
    """
    lines = [json.dumps(each, ensure_ascii=False) for each in [*read_history(file), entry]]
    write_atomically(file, ("\n".join(lines) + "\n").encode())


def regressions(entry: Entry, earlier: list[Entry], targets: list[Target]) -> list[str]:
    """What is worse by more than a fifth than the median of the last runs that are comparable.

    Comparable are runs on the same processor with the same effort.

    Args:
        entry: A run.
        earlier: Runs before it.
        targets: Its targets, which say on which side the better numbers are.

    Returns:
        A sentence for each.

    Example:
        >>> before = {"quick": False, "machine": {"cpu": "A"}, "measured": {"speed": 100.0}}
        >>> target = Target("speed", 80.0, "at least", 50)
        >>> regressions({**before, "measured": {"speed": 80.0}}, [before], [target])
        ['speed: 80×, 1.25 times worse than the median of 1 run before, 100×']
    """
    alike = [
        each["measured"]
        for each in earlier
        if each["quick"] == entry["quick"] and each["machine"]["cpu"] == entry["machine"]["cpu"]
    ]
    told = []
    for target in targets:
        values = [each[target.what] for each in alike if target.what in each][-LAST:]
        if not values:
            continue
        usual = statistics.median(values)
        better_up = target.relation == "at least"
        factor = usual / target.measured if better_up else target.measured / usual
        if factor > WORSE:
            told.append(
                f"{target.what}: {target.measured:.3g}{target.unit}, {factor:.2f} times worse than "
                f"the median of {len(values)} run{'s' * (len(values) > 1)} before, "
                f"{usual:.3g}{target.unit}"
            )
    return told


def _commit() -> str | None:
    """The commit of the code, with a plus if files differ from it; None where git does not know."""
    words = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    here = Path(__file__).parent
    try:
        told = subprocess.run(words, cwd=here, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return told.stdout.strip()
