"""Data sets listed in a file: one image per line, with its class and its domain."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from hessalign._errors import InputError
from hessalign._names import UnknownNameError
from hessalign.bench.data.csv_lines import csv_lines, not_utf8
from hessalign.bench.data.samples import DomainDataset, group_samples

PATH: Final = "path"
COLUMNS: Final = (PATH, "class", "domain")
SUFFIXES: Final = (".csv", ".jsonl")

_SHOWN: Final = 3


def read_manifest(path: Path) -> DomainDataset:
    r"""Read a manifest.

    A CSV file has the header `path,class,domain`, in any order; a JSON-lines file has an object
    with these keys on each line. Paths are relative to the manifest's folder. Domains and classes
    are sorted by name, the images of a class by path, so the order of the lines does not matter.

    Args:
        path: A `.csv` or `.jsonl` file.

    Returns:
        The data set, called as the file.

    Raises:
        FileNotFoundError: If the manifest, or an image it lists, does not exist.
        InputError: If the file is of another kind, has no lines, has another column, or a line is
            not complete.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> (folder / "1.png").touch()
        >>> _ = (folder / "scans.csv").write_text("domain,path,class\nnorth,1.png,healthy\n")
        >>> data = read_manifest(folder / "scans.csv")
        >>> data.name, data.domain_names, data.classes
        ('scans', ('north',), ('healthy',))
    """
    if path.suffix not in SUFFIXES:
        raise InputError(f"Expected a manifest named *.csv or *.jsonl, got {path}.")
    if not path.is_file():
        raise FileNotFoundError(f"Expected a manifest, found no file {path}.")
    read = _csv_lines if path.suffix == ".csv" else _json_lines
    rows = [_row(path, number, entry) for number, entry in read(path)]
    if not rows:
        raise InputError(f"Expected images in {path}, found no lines besides the header.")
    missing = [str(file) for _, _, file in rows if not file.is_file()]
    if missing:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise FileNotFoundError(
            f"{path} lists files that do not exist: {', '.join(missing[:_SHOWN])}{more}. Paths are "
            f"relative to {path.parent}."
        )
    return dataclasses.replace(group_samples(path.stem, sorted(rows)), root=path)


def _row(manifest: Path, number: int, entry: Mapping[str, object]) -> tuple[str, str, Path]:
    for column in COLUMNS:
        value = entry[column]
        if value is None or not str(value).strip() or isinstance(value, list | dict):
            found = "none" if value is None or value == "" else repr(value)
            raise InputError(
                f"Expected a value for {column!r} on line {number} of {manifest}, found {found}."
            )
    return str(entry["domain"]), str(entry["class"]), manifest.parent / str(entry[PATH])


def _check_columns(path: Path, number: int, columns: list[str]) -> None:
    missing = [column for column in COLUMNS if column not in columns]
    if missing:
        raise InputError(
            f"Expected the columns {', '.join(COLUMNS)} in {path}, line {number} lacks "
            f"{', '.join(missing)}; it has {', '.join(columns) or 'none'}."
        )
    for column in columns:
        if column not in COLUMNS:
            raise UnknownNameError(f"column in line {number} of {path}:", column, COLUMNS)


def _csv_lines(path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    lines = csv_lines(path)
    number, header = next(lines, (1, []))
    _check_columns(path, number, header)
    for number, cells in lines:
        yield number, dict(zip(header, cells, strict=True))


def _json_lines(path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(not_utf8(path, error)) from error
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except ValueError as error:
            raise InputError(f"Expected JSON on line {number} of {path}: {error}.") from error
        if not isinstance(entry, dict):
            raise InputError(
                f"Expected an object with path, class and domain on line {number} of {path}, found "
                f"{line[:60]!r}."
            )
        _check_columns(path, number, list(entry))
        yield number, entry
