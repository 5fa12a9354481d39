"""All experiments by name, and how one is carried out."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from hessalign._errors import InputError, check_name
from hessalign._files import make_folder, write_atomically
from hessalign.bench.runs.machine import describe_software
from hessalign.bench.sweep import check_jobs, sweep_jobs
from hessalign.paper.accuracies import TABLES_2_3_9_10
from hessalign.paper.changed_images import FIGURE_5, PROFILE
from hessalign.paper.domainbed import TABLES_4_6_7_8
from hessalign.paper.experiment import Experiment, Finished, Options, Report, have_done, reading
from hessalign.paper.figure2 import FIGURE_2
from hessalign.paper.sweeps import read_sweep
from hessalign.paper.table1 import TABLE_1_MEASURED
from hessalign.paper.training import FIGURE_3, FIGURE_4, TABLE_5_MEASURED

_ALL: Final = (
    *(TABLE_1_MEASURED, *TABLES_2_3_9_10, FIGURE_2, FIGURE_3, FIGURE_4, PROFILE, FIGURE_5),
    *(TABLE_5_MEASURED, *TABLES_4_6_7_8),
)
EXPERIMENTS: Final[Mapping[str, Experiment]] = {each.name: each for each in _ALL}
"""All by name, those on Colored MNIST first."""

_FIGURE_FORMATS: Final = ("png", "svg")


def find_experiment(name: str) -> Experiment:
    """An experiment by name; an unknown name raises an UnknownNameError."""
    check_name("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]


def reproduce(experiment: Experiment, options: Options, output: Path, command: str) -> Path:
    """Have done what is missing by a command, then write the report; its Markdown page."""
    launcher = options.launcher
    sweeps = [
        dataclasses.replace(sweep, jobs=sweep_jobs(sweep.spec, without_data=launcher is None))
        for sweep in (experiment.sweeps(options) if experiment.sweeps is not None else ())
    ]
    cached = experiment.cached_jobs(options)
    if launcher is not None:
        for sweep in sweeps:  # all of them before any is begun
            check_jobs(sweep.jobs)
        check_jobs(cached[:1])  # what rows differ in was checked when jobs were made
        make_folder(output)  # before runs that may take hours
        for sweep in sweeps:
            have_done(sweep.jobs, sweep.folder, launcher, options.progress, sweep.spec)
        have_done(cached, options.cache, launcher, options.progress)
    sweeps = list(map(read_sweep, sweeps))
    if sweeps and not any(sweep.runs for sweep in sweeps):
        folders = ", ".join(str(sweep.folder) for sweep in sweeps)
        raise InputError(
            f"Expected finished runs of {experiment.name} in {folders}, found none. Name the "
            "folders of its sweeps with --sweep, and the same --data-dir, which is part of what "
            "identifies a run; or leave out --finished to have them done."
        )
    report = experiment.present(Finished(options, sweeps))
    texts = [reading(experiment.name, **report.facts), *report.texts]
    if options.entries and not experiment.swept:
        entries = ", ".join(f"{key} = {value}" for key, value in options.entries.items())
        texts = [f"**Not the published protocol:** {entries}.", *texts]
    report = dataclasses.replace(report, texts=texts)
    return _write_report(experiment, report, command, output)


def _write_report(experiment: Experiment, report: Report, command: str, folder: Path) -> Path:
    """Save a report: Markdown, JSON and figures."""
    name, title = experiment.name, experiment.title
    target = folder / name
    target.mkdir(parents=True, exist_ok=True)
    pictures = []
    for figure, draw in report.figures.items():
        for suffix in _FIGURE_FORMATS:
            draw(target / f"{figure}.{suffix}")
        pictures.append(f"![{title}]({figure}.{_FIGURE_FORMATS[0]})")
    page = "\n\n".join([f"# {title}", f"Made by `{command}`.", *report.texts, *pictures])
    content = {"experiment": name, "command": command, "software": describe_software()}
    text = json.dumps({**content, **report.data}, indent=1, ensure_ascii=False, default=vars)
    write_atomically(target / f"{name}.json", (text + "\n").encode())
    path = target / f"{name}.md"
    write_atomically(path, (page + "\n").encode())
    return path
