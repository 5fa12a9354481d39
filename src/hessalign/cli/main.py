"""`hessalign VERB …`: parse, dispatch, and turn errors into messages."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
import traceback
from collections.abc import Sequence
from typing import Final

from hessalign._errors import MENDABLE, describe_error
from hessalign._version import __version__
from hessalign.bench.runs.batch_workers import VARIABLE as WORKERS_VARIABLE
from hessalign.cli import (
    algorithms,
    attack,
    collect,
    datasets,
    demo,
    diagnose,
    export,
    features,
    predict,
    reproduce,
    sweep,
    train,
)

TRACEBACK_VARIABLE: Final = "HESSALIGN_TRACEBACK"
"""The environment variable that asks for the traceback of an error on the terminal."""

VERBS = (
    demo,
    train,
    predict,
    export,
    reproduce,
    sweep,
    collect,
    diagnose,
    attack,
    features,
    datasets,
    algorithms,
)


def make_parser() -> argparse.ArgumentParser:
    """The parser of all verbs.

    Returns:
        A parser that sets `run` to the function of the verb.
    """
    parser = argparse.ArgumentParser(
        prog="hessalign",
        description="Exact Hessian and gradient alignment for domain generalization.",
        epilog=f"In the environment, {TRACEBACK_VARIABLE}=1 shows the whole traceback of an error, "
        f"and {WORKERS_VARIABLE}=N has N processes make the batches of images of each run (0: the "
        "run itself).",
    )
    parser.add_argument("--version", action="version", version=f"hessalign {__version__}")
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    for verb in VERBS:
        verb.add_parser(verbs)
    return parser


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse a command line whose words, such as `key=value`, may stand between and after flags.

    Args:
        arguments: The words after `hessalign`.

    Returns:
        The options.
    """
    parser = make_parser()
    options, rest = parser.parse_known_args(arguments)
    entries = [word for word in rest if not word.startswith("-")]
    if len(entries) < len(rest) or (entries and "entries" not in options):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if entries:
        options.entries += entries
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: The words after `hessalign`; those of the process if None.

    Returns:
        The exit code: 0 for success, 1 if a verb that checks something has findings or for an
        unexpected error, 2 for an error the user can mend, 130 after Ctrl-C.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    options = parse(words)
    try:
        code: int | None = options.run(options)
    except MENDABLE as error:
        if os.environ.get(TRACEBACK_VARIABLE):
            traceback.print_exception(error)
        sys.stderr.write(f"hessalign: error: {describe_error(error)}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write(f"\nhessalign: interrupted{how_to_continue(options, words)}\n")
        return 130
    except Exception as error:  # a bug: one line for the user, the traceback for the report
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        sys.stderr.write(f"hessalign: error: {describe_bug(error)}\n")
        return 1
    return code or 0


def how_to_continue(options: argparse.Namespace, words: Sequence[str]) -> str:
    """What to do after Ctrl-C.

    Args:
        options: The options; `continues` says whether the verb goes on where it was interrupted.
        words: The words after `hessalign`.

    Returns:
        The rest of a sentence, and the command to give where that continues the work.
    """
    if "continues" not in options:
        return "."
    if not options.continues:
        return "; nothing was kept: give --output DIR to be able to continue a run."
    command = shlex.join(["hessalign", *words])
    return f"; what was done is saved. The same command continues:\n  {command}"


def describe_bug(error: Exception) -> str:
    """Keep the traceback of an unexpected error and say where.

    Args:
        error: The error.

    Returns:
        One line; with the traceback itself if it can be kept nowhere.
    """
    trace = "".join(traceback.format_exception(error))
    bug = f"{describe_error(error)}. This is a bug in hessalign; please report it"
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", prefix="hessalign-error-", suffix=".txt", delete=False
        ) as file:
            file.write(trace)
    except OSError:  # there is no place to keep it
        return f"{bug} with this traceback:\n{trace.rstrip()}"
    return f"{bug} with the traceback in {file.name} ({TRACEBACK_VARIABLE}=1 shows it here)."
