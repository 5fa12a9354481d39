"""`hessalign reproduce`: the paper's tables and figures, published numbers beside ours."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import Final

from hessalign._files import write_atomically
from hessalign.report.progress import CountProgress, RunsProgress
from hessalign.report.tables import markdown_table
from hessalign.reproduce import EXPERIMENTS, Options, reproduce
from hessalign.reproduce.catalogue import find_experiment
from hessalign.reproduce.feature_sweep import FeatureSweep
from hessalign.training.configuration import parse_words

LIST: Final = "list"
ALL: Final = "all-cmnist"
DEFAULT_RESTARTS: Final = 10
DEFAULT_BANK: Final = "PACS@efficientnet_lite0"


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
    add("name", help=f"`{LIST}`, one of its names, or `{ALL}` for one page of everything")
    add("--restarts", type=int, default=DEFAULT_RESTARTS, metavar="N", help="runs of each method")
    add("--seed", type=int, default=0, help="of the first restart")
    add("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes at once")
    add("--output", type=Path, default=Path("results"), metavar="DIR", help="where results go")
    add(
        "--cache",
        type=Path,
        default=Path("outputs/runs"),
        metavar="DIR",
        help="where runs are kept",
    )
    add("--finished", action="store_true", help="train nothing: report on the runs that are there")
    group = parser.add_argument_group("for table1 and figure2 on a feature bank too")
    add_one = group.add_argument
    add_one("--sweep", type=Path, metavar="DIR", help="a finished sweep on the bank")
    add_one("--data-dir", metavar="DIR", help="where the bank is")
    add_one("--dataset", default=DEFAULT_BANK, metavar="NAME", help=f"by default {DEFAULT_BANK}")
    add("entries", nargs="*", metavar="KEY=VALUE", help="what differs from the published protocol")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """List experiments, or carry out one or all.

    Args:
        options: The parsed command line.
    """
    if options.name == LIST:
        rows = [[each.name, each.title] for each in EXPERIMENTS.values()]
        rows.append([ALL, "one page of everything"])
        sys.stdout.write(markdown_table(["name", "what it shows"], rows, text_columns=2) + "\n")
        return
    names = list(EXPERIMENTS) if options.name == ALL else [find_experiment(options.name).name]
    settings = Options(
        options.restarts,
        options.seed,
        options.jobs,
        parse_words(options.entries),
        feature_sweep(options),
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
            else lambda total, steps: RunsProgress(total, steps, sys.stderr),
        )
        pages.append(page)
        sys.stdout.write(page.read_text(encoding="utf-8") + "\n")
        sys.stdout.write(f"Saved in {page.parent}\n\n")
    if options.name == ALL:
        path = options.output / f"{ALL}.md"
        write_atomically(path, one_page(pages, options.output).encode())
        sys.stdout.write(f"One page of everything: {path}\n")


def feature_sweep(options: argparse.Namespace) -> FeatureSweep | None:
    """The sweep on a feature bank that the command line names.

    Args:
        options: The parsed command line.

    Returns:
        The sweep, or None if none is named.

    Raises:
        ValueError: If only the sweep or only its data is named.
    """
    if options.sweep is None and options.data_dir is None:
        return None
    if options.sweep is None or options.data_dir is None:
        found, missing = (
            ("--sweep", "--data-dir") if options.data_dir is None else ("--data-dir", "--sweep")
        )
        raise ValueError(f"Expected {missing} beside {found}, got none.")
    return FeatureSweep(
        options.dataset,
        options.data_dir,
        options.sweep,
        options.cache / "features",
        train=not options.finished,
        jobs=options.jobs,
        show=CountProgress(f"training on {options.dataset}", "runs", sys.stderr),
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
    if options.sweep is not None and name in ("table1", "figure2"):
        words += ["--sweep", str(options.sweep), "--data-dir", options.data_dir]
        if options.dataset != DEFAULT_BANK:
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
