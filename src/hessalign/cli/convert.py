"""`hessalign convert`: run folders of version 0.1, made into folders as they are now."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hessalign._errors import InputError
from hessalign._files import make_folder


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the verb."""
    parser = verbs.add_parser(
        "convert",
        help="runs on Colored MNIST of version 0.1, in today's form",
        description="Example: hessalign convert outputs/runs --output outputs/converted\n\n"
        "The new folders are named by the hash of what each run is, so that `hessalign reproduce\n"
        "--cache` finds them. The old ones stay as they are. Runs of other data sets need no\n"
        "conversion.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("old", nargs="+", type=Path, metavar="OLD", help="a run, or a folder that holds runs")
    add("--output", type=Path, required=True, metavar="DIR", help="where the new folders go")
    parser.set_defaults(run=run, continues=True)


def run(options: argparse.Namespace) -> int:
    """Convert the complete runs, and say which are not.

    Returns:
        The exit code: 1 if some could not be converted.

    Raises:
        InputError: If there is no such run.
    """
    from hessalign.bench.runs.convert import convert_run, is_old_run
    from hessalign.bench.runs.run_folder import RunFolderError, runs_below

    found = [
        folder
        for old in options.old
        for folder in ([old] if is_old_run(old) else filter(is_old_run, runs_below(old)))
    ]
    if not found:
        places = ", ".join(map(str, options.old))
        raise InputError(
            f"Expected runs on Colored MNIST of version 0.1 in {places}, found none. Name their "
            "folders, or the folder that holds them."
        )
    make_folder(options.output)
    failed = 0
    for folder in found:
        try:
            made = convert_run(folder, options.output)
        except (RunFolderError, InputError) as error:
            failed += 1
            sys.stderr.write(f"hessalign: left out: {error}\n")
        else:
            sys.stdout.write(f"{folder} -> {made}\n")
    sys.stdout.write(f"{len(found) - failed} of {len(found)} runs are in {options.output}.\n")
    return 1 if failed else 0
