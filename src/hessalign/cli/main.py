"""`hessalign VERB …`: parse, dispatch, and turn errors into messages."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from hessalign._version import __version__
from hessalign.algorithms import DivergedError
from hessalign.cli import (
    algorithms,
    attack,
    collect,
    datasets,
    demo,
    diagnose,
    features,
    reproduce,
    sweep,
    train,
)
from hessalign.training import RunFolderError

VERBS = (demo, train, reproduce, sweep, collect, diagnose, attack, features, datasets, algorithms)


def make_parser() -> argparse.ArgumentParser:
    """The parser of all verbs.

    Returns:
        A parser that sets `run` to the function of the verb.
    """
    parser = argparse.ArgumentParser(
        prog="hessalign",
        description="Exact Hessian and gradient alignment for domain generalization.",
    )
    parser.add_argument("--version", action="version", version=f"hessalign {__version__}")
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    for verb in VERBS:
        verb.add_parser(verbs)
    return parser


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse a command line whose words, such as `key=value`, may stand between and after flags.

    Args:
        arguments: The words after `hessalign`; those of the process if None.

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
        The exit code: 0 for success, 1 if a verb that checks something has findings, 2 for an
        error the user can mend, 130 after Ctrl-C.
    """
    options = parse(arguments)
    try:
        code: int | None = options.run(options)
    except (ValueError, TypeError, ImportError, OSError, DivergedError, RunFolderError) as error:
        sys.stderr.write(f"hessalign: error: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("\nhessalign: interrupted; finished runs are kept.\n")
        return 130
    return code or 0
