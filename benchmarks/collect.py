"""Time and memory of `hessalign collect` on a large sweep: `python -m benchmarks.collect`.

Writes a tree of runs to a temporary folder, collects it in a process of its own, and says how long
that took and how much memory it held at most.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path
from typing import Any

from benchmarks.output import add_output, write_result
from benchmarks.process import measure_command
from hessalign.bench.algorithms.search import common_space, hyper_parameters
from hessalign.bench.data.catalog import DATASETS, DEFAULT_STEPS
from hessalign.bench.sweep import Job, held_out_sets

MAX_SECONDS = 20
MAX_MEGABYTES = 500
DATASET = "PACS"
STEPS = (
    *range(0, DEFAULT_STEPS - 1, DATASETS[DATASET].checkpoint_freq),
    DEFAULT_STEPS - 1,
)
"""After which a run is evaluated."""


def jobs(runs: int) -> Iterator[Job]:
    """As many jobs as asked for: 20 draws, 3 trials, singles and pairs, algorithms as needed.

    Args:
        runs: How many.

    Returns:
        The jobs.
    """
    domains = len(DATASETS[DATASET].domains)
    algorithms = (f"A{i:03d}" for i in range(runs))
    combinations = (
        Job(DATASET, algorithm, held_out, seed, trial, "/data")
        for algorithm in algorithms
        for trial, held_out, seed in product(range(3), held_out_sets(domains), range(20))
    )
    return islice(combinations, runs)


def records(job: Job, random_state: random.Random) -> Iterator[dict[str, Any]]:
    """The records of a job, as long as DomainBed's.

    Args:
        job: The job.
        random_state: Source of accuracies.

    Yields:
        One record per evaluation.
    """
    hparams = hyper_parameters(common_space("big"), job.hparams_seed, job.trial_seed)
    args = {
        **job.args,
        "checkpoint_freq": None,
        "hparams": None,
        "output_dir": f"sweeps/large/{job.folder}",
        "save_model_every_checkpoint": False,
        "skip_model_save": False,
        "steps": None,
        "uda_holdout_fraction": 0,
    }
    for step in STEPS:
        accuracies = {
            f"env{domain}_{part}_acc": random_state.random()
            for domain in range(len(DATASETS[DATASET].domains))
            for part in ("in", "out")
        }
        yield {
            **accuracies,
            "args": args,
            "epoch": step / 41.0,
            "hparams": hparams,
            "loss": random_state.random(),
            "mem_gb": 9.5,
            "step": step,
            "step_time": random_state.random(),
        }


def write_sweep(folder: Path, runs: int) -> int:
    """Write a sweep.

    Args:
        folder: Where to.
        runs: How many runs.

    Returns:
        How many bytes the records have.
    """
    random_state, size = random.Random(0), 0
    for job in jobs(runs):
        home = folder / job.folder
        home.mkdir()
        lines = (json.dumps(record, sort_keys=True) for record in records(job, random_state))
        size += (home / "results.jsonl").write_text("".join(f"{line}\n" for line in lines))
        (home / "done").write_text("done")
    return size


def main(arguments: list[str]) -> int:
    """Write, collect, and report both measurements.

    Args:
        arguments: The command line.

    Returns:
        The exit status, 0 also if a target is missed: that is a finding, not an error.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.collect", description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000, metavar="N")
    add_output(parser)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="hessalign-collect-") as folder:
        size = write_sweep(Path(folder), options.runs)
        used = measure_command(["collect", folder])
    text = (
        "# Collecting a sweep\n\n"
        f"`hessalign collect` on {options.runs:,} runs with {len(STEPS)} records each, "
        f"{size / 2**20:.0f} MB: {used.seconds:.1f} s (at most {MAX_SECONDS}), "
        f"{used.megabytes:.0f} MB of memory (at most {MAX_MEGABYTES}). "
        "Made by `python -m benchmarks.collect`."
    )
    record = {
        "runs": options.runs,
        "bytes": size,
        "seconds": used.seconds,
        "megabytes": used.megabytes,
    }
    write_result(options.output, "collect", record, text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
