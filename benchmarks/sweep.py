"""Runs per minute of a sweep over a feature bank: `python -m benchmarks.sweep`.

The bank is synthetic, of the size of PACS with EfficientNet-Lite0 features: 9,991 samples of 1,280
features, 7 classes, 4 domains. Each launcher does the same runs of the ten algorithms of the small
scale (docs/findings.md), with one hidden layer, in a folder of its own. Two rates are given: with
everything, and without the start of workers, that is from the first outcome to the last, which is
what a long sweep sees. From the latter follows how long the whole sweep would take.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.output import add_output, write_result
from hessalign.bench.sweep import (
    Launcher,
    LocalLauncher,
    RayLauncher,
    SerialLauncher,
    make_specification,
    open_sweep,
    run_jobs,
    sweep_jobs,
    sweep_status,
    training_work,
)

DOMAINS = (2048, 2344, 1670, 3929)
FEATURES, CLASSES = 1280, 7
ALGORITHMS = (
    "erm", "irm", "groupdro", "mixup", "coral", "vrex", "fishr", "hgp", "hutchinson", "full",
)  # fmt: skip
HIDDEN = 256
WHOLE = 10 * 8 * 3 * 10
"""Runs of the whole sweep: algorithms, draws, trials, sets of one or two test domains."""


def write_bank(folder: Path) -> None:
    """Write a bank: classes are Gaussian, and domains move their means.

    Args:
        folder: Where to.
    """
    random = np.random.default_rng(0)
    domain = np.repeat(np.arange(len(DOMAINS)), DOMAINS)
    y = random.integers(0, CLASSES, len(domain))
    means = random.normal(size=(CLASSES, FEATURES))
    moves = random.normal(size=(len(DOMAINS), FEATURES))
    x = 0.2 * means[y] + 0.2 * moves[domain] + random.normal(size=(len(y), FEATURES))
    np.savez(folder / "bank.npz", x=np.maximum(x, 0).astype(np.float32), y=y, domain=domain)


def make_launcher(name: str, jobs: int) -> Launcher:
    """A launcher by name.

    Args:
        name: "serial", "local" or "ray".
        jobs: Runs at a time.

    Returns:
        The launcher.
    """
    if name == "serial":
        return SerialLauncher()
    return LocalLauncher(jobs) if name == "local" else RayLauncher(jobs=jobs)


def measure(folder: Path, name: str, steps: int, draws: int, jobs: int) -> tuple[int, float, float]:
    """Have a sweep done by one launcher.

    Args:
        folder: Where the bank is, and the runs will be.
        name: The launcher.
        steps: Steps of each run.
        draws: Draws of hyper-parameters.
        jobs: Runs at a time.

    Returns:
        Number of runs, runs per minute with the start of workers, and without.

    Raises:
        RuntimeError: If a run fails.
    """
    spec = make_specification(
        {
            "datasets": "bank",
            "data_dir": str(folder),
            "algorithms": list(ALGORITHMS),
            "trials": 1,
            "draws": draws,
            "steps": steps,
            "overrides": {"hidden": HIDDEN},
        }
    )
    todo = sweep_jobs(spec)
    sweep = open_sweep(folder / name, spec)
    times: list[float] = []
    start = time.perf_counter()
    outcomes = run_jobs(
        sweep,
        sweep_status(sweep, todo),
        make_launcher(name, jobs),
        training_work(spec),
        report=lambda outcome: times.append(time.perf_counter()),
    )
    seconds = time.perf_counter() - start
    wrong = [outcome.error for outcome in outcomes if outcome.state != "done"]
    if wrong:
        raise RuntimeError(f"{len(wrong)} of {len(todo)} runs failed, first: {wrong[0]}")
    settled = 60 * (len(todo) - 1) / max(1e-9, times[-1] - times[0])
    return len(todo), 60 * len(todo) / seconds, settled


def main(arguments: Sequence[str]) -> int:
    """Measure each launcher and report on it.

    Args:
        arguments: The command line.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sweep", description=__doc__)
    parser.add_argument("--launchers", nargs="+", default=["serial", "local", "ray"])
    parser.add_argument("--steps", type=int, default=301)
    parser.add_argument("--draws", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    add_output(parser)
    options = parser.parse_args(arguments)
    load = os.getloadavg()[0]
    rows: list[dict[str, Any]] = []
    for name in options.launchers:
        with tempfile.TemporaryDirectory(prefix="hessalign-sweep-") as folder:
            write_bank(Path(folder))
            runs, whole, settled = measure(
                Path(folder), name, options.steps, options.draws, options.jobs
            )
        rows.append({"launcher": name, "runs": runs, "with_start": whole, "settled": settled})
        sys.stderr.write(f"{name}: {settled:.1f} runs per minute\n")
    lines = [
        "# A sweep over a feature bank",
        "",
        f"{rows[0]['runs']} runs of {options.steps} steps, {len(ALGORITHMS)} algorithms, "
        f"{sum(DOMAINS):,} × {FEATURES} features, {HIDDEN} hidden units, {options.jobs} runs at a "
        f"time (serial: one), one thread each; load of the machine before: {load:.1f}. The whole "
        f"sweep of ten algorithms has {WHOLE:,} runs of this kind. Made by "
        "`python -m benchmarks.sweep`.",
        "",
        "| launcher | runs per minute with start | runs per minute | whole sweep, minutes |",
        "|---|---|---|---|",
        *(
            f"| {row['launcher']} | {row['with_start']:.1f} | {row['settled']:.1f} | "
            f"{WHOLE / row['settled']:.0f} |"
            for row in rows
        ),
    ]
    record = {"steps": options.steps, "jobs": options.jobs, "load": load, "launchers": rows}
    write_result(options.output, "sweep", record, "\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
