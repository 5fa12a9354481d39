"""`hessalign VERB …`: parse, dispatch, and turn errors into messages."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
import traceback
from collections.abc import Container, Mapping, Sequence
from importlib import import_module
from typing import Final

from hessalign._errors import MENDABLE, describe_error
from hessalign._names import UnknownNameError
from hessalign._processes import WORKERS_VARIABLE
from hessalign._version import __version__
from hessalign.report.progress import whole_lines

TRACEBACK_VARIABLE: Final = "HESSALIGN_TRACEBACK"
"""The environment variable that asks for the traceback of an error on the terminal."""

VERBS: Final[Mapping[str, str]] = {
    "demo": "Colored MNIST with four methods, in a few minutes",
    "train": "train one algorithm; the defaults are the published protocol",
    "predict": "classify images or arrays with a trained model",
    "export": "write a trained network as ONNX, TorchScript, pt2 or safetensors",
    "reproduce": "regenerate a table or figure of the paper",
    "sweep": "plan, run and watch the runs of a benchmark",
    "collect": "tables of a sweep, by three methods of model selection",
    "diagnose": "how different domains are, in what, and whether a head transfers",
    "attack": "the worst loss gap between domains near a trained head",
    "features": "turn images into a bank of features",
    "datasets": "list, check and prepare data sets",
    "algorithms": "list the algorithms, what they align, options",
    "convert": "runs on Colored MNIST of version 0.1, in today's form",
}
"""What each verb does; its parser is in the module of its name here, imported when it is asked for.

A module has `add_parser`, which registers the verb with the same words as its help.
"""


def make_parser(asked: Container[str] = VERBS) -> argparse.ArgumentParser:
    """The parser of all verbs.

    Args:
        asked: The verbs whose modules are imported; of the others it knows what the list of verbs
            shows, but not their arguments.

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
    for verb, help_text in VERBS.items():
        if verb in asked:
            import_module(f"hessalign.cli.{verb}").add_parser(verbs)
        else:
            verbs.add_parser(verb, help=help_text)
    return parser


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse a command line whose words, such as `key=value`, may stand between and after flags.

    Args:
        arguments: The words after `hessalign`.

    Returns:
        The options.
    """
    verb = next((word for word in arguments if not word.startswith("-")), "")
    parser = make_parser({verb})
    if verb in arguments[:1] and verb not in VERBS:
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
        unexpected error, 2 for an error the user can mend, 130 after Ctrl-C.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    options = parse(words)
    try:
        with whole_lines():
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
