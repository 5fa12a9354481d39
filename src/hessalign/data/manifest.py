"""Data sets listed in a file: one image per line, with its class and its domain."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from hessalign._names import UnknownNameError
from hessalign.data.samples import DomainDataset, group_samples

COLUMNS: Final = ("path", "class", "domain")
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
        ValueError: If the file is of another kind, has no lines, has another column, or a line is
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
        raise ValueError(f"Expected a manifest named *.csv or *.jsonl, got {path}.")
    if not path.is_file():
        raise FileNotFoundError(f"Expected a manifest, found no file {path}.")
    read = _csv_lines if path.suffix == ".csv" else _json_lines
    rows = [_row(path, number, entry) for number, entry in read(path)]
    if not rows:
        raise ValueError(f"Expected images in {path}, found no lines besides the header.")
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
        if not str(entry.get(column) or ""):
            raise ValueError(f"Expected a value for {column!r} on line {number} of {manifest}.")
    return str(entry["domain"]), str(entry["class"]), manifest.parent / str(entry["path"])


def _check_columns(path: Path, number: int, columns: list[str]) -> None:
    for column in columns:
        if column not in COLUMNS:
            raise UnknownNameError(f"column in line {number} of {path}:", column, COLUMNS)
    missing = [column for column in COLUMNS if column not in columns]
    if missing:
        raise ValueError(
            f"Expected the columns {', '.join(COLUMNS)} in {path}, line {number} lacks "
            f"{', '.join(missing)}."
        )


def _csv_lines(path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file)
        header = [cell.strip() for cell in next(reader, [])]
        _check_columns(path, 1, header)
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(header):
                raise ValueError(
                    f"Expected {len(header)} values on line {reader.line_num} of {path}, found "
                    f"{len(cells)}. Put values that contain a comma in quotes."
                )
            yield reader.line_num, dict(zip(header, cells, strict=True))


def _json_lines(path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except ValueError as error:
            raise ValueError(f"Expected JSON on line {number} of {path}: {error}.") from error
        if not isinstance(entry, dict):
            raise ValueError(
                f"Expected an object with path, class and domain on line {number} of {path}, found "
                f"{line[:60]!r}."
            )
        _check_columns(path, number, list(entry))
        yield number, entry
