"""`hessalign reproduce`: the paper's tables and figures, published numbers beside ours."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import Final

from hessalign._files import write_atomically
from hessalign.cli import reproduce_sweeps
from hessalign.report.progress import RunsProgress
from hessalign.report.tables import markdown_table
from hessalign.reproduce import EXPERIMENTS, SWEEP_EXPERIMENTS, Options, reproduce
from hessalign.reproduce.catalogue import find_experiment
from hessalign.training.configuration import parse_words

LIST: Final = "list"
ALL: Final = "all-cmnist"
DEFAULT_RESTARTS: Final = 10
DEFAULT_CACHE: Final = Path("outputs/runs")


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
    add("--finished", action="store_true", help="train nothing: report on the runs that are there")
    add("entries", nargs="*", metavar="KEY=VALUE", help="what differs from the published protocol")
    group = parser.add_argument_group("Colored MNIST").add_argument
    group("--restarts", type=int, metavar="N", help=f"runs of each method ({DEFAULT_RESTARTS})")
    group("--seed", type=int, help="of the first restart (0)")
    group("--cache", type=Path, metavar="DIR", help=f"where runs are kept ({DEFAULT_CACHE})")
    reproduce_sweeps.add_flags(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """List experiments, or carry out one or all.

    Args:
        options: The parsed command line.
    """
    if options.name == LIST:
        rows = [[each.name, each.title] for each in EXPERIMENTS.values()]
        rows += [[each.name, each.title] for each in SWEEP_EXPERIMENTS.values()]
        rows.append([ALL, "one page of everything on Colored MNIST"])
        sys.stdout.write(markdown_table(["name", "what it shows"], rows, text_columns=2) + "\n")
        return
    names = list(EXPERIMENTS) if options.name == ALL else [find_experiment(options.name).name]
    if options.name in SWEEP_EXPERIMENTS:
        reproduce_sweeps.run(options)
        return
    reproduce_sweeps.refuse_flags(options, reproduce_sweeps.FLAGS, list(SWEEP_EXPERIMENTS))
    options.restarts = DEFAULT_RESTARTS if options.restarts is None else options.restarts
    settings = Options(
        options.restarts,
        options.seed or 0,
        (os.cpu_count() or 1) if options.jobs is None else options.jobs,
        parse_words(options.entries),
    )
    pages = []
    for name in names:
        page = reproduce(
            EXPERIMENTS[name],
            settings,
            options.cache or DEFAULT_CACHE,
            options.output,
            describe_command(name, options),
            None
            if options.finished
            else lambda total, steps: RunsProgress(total, steps, sys.stderr),
        )
        pages.append(page)
        sys.stdout.write(page.read_text(encoding="utf-8") + "\n")
        sys.stdout.write(f"Saved in {page.parent}\n\n")
    if options.name == ALL:
        path = options.output / f"{ALL}.md"
        write_atomically(path, one_page(pages, options.output).encode())
        sys.stdout.write(f"One page of everything: {path}\n")


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
