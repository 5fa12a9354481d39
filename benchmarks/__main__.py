"""`python -m benchmarks [--tables head,growth,cmnist,engine] [--quick] [--output DIR]`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

# The profiler that measures memory would otherwise announce each start and stop, and warn of every
# block that was allocated before it started.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

import torch

from benchmarks import cmnist, engine, growth, head
from benchmarks.history import append_entry, make_entry, read_history, regressions
from benchmarks.machine import machine_facts
from benchmarks.report import write_report
from benchmarks.targets import Target
from benchmarks.timing import Effort, settle_allocator
from hessalign.report.progress import Progress

TABLES = ("head", "growth", "cmnist", "engine")


def table_names(text: str) -> tuple[str, ...]:
    """Parse a comma-separated list of tables.

    Args:
        text: What the user gave.

    Returns:
        The names.

    Raises:
        argparse.ArgumentTypeError: If one is unknown.
    """
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    unknown = [name for name in names if name not in TABLES]
    if unknown or not names:
        raise argparse.ArgumentTypeError(
            f"expected one or more of {', '.join(TABLES)}, separated by commas, got {text!r}"
        )
    return names


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line.

    Args:
        arguments: Its words.

    Returns:
        The options.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--tables", type=table_names, default=TABLES, help="which tables (default: all)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a minute instead of several; numbers are rough"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("results/bench"), help="folder of the results"
    )
    return parser.parse_args(arguments)


def run_table(name: str, quick: bool, progress: Progress) -> tuple[dict[str, Any], list[Target]]:
    """Measure one table.

    Args:
        name: Which.
        quick: Fewer repeats and smaller sizes.
        progress: Where to report.

    Returns:
        The table as it is written to JSON, and the targets.
    """
    if name == "head":
        effort, patience = (Effort(0.3, 2, 5), 2.0) if quick else (Effort(3.0, 3, 40), 40.0)
        return head.run(quick, effort, patience, progress)
    if name == "growth":
        return growth.run(quick, Effort(0.1, 2, 5) if quick else Effort(1.0, 3, 15), progress)
    if name == "engine":
        return engine.run(quick, Effort(1.0, 2, 3) if quick else Effort(20.0, 5, 25), progress)
    return cmnist.run(quick, Effort(1.0, 2, 3) if quick else Effort(20.0, 7, 15), progress)


def main(arguments: list[str]) -> int:
    """Measure, write the results after each table, and say what is missed or worse than before.

    Args:
        arguments: The command line.

    Returns:
        The exit status, 0 also if a target is missed: that is a finding, not an error.
    """
    options = parse(arguments)
    torch.set_num_threads(1)
    settle_allocator()
    progress, tables, targets = Progress(), dict[str, Any](), list[Target]()
    record: dict[str, Any] = {}
    for name in options.tables:
        tables[name], found = run_table(name, options.quick, progress)
        targets += found
        record = {"machine": machine_facts(), "quick": options.quick, "tables": tables}
        progress.close()
        progress.title = "written"
        progress.say(" and ".join(map(str, write_report(record, options.output))))
    progress.title = "targets"
    for target in targets:
        if not target.met:
            progress.say(f"missed: {target.what}: {target.measured:.3g}, bound {target.bound:g}")
    progress.say(f"{sum(target.met for target in targets)} of {len(targets)} met")
    progress.title, history = "history", options.output / "history.jsonl"
    entry, earlier = make_entry(record, targets), read_history(history)
    for sentence in regressions(entry, earlier, targets):
        progress.say(f"worse: {sentence}")
    append_entry(history, entry)
    progress.say(f"{len(earlier) + 1} runs in {history}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
