"""Any source of data by its path: a folder of images, a manifest, a table, a file of arrays."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

from hessalign._errors import InputError
from hessalign.bench.data import arrays, manifest
from hessalign.bench.data.catalog import COLORED_MNIST, PRESETS
from hessalign.bench.data.colored_mnist import make_colored_mnist_domains
from hessalign.bench.data.image_folder import read_image_folder
from hessalign.bench.data.mnist_domains import make_domainbed_colored_mnist, make_rotated_mnist
from hessalign.bench.data.number_table import is_number_table, read_number_table
from hessalign.bench.data.samples import DomainDataset

MADE: Final[Mapping[str, Callable[[Path, int], DomainDataset]]] = {
    "ColoredMNIST": make_domainbed_colored_mnist,
    "RotatedMNIST": make_rotated_mnist,
    COLORED_MNIST: lambda folder, seed: make_colored_mnist_domains(seed),
}
"""Data sets that are made from the MNIST files or from what comes with the package, with a seed."""


def read_dataset(path: Path, preset: str | None = None) -> DomainDataset:
    """Read a data set from wherever it is.

    Args:
        path: A folder of the form `domain/class/image`, a manifest (`.csv`, `.jsonl`), a table of
            numbers (`.csv` with a column y or label), or a file of arrays (`.npz`,
            `.safetensors`).
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
        raise FileNotFoundError(f"Expected a data set, found nothing at {path}.")
    if path.is_dir():
        return read_image_folder(path, preset)
    if preset is not None:
        raise InputError(f"Expected a folder for a preset, got the file {path}.")
    if is_number_table(path):
        return read_number_table(path)
    if path.suffix in manifest.SUFFIXES:
        return manifest.read_manifest(path)
    if path.suffix in arrays.SUFFIXES:
        return arrays.read_arrays(path)
    raise InputError(
        f"Expected a folder, or a file named {', '.join(manifest.SUFFIXES + arrays.SUFFIXES)}; got "
        f"{path}."
    )


def find_dataset(name: str, data_dir: str | os.PathLike[str], seed: int = 0) -> DomainDataset:
    """A data set by its name, below the folder that holds all data sets.

    Args:
        name: What is in the folder under that name: `NAME.safetensors`, `NAME.npz`, a manifest
            `NAME.csv` or `NAME.jsonl`, or a folder of images. The benchmark data sets may have
            the names of folders that DomainBed gives them; Rotated and Colored MNIST are made from
            the MNIST files in `MNIST`, `mnist`, or the folder itself.
        data_dir: The folder.
        seed: For those that are made: DomainBed's job seed for the same data.

    Returns:
        The data set; files are read once per process as long as they do not change, and what is
        made is kept until another is asked for.

    Raises:
        FileNotFoundError: If there is none.
    """
    folder = Path(data_dir)
    if name in MADE:
        places = [folder / "MNIST" / "raw", folder / "MNIST", folder / "mnist", folder]
        place = next(place for place in places if place.is_dir() or place == folder)
        return _make_once(name, place, seed)
    files = [folder / f"{name}{suffix}" for suffix in (*arrays.SUFFIXES, *manifest.SUFFIXES)]
    for path in (*files, folder / name):
        if path.is_file() or (path.is_dir() and name not in PRESETS):
            return _read_once(path, path.stat().st_mtime_ns, None)
    if name in PRESETS and folder.is_dir():
        return _read_once(folder, folder.stat().st_mtime_ns, name)
    raise FileNotFoundError(
        f"Expected the data set {name!r} in {folder.absolute()}, found none of: "
        f"{', '.join(path.name for path in (*files, folder / name))}."
    )


@lru_cache(maxsize=1)
def _make_once(name: str, folder: Path, seed: int) -> DomainDataset:
    return MADE[name](folder, seed)


@lru_cache(maxsize=4)
def _read_once(path: Path, changed: int, preset: str | None) -> DomainDataset:
    return read_dataset(path, preset)
