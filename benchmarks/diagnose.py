"""Time and memory of `hessalign diagnose`: `python -m benchmarks.diagnose`.

Writes features of several domains to a temporary file, diagnoses it in a process of its own, and
says how long that took and how much memory it held at most. `--growth` varies one size at a time.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import final

import numpy as np

import hessalign
from benchmarks.output import add_output, write_result

MAX_SECONDS = 60
MAX_MEGABYTES = 2000
MAX_CORES = 2

# Its own process, so that the peak is its own; the last line of stderr has what it used.
MEASURED = """
import resource, sys
from hessalign.cli import main
code = main(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_SELF)
sys.stderr.write(f"\\n{used.ru_maxrss} {used.ru_utime + used.ru_stime}\\n")
sys.exit(code)
"""


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


@final
@dataclass(frozen=True)
class Usage:
    """What a diagnosis took.

    Attributes:
        seconds: By the clock, start of the interpreter and reading included.
        cpu_seconds: Of all cores together.
        megabytes: Peak of resident memory.
    """

    seconds: float
    cpu_seconds: float
    megabytes: float


TARGET = Size()
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


def measure(path: Path) -> Usage:
    """Diagnose a file in a process of its own.

    Args:
        path: The file.

    Returns:
        Time and memory.

    Raises:
        RuntimeError: If diagnosing fails.
    """
    threads = str(min(MAX_CORES, os.cpu_count() or 1))
    start = time.perf_counter()
    html = path.with_suffix(".html")
    result = subprocess.run(
        [sys.executable, "-c", MEASURED, "diagnose", str(path), "--html", str(html)],
        capture_output=True,
        text=True,
        check=False,
        env={
            "OMP_NUM_THREADS": threads,
            **os.environ,
            "PYTHONPATH": str(Path(hessalign.__file__).parents[1]),
        },
    )
    seconds = time.perf_counter() - start
    if result.returncode != 0:
        raise RuntimeError(f"Diagnosing {path} failed: {result.stderr}")
    kilobytes, cpu = result.stderr.splitlines()[-1].split()
    return Usage(seconds, float(cpu), int(kilobytes) / 1024)


def main(arguments: list[str]) -> int:
    """Write, diagnose, and report what it took.

    Args:
        arguments: The command line.

    Returns:
        The exit status, 0 also if a target is missed: that is a finding, not an error.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.diagnose", description=__doc__)
    for name in ("domains", "samples", "features", "classes"):
        parser.add_argument(f"--{name}", type=int, default=getattr(TARGET, name), metavar="N")
    parser.add_argument("--growth", action="store_true", help="vary one size at a time as well")
    add_output(parser)
    options = parser.parse_args(arguments)
    rows = []
    first = Size(options.domains, options.samples, options.features, options.classes)
    for size in (first, *(GROWTH if options.growth else ())):
        with tempfile.TemporaryDirectory(prefix="hessalign-diagnose-") as folder:
            path = Path(folder) / "features.npz"
            write_features(path, size)
            used = measure(path)
        rows.append({"size": str(size), **asdict(size), **asdict(used)})
        sys.stderr.write(f"{size}: {used.seconds:.1f} s\n")
    cells = [
        f"| {row['size']} | {row['seconds']:.1f} | {row['cpu_seconds']:.1f} | "
        f"{row['megabytes']:.0f} |"
        for row in rows
    ]
    lines = [
        "# Diagnosing features",
        "",
        f"`hessalign diagnose` with its page, one process; the first size is to take at most "
        f"{MAX_SECONDS} s and {MAX_MEGABYTES:,} MB. Made by `python -m benchmarks.diagnose"
        f"{' --growth' if options.growth else ''}`.",
        "",
        "| size | seconds | of processor time | MB at most |",
        "|---|---|---|---|",
        *cells,
    ]
    write_result(options.output, "diagnose", {"sizes": rows}, "\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
