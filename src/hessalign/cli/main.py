"""`hessalign VERB …`: parse, dispatch, and turn errors into messages."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from hessalign import __version__
from hessalign.cli import algorithms, collect, demo, train
from hessalign.training import DivergedError

VERBS = (demo, train, collect, algorithms)


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: The words after `hessalign`; those of the process if None.

    Returns:
        The exit code: 0 for success, 2 for an error the user can mend, 130 after Ctrl-C.
    """
    options = make_parser().parse_args(arguments)
    try:
        options.run(options)
    except (ValueError, TypeError, ImportError, OSError, DivergedError) as error:
        sys.stderr.write(f"hessalign: error: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("\nhessalign: interrupted; finished runs are kept.\n")
        return 130
    return 0
