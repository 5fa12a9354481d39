"""All experiments by name, and how one is carried out."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from hessalign._files import make_folder
from hessalign._names import UnknownNameError
from hessalign.bench.runs import ColoredMnistConfig, Run, train_colored_mnist, train_many
from hessalign.bench.runs.progress import RunsProgress
from hessalign.paper.accuracies import TABLES
from hessalign.paper.attack import FIGURE_5
from hessalign.paper.domainbed import (
    TABLE_4_EXPERIMENT,
    TABLE_7_EXPERIMENT,
    TABLE_8_EXPERIMENT,
)
from hessalign.paper.dynamics import FIGURE_3, FIGURE_4
from hessalign.paper.experiment import Experiment, Method, Options, write_report
from hessalign.paper.figure2 import FIGURE_2
from hessalign.paper.invariance import PROFILE
from hessalign.paper.sweep_experiment import SweepExperiment
from hessalign.paper.table1 import TABLE_1_MEASURED
from hessalign.paper.terms_report import TABLE_6_EXPERIMENT
from hessalign.paper.timing import TABLE_5

_ALL = (TABLE_1_MEASURED, *TABLES, FIGURE_2, FIGURE_3, FIGURE_4, PROFILE, FIGURE_5, TABLE_5)
EXPERIMENTS: Final[Mapping[str, Experiment]] = {each.name: each for each in _ALL}
"""Those on Colored MNIST by name."""

_SWEPT = (TABLE_4_EXPERIMENT, TABLE_6_EXPERIMENT, TABLE_7_EXPERIMENT, TABLE_8_EXPERIMENT)
SWEEP_EXPERIMENTS: Final[Mapping[str, SweepExperiment]] = {each.name: each for each in _SWEPT}
"""Those on DomainBed by name."""


def find_experiment(name: str) -> Experiment | SweepExperiment:
    """An experiment by name.

    Args:
        name: Its name.

    Returns:
        The experiment.

    Raises:
        UnknownNameError: If there is none of that name.
    """
    found = EXPERIMENTS.get(name) or SWEEP_EXPERIMENTS.get(name)
    if found is None:
        raise UnknownNameError("experiment", name, [*EXPERIMENTS, *SWEEP_EXPERIMENTS])
    return found


def run_folder(cache: Path, config: ColoredMnistConfig) -> Path:
    """Where a run is kept: the same for every experiment that needs it.

    Args:
        cache: The folder of all runs.
        config: What the run is.

    Returns:
        A folder whose name says what is in it and ends in a fingerprint of the configuration.
    """
    text = json.dumps(dataclasses.asdict(config), sort_keys=True)
    fingerprint = hashlib.sha256(text.encode()).hexdigest()[:12]
    version = config.imbalance or "balanced"
    return cache / f"{version}-{config.algorithm}-seed{config.seed}-{fingerprint}"


def finished_run(cache: Path, config: ColoredMnistConfig) -> Run | None:
    """A run from the cache.

    Args:
        cache: The folder of all runs.
        config: What the run is.

    Returns:
        The run, or None if it is not complete.
    """
    folder = run_folder(cache, config)
    return train_colored_mnist(config, folder) if (folder / "done.json").exists() else None


def reproduce(
    experiment: Experiment,
    options: Options,
    cache: Path,
    output: Path,
    command: str,
    progress: Callable[[int, int], RunsProgress] | None,
    warn: Callable[[str], None] = lambda message: None,
) -> Path:
    """Train what is missing, then write the report.

    Args:
        experiment: What to reproduce.
        options: How.
        cache: The folder of all runs; those that are complete are reused.
        output: Where results go.
        command: The command that asks for it, for the report.
        progress: Makes the display of so many runs of so many steps; None trains nothing and
            reports on the runs that are there.
        warn: Called with what the user should know but need not act on.

    Returns:
        The Markdown page.
    """
    configs = [
        config for method, version in experiment.rows for config in method.configs(options, version)
    ]
    make_folder(output)  # before runs that may take hours
    if progress is not None:
        train_missing(configs, options.jobs, cache, progress, warn)

    def finished(method: Method, version: str | None) -> Sequence[Run]:
        runs = (finished_run(cache, config) for config in method.configs(options, version))
        return [run for run in runs if run is not None]

    report = experiment.present(finished, options)
    if options.overrides:
        entries = ", ".join(f"{key} = {value}" for key, value in options.overrides.items())
        warning = f"**Not the published protocol:** {entries}."
        report = dataclasses.replace(report, text=f"{warning}\n\n{report.text}")
    return write_report(experiment.name, experiment.title, report, command, output)


def train_missing(
    configs: Sequence[ColoredMnistConfig],
    jobs: int,
    cache: Path,
    progress: Callable[[int, int], RunsProgress],
    warn: Callable[[str], None] = lambda message: None,
) -> None:
    """Train the runs that are not in the cache.

    Args:
        configs: What is needed; the same run may be named more than once.
        jobs: Processes at once.
        cache: The folder of all runs.
        progress: Makes the display.
        warn: Called with what the user should know but need not act on.
    """
    missing = {
        folder: config
        for config in sorted(configs, key=lambda config: config.seed)
        if not ((folder := run_folder(cache, config)) / "done.json").exists()
    }
    if missing:
        show = progress(len(missing), next(iter(missing.values())).steps)
        train_many(
            list(missing.values()), jobs, show, lambda config: run_folder(cache, config), warn
        )
