"""`hessalign train`: one algorithm on one data set, with restarts."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Final, get_args

from hessalign._names import UnknownNameError
from hessalign.data.colored_mnist import Imbalance
from hessalign.report.progress import Progress
from hessalign.report.published import TABLE_2, TABLE_3
from hessalign.report.tables import accuracy_table
from hessalign.training import ColoredMnistConfig, train_colored_mnist

DATASETS: Final = ("colored_mnist",)
DEFAULTS: Final = ColoredMnistConfig()


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the verb.

    Args:
        verbs: The parser's verbs.
    """
    parser = verbs.add_parser(
        "train",
        help="train one algorithm; the defaults are the published protocol",
        description="Example: hessalign train --dataset colored_mnist --algorithm hutchinson "
        "--restarts 3 probes=100 fidelity=paper",
    )
    add = parser.add_argument
    add("--dataset", default=DATASETS[0], help=f"one of: {', '.join(DATASETS)}")
    add("--algorithm", default=DEFAULTS.algorithm, help="see `hessalign algorithms`")
    add("--imbalance", choices=get_args(Imbalance), help="an imbalanced version (Table 3)")
    add("--restarts", type=int, default=1, metavar="N", help="runs with seeds SEED, SEED+1, …")
    add("--seed", type=int, default=DEFAULTS.seed)
    add("--steps", type=int, default=DEFAULTS.steps, metavar="N")
    add("--jump", type=int, default=DEFAULTS.jump, metavar="STEP", help="when the penalty jumps")
    add("--penalty-weight", type=float, default=DEFAULTS.penalty_weight, metavar="W")
    add("--learning-rate", type=float, default=DEFAULTS.learning_rate, metavar="LR")
    add("--width", type=int, default=DEFAULTS.width, metavar="UNITS", help="of hidden layers")
    add("--l2", type=float, default=DEFAULTS.l2, metavar="W")
    add("--train-images", type=int, default=DEFAULTS.train_images, metavar="N")
    add("--test-images", type=int, default=DEFAULTS.test_images, metavar="N")
    add("--evaluate-every", type=int, default=DEFAULTS.evaluate_every, metavar="STEPS")
    add("--hessian-distance", action="store_true", help="measure ‖H₁−H₂‖ at every evaluation")
    add(
        "--output",
        type=Path,
        metavar="DIR",
        help="keep records and checkpoints there; the same command continues",
    )
    add("options", nargs="*", metavar="KEY=VALUE", help="options of the algorithm")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Train, show progress, and print the final accuracies beside the paper's.

    Args:
        options: The parsed command line.

    Raises:
        UnknownNameError: If the data set is unknown.
        ValueError: If the number of restarts is not positive.
    """
    if options.dataset not in DATASETS:
        raise UnknownNameError("data set", options.dataset, DATASETS)
    if options.restarts < 1:
        raise ValueError(f"Expected --restarts of 1 or more, got {options.restarts}.")
    algorithm_options = parse_options(options.options)
    shared = {
        field.name: getattr(options, field.name)
        for field in dataclasses.fields(ColoredMnistConfig)
        if field.name not in {"options", "seed"}
    }
    published = TABLE_2 if options.imbalance is None else TABLE_3
    runs = []
    for seed in range(options.seed, options.seed + options.restarts):
        config = ColoredMnistConfig(**shared, options=algorithm_options, seed=seed)
        progress = Progress(f"{config.algorithm} #{seed}", config.steps, sys.stderr)
        folder = options.output and options.output / f"{config.algorithm}-seed{seed}"
        runs.append(train_colored_mnist(config, folder, progress, warn))
    sys.stdout.write(accuracy_table(runs, published) + "\n")


def parse_options(words: list[str]) -> dict[str, object]:
    """Options of an algorithm from `key=value` words.

    Args:
        words: The words.

    Returns:
        Values by key: numbers, true, false and null as in JSON ("none" too), else strings.

    Raises:
        ValueError: If a word has no `=`, or a key comes twice.

    Example:
        >>> parse_options(["probes=100", "hessian=expected", "shared_probes=true"])
        {'probes': 100, 'hessian': 'expected', 'shared_probes': True}
    """
    options: dict[str, object] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals:
            raise ValueError(f"Expected KEY=VALUE, got {word!r}.")
        if key in options:
            raise ValueError(f"Expected each option once, got {key!r} twice.")
        lowered = text.lower()
        try:
            options[key] = None if lowered == "none" else json.loads(lowered)
        except json.JSONDecodeError:
            options[key] = text
    return options


def warn(message: str) -> None:
    """Tell the user something that needs no action.

    Args:
        message: What to tell.
    """
    sys.stderr.write(f"hessalign: {message}\n")
