"""`hessalign reproduce`: the paper's tables and figures, published numbers beside ours."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from hessalign._errors import InputError
from hessalign._files import write_atomically
from hessalign.bench.runs.job import parse_words
from hessalign.bench.sweep import JobStatus, Launcher
from hessalign.bench.sweep.progress import SweepProgress
from hessalign.cli.arguments import ALL_REPRODUCED, ON_BANKS, given_flags
from hessalign.cli.sweep import make_launcher
from hessalign.paper.catalogue import EXPERIMENTS, find_experiment, reproduce
from hessalign.paper.experiment import Experiment, Options, run_name
from hessalign.report.progress import Progress
from hessalign.report.tables import markdown_table

_SWEPT: Final = tuple(each.name for each in EXPERIMENTS.values() if each.swept)
"""Those on DomainBed."""

_CACHED: Final = tuple(name for name in EXPERIMENTS if name not in _SWEPT)  # those on Colored MNIST
_TAKERS: Final = {
    _SWEPT: ("--scale", "--backbone"),
    (*_SWEPT, *ON_BANKS): ("--data-dir", "--sweep"),
    ON_BANKS: ("--dataset",),
    _CACHED: ("--restarts", "--seed", "--cache"),
}
"""Flags that only some experiments take, by these."""


def run(options: argparse.Namespace) -> int:
    """List experiments, or carry out one or all."""
    if options.name == "list":
        rows = [[each.name, each.title] for each in EXPERIMENTS.values()]
        rows.append([ALL_REPRODUCED, "one page of everything on Colored MNIST"])
        sys.stdout.write(markdown_table(["name", "what it shows"], rows, text_columns=2) + "\n")
        return 0
    if options.name == ALL_REPRODUCED:
        wanted = [each for each in EXPERIMENTS.values() if not each.swept]
    else:
        wanted = [find_experiment(options.name)]
    for takers, flags in _TAKERS.items():
        given = given_flags(options, *flags)
        if given and not any(each.name in takers for each in wanted):
            raise InputError(f"Expected {given} only with: {', '.join(takers)}.")
    if options.finished:
        wanted = [each for each in wanted if each.rows or each.swept]
        if not wanted:
            raise InputError(
                f"Expected {options.name} without --finished: it measures times, no run keeps them."
            )
    shown: list[SweepProgress] = []
    settings = _settings(options, shown)
    pages = []
    for experiment in wanted:
        command = _describe_command(experiment, options)
        page = reproduce(experiment, settings, options.output, command)
        pages.append(page)
        sys.stdout.write(page.read_text(encoding="utf-8") + "\n")
        sys.stdout.write(f"Saved in {page.parent}\n" + "\n" * (not experiment.swept))
    if options.name == ALL_REPRODUCED:
        path = options.output / f"{ALL_REPRODUCED}.md"
        write_atomically(path, _one_page(pages, options.output).encode())
        sys.stdout.write(f"One page of everything: {path}\n")
    return 1 if any(each.failed for each in shown) else 0


def _settings(options: argparse.Namespace, shown: list[SweepProgress]) -> Options:
    """How to reproduce, from the command line; displays of runs are added to `shown`."""

    def show(statuses: Sequence[JobStatus], launcher: Launcher) -> SweepProgress:
        shown.append(SweepProgress(statuses, launcher, name=run_name))
        return shown[-1]

    launched = argparse.Namespace(**vars(options))
    if options.launcher == "local" and options.jobs == 1:
        launched.launcher = "serial"
    names = ("restarts", "seed", "cache", "scale", "data_dir", "backbone", "dataset")
    values = {name: getattr(options, name) for name in names}
    return Options(
        None if options.finished else make_launcher(launched),
        parse_words(options.entries),
        written=options.output if options.finished else None,
        sweeps=tuple(options.sweep or ()),
        progress=show,
        display=partial(Progress, bar=True),
        **{name: value for name, value in values.items() if value is not None},
    )


def _describe_command(experiment: Experiment, options: argparse.Namespace) -> str:
    """The command that makes a result, without what only concerns this machine."""
    words = ["hessalign", "reproduce", experiment.name]
    folders = [str(folder) for folder in options.sweep or ()]
    data_dir, finished = options.data_dir, ["--finished"] if options.finished else []
    if experiment.swept:
        words += ["--scale", options.scale or Options.scale]
        if data_dir is not None and not Path(data_dir).is_absolute():
            words += ["--data-dir", data_dir]
        words += [] if options.backbone is None else ["--backbone", options.backbone]
        for folder in folders:
            words += [] if Path(folder).is_absolute() else ["--sweep", folder]
        words += finished
    else:
        words += ["--restarts", str(options.restarts or Options.restarts)]
        words += ["--seed", str(options.seed)] if options.seed else []
        words += finished
        if folders and experiment.name in ON_BANKS:
            words += ["--sweep", folders[0], "--data-dir", data_dir]
            words += [] if options.dataset is None else ["--dataset", options.dataset]
    return shlex.join([*words, *options.entries])


def _one_page(pages: list[Path], folder: Path) -> str:
    """All reports as one Markdown page, with links to pictures adapted."""
    parts = ["# The Colored MNIST experiments, reproduced\n"]
    for page in pages:
        text = page.read_text(encoding="utf-8").replace(
            "](", f"]({page.parent.relative_to(folder)}/"
        )
        parts.append(
            "\n".join(f"#{line}" if line.startswith("#") else line for line in text.split("\n"))
        )
    return "\n".join(parts)
