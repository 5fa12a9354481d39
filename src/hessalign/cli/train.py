"""`hessalign train`: one algorithm on one data set, with restarts."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from hessalign._errors import InputError
from hessalign._names import check_name
from hessalign.bench.data import DATASETS
from hessalign.bench.runs import ColoredMnistConfig, Record, Run, train_colored_mnist
from hessalign.bench.runs.configuration import make_configuration, parse_words, read_file
from hessalign.bench.runs.progress import run_progress
from hessalign.cli import train_domains
from hessalign.cli.flags import seed_number
from hessalign.paper.published import TABLE_2, TABLE_3
from hessalign.paper.run_table import accuracy_table

COLORED_MNIST: Final = "colored_mnist"

WIDTH: Final = 80
"""Characters in a line of the help's last paragraphs."""


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the verb.

    Args:
        verbs: The parser's verbs.
    """
    keys = ", ".join(field.name for field in dataclasses.fields(ColoredMnistConfig))
    parser = verbs.add_parser(
        "train",
        help="train one algorithm; the defaults are the published protocol",
        description="Example: hessalign train --dataset colored_mnist --algorithm hutchinson \\\n"
        "  --restarts 3 --output outputs/hutchinson probes=100 fidelity=paper",
        epilog="\n\n".join(
            textwrap.fill(text, WIDTH)
            for text in (
                f"Keys for {COLORED_MNIST}: {keys}; and the options of the algorithm.",
                train_domains.keys(),
                "`hessalign algorithms NAME` lists an algorithm's options. Words override flags, "
                "and flags override the file.",
            )
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--config", type=Path, metavar="FILE", help="keys and values as YAML")
    add("--dataset", help="colored_mnist, or the name of a data set below --data-dir")
    add("--algorithm", help="see `hessalign algorithms`")
    add("--seed", type=seed_number, help="of the first restart")
    add("--restarts", type=int, default=1, metavar="N", help="runs with seeds SEED, SEED+1, …")
    add(
        "--output",
        type=Path,
        metavar="DIR",
        help="keep records, checkpoints and the model there; the same command continues a run "
        "that was killed",
    )
    add("--tensorboard", type=Path, metavar="DIR", help="also log to TensorBoard")
    add("entries", nargs="*", metavar="KEY=VALUE", help="what differs from the defaults")
    train_domains.add_flags(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Train, show progress, and print the final accuracies beside the paper's.

    Args:
        options: The parsed command line.

    Raises:
        InputError: If the number of restarts is not positive.
    """
    options.continues = options.output is not None
    if options.restarts < 1:
        raise InputError(f"Expected --restarts of 1 or more, got {options.restarts}.")
    entries = {} if options.config is None else read_file(options.config)
    own = ("dataset", "algorithm", "seed", *train_domains.FLAGS)
    flags = {key: getattr(options, key) for key in own}
    entries |= {key: value for key, value in flags.items() if value is not None}
    entries |= parse_words(options.entries)
    if entries.get("dataset", COLORED_MNIST) != COLORED_MNIST:
        if "data_dir" not in entries:
            check_name("data set", entries["dataset"], (COLORED_MNIST, *DATASETS))
        show = partial(make_report, tensorboard=options.tensorboard)
        train_domains.run(entries, options.restarts, options.output, show, warn)
        return
    entries.pop("dataset", None)
    first = make_configuration(entries)
    sys.stdout.write(describe(first))
    runs: list[Run] = []
    folders: list[Path] = []
    for seed in range(first.seed, first.seed + options.restarts):
        config = dataclasses.replace(first, seed=seed)
        title = f"{config.algorithm} #{seed}"
        folder = options.output and options.output / f"{config.algorithm}-seed{seed}"
        folders += [folder] if folder else []
        report = make_report(title, config.steps, options.tensorboard)
        runs.append(train_colored_mnist(config, folder, report, warn))
    published = TABLE_2 if first.imbalance is None else TABLE_3
    sys.stdout.write(accuracy_table(runs, published) + "\n")
    for folder in folders:
        sys.stdout.write(f"Saved in {folder}\n")


def describe(config: ColoredMnistConfig) -> str:
    """A configuration as YAML, which `--config` reads.

    Args:
        config: The configuration.

    Returns:
        Lines of `key: value`.
    """
    import yaml

    entries = {"dataset": COLORED_MNIST, **dataclasses.asdict(config)}
    text: str = yaml.safe_dump(entries, sort_keys=False)
    return text + "\n"


def make_report(title: str, steps: int, tensorboard: Path | None) -> Callable[[Record], None]:
    """What shows the records of a run.

    Args:
        title: What is running.
        steps: Steps of the whole run.
        tensorboard: Where to log to as well, if anywhere.

    Returns:
        A function to call with every record.
    """
    progress = run_progress(title, steps)
    if tensorboard is None:
        return progress
    from hessalign.bench.runs.tensorboard import TensorBoard

    log = TensorBoard(tensorboard / title.replace(" #", "-seed"))

    def both(record: Record) -> None:
        progress(record)
        log(record)

    return both


def warn(message: str) -> None:
    """Tell the user something that is not an error.

    Args:
        message: What to tell.
    """
    sys.stderr.write(f"hessalign: {message}\n")
