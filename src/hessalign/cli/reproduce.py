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
from hessalign.bench.runs.entries import parse_words
from hessalign.bench.sweep import JobStatus, Launcher
from hessalign.bench.sweep.report import SweepProgress
from hessalign.cli.flags import seed_number
from hessalign.cli.sweep import LAUNCHERS, make_launcher
from hessalign.paper.cache import run_name
from hessalign.paper.catalogue import EXPERIMENTS, find_experiment, reproduce
from hessalign.paper.experiment import Experiment, Options
from hessalign.paper.feature_sweep import DEFAULT_BANK
from hessalign.paper.sweeps import SCALES
from hessalign.report.progress import Progress
from hessalign.report.tables import markdown_table

_LIST: Final = "list"
_ALL: Final = "all-cmnist"
_ON_BANKS: Final = ("table1", "figure2")
"""Those that also report on a sweep over a feature bank."""

_SWEPT: Final = tuple(each.name for each in EXPERIMENTS.values() if each.swept)
"""Those on DomainBed."""

_CACHED: Final = tuple(name for name in EXPERIMENTS if name not in _SWEPT)
"""Those on Colored MNIST."""

_TAKERS: Final = {
    "--scale": _SWEPT,
    "--backbone": _SWEPT,
    "--data-dir": (*_SWEPT, *_ON_BANKS),
    "--sweep": (*_SWEPT, *_ON_BANKS),
    "--dataset": _ON_BANKS,
    "--restarts": _CACHED,
    "--seed": _CACHED,
    "--cache": _CACHED,
}
"""Flags that only some experiments take."""


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the verb."""
    parser = verbs.add_parser(
        "reproduce",
        help="regenerate a table or figure of the paper",
        description="Runs are kept in the cache and shared between experiments; an interrupted "
        "command continues when it is given again.",
    )
    add = parser.add_argument
    add("name", help=f"`{_LIST}`, one of its names, or `{_ALL}` for one page of them")
    add("--jobs", type=int, metavar="N", help="runs at a time (default: all cores, or all of Ray)")
    add("--output", type=Path, default=Path("results"), metavar="DIR", help="where results go")
    add(
        "--finished",
        action="store_true",
        help="train nothing: report on the runs that are there, and in tables 2, 3, 9 and 10 on "
        "restarts that one of them has written below --output, marked as such",
    )
    add("--launcher", default="local", metavar="NAME", help=f"one of: {', '.join(LAUNCHERS)}")
    add("--address", metavar="HOST:PORT", help="of a Ray cluster (default: start one here)")
    add("--cpus-per-run", type=float, metavar="N", help="for ray (1)")
    add("--gpus-per-run", type=float, metavar="N", help="for ray (0)")
    add("entries", nargs="*", metavar="KEY=VALUE", help="what differs from the published protocol")
    add = parser.add_argument_group("Colored MNIST").add_argument
    add("--restarts", type=int, metavar="N", help=f"runs of each method ({Options.restarts})")
    add("--seed", type=seed_number, help="of the first restart (0)")
    add("--cache", type=Path, metavar="DIR", help=f"where runs are kept ({Options.cache})")
    scales = "; ".join(f"{scale.name}: {scale.text}" for scale in SCALES.values())
    add = parser.add_argument_group(
        "DomainBed",
        f"For {', '.join(_SWEPT)}. KEY=VALUE sets keys of the sweep, such as draws=4 or "
        "algorithms=[erm,hgp].",
    ).add_argument
    add("--scale", metavar="NAME", help=f"{scales} ({Options.scale})")
    add("--data-dir", metavar="DIR", help="the folder that holds the data sets")
    add("--backbone", metavar="NAME", help="the network (resnet50), or whose features")
    add(
        "--sweep",
        action="append",
        type=Path,
        metavar="DIR",
        help="the folder of a sweep to begin or continue; at the small scale once for each head",
    )
    add = parser.add_argument_group(
        "feature banks",
        f"For {' and '.join(_ON_BANKS)}, which report on the sweep in --sweep with the bank below "
        "--data-dir too.",
    ).add_argument
    add("--dataset", metavar="NAME", help=f"the bank ({DEFAULT_BANK})")
    parser.set_defaults(run=run, continues=True)


def run(options: argparse.Namespace) -> int:
    """List experiments, or carry out one or all.

    Args:
        options: The parsed command line.

    Returns:
        The exit code: 1 if runs failed.

    Raises:
        InputError: If finished runs are asked for where there are none to report on.
    """
    if options.name == _LIST:
        rows = [[each.name, each.title] for each in EXPERIMENTS.values()]
        rows.append([_ALL, "one page of everything on Colored MNIST"])
        sys.stdout.write(markdown_table(["name", "what it shows"], rows, text_columns=2) + "\n")
        return 0
    if options.name == _ALL:
        wanted = [each for each in EXPERIMENTS.values() if not each.swept]
    else:
        wanted = [find_experiment(options.name)]
    _refuse_flags(options)
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
    if options.name == _ALL:
        path = options.output / f"{_ALL}.md"
        write_atomically(path, _one_page(pages, options.output).encode())
        sys.stdout.write(f"One page of everything: {path}\n")
    return 1 if any(each.failed for each in shown) else 0


def _refuse_flags(options: argparse.Namespace) -> None:
    """Refuse flags that an experiment does not take."""
    refused: dict[tuple[str, ...], list[str]] = {}
    for flag, takers in _TAKERS.items():
        name = flag.removeprefix("--").replace("-", "_")
        takes = options.name in takers or (options.name == _ALL and {*takers} & {*_CACHED})
        if getattr(options, name) is not None and not takes:
            refused.setdefault(takers, []).append(flag)
    for takers, flags in refused.items():
        raise InputError(f"Expected {', '.join(flags)} only with: {', '.join(takers)}.")


def _settings(options: argparse.Namespace, shown: list[SweepProgress]) -> Options:
    """How to reproduce, from the command line; displays of runs are added to `shown`."""

    def show(statuses: Sequence[JobStatus], launcher: Launcher) -> SweepProgress:
        shown.append(SweepProgress(statuses, launcher, name=run_name))
        return shown[-1]

    launched = argparse.Namespace(**vars(options))
    if options.launcher == "local" and options.jobs == 1:
        launched.launcher = "serial"
    given = {
        name: getattr(options, name)
        for name in ("restarts", "seed", "cache", "scale", "data_dir", "backbone", "dataset")
        if getattr(options, name) is not None
    }
    return Options(
        None if options.finished else make_launcher(launched),
        parse_words(options.entries),
        written=options.output if options.finished else None,
        sweeps=tuple(options.sweep or ()),
        progress=show,
        display=partial(Progress, bar=True),
        **given,
    )


def _describe_command(experiment: Experiment, options: argparse.Namespace) -> str:
    """The command that makes a result, without what only concerns this machine."""
    words = ["hessalign", "reproduce", experiment.name]
    folders = [str(folder) for folder in options.sweep or ()]
    finished = ["--finished"] if options.finished else []
    if experiment.swept:
        words += ["--scale", options.scale or Options.scale]
        if options.data_dir is not None and not Path(options.data_dir).is_absolute():
            words += ["--data-dir", options.data_dir]
        if options.backbone is not None:
            words += ["--backbone", options.backbone]
        for folder in folders:
            words += [] if Path(folder).is_absolute() else ["--sweep", folder]
        return shlex.join([*words, *finished, *options.entries])
    words += ["--restarts", str(options.restarts or Options.restarts)]
    words += ["--seed", str(options.seed)] if options.seed else []
    words += finished
    if folders and experiment.name in _ON_BANKS:
        words += ["--sweep", folders[0], "--data-dir", options.data_dir]
        words += ["--dataset", options.dataset] if options.dataset is not None else []
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
