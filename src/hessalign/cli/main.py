"""`hessalign VERB …`: parse, dispatch, and turn errors into messages."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
import traceback
from collections.abc import Sequence
from importlib import import_module

from hessalign._errors import MENDABLE, UnknownNameError, describe_error
from hessalign.cli.arguments import TRACEBACK_VARIABLE, VERBS, make_parser
from hessalign.report.progress import whole_lines
from hessalign.report.tables import plain_lines


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse a command line whose words, such as `key=value`, may stand between and after flags."""
    parser = make_parser()
    for verb in arguments[:1]:
        if not verb.startswith("-") and verb not in VERBS:
            parser.error(str(UnknownNameError("verb", verb, VERBS)))
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
        unexpected error, 2 for an error the user can mend, 130 after Ctrl-C, 141 if nobody reads
        its output any more.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    options = parse(words)
    try:
        with whole_lines():
            module, function = options.run.split(":")
            do = getattr(import_module(f"hessalign.cli.{module}"), function)
            code: int | None = do(options)
        sys.stdout.flush()
    except MENDABLE as error:
        if isinstance(error, BrokenPipeError) and _is_unread():
            return 141  # as of a program that SIGPIPE ended
        if os.environ.get(TRACEBACK_VARIABLE):
            traceback.print_exception(error)
        sys.stderr.write(f"hessalign: error: {plain_lines(describe_error(error))}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write(f"\nhessalign: interrupted{_how_to_continue(options, words)}\n")
        return 130
    except Exception as error:  # a bug: one line for the user, the traceback for the report
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        sys.stderr.write(f"hessalign: error: {plain_lines(_describe_bug(error))}\n")
        return 1
    return code or 0


def _is_unread() -> bool:
    """Whether whoever read the output, such as `head`, has gone; what is left goes nowhere then."""
    try:
        sys.stdout.write("\n")  # what could not be written before is not tried again
        sys.stdout.flush()
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # else the end of the process raises it again
        os.close(nowhere)
        return True
    return False


def _how_to_continue(options: argparse.Namespace, words: Sequence[str]) -> str:
    """What to do after Ctrl-C, as the rest of a sentence; `continues` is set by verbs that do."""
    if "continues" not in options:
        return "."
    if not options.continues:
        return "; nothing was kept: give --output DIR to be able to continue a run."
    command = shlex.join(["hessalign", *words])
    return f"; what was done is saved. The same command continues:\n  {command}"


def _describe_bug(error: Exception) -> str:
    """Keep the traceback of an unexpected error and say where; nowhere to keep it: show it."""
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
