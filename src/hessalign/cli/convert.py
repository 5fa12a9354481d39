"""`hessalign convert`: run folders of version 0.1, made into folders as they are now."""

from __future__ import annotations

import argparse
import sys

from hessalign._errors import InputError
from hessalign._files import make_folder
from hessalign.bench.runs.convert import convert_run, is_old_run
from hessalign.bench.runs.run_folder import RunFolderError, runs_below


def run(options: argparse.Namespace) -> int:
    """Convert the complete runs, and say which are not."""
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
