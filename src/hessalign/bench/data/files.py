"""Data sets in files: manifests that list images, tables of numbers, and arrays.

A manifest and a table have a line for each image or sample, with its class and domain; arrays hold
embeddings, small images, or any other numbers, with labels and domains.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from hessalign._errors import InputError
from hessalign._names import check_name
from hessalign.bench.data.samples import DomainDataset, DomainSamples, group_samples

LISTS: Final = (".csv", ".jsonl")
ARRAYS: Final = (".npz", ".safetensors")

_COLUMNS: Final = ("path", "class", "domain")
_LABELS: Final = ("y", "label")
_NEEDED: Final = ("x", "y", "domain")
_SHOWN: Final = 3

_LARGEST: Final = torch.finfo(torch.float32).max
"""Larger inputs become infinite in float32, which networks compute in."""

_Numbered = tuple[Tensor, tuple[str, ...]]  # numbers from 0, and what they stand for


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
    if path.suffix not in LISTS:
        raise InputError(f"Expected a manifest named *.csv or *.jsonl, got {path}.")
    _check_file(path, "a manifest")
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
    return group_samples(path.stem, sorted(rows), path)


def is_number_table(path: Path) -> bool:
    """Whether a file is a CSV with a column "y" or "label", and none for paths."""
    if path.suffix != ".csv" or not path.is_file():
        return False
    _, header = next(_csv_lines(path), (1, []))
    return "path" not in header and any(cell in _LABELS for cell in header)


def read_number_table(path: Path) -> DomainDataset:
    r"""Read features, labels and domains from a CSV file.

    The header has the columns `y` (or `label`) and `domain`, which hold names or numbers, in any
    place; all other columns are features. Classes and domains are sorted, numbers by value.

    Args:
        path: A `.csv` file; where there is none, that is a FileNotFoundError.

    Returns:
        The data set, called as the file, with features as a tensor.

    Raises:
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
    _check_file(path, "a CSV file of numbers")
    lines = _csv_lines(path)
    _, header = next(lines, (1, []))
    label = [i for i, cell in enumerate(header) if cell in _LABELS]
    domain = [i for i, cell in enumerate(header) if cell == "domain"]
    if len(label) != 1 or len(domain) != 1 or len(header) < 3:
        raise InputError(
            f"Expected one column y (or label), one column domain and at least one feature in "
            f"{path}, found the columns {', '.join(header) or '(none)'}."
        )
    numbers = [i for i in range(len(header)) if i not in (*label, *domain)]
    features, labels, domains = [], [], []
    for line, cells in lines:
        domains.append(_value(path, line, "domain", cells[domain[0]]))
        features.append([_number(path, line, header[i], cells[i]) for i in numbers])
        labels.append(_value(path, line, header[label[0]], cells[label[0]]))
    if not features:
        raise InputError(f"Expected samples in {path}, found no lines besides the header.")
    return _dataset(path, torch.tensor(features), _named(labels), _named(domains), root=None)


def read_arrays(path: Path) -> DomainDataset:
    """Read inputs, labels and domains from a file.

    The file holds the arrays `x` (one row per sample), `y` and `domain` (one value per sample).
    Labels and domains are names or whole numbers; those that occur are sorted. The arrays `classes`
    and `domains` may name numbers from 0. In a `.safetensors` file, which holds no text, those two
    are JSON lists in its metadata. The rows of a domain keep their order.

    Args:
        path: A `.npz` or `.safetensors` file; where there is none, that is a FileNotFoundError.

    Returns:
        The data set, called as the file, with `x` as a tensor.

    Raises:
        InputError: If it is of another kind, damaged, or its arrays do not fit together.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "features.npz"
        >>> np.savez(path, x=np.eye(3), y=["dog", "cat", "dog"], domain=[0, 1, 0])
        >>> data = read_arrays(path)
        >>> data.classes, data.domain_names, data.domains[0].labels.tolist()
        (('cat', 'dog'), ('0', '1'), [1, 1])
        >>> data.domains[1].inputs
        tensor([[0., 1., 0.]], dtype=torch.float64)
    """
    if path.suffix not in ARRAYS:
        raise InputError(f"Expected arrays in a file named *.npz or *.safetensors, got {path}.")
    _check_file(path, "a file of arrays")
    arrays = _read_npz(path) if path.suffix == ".npz" else _read_safetensors(path)
    missing = [name for name in _NEEDED if name not in arrays]
    if missing:
        raise InputError(
            f"Expected the arrays x, y and domain in {path}, found {', '.join(sorted(arrays))}; "
            f"missing: {', '.join(missing)}."
        )
    lengths = {name: len(np.atleast_1d(arrays[name])) for name in _NEEDED}
    if len(set(lengths.values())) > 1 or lengths["x"] == 0:
        found = ", ".join(f"{count} of {name}" for name, count in lengths.items())
        raise InputError(f"Expected x, y and domain of the same samples in {path}, found {found}.")
    labels = _numbered(path, "y", arrays["y"], arrays.get("classes"))
    domains = _numbered(path, "domain", arrays["domain"], arrays.get("domains"))
    return _dataset(path, _tensor(path, arrays["x"]), labels, domains, root=path)


def _check_file(path: Path, what: str) -> None:
    if not path.is_file():
        raise FileNotFoundError(f"Expected {what}, found no file {path}.")


def _dataset(
    path: Path, x: Tensor, labels: _Numbered, domains: _Numbered, root: Path | None
) -> DomainDataset:
    (label, classes), (domain, names) = labels, domains
    places = [(name, domain == index) for index, name in enumerate(names)]
    samples = tuple(DomainSamples(name, x[rows], label[rows]) for name, rows in places)
    return DomainDataset(path.stem, classes, samples, root=root)


def _csv_lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The header of a CSV file, then its lines, as long as it, stripped and with their numbers."""
    width = None
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file)
        try:
            for cells in filter(None, reader):
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
            raise _not_utf8(path, error) from error


def read_utf8(path: Path) -> str:
    """The text of a file; one that is not in UTF-8 is an error that says so."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise _not_utf8(path, error) from error


def _not_utf8(path: Path, error: UnicodeDecodeError) -> InputError:
    found = error.object[error.start : error.start + 1].hex()
    return InputError(
        f"Expected text in UTF-8 in {path}, found the byte 0x{found}. Save it as UTF-8."
    )


def _row(manifest: Path, line: int, entry: Mapping[str, object]) -> tuple[str, str, Path]:
    path, label, domain = (_value(manifest, line, column, entry[column]) for column in _COLUMNS)
    return domain, label, manifest.parent / path


def _value(path: Path, line: int, column: str, value: object) -> str:
    if value is None or not str(value).strip() or isinstance(value, list | dict):
        found = "none" if value is None or value == "" else repr(value)
        raise InputError(
            f"Expected a value for {column!r} on line {line} of {path}, found {found}."
        )
    return str(value)


def _check_columns(path: Path, number: int, columns: list[str]) -> None:
    missing = [column for column in _COLUMNS if column not in columns]
    if missing:
        raise InputError(
            f"Expected the columns {', '.join(_COLUMNS)} in {path}, line {number} lacks "
            f"{', '.join(missing)}; it has {', '.join(columns) or 'none'}."
        )
    for column in columns:
        check_name(f"column in line {number} of {path}:", column, _COLUMNS)


def _manifest_lines(path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    lines = _csv_lines(path)
    number, header = next(lines, (1, []))
    _check_columns(path, number, header)
    for number, cells in lines:
        yield number, dict(zip(header, cells, strict=True))


def _json_lines(path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    for number, line in enumerate(read_utf8(path).split("\n"), 1):
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


def _number(path: Path, line: int, column: str, cell: str) -> float:
    try:
        value = float(cell)
        held = abs(value) <= _LARGEST
    except ValueError:
        held = False
    if not held:
        raise InputError(
            f"Expected finite numbers that float32 can hold in {path}; row {line - 1} (line "
            f"{line}) has {cell!r} in column {column!r}. Fill it in, or leave the row out."
        )
    return value


def _named(values: list[str]) -> _Numbered:
    """The places of names among those that occur, sorted: numbers by value, else by letter."""
    try:
        names = sorted(set(values), key=float)
    except ValueError:
        names = sorted(set(values))
    place = {name: index for index, name in enumerate(names)}
    return torch.tensor([place[value] for value in values]), tuple(names)


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    try:
        file = np.load(path, allow_pickle=False)
        if isinstance(file, np.ndarray):
            raise InputError("it holds one array without a name")
        with file:
            return dict(file)
    except Exception as error:  # a damaged file makes numpy stumble in any way
        raise InputError(
            f"Cannot read {path}: {error}. Expected what numpy.savez writes, without objects."
        ) from error


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            arrays: dict[str, np.ndarray] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata: Mapping[str, str] = file.metadata() or {}
        given = [name for name in ("classes", "domains") if name in metadata]
        return arrays | {name: np.array(json.loads(metadata[name])) for name in given}
    except (SafetensorError, ValueError, TypeError) as error:  # numpy does not have every type
        raise InputError(
            f"Cannot read {path}: {error}. Expected what safetensors writes, with x as float32 or "
            "another type of numpy."
        ) from error


def _tensor(path: Path, x: np.ndarray) -> Tensor:
    if x.dtype.kind not in "fiub":
        raise InputError(f"Expected numbers in x of {path}, found {x.dtype}.")
    if x.ndim < 2 or 0 in x.shape:
        raise InputError(
            f"Expected a row of one or more numbers per sample in x of {path}, got the shape "
            f"{x.shape}."
        )
    if not (float(x.min()) >= -_LARGEST and float(x.max()) <= _LARGEST):
        row = int(np.argmin([(np.abs(row.astype(np.float64)) <= _LARGEST).all() for row in x]))
        raise InputError(
            f"Expected finite numbers that float32 can hold in x of {path}; row {row} has others."
        )
    # The same numbers in a type that torch has: of this machine's byte order, 64 bits at most.
    native = x.dtype.newbyteorder("=")
    if x.dtype.kind == "f" and x.dtype.itemsize > 8:
        native = np.dtype(np.float64)
    elif x.dtype.kind == "u" and x.dtype.itemsize > 1:
        native = np.dtype(np.int64)
    return torch.tensor(x.astype(native, copy=False))


def _numbered(path: Path, name: str, values: np.ndarray, names: np.ndarray | None) -> _Numbered:
    if values.ndim != 1:
        raise InputError(f"Expected one value per sample in {name} of {path}, got {values.shape}.")
    if values.dtype.kind not in "iuU":
        raise InputError(
            f"Expected names or whole numbers in {name} of {path}, got {values.dtype}."
        )
    if names is None or values.dtype.kind == "U":
        found, numbers = np.unique(values, return_inverse=True)
        return torch.tensor(numbers), tuple(map(str, found))
    if names.ndim != 1 or values.min() < 0 or values.max() >= len(names):
        raise InputError(
            f"Expected a list of names for the numbers {values.min()} to {values.max()} in {name} "
            f"of {path}, got {names.size} names."
        )
    return torch.tensor(values.astype(np.int64)), tuple(map(str, names))
