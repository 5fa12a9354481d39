"""Any source of data by its path: a folder of images, a manifest, a table, a file of arrays."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hessalign.data import arrays, manifest
from hessalign.data.image_folder import read_image_folder
from hessalign.data.number_table import is_number_table, read_number_table
from hessalign.data.samples import DomainDataset


def read_dataset(
    path: Path, preset: str | None = None, exclude: Iterable[str] = ()
) -> DomainDataset:
    """Read a data set from wherever it is.

    Args:
        path: A folder of the form `domain/class/image`, a manifest (`.csv`, `.jsonl`), a table of
            numbers (`.csv` with a column y or label), or a file of arrays (`.npz`,
            `.safetensors`).
        preset: For a folder: which benchmark data set it is.
        exclude: For a folder: images to leave out.

    Returns:
        The data set.

    Raises:
        FileNotFoundError: If nothing is there.
        ValueError: If it is none of these, or its content is not as expected.

    Example:
        >>> read_dataset(Path("nowhere"))
        Traceback (most recent call last):
        FileNotFoundError: Expected a data set, found nothing at nowhere.
    """
    if not path.exists():
        raise FileNotFoundError(f"Expected a data set, found nothing at {path}.")
    if path.is_dir():
        return read_image_folder(path, preset, exclude)
    if preset is not None or list(exclude):
        raise ValueError(f"Expected a folder for a preset or exclusions, got the file {path}.")
    if is_number_table(path):
        return read_number_table(path)
    if path.suffix in manifest.SUFFIXES:
        return manifest.read_manifest(path)
    if path.suffix in arrays.SUFFIXES:
        return arrays.read_arrays(path)
    raise ValueError(
        f"Expected a folder, or a file named {', '.join(manifest.SUFFIXES + arrays.SUFFIXES)}; got "
        f"{path}."
    )
