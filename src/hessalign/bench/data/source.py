"""Any source of data by its path or name: folders, tables, arrays, benchmarks, own functions."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

from hessalign._errors import InputError, check_name, did_you_mean
from hessalign._plugins import call_plugin, entry_point_names, find_plugin
from hessalign.bench.data import files
from hessalign.bench.data.catalog import COLORED_MNIST, PRESETS, split_options
from hessalign.bench.data.colored_mnist import make_colored_mnist_domains
from hessalign.bench.data.heart import HEART, load_heart
from hessalign.bench.data.hugging_face import DATA_DIR, HUGGING_FACE, read_hugging_face
from hessalign.bench.data.images import matching_preset, read_image_folder
from hessalign.bench.data.mnist import make_domainbed_colored_mnist, make_rotated_mnist
from hessalign.bench.data.samples import DomainDataset
from hessalign.bench.data.spawrious import read_spawrious
from hessalign.bench.data.tables import TABLES, has_paths, read_table
from hessalign.bench.data.wilds import read_wilds

ENTRY_POINTS: Final = "hessalign.datasets"  # by which installed packages offer data sets

_TABLE_OPTIONS: Final = ("label", "domain")

_MADE: Final[Mapping[str, Callable[[Path, int], DomainDataset]]] = {
    "ColoredMNIST": make_domainbed_colored_mnist,
    "RotatedMNIST": make_rotated_mnist,
    COLORED_MNIST: lambda folder, seed: make_colored_mnist_domains(seed),
}
"""Data sets that are made from the MNIST files or from what comes with the package, by a seed."""

_KNOWN: Final = (*PRESETS, *_MADE, HEART)
"""Names that need no file of that name."""


def read_dataset(
    path: Path, preset: str | None = None, *, most: int | None = None, seed: int = 0
) -> DomainDataset:
    """Read a data set from wherever it is.

    Args:
        path: A folder of the form `domain/class/image`, a manifest of images (`.csv` with a column
            path, `.jsonl`), any other table (`.csv`, `.tsv`), whose columns of classes and domains
            may be named behind it, as in `patients.csv:label=outcome:domain=clinic`, or a file of
            arrays (`.npz`, `.safetensors`); or "heart", see `load_heart`; or `hf:` and one of
            Hugging Face, see `read_hugging_face`; or the name of a function that makes it, see
            `find_dataset`.
        preset: For a folder: which benchmark data set it is, with its options if it has some.
        most: Numbers of a table to keep, see `read_table`.
        seed: Of the draw of these.

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
    if str(path).startswith(HUGGING_FACE) and not path.exists():
        return read_hugging_face(str(path), Path(DATA_DIR))
    said, options = (str(path), {}) if path.exists() else split_options(str(path))
    base = Path(said)
    if base.is_file():
        if preset is not None:
            raise InputError(f"Expected a folder for a preset, got the file {path}.")
        return _read_file(base, options, most, seed)
    if base.is_dir() and options:
        raise InputError(f"Expected a table for {', '.join(options)}, got the folder {base}.")
    if str(base) == HEART:
        return _shipped(options)
    if not path.exists():
        make = find_plugin(ENTRY_POINTS, str(path), "data set")
        if make is None:
            nearest = did_you_mean(base, _KNOWN)
            raise FileNotFoundError(f"Expected a data set, found nothing at {path}.{nearest}")
        return _from_user(str(path), make, Path(), seed=0)
    return _read_folder(path, preset)


def _read_file(path: Path, options: dict[str, str], most: int | None, seed: int) -> DomainDataset:
    """A table, a manifest, or arrays."""
    if path.suffix.lower() in TABLES and (options or not has_paths(path)):
        for option in options:
            check_name(f"option of {path}", option, _TABLE_OPTIONS)
        return read_table(path, **options, most=most, seed=seed)
    if options:
        raise InputError(
            f"Expected a table ({', '.join(TABLES)}) for {', '.join(options)}, got {path}."
        )
    if path.suffix in files.LISTS:
        return files.read_manifest(path)
    if path.suffix in files.ARRAYS:
        return files.read_arrays(path)
    known = ", ".join(dict.fromkeys((*TABLES, *files.LISTS, *files.ARRAYS)))
    raise InputError(f"Expected a folder, or a file named {known}; got {path}.")


def _shipped(options: Mapping[str, str]) -> DomainDataset:
    """The hospitals that ship with the package, which know their columns."""
    if options:
        raise InputError(f"Expected no options of {HEART}, got {', '.join(options)}.")
    return load_heart()


def _read_folder(path: Path, preset: str | None) -> DomainDataset:
    """A folder in the layout of its benchmark; tables as WILDS has them tell which it is."""
    found = matching_preset(path) if preset is None else None
    if found is not None and PRESETS[found].layout == "wilds":
        preset = found
    if preset is None:
        return read_image_folder(path)
    base, options = split_options(preset)
    check_name("preset", base, PRESETS)
    if PRESETS[base].layout == "wilds":
        return read_wilds(path, preset)
    if options:
        raise InputError(f"Expected no options of {base}, got {', '.join(options)}.")
    spawrious = PRESETS[base].layout == "spawrious"
    return read_spawrious(path, base) if spawrious else read_image_folder(path, base)


def find_dataset(name: str, data_dir: str | os.PathLike[str], seed: int = 0) -> DomainDataset:
    """A data set by its name.

    Args:
        name: A benchmark, what is in the folder under that name, or a function that makes it:

            - The benchmark data sets may have the names of folders that DomainBed gives them, and
              options, as in `WILDSFMoW:domain=year`;
              Rotated and Colored MNIST are made from the MNIST files in `MNIST`, `mnist`, or the
              folder itself.
            - In the folder: `NAME.safetensors`, `NAME.npz`, `NAME.csv`, `NAME.jsonl`, `NAME.tsv`,
              or a folder of images. A table may have options, as in
              `patients:label=outcome:domain=clinic`.
            - `heart`, unless the folder has one: see `load_heart`.
            - `hf:NAME` or `hf:PATH`: of Hugging Face, see `read_hugging_face`.
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
    base, options = split_options(name)
    said = name.removeprefix(base)
    suffixes = dict.fromkeys((*files.ARRAYS, *files.LISTS, *TABLES, ""))
    paths = [folder / f"{base}{suffix}" for suffix in suffixes]
    preset = PRESETS.get(base)
    for path in paths:
        if path.is_file() or (path.is_dir() and preset is None):
            asked = path.with_name(f"{path.name}{said}") if path.is_file() else path
            return _read_once(asked, path.stat().st_mtime_ns, None)
    if base == HEART:
        return _shipped(options)
    if preset is not None and folder.is_dir():
        tables = [folder / preset.folder / part for part in preset.needs]
        seen = [folder, *(table for table in tables if table.exists())]
        return _read_once(folder, max(each.stat().st_mtime_ns for each in seen), name)
    if name.startswith(HUGGING_FACE):
        return read_hugging_face(name, folder)
    make = find_plugin(ENTRY_POINTS, name, "data set")
    if make is not None:
        return _from_user(name, make, folder, seed)
    if preset is not None:
        raise FileNotFoundError(f"Expected {preset.name} in {folder}, found no such folder.")
    offered = entry_point_names(ENTRY_POINTS)
    raise FileNotFoundError(
        f"Expected the data set {name!r} in {folder.absolute()}, found none of: "
        f"{', '.join(path.name for path in paths)}. "
        + (f"Installed packages offer: {', '.join(offered)}. " if offered else "")
        + "A function of your own that makes one is named 'package.module:function'."
        + did_you_mean(base, _KNOWN)
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
