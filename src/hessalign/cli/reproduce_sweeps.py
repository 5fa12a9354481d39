"""`hessalign reproduce` for the tables on DomainBed, which are sweeps."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from hessalign._errors import InputError
from hessalign.bench.runs.entries import parse_words
from hessalign.bench.sweep import JobStatus, Launcher
from hessalign.bench.sweep.report import SweepProgress
from hessalign.cli.sweep import LAUNCHERS, make_launcher
from hessalign.paper import EXPERIMENTS, SWEEP_EXPERIMENTS, SweepOptions, reproduce_sweeps
from hessalign.paper.scales import SCALES

DEFAULT_SCALE: Final = "full"
DEFAULT_LAUNCHER: Final = "local"

FLAGS: Final = {
    "--scale": "scale",
    "--data-dir": "data_dir",
    "--backbone": "backbone",
    "--sweep": "sweep",
    "--launcher": "launcher",
    "--address": "address",
    "--cpus-per-run": "cpus_per_run",
    "--gpus-per-run": "gpus_per_run",
}
"""Flags that only these tables take."""

NOT_OURS: Final = {
    "--restarts": "restarts",
    "--seed": "seed",
    "--cache": "cache",
    "--dataset": "dataset",
}
"""Flags that only the others take."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Register the flags of these tables.

    Args:
        parser: The parser of the verb.
    """
    scales = "; ".join(f"{scale.name}: {scale.text}" for scale in SCALES.values())
    add = parser.add_argument_group(
        "DomainBed",
        f"For {', '.join(SWEEP_EXPERIMENTS)}. KEY=VALUE sets keys of the sweep, such as draws=4 or "
        "algorithms=[erm,hgp].",
    ).add_argument
    add("--scale", metavar="NAME", help=f"{scales} ({DEFAULT_SCALE})")
    add("--data-dir", metavar="DIR", help="the folder that holds the data sets")
    add("--backbone", metavar="NAME", help="the network (resnet50), or whose features")
    add(
        "--sweep",
        action="append",
        type=Path,
        metavar="DIR",
        help="the folder of a sweep to begin or continue; at the small scale once for each head",
    )
    add("--launcher", metavar="NAME", help=f"one of: {', '.join(LAUNCHERS)} ({DEFAULT_LAUNCHER})")
    add("--address", metavar="HOST:PORT", help="of a Ray cluster (default: start one here)")
    add("--cpus-per-run", type=float, metavar="N", help="for ray (1)")
    add("--gpus-per-run", type=float, metavar="N", help="for ray (0)")


def refuse_flags(
    options: argparse.Namespace, flags: Mapping[str, str], takers: Sequence[str]
) -> None:
    """Refuse flags that an experiment does not take.

    Args:
        options: The parsed command line.
        flags: The flags, with their names in it.
        takers: The experiments that do take them.

    Raises:
        InputError: If one was given.
    """
    given = [flag for flag, name in flags.items() if getattr(options, name) is not None]
    if given:
        raise InputError(f"Expected {', '.join(given)} only with: {', '.join(takers)}.")


def run(options: argparse.Namespace) -> int:
    """Reproduce one of these tables.

    Args:
        options: The parsed command line.

    Returns:
        The exit code: 1 if runs failed.
    """
    refuse_flags(options, NOT_OURS, list(EXPERIMENTS))
    settings = SweepOptions(
        options.scale or DEFAULT_SCALE,
        options.data_dir,
        options.backbone,
        tuple(options.sweep or ()),
        parse_words(options.entries),
    )
    launched = argparse.Namespace(**vars(options))
    launched.launcher = options.launcher or DEFAULT_LAUNCHER
    shown: list[SweepProgress] = []

    def show(statuses: Sequence[JobStatus], launcher: Launcher) -> SweepProgress:
        shown.append(SweepProgress(statuses, launcher))
        return shown[-1]

    page = reproduce_sweeps(
        SWEEP_EXPERIMENTS[options.name],
        settings,
        None if options.finished else make_launcher(launched),
        options.output,
        describe_command(options),
        show,
    )
    sys.stdout.write(page.read_text(encoding="utf-8") + "\n")
    sys.stdout.write(f"Saved in {page.parent}\n")
    return 1 if any(each.failed for each in shown) else 0


def describe_command(options: argparse.Namespace) -> str:
    """The command that makes a result, without what only concerns this machine.

    Args:
        options: The parsed command line.

    Returns:
        A line for a shell.
    """
    words = ["hessalign", "reproduce", options.name, "--scale", options.scale or DEFAULT_SCALE]
    if options.data_dir is not None and not Path(options.data_dir).is_absolute():
        words += ["--data-dir", options.data_dir]
    if options.backbone is not None:
        words += ["--backbone", options.backbone]
    folders = [str(folder) for folder in options.sweep or () if not folder.is_absolute()]
    for folder in folders:
        words += ["--sweep", folder]
    if options.finished:
        words.append("--finished")
    return shlex.join([*words, *options.entries])
