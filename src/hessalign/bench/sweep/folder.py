"""The folder of a sweep: its specification, and one folder for each run, named as DomainBed does.

sweep.yaml                 the specification that was last run here
74b108bb6da5…/             a run: results.jsonl, checkpoints, in the end the file done
74b108bb6da5…/err.txt      why it failed, if it did
74b108bb6da5…/claim.0      who is doing it, while it goes on; see claims.py
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from hessalign._errors import InputError
from hessalign._files import make_folder, write_atomically
from hessalign.bench.runs.options import read_file
from hessalign.bench.sweep.execution import SPECIFICATION
from hessalign.bench.sweep.specification import SweepSpec, make_specification


def open_sweep(folder: Path, spec: SweepSpec, *, keep: bool = False) -> Path:
    """Make the folder of a sweep, or continue the one that is there.

    Algorithms, data sets, test domains, draws and trials may be added to a sweep or left out; what
    all of its runs share may not change, since a table would mix them.

    Args:
        folder: The folder.
        spec: What to run.
        keep: Leave the specification of a sweep that is there as it is: these are runs beside its
            own.

    Returns:
        The folder as an absolute path.

    Raises:
        PermissionError: If it cannot be written to. One that belongs to a sweep with another
            protocol raises a ValueError.
    """
    folder = folder.absolute()
    path = folder / SPECIFICATION
    text = dataclasses.replace(spec, data_folder=str(spec.place)).to_yaml().encode()
    if path.exists():
        check_protocol(folder, make_specification(read_file(path)), spec)
    try:
        make_folder(folder)
        if not path.exists() or (path.read_bytes() != text and not keep):
            write_atomically(path, text)
    except OSError as error:
        raise PermissionError(
            f"Expected a folder for the sweep that can be written to, got {folder}: "
            f"{error.strerror}. Choose another with --output."
        ) from error
    return folder


def check_protocol(folder: Path, found: SweepSpec, asked: SweepSpec) -> None:
    """Refuse to mix protocols in one folder.

    Args:
        folder: The folder of the sweep.
        found: What was run there.
        asked: What is to be run.

    Raises:
        InputError: If they differ in more than which runs there are.
    """
    theirs, ours = found.protocol, asked.protocol
    differences = [
        f"{key} is {theirs[key]!r} there and {ours[key]!r} here"
        for key in ours
        if theirs[key] != ours[key]
    ]
    if differences:
        raise InputError(
            f"{folder} belongs to a sweep with another protocol: {'; '.join(differences)}. Choose "
            "another folder with --output, or remove that one."
        )
