"""`hessalign sweep`: plan, run and watch the runs of a benchmark."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import torch

from hessalign._errors import ConfigurationError, InputError, check_name
from hessalign._numbers import check_count
from hessalign.bench import sweep
from hessalign.bench.runs.job import parse_words, read_file
from hessalign.bench.runs.processes import in_processes
from hessalign.bench.runs.trackers import named_trackers, tracked_work
from hessalign.bench.sweep import progress
from hessalign.bench.sweep.execution import SPECIFICATION, STATES
from hessalign.bench.sweep.selection import SELECTIONS
from hessalign.bench.sweep.slurm import make_slurm_options
from hessalign.cli.arguments import LAUNCHERS, given_flags
from hessalign.report.progress import Progress, duration, warn
from hessalign.report.tables import plain

_SHOWN: Final = 10  # how many failed runs are shown, unless all are asked for


def _is_override(word: str) -> bool:
    """Whether a word is KEY=VALUE; names of data sets may have options: NAME:groups=3."""
    key, equals, _ = word.partition("=")
    return bool(equals) and key.isidentifier()


def _read_specification(options: argparse.Namespace) -> sweep.SweepSpec:
    """The specification that a command line asks for."""
    words = [word for word in options.entries if "=" in word]
    named = [word for word in options.entries if "=" not in word]
    if len(named) > 1:
        raise InputError(f"Expected one file or folder of a sweep, got: {' '.join(named)}.")
    source = Path(named[0]) if named else None
    folder = source if source is not None and source.is_dir() else None
    if folder is not None:
        source = folder / SPECIFICATION
    entries = {} if source is None else read_file(source)
    if folder is not None:
        entries["output"] = str(folder)
    if options.data_dir is not None:
        entries.pop("data_folder", None)  # what is named here counts
    for key in (each.name for each in dataclasses.fields(sweep.SweepSpec)):
        value = getattr(options, key, None)  # all but two are flags
        if isinstance(value, list):  # KEY=VALUE may stand behind a flag that takes several words
            words += filter(_is_override, value)
            value = [word for word in value if not _is_override(word)]
        if value is not None and value is not False:
            entries[key] = "all" if value == ["all"] else value
    if words:
        entries["overrides"] = {**dict(entries.get("overrides") or {}), **parse_words(words)}  # type: ignore[call-overload]
    name = "sweep" if source is None else source.stem
    spec = sweep.make_specification(entries)
    return dataclasses.replace(spec, output=spec.output or str(Path("outputs") / name))


def run_plan(options: argparse.Namespace) -> None:
    """Show what a sweep will take."""
    check_count(1 if options.jobs is None else options.jobs, "--jobs")
    spec = _read_specification(options)
    jobs = sweep.sweep_jobs(spec, without_data=options.no_measure)
    everything = dataclasses.replace(spec, selections=tuple(SELECTIONS))
    seconds, size = ({}, 0.0) if options.no_measure else _measure(spec, jobs)
    sys.stdout.write(progress.plan_table(jobs, seconds) + "\n\n")
    try:
        with_pairs = sweep.sweep_jobs(everything, without_data=options.no_measure)
    except ConfigurationError:  # too few domains to leave out two
        with_pairs = jobs
    sys.stdout.write(progress.selection_table(with_pairs, spec.selections) + "\n")
    if seconds:
        total = sum(seconds[job.dataset, job.algorithm] for job in jobs)
        processes = options.jobs or os.cpu_count() or 1
        sys.stdout.write(
            f"\nAbout {duration(total / processes)} in {processes} processes and "
            f"{size / 2**20:,.0f} MB of disk. Measured with the default hyper-parameters; draws "
            "with larger batches take longer.\n"
        )


def _measure(
    spec: sweep.SweepSpec, jobs: Sequence[sweep.Job]
) -> tuple[dict[tuple[str, str], float], float]:
    """Seconds of one run by data set and algorithm, and bytes of all runs."""
    plans = sweep.check_jobs(jobs, data_dir=spec.place)
    torch.set_num_threads(1)
    work, seconds, sizes = sweep.training_work(spec), {}, {}
    with Progress("measuring", "algorithms", bar=True) as show:
        show(0, len(plans))
        for number, plan in enumerate(plans, 1):
            cell, cost = (plan.job.dataset, plan.job.algorithm), sweep.measure_cost(plan.job, work)
            count = progress.evaluations(plan.steps, plan.evaluate_every)
            seconds[cell], sizes[cell] = cost.seconds(plan.steps, count), cost.size(count)
            show(number, len(plans))
    return seconds, sum(sizes[job.dataset, job.algorithm] for job in jobs)


def run_run(options: argparse.Namespace) -> int:
    """Have the runs of a sweep done."""
    launcher = make_launcher(options)
    trackers = named_trackers(options.track, options.tensorboard)
    spec = _read_specification(options)
    jobs = sweep.sweep_jobs(spec)
    sweep.check_jobs(jobs, warn, spec.place)
    folder = sweep.open_sweep(Path(str(spec.output)), spec)
    work = sweep.training_work(spec)
    if trackers:
        work = partial(tracked_work, work, trackers, spec.place)
    if (processes := int(options.gpus_per_run or 0)) > 1:  # a graphics processor each
        work = partial(in_processes, processes, work)
    display = progress.SweepProgress(sweep.sweep_status(folder, jobs), launcher)
    display.run(folder, work, retry_failed=options.retry_failed)
    statuses = [display.completed(status) for status in sweep.sweep_status(folder, jobs)]
    return _summarise(statuses, str(spec.output), _SHOWN)


def make_launcher(options: argparse.Namespace) -> sweep.Launcher:
    """The launcher that a command line asks for."""
    check_name("launcher", options.launcher, LAUNCHERS)
    cpus = 1 if options.cpus_per_run is None else options.cpus_per_run
    gpus = options.gpus_per_run or 0
    if options.slurm and options.launcher != "slurm":
        raise InputError("Expected --slurm only with --launcher slurm.")
    if options.launcher == "ray":
        return sweep.RayLauncher(options.address, options.jobs, cpus, gpus)
    if flags := given_flags(options, "--address"):
        raise InputError(f"Expected {flags} only with --launcher ray.")
    if options.launcher == "slurm":
        asked = make_slurm_options(parse_words(options.slurm or ()))
        return sweep.SlurmLauncher(options.jobs, cpus, gpus, asked)
    if flags := given_flags(options, "--cpus-per-run", "--gpus-per-run"):
        raise InputError(f"Expected {flags} only with --launcher ray or slurm.")
    if options.launcher == "local":
        return sweep.LocalLauncher(os.cpu_count() or 1 if options.jobs is None else options.jobs)
    if options.jobs not in (None, 1):
        raise InputError(
            f"Expected one run at a time from the launcher 'serial', got --jobs {options.jobs}. "
            "--launcher local does several."
        )
    return sweep.SerialLauncher()


def run_status(options: argparse.Namespace) -> int:
    """Show how far a sweep is."""
    spec = _read_specification(options)
    folder = Path(str(spec.output))
    if not (folder / SPECIFICATION).exists():
        raise FileNotFoundError(
            f"Expected the folder of a sweep, found no {SPECIFICATION} in {folder}. Begin it with "
            "`hessalign sweep run`, or name its folder with --output."
        )
    statuses = sweep.sweep_status(folder, sweep.sweep_jobs(spec, without_data=True))
    sys.stdout.write(progress.status_table(statuses) + "\n\n")
    return _summarise(statuses, str(folder), len(statuses) if options.all else _SHOWN)


def _summarise(statuses: Sequence[sweep.JobStatus], folder: str, shown: int) -> int:
    """Say how far a sweep is and what to do next; 1 if runs failed."""
    counts = {state: sum(each.state == state for each in statuses) for state in STATES}
    words = ", ".join(f"{count:,} {state}" for state, count in counts.items() if count)
    said = [
        *progress.failures(statuses, folder, shown),
        f"{len(statuses):,} runs in {folder}: {words}.",
    ]
    if rest := progress.seconds_left(statuses, progress.mean_seconds(statuses), counts["running"]):
        said[-1] += f" About {duration(rest)} to go, {max(1, counts['running'])} at a time."
    if counts["done"] == len(statuses):
        said[-1] += f" `hessalign collect {folder}` shows the tables."
    if counts["failed"]:
        said[-1] += " --retry-failed does the failed ones again."
    if bugs := sum(each.bug for each in statuses):
        bug = "failed by a bug in hessalign: please report it with the file err.txt."
        said[-1] += f" {bugs:,} {bug}"
    sys.stdout.write("".join(f"{plain(line)}\n" for line in said))
    return 1 if counts["failed"] else 0
