"""`hessalign reproduce`: the paper's tables and figures, published numbers beside ours."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Final

from hessalign._errors import InputError
from hessalign._files import write_atomically
from hessalign.bench.runs.entries import parse_words
from hessalign.bench.runs.progress import RunsProgress
from hessalign.cli import reproduce_sweeps
from hessalign.cli.flags import seed_number
from hessalign.cli.train import warn
from hessalign.paper.catalogue import EXPERIMENTS, SWEEP_EXPERIMENTS, find_experiment, reproduce
from hessalign.paper.experiment import Options
from hessalign.paper.feature_sweep import FeatureSweep
from hessalign.report.progress import Progress
from hessalign.report.tables import markdown_table

LIST: Final = "list"
ALL: Final = "all-cmnist"
DEFAULT_RESTARTS: Final = 10
DEFAULT_BANK: Final = "PACS@efficientnet_lite0"
DEFAULT_CACHE: Final = Path("outputs/runs")
ON_BANKS: Final = ("table1", "figure2")
"""Those that also report on a sweep over a feature bank."""


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the verb.

    Args:
        verbs: The parser's verbs.
    """
    parser = verbs.add_parser(
        "reproduce",
        help="regenerate a table or figure of the paper",
        description="Runs are kept in the cache and shared between experiments; an interrupted "
        "command continues when it is given again.",
    )
    add = parser.add_argument
    add("name", help=f"`{LIST}`, one of its names, or `{ALL}` for one page of them")
    add("--jobs", type=int, metavar="N", help="runs at a time (default: all cores, or all of Ray)")
    add("--output", type=Path, default=Path("results"), metavar="DIR", help="where results go")
    add(
        "--finished",
        action="store_true",
        help="train nothing: report on the runs that are there, and in tables 2, 3, 9 and 10 on "
        "rows that another of them has written below --output, marked as such",
    )
    add("entries", nargs="*", metavar="KEY=VALUE", help="what differs from the published protocol")
    group = parser.add_argument_group("Colored MNIST").add_argument
    group("--restarts", type=int, metavar="N", help=f"runs of each method ({DEFAULT_RESTARTS})")
    group("--seed", type=seed_number, help="of the first restart (0)")
    group("--cache", type=Path, metavar="DIR", help=f"where runs are kept ({DEFAULT_CACHE})")
    reproduce_sweeps.add_flags(parser)
    group = parser.add_argument_group(
        "feature banks",
        f"For {' and '.join(ON_BANKS)}, which report on the sweep in --sweep with the bank below "
        "--data-dir too.",
    ).add_argument
    group("--dataset", metavar="NAME", help=f"the bank ({DEFAULT_BANK})")
    parser.set_defaults(run=run, continues=True)


def run(options: argparse.Namespace) -> int:
    """List experiments, or carry out one or all.

    Args:
        options: The parsed command line.

    Returns:
        The exit code: 1 if runs of a sweep failed.

    Raises:
        InputError: If finished runs are asked for where there are none to report on.
    """
    if options.name == LIST:
        rows = [[each.name, each.title] for each in EXPERIMENTS.values()]
        rows += [[each.name, each.title] for each in SWEEP_EXPERIMENTS.values()]
        rows.append([ALL, "one page of everything on Colored MNIST"])
        sys.stdout.write(markdown_table(["name", "what it shows"], rows, text_columns=2) + "\n")
        return 0
    names = list(EXPERIMENTS) if options.name == ALL else [find_experiment(options.name).name]
    if options.name in SWEEP_EXPERIMENTS:
        return reproduce_sweeps.run(options)
    refuse_flags(options)
    if options.finished:
        names = [name for name in names if EXPERIMENTS[name].rows]
        if not names:
            raise InputError(
                f"Expected {options.name} without --finished: it measures times, no run keeps them."
            )
    options.restarts = DEFAULT_RESTARTS if options.restarts is None else options.restarts
    options.jobs = (os.cpu_count() or 1) if options.jobs is None else options.jobs
    options.cache = options.cache or DEFAULT_CACHE
    settings = Options(
        options.restarts,
        options.seed or 0,
        options.jobs,
        parse_words(options.entries),
        feature_sweep(options),
        options.output if options.finished else None,
        partial(Progress, bar=True),
    )
    pages = []
    for name in names:
        page = reproduce(
            EXPERIMENTS[name],
            settings,
            options.cache,
            options.output,
            describe_command(name, options),
            None
            if options.finished
            else lambda total, steps: RunsProgress(total, steps, sys.stderr, options.jobs),
            warn,
        )
        pages.append(page)
        sys.stdout.write(page.read_text(encoding="utf-8") + "\n")
        sys.stdout.write(f"Saved in {page.parent}\n\n")
    if options.name == ALL:
        path = options.output / f"{ALL}.md"
        write_atomically(path, one_page(pages, options.output).encode())
        sys.stdout.write(f"One page of everything: {path}\n")
    return 0


def refuse_flags(options: argparse.Namespace) -> None:
    """Refuse flags that an experiment on Colored MNIST does not take.

    Args:
        options: The parsed command line.
    """
    flags, takers = dict(reproduce_sweeps.FLAGS), list(SWEEP_EXPERIMENTS)
    shared = {flag: flags.pop(flag) for flag in ("--sweep", "--data-dir")}
    reproduce_sweeps.refuse_flags(options, flags, takers)
    if options.name not in (*ON_BANKS, ALL):
        own = {**shared, "--dataset": "dataset"}
        reproduce_sweeps.refuse_flags(options, own, [*takers, *ON_BANKS])


def feature_sweep(options: argparse.Namespace) -> FeatureSweep | None:
    """The sweep on a feature bank that the command line names.

    Args:
        options: The parsed command line.

    Returns:
        The sweep, or None if none is named.

    Raises:
        InputError: If only the sweep or only its data is named.
    """
    if options.sweep is None and options.data_dir is None:
        return None
    if options.sweep is None or options.data_dir is None:
        found, missing = (
            ("--sweep", "--data-dir") if options.data_dir is None else ("--data-dir", "--sweep")
        )
        raise InputError(f"Expected {missing} beside {found}, got none.")
    if len(options.sweep) > 1:
        raise InputError(f"Expected one --sweep, got {len(options.sweep)}.")
    dataset = options.dataset or DEFAULT_BANK
    return FeatureSweep(
        dataset,
        options.data_dir,
        options.sweep[0],
        options.cache / "features",
        train=not options.finished,
        jobs=options.jobs,
        show=Progress(f"training on {dataset}", "runs", bar=True),
    )


def describe_command(name: str, options: argparse.Namespace) -> str:
    """The command that makes a result, without what only concerns this machine.

    Args:
        name: The experiment.
        options: The parsed command line.

    Returns:
        A line for a shell.
    """
    words = ["hessalign", "reproduce", name, "--restarts", str(options.restarts)]
    if options.seed:
        words += ["--seed", str(options.seed)]
    if options.finished:
        words.append("--finished")
    if options.sweep is not None and name in ON_BANKS:
        words += ["--sweep", str(options.sweep[0]), "--data-dir", options.data_dir]
        if options.dataset is not None:
            words += ["--dataset", options.dataset]
    return shlex.join([*words, *options.entries])


def one_page(pages: list[Path], folder: Path) -> str:
    """All reports as one Markdown page.

    Args:
        pages: The reports.
        folder: Where the page will be.

    Returns:
        Their texts under one title, with links to pictures adapted.
    """
    parts = ["# The Colored MNIST experiments, reproduced\n"]
    for page in pages:
        text = page.read_text(encoding="utf-8").replace(
            "](", f"]({page.parent.relative_to(folder)}/"
        )
        parts.append(
            "\n".join(f"#{line}" if line.startswith("#") else line for line in text.split("\n"))
        )
    return "\n".join(parts)
