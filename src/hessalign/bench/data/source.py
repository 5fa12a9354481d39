"""Any source of data by its path or name: folders, tables, arrays, benchmarks, own functions."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

from hessalign._errors import InputError
from hessalign._plugins import call_plugin, entry_point_names, find_plugin
from hessalign.bench.data import files
from hessalign.bench.data.catalog import COLORED_MNIST, PRESETS
from hessalign.bench.data.colored_mnist import make_colored_mnist_domains
from hessalign.bench.data.images import read_image_folder
from hessalign.bench.data.mnist import make_domainbed_colored_mnist, make_rotated_mnist
from hessalign.bench.data.samples import DomainDataset

ENTRY_POINTS: Final = "hessalign.datasets"  # by which installed packages offer data sets

_MADE: Final[Mapping[str, Callable[[Path, int], DomainDataset]]] = {
    "ColoredMNIST": make_domainbed_colored_mnist,
    "RotatedMNIST": make_rotated_mnist,
    COLORED_MNIST: lambda folder, seed: make_colored_mnist_domains(seed),
}
"""Data sets that are made from the MNIST files or from what comes with the package, by a seed."""


def read_dataset(path: Path, preset: str | None = None) -> DomainDataset:
    """Read a data set from wherever it is.

    Args:
        path: A folder of the form `domain/class/image`, a manifest (`.csv`, `.jsonl`), a table of
            numbers (`.csv` with a column y or label), or a file of arrays (`.npz`,
            `.safetensors`); or the name of a function that makes it, see `find_dataset`.
        preset: For a folder: which benchmark data set it is.

    Returns:
        The data set.

    Raises:
        FileNotFoundError: If nothing is there.
        InputError: If it is none of these, or its content is not as expected.

    Example:
        >>> read_dataset(Path("nowhere"))
        Traceback (most recent call last):
        FileNotFoundError: Expected a data set, found nothing at nowhere.
    """
    if not path.exists():
        make = find_plugin(ENTRY_POINTS, str(path), "data set")
        if make is None:
            raise FileNotFoundError(f"Expected a data set, found nothing at {path}.")
        return _from_user(str(path), make, Path(), seed=0)
    if path.is_dir():
        return read_image_folder(path, preset)
    if preset is not None:
        raise InputError(f"Expected a folder for a preset, got the file {path}.")
    if files.is_number_table(path):
        return files.read_number_table(path)
    if path.suffix in files.LISTS:
        return files.read_manifest(path)
    if path.suffix in files.ARRAYS:
        return files.read_arrays(path)
    known = ", ".join(files.LISTS + files.ARRAYS)
    raise InputError(f"Expected a folder, or a file named {known}; got {path}.")


def find_dataset(name: str, data_dir: str | os.PathLike[str], seed: int = 0) -> DomainDataset:
    """A data set by its name.

    Args:
        name: A benchmark, what is in the folder under that name, or a function that makes it:

            - The benchmark data sets may have the names of folders that DomainBed gives them;
              Rotated and Colored MNIST are made from the MNIST files in `MNIST`, `mnist`, or the
              folder itself.
            - In the folder: `NAME.safetensors`, `NAME.npz`, `NAME.csv`, `NAME.jsonl`, or a folder
              of images.
            - `package.module:function`, or the name of an entry point of the group
              `hessalign.datasets`. The function returns a `DomainDataset`; it is given `data_dir`
              (a path) and `seed`, if it has parameters of these names.
        data_dir: The folder that holds all data sets.
        seed: For those that are made: DomainBed's job seed for the same data.

    Returns:
        The data set; files are read once per process as long as they do not change, and what is
        made is kept until another is asked for.

    Raises:
        FileNotFoundError: If there is none.
    """
    folder = Path(data_dir)
    if name in _MADE:
        places = [folder / "MNIST" / "raw", folder / "MNIST", folder / "mnist", folder]
        place = next(place for place in places if place.is_dir() or place == folder)
        return _make_once(name, place, seed)
    paths = [folder / f"{name}{suffix}" for suffix in (*files.ARRAYS, *files.LISTS, "")]
    for path in paths:
        if path.is_file() or (path.is_dir() and name not in PRESETS):
            return _read_once(path, path.stat().st_mtime_ns, None)
    if name in PRESETS and folder.is_dir():
        return _read_once(folder, folder.stat().st_mtime_ns, name)
    make = find_plugin(ENTRY_POINTS, name, "data set")
    if make is not None:
        return _from_user(name, make, folder, seed)
    offered = entry_point_names(ENTRY_POINTS)
    raise FileNotFoundError(
        f"Expected the data set {name!r} in {folder.absolute()}, found none of: "
        f"{', '.join(path.name for path in paths)}. "
        + (f"Installed packages offer: {', '.join(offered)}. " if offered else "")
        + "A function of your own that makes one is named 'package.module:function'."
    )


def _from_user(name: str, make: object, data_dir: Path, seed: int) -> DomainDataset:
    """The data set that a user's function returns; it takes `data_dir` and `seed`, or neither."""
    if not callable(make):
        raise InputError(
            f"Expected a function that returns a DomainDataset as {name!r}, got "
            f"{type(make).__name__}."
        )
    parameters = inspect.signature(make).parameters
    given = {"data_dir": data_dir, "seed": seed}
    taken = {each: value for each, value in given.items() if each in parameters}
    needed = [
        each.name
        for each in parameters.values()
        if each.default is each.empty
        and each.kind not in {each.VAR_POSITIONAL, each.VAR_KEYWORD}
        and each.name not in given
    ]
    if needed:
        raise InputError(
            f"Expected a function of data_dir and seed, of one or of neither as {name!r}; it needs "
            f"{', '.join(needed)} too. Give them defaults."
        )
    return _call_once(make, name, **taken)


@lru_cache(maxsize=2)
def _call_once(make: Callable[..., object], name: str, **given: object) -> DomainDataset:
    made = call_plugin(name, "data set", make, **given)
    if not isinstance(made, DomainDataset):
        raise InputError(
            f"Expected {name!r} to return a hessalign.bench.data.DomainDataset, got "
            f"{type(made).__name__}."
        )
    return made


@lru_cache(maxsize=1)
def _make_once(name: str, folder: Path, seed: int) -> DomainDataset:
    return _MADE[name](folder, seed)


@lru_cache(maxsize=4)
def _read_once(path: Path, changed: int, preset: str | None) -> DomainDataset:
    return read_dataset(path, preset)
