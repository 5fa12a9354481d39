"""All experiments by name, and how one is carried out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from hessalign._errors import InputError
from hessalign._files import make_folder
from hessalign._names import check_name
from hessalign.bench.sweep import check_jobs, sweep_jobs
from hessalign.paper.accuracies import TABLES
from hessalign.paper.cache import have_done
from hessalign.paper.domainbed import TABLE_4_EXPERIMENT, TABLE_7_EXPERIMENT, TABLE_8_EXPERIMENT
from hessalign.paper.dynamics import FIGURE_3, FIGURE_4
from hessalign.paper.experiment import Experiment, Finished, Options, write_report
from hessalign.paper.figure2 import FIGURE_2
from hessalign.paper.figure5 import FIGURE_5
from hessalign.paper.invariance import PROFILE
from hessalign.paper.sweeps import read_sweep
from hessalign.paper.table1 import TABLE_1_MEASURED
from hessalign.paper.table5 import TABLE_5
from hessalign.paper.terms import TABLE_6_EXPERIMENT

_ALL: Final = (
    *(TABLE_1_MEASURED, *TABLES, FIGURE_2, FIGURE_3, FIGURE_4, PROFILE, FIGURE_5, TABLE_5),
    *(TABLE_4_EXPERIMENT, TABLE_6_EXPERIMENT, TABLE_7_EXPERIMENT, TABLE_8_EXPERIMENT),
)
EXPERIMENTS: Final[Mapping[str, Experiment]] = {each.name: each for each in _ALL}
"""All by name, those on Colored MNIST first."""


def find_experiment(name: str) -> Experiment:
    """An experiment by name; an unknown name raises an UnknownNameError."""
    check_name("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]


def reproduce(experiment: Experiment, options: Options, output: Path, command: str) -> Path:
    """Have done what is missing, then write the report.

    Args:
        experiment: What to reproduce.
        options: How.
        output: Where results go.
        command: The command that asks for it, for the report.

    Returns:
        The Markdown page.

    Raises:
        InputError: If no run of its sweeps is finished.
    """
    sweeps = experiment.sweeps(options)
    without_data = options.launcher is None
    jobs = [sweep_jobs(sweep.spec, without_data=without_data) for sweep in sweeps]
    cached = experiment.cached(options)
    if options.launcher is not None:
        parts = [sweep.part(group) for sweep, group in zip(sweeps, jobs, strict=True)]
        for part in parts:  # all of them before any is begun
            check_jobs(part.jobs)
        if cached is not None:
            check_jobs(cached.jobs[:1])  # what rows differ in was checked when jobs were made
            parts.append(cached)
        make_folder(output)  # before runs that may take hours
        for part in parts:
            have_done(part, options.launcher, options.progress)
    results = [read_sweep(sweep, group) for sweep, group in zip(sweeps, jobs, strict=True)]
    if results and not any(each.runs for each in results):
        folders = ", ".join(str(sweep.folder) for sweep in sweeps)
        raise InputError(
            f"Expected finished runs of {experiment.name} in {folders}, found none. Name the "
            "folders of its sweeps with --sweep, and the same --data-dir, which is part of what "
            "identifies a run; or leave out --finished to have them done."
        )
    report = experiment.present(Finished(options, results), options)
    if options.entries and not experiment.swept:
        entries = ", ".join(f"{key} = {value}" for key, value in options.entries.items())
        warning = f"**Not the published protocol:** {entries}."
        report = dataclasses.replace(report, text=f"{warning}\n\n{report.text}")
    return write_report(experiment, report, command, output)
