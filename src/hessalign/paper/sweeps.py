"""How an experiment on DomainBed is carried out: its sweeps are run or continued, then read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from hessalign._errors import InputError
from hessalign._files import make_folder
from hessalign.bench.sweep import (
    Job,
    JobStatus,
    Launcher,
    check_jobs,
    open_sweep,
    run_jobs,
    sweep_jobs,
    sweep_status,
    training_work,
)
from hessalign.bench.sweep.report import SweepProgress
from hessalign.bench.sweep.selection import Run, read_run
from hessalign.bench.sweep.selection.collection import check_protocols, finished_runs
from hessalign.bench.sweep.selection.reading import DONE
from hessalign.paper.experiment import write_report
from hessalign.paper.sweep_experiment import Part, Results, SweepExperiment, SweepOptions

MakeProgress = Callable[[Sequence[JobStatus], Launcher], SweepProgress]
"""Makes the display of a sweep."""


def reproduce_sweeps(
    experiment: SweepExperiment,
    options: SweepOptions,
    launcher: Launcher | None,
    output: Path,
    command: str,
    progress: MakeProgress,
) -> Path:
    """Run what is missing, then write the report.

    Args:
        experiment: What to reproduce.
        options: How.
        launcher: What has runs done; None runs nothing and reports on the runs that are there.
        output: Where results go.
        command: The command that asks for it, for the report.
        progress: Makes the display of a sweep.

    Returns:
        The Markdown page.

    Raises:
        InputError: If no run is finished.
    """
    parts = experiment.parts(options)
    without_data = launcher is None
    jobs = [sweep_jobs(part.spec, without_data=without_data) for part in parts]
    if launcher is not None:
        for group in jobs:  # all of them before any is begun
            check_jobs(group)
        make_folder(output)
        for part, group in zip(parts, jobs, strict=True):
            run_part(part, group, launcher, progress)
    results = [read_part(part, group) for part, group in zip(parts, jobs, strict=True)]
    if not any(each.runs for each in results):
        folders = ", ".join(str(part.folder) for part in parts)
        raise InputError(
            f"Expected finished runs of {experiment.name} in {folders}, found none. Name the "
            "folders of its sweeps with --sweep, and the same --data-dir, which is part of what "
            "identifies a run; or leave out --finished to have them done."
        )
    report = experiment.present(results, options)
    return write_report(experiment.name, experiment.title, report, command, output)


def run_part(part: Part, jobs: Sequence[Job], launcher: Launcher, progress: MakeProgress) -> None:
    """Run or continue one sweep; a sweep that is there already keeps its own specification.

    Args:
        part: The sweep.
        jobs: Its jobs.
        launcher: What has them done.
        progress: Makes the display.
    """
    before = sweep_status(part.folder, jobs)
    if all(status.state == "done" for status in before):
        return
    folder = open_sweep(part.folder, part.spec, keep=True)
    with closing(progress(before, launcher)) as show:
        work = training_work(part.spec)
        run_jobs(folder, before, launcher, work, report=show, report_record=show.record)


def read_part(part: Part, jobs: Sequence[Job]) -> Results:
    """The finished runs of a sweep, and no others that its folder may hold.

    Args:
        part: The sweep.
        jobs: Its jobs.

    Returns:
        Its results.
    """
    found: list[Run] = []
    for job in jobs:
        folder = part.folder / job.folder
        if (folder / DONE).exists():
            run, _ = read_run(folder)
            found += [] if run is None else [run]
    runs, _ = finished_runs(found)
    check_protocols(runs)
    return Results(part, jobs, runs)
