"""What a `hessalign` command takes, measured in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import final

import hessalign

# The last line of stderr has what the process used. Its peak of memory is that of this program:
# `ru_maxrss` would begin with what the process it was forked from held.
_MEASURED = """
import pathlib, re, resource, sys
from hessalign.cli import main
code = main(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_SELF)
status = pathlib.Path("/proc/self/status")
held = re.search(r"VmHWM:\\s*(\\d+)", status.read_text()) if status.exists() else None
kilobytes = int(held[1]) if held else used.ru_maxrss
sys.stderr.write(f"\\n{kilobytes} {used.ru_utime + used.ru_stime}\\n")
sys.exit(code)
"""


@final
@dataclass(frozen=True)
class Usage:
    """What a command took.

    Attributes:
        seconds: By the clock, start of the interpreter and reading included.
        cpu_seconds: Of all cores together.
        megabytes: Peak of resident memory.
    """

    seconds: float
    cpu_seconds: float
    megabytes: float


def measure_command(arguments: list[str], environment: dict[str, str] | None = None) -> Usage:
    """Run a command of `hessalign` in a process of its own.

    Args:
        arguments: The command line, without the name of the program.
        environment: Variables that hold unless they are set already.

    Returns:
        Time and memory.

    Raises:
        RuntimeError: If the command fails.
    """
    start = time.perf_counter()
    result = subprocess.run(
        [sys.executable, "-c", _MEASURED, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={
            **(environment or {}),
            **os.environ,
            "PYTHONPATH": str(Path(hessalign.__file__).parents[1]),
        },
    )
    seconds = time.perf_counter() - start
    if result.returncode != 0:
        raise RuntimeError(f"hessalign {' '.join(arguments)} failed: {result.stderr}")
    kilobytes, cpu = result.stderr.splitlines()[-1].split()
    return Usage(seconds, float(cpu), int(kilobytes) / 1024)
