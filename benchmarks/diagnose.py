"""Time and memory of `hessalign diagnose`: `python -m benchmarks.diagnose`.

Writes features of several domains to a temporary file, diagnoses it in a process of its own, and
says how long that took and how much memory it held at most. `--growth` varies one size at a time;
`--table` writes a text file instead, of a million rows by default, and has it read alone too.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import final

import numpy as np

from benchmarks.output import add_output, write_result
from benchmarks.process import Usage, measure_command

MAX_SECONDS = 60
MAX_MEGABYTES = 2000
MAX_TABLE_MEGABYTES = 500
MAX_CORES = 2


@final
@dataclass(frozen=True)
class Size:
    """How much is diagnosed.

    Attributes:
        domains: Domains.
        samples: Samples of each.
        features: Features.
        classes: Classes.
    """

    domains: int = 4
    samples: int = 10_000
    features: int = 1280
    classes: int = 7

    def __str__(self) -> str:
        return (
            f"{self.domains} domains × {self.samples:,} samples × {self.features:,} features × "
            f"{self.classes} classes"
        )


TARGET = Size()
TABLE = Size(domains=5, samples=200_000, features=20, classes=2)
GROWTH = (
    replace(TARGET, samples=1000),
    replace(TARGET, samples=30_000),
    replace(TARGET, features=128),
    replace(TARGET, features=2560),
    replace(TARGET, classes=2),
    replace(TARGET, classes=65),
    replace(TARGET, domains=2),
    replace(TARGET, domains=8),
)


def write_features(path: Path, size: Size) -> None:
    """Write features whose classes overlap and whose domains differ in mean and scale.

    Args:
        path: The `.npz` file.
        size: How many.
    """
    rng = np.random.default_rng(0)
    count = size.domains * size.samples
    y = rng.integers(size.classes, size=count)
    domain = np.arange(size.domains).repeat(size.samples)
    centres = rng.normal(size=(size.classes, size.features)).astype(np.float32)
    centres *= 4 / np.sqrt(size.features)
    moves = rng.normal(size=(size.domains, size.features)).astype(np.float32) / 3
    x = rng.standard_normal((count, size.features), dtype=np.float32)
    x += centres[y]
    x += moves[domain]
    np.savez(path, x=x, y=y, domain=domain)


def write_table(path: Path, size: Size) -> None:
    """Write a table of such features, some of which are missing, and one column of words.

    Args:
        path: The `.csv` file.
        size: How many.
    """
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(size.classes, size.features))
    with path.open("w", encoding="utf-8") as file:
        names = [*(f"f{i}" for i in range(size.features - 1)), "ward"]
        file.write(",".join([*names, "outcome", "clinic"]) + "\n")
        for row in range(size.domains * size.samples):
            y, domain = rng.integers(size.classes), row % size.domains
            x = centres[y] + domain / 3 + 2 * rng.normal(size=size.features)
            cells = [f"{value:.4f}" if value > -5 else "" for value in x[1:]]
            ward = ("red", "green", "blue")[int(x[0]) % 3]
            file.write(",".join([*cells, ward, f"class {y}", f"clinic {domain}"]) + "\n")


def measure(path: Path, verb: str = "diagnose") -> Usage:
    """Diagnose a file with its page, or check it, which is reading it.

    Args:
        path: The file.
        verb: `diagnose` or `datasets check`.

    Returns:
        Time and memory.
    """
    threads = str(min(MAX_CORES, os.cpu_count() or 1))
    words = [*verb.split(), str(path)]
    words += ["--html", str(path.with_suffix(".html"))] if verb == "diagnose" else []
    words += ["--label", "outcome", "--domain", "clinic"] if path.suffix == ".csv" else []
    return measure_command(words, {"OMP_NUM_THREADS": threads})


def main(arguments: list[str]) -> int:
    """Write, diagnose, and report what it took.

    Args:
        arguments: The command line.

    Returns:
        The exit status, 0 also if a target is missed: that is a finding, not an error.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.diagnose", description=__doc__)
    for name in ("domains", "samples", "features", "classes"):
        parser.add_argument(f"--{name}", type=int, metavar="N")
    parser.add_argument("--growth", action="store_true", help="vary one size at a time as well")
    parser.add_argument("--table", action="store_true", help="diagnose a text file")
    add_output(parser)
    options = parser.parse_args(arguments)
    rows = []
    given = {name: value for name, value in vars(options).items() if name in asdict(TARGET)}
    first = replace(
        TABLE if options.table else TARGET, **{k: v for k, v in given.items() if v is not None}
    )
    for size in (first, *(GROWTH if options.growth else ())):
        with tempfile.TemporaryDirectory(prefix="hessalign-diagnose-") as folder:
            path = Path(folder) / ("table.csv" if options.table else "features.npz")
            (write_table if options.table else write_features)(path, size)
            for verb in ("datasets check", "diagnose") if options.table else ("diagnose",):
                used = measure(path, verb)
                title = f"{verb}: {size}" if options.table else str(size)
                rows.append({"size": title, **asdict(size), **asdict(used)})
                sys.stderr.write(f"{title}: {used.seconds:.1f} s\n")
    cells = [
        f"| {row['size']} | {row['seconds']:.1f} | {row['cpu_seconds']:.1f} | "
        f"{row['megabytes']:.0f} |"
        for row in rows
    ]
    lines = [
        "# Diagnosing features",
        "",
        f"`hessalign diagnose` with its page, one process; the first size is to take at most "
        f"{MAX_SECONDS} s and {MAX_MEGABYTES:,} MB, a table at most {MAX_TABLE_MEGABYTES} MB. "
        f"Made by `python -m benchmarks.diagnose{' --growth' if options.growth else ''}"
        f"{' --table' if options.table else ''}`.",
        "",
        "| size | seconds | of processor time | MB at most |",
        "|---|---|---|---|",
        *cells,
    ]
    name = "diagnose-table" if options.table else "diagnose"
    write_result(options.output, name, {"sizes": rows}, "\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
