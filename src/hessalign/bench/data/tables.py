"""Data sets in text files: manifests that list images, and tables of numbers.

A manifest has a line for each image, with its class and its domain; a table a line for each sample,
with its features, its label and its domain.
"""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import torch

from hessalign._errors import InputError
from hessalign._names import UnknownNameError
from hessalign.bench.data.samples import LARGEST, DomainDataset, DomainSamples, group_samples

_PATH: Final = "path"
_COLUMNS: Final = (_PATH, "class", "domain")
SUFFIXES: Final = (".csv", ".jsonl")

_SHOWN: Final = 3

_LABELS: Final = ("y", "label")
_DOMAIN: Final = "domain"
_NUMBERS: Final = ".csv"


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
    read = _manifest_lines if path.suffix == ".csv" else _json_lines
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


def is_number_table(path: Path) -> bool:
    """Whether a file is a CSV with a column "y" or "label", and none for paths."""
    if path.suffix != _NUMBERS or not path.is_file():
        return False
    _, header = next(_csv_lines(path), (1, []))
    return _PATH not in header and any(cell in _LABELS for cell in header)


def read_number_table(path: Path) -> DomainDataset:
    r"""Read features, labels and domains from a CSV file.

    The header has the columns `y` (or `label`) and `domain`, which hold names or numbers, in any
    place; all other columns are features. Classes and domains are sorted, numbers by value.

    Args:
        path: A `.csv` file.

    Returns:
        The data set, called as the file, with features as a tensor.

    Raises:
        FileNotFoundError: If there is no such file.
        InputError: If a column is missing or there twice, or a line is not complete or has
            something else than finite numbers for features; it names the line.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "clinics.csv"
        >>> _ = path.write_text("age,y,domain\n61,ill,north\n48,well,south\n")
        >>> data = read_number_table(path)
        >>> data.domain_names, data.classes, data.domains[0].inputs
        (('north', 'south'), ('ill', 'well'), tensor([[61.]]))
    """
    if not path.is_file():
        raise FileNotFoundError(f"Expected a CSV file of numbers, found no file {path}.")
    lines = _csv_lines(path)
    _, header = next(lines, (1, []))
    label, domain = _columns(path, header)
    features: dict[str, list[list[float]]] = {}
    labels: dict[str, list[str]] = {}
    for line, cells in lines:
        place = _name(path, line, header[domain], cells[domain])
        features.setdefault(place, []).append(
            [
                _number(path, line, header[i], cell)
                for i, cell in enumerate(cells)
                if i not in {label, domain}
            ]
        )
        labels.setdefault(place, []).append(_name(path, line, header[label], cells[label]))
    if not features:
        raise InputError(f"Expected samples in {path}, found no lines besides the header.")
    classes = _sorted({name for names in labels.values() for name in names})
    number = {name: index for index, name in enumerate(classes)}
    domains = tuple(
        DomainSamples(
            place, torch.tensor(features[place]), torch.tensor([number[c] for c in labels[place]])
        )
        for place in _sorted(set(features))
    )
    return DomainDataset(path.stem, classes, domains)


def _csv_lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    r"""The header of a CSV file, then its lines; blanks around values are not part of them.

    Yields:
        The number of a line and its values, as many as the header has; empty lines are passed over.

    Raises:
        InputError: If it is not text in UTF-8, or a line is not as long as the header.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "a.csv"
        >>> _ = path.write_text("age, y\n\n61, ill\n")
        >>> list(_csv_lines(path))
        [(1, ['age', 'y']), (3, ['61', 'ill'])]
    """
    width = None
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file)
        try:
            for cells in reader:
                if not cells:
                    continue
                width = width or len(cells)
                if len(cells) != width:
                    raise InputError(
                        f"Expected {width} values on line {reader.line_num} of {path}, found "
                        f"{len(cells)}. Put values that contain a comma in quotes."
                    )
                yield reader.line_num, [cell.strip() for cell in cells]
        except csv.Error as error:
            raise InputError(
                f"Cannot read line {reader.line_num} of {path}: {error}. A quote may not be closed."
            ) from error
        except UnicodeDecodeError as error:
            raise InputError(not_utf8(path, error)) from error


def not_utf8(path: Path, error: UnicodeDecodeError) -> str:
    """What to say of a file that is not text in UTF-8."""
    found = error.object[error.start : error.start + 1].hex()
    return f"Expected text in UTF-8 in {path}, found the byte 0x{found}. Save it as UTF-8."


def _row(manifest: Path, number: int, entry: Mapping[str, object]) -> tuple[str, str, Path]:
    for column in _COLUMNS:
        value = entry[column]
        if value is None or not str(value).strip() or isinstance(value, list | dict):
            found = "none" if value is None or value == "" else repr(value)
            raise InputError(
                f"Expected a value for {column!r} on line {number} of {manifest}, found {found}."
            )
    return str(entry["domain"]), str(entry["class"]), manifest.parent / str(entry[_PATH])


def _check_columns(path: Path, number: int, columns: list[str]) -> None:
    missing = [column for column in _COLUMNS if column not in columns]
    if missing:
        raise InputError(
            f"Expected the columns {', '.join(_COLUMNS)} in {path}, line {number} lacks "
            f"{', '.join(missing)}; it has {', '.join(columns) or 'none'}."
        )
    for column in columns:
        if column not in _COLUMNS:
            raise UnknownNameError(f"column in line {number} of {path}:", column, _COLUMNS)


def _manifest_lines(path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    lines = _csv_lines(path)
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


def _columns(path: Path, header: list[str]) -> tuple[int, int]:
    found = [i for i, cell in enumerate(header) if cell in _LABELS]
    places = [i for i, cell in enumerate(header) if cell == _DOMAIN]
    if len(found) != 1 or len(places) != 1 or len(header) < 3:
        raise InputError(
            f"Expected one column y (or label), one column domain and at least one feature in "
            f"{path}, found the columns {', '.join(header) or '(none)'}."
        )
    return found[0], places[0]


def _name(path: Path, line: int, column: str, cell: str) -> str:
    if not cell:
        raise InputError(f"Expected a value for {column!r} on line {line} of {path}, found none.")
    return cell


def _number(path: Path, line: int, column: str, cell: str) -> float:
    try:
        value = float(cell)
        held = abs(value) <= LARGEST
    except ValueError:
        held = False
    if not held:
        raise InputError(
            f"Expected finite numbers that float32 can hold in {path}; row {line - 1} (line "
            f"{line}) has {cell!r} in column {column!r}. Fill it in, or leave the row out."
        )
    return value


def _sorted(names: set[str]) -> tuple[str, ...]:
    """Numbers by value, else names by letter."""
    try:
        return tuple(sorted(names, key=float))
    except ValueError:
        return tuple(sorted(names))
