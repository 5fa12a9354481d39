"""Where a benchmark of its own leaves its result: a record and a page, side by side."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.machine import machine_facts
from hessalign._files import write_atomically


def add_output(parser: argparse.ArgumentParser) -> None:
    """Let the user choose the folder.

    Args:
        parser: Gets the option `--output`.
    """
    parser.add_argument("--output", type=Path, default=Path("results/bench"), metavar="DIR")


def write_result(folder: Path, name: str, record: dict[str, Any], text: str) -> None:
    """Write `name.json` and `name.md`, and print the latter.

    Args:
        folder: Where to; it is made if it does not exist.
        name: The benchmark.
        record: Everything that was measured; the machine's facts are added.
        text: The page, without its last line about the machine.
    """
    facts = machine_facts()
    content = json.dumps({**record, "machine": facts}, indent=2, ensure_ascii=False) + "\n"
    page = f"{text}\n\n{facts['cpu']}, torch {facts['torch']}, {facts['date']}.\n"
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / f"{name}.json", content.encode())
    write_atomically(folder / f"{name}.md", page.encode())
    sys.stdout.write(page)
