"""Data sets in files: manifests that list images, and arrays.

A manifest has a line for each image, with its class and domain; arrays hold embeddings, small
images, or any other numbers, with labels and domains.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from hessalign._errors import InputError, check_name, some
from hessalign._files import parse_json
from hessalign.bench.data.columns import LARGEST
from hessalign.bench.data.delimited import not_utf8, read_rows
from hessalign.bench.data.samples import DomainDataset, DomainSamples, group_samples

LISTS: Final = (".csv", ".jsonl")
ARRAYS: Final = (".npz", ".safetensors")

_COLUMNS: Final = ("path", "class", "domain")
_HELD_OUT: Final = "held_out"
_MARKS: Final = {"0": False, "1": True, "false": False, "true": True}
_NEEDED: Final = ("x", "y", "domain")
_NAMES: Final = ("classes", "domains", "official_tests")
_SHOWN: Final = 3

_BOMB_BYTES: Final = 2**28
_BOMB_FACTOR: Final = 200
"""An archive that grows to more than both is one that was made to fill the memory."""

_Numbered = tuple[Tensor, tuple[str, ...]]  # numbers from 0, and what they stand for


def read_manifest(path: Path) -> DomainDataset:
    r"""Read a manifest.

    A CSV file has the header `path,class,domain`, in any order; a JSON-lines file has an object
    with these keys on each line. Paths are relative to the manifest's folder. Domains and classes
    are sorted by name, the images of a class by path, so the order of the lines does not matter.
    A fourth column, `held_out`, may mark images with 1 that are held out, as an official split has
    it, and all others with 0; a domain without marks is split as the protocol does.

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
    check_file(path, "a manifest")
    read = _manifest_lines if path.suffix == ".csv" else _json_lines
    rows = sorted(_row(path, number, entry) for number, entry in read(path))
    if not rows:
        raise InputError(f"Expected images in {path}, found no lines besides the header.")
    missing = [str(file) for _, _, file, _ in rows if not file.is_file()]
    if missing:
        raise FileNotFoundError(
            f"{path} lists files that do not exist: {some(missing, _SHOWN)}. Paths are relative to "
            f"{path.parent}."
        )
    held_out = [row[3] for row in rows]
    return group_samples(path.stem, [row[:3] for row in rows], path, held_out=held_out)


def read_arrays(path: Path) -> DomainDataset:
    """Read inputs, labels and domains from a file.

    The file holds the arrays `x` (one row per sample), `y` and `domain` (one value per sample), and
    may hold `held_out`, which marks with 1 what an official split holds out, all others with 0.
    Labels and domains are names or whole numbers; those that occur are sorted. The arrays `classes`
    and `domains` may name numbers from 0, and `official_tests` domains that are not trained on. In
    a `.safetensors` file, which holds no text, these are JSON lists in its metadata. The rows of a
    domain keep their order.

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
    check_file(path, "a file of arrays")
    arrays = _read_npz(path) if path.suffix == ".npz" else _read_safetensors(path)
    missing = [name for name in _NEEDED if name not in arrays]
    if missing:
        raise InputError(
            f"Expected the arrays x, y and domain in {path}, found {', '.join(sorted(arrays))}; "
            f"missing: {', '.join(missing)}."
        )
    given = (*_NEEDED, _HELD_OUT) if _HELD_OUT in arrays else _NEEDED
    lengths = {name: len(np.atleast_1d(arrays[name])) for name in given}
    if len(set(lengths.values())) > 1 or lengths["x"] == 0:
        found = ", ".join(f"{count} of {name}" for name, count in lengths.items())
        raise InputError(
            f"Expected {', '.join(given[:-1])} and {given[-1]} of the same samples in {path}, "
            f"found {found}."
        )
    labels = _numbered(path, "y", arrays["y"], arrays.get("classes"))
    domains = _numbered(path, "domain", arrays["domain"], arrays.get("domains"))
    held = arrays.get(_HELD_OUT, np.zeros(lengths["x"], bool))
    if held.ndim != 1 or held.dtype.kind not in "biu" or not np.isin(held, (0, 1)).all():
        raise InputError(f"Expected 0 or 1 for each sample in {_HELD_OUT} of {path}.")
    given_tests = arrays.get("official_tests", np.empty(0))
    if given_tests.ndim != 1:
        raise InputError(
            f"Expected a list of domains in official_tests of {path}, got the shape "
            f"{given_tests.shape}."
        )
    tests = tuple(map(str, given_tests))
    x, (y, classes), (domain, names) = _tensor(path, arrays["x"]), labels, domains
    samples = []
    for number, name in enumerate(names):
        rows = torch.nonzero(domain == number).flatten()
        outer = torch.from_numpy(np.flatnonzero(held[rows.numpy()]))
        split = outer if 0 < len(outer) < len(rows) else None
        samples.append(DomainSamples(name, x[rows], y[rows], split))
    return DomainDataset(path.stem, classes, tuple(samples), path, tests)


def check_file(path: Path, what: str) -> None:
    """Refuse a file that is not there."""
    if not path.is_file():
        raise FileNotFoundError(f"Expected {what}, found no file {path}.")


def read_columns(path: Path, names: Sequence[str]) -> list[list[str]]:
    """Some columns of a CSV file with a header, each as a list of what is written there."""
    check_file(path, f"a table with the columns {', '.join(names)}")
    rows = read_rows(path)
    _, header = next(rows, (1, []))
    if missing := [name for name in names if name not in header]:
        raise InputError(
            f"Expected the columns {', '.join(names)} in {path}; it lacks {', '.join(missing)}, "
            f"and has {', '.join(filter(None, header)) or 'none'}."
        )
    columns = list(zip(*(row for _, row in rows), strict=True))
    if not columns:
        raise InputError(f"Expected rows in {path}, found none below the header.")
    return [list(columns[header.index(name)]) for name in names]


def read_utf8(path: Path) -> str:
    """The text of a file; one that is not in UTF-8 is an error that says so."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise not_utf8(path) from error


def _row(manifest: Path, line: int, entry: Mapping[str, object]) -> tuple[str, str, Path, bool]:
    path, label, domain = (_value(manifest, line, column, entry[column]) for column in _COLUMNS)
    mark = str(entry.get(_HELD_OUT, 0)).lower()
    if mark not in _MARKS:
        raise InputError(
            f"Expected 0 or 1 for {_HELD_OUT!r} on line {line} of {manifest}, found {mark!r}."
        )
    return domain, label, manifest.parent / path, _MARKS[mark]


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
        check_name(f"column in line {number} of {path}:", column, (*_COLUMNS, _HELD_OUT))
    if len(set(columns)) < len(columns):
        raise InputError(
            f"Expected each column once in {path}, line {number} has {', '.join(columns)}. Remove "
            "one of those that are called the same."
        )


def _manifest_lines(path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    rows = ((line, [cell.strip() for cell in row]) for line, row in read_rows(path))
    number, header = next(rows, (1, []))
    _check_columns(path, number, header)
    for number, cells in rows:
        yield number, dict(zip(header, cells, strict=True))


def _json_lines(path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    for number, line in enumerate(read_utf8(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            entry = parse_json(line)
        except ValueError as error:
            raise InputError(f"Expected JSON on line {number} of {path}: {error}.") from error
        if not isinstance(entry, dict):
            raise InputError(
                f"Expected an object with path, class and domain on line {number} of {path}, found "
                f"{line[:60]!r}."
            )
        _check_columns(path, number, list(entry))
        yield number, entry


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    try:
        return load_npz(path)
    except Exception as error:  # a damaged file makes numpy stumble in any way
        raise InputError(
            f"Cannot read {path}: {error}. Expected what numpy.savez writes, without objects."
        ) from error


def load_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a `.npz` file, read to their ends; what is wrong may be any exception."""
    # There checksums are checked: numpy.load takes an array whose shape says less than is there.
    arrays: dict[str, np.ndarray] = {}
    with path.open("rb") as file:
        if file.read(6) == np.lib.format.MAGIC_PREFIX:
            raise InputError("it holds one array without a name")
    with zipfile.ZipFile(path) as archive:
        size = sum(member.file_size for member in archive.infolist())
        if size > max(_BOMB_BYTES, _BOMB_FACTOR * path.stat().st_size):
            raise InputError(f"it would grow to {size:,} bytes, more than any arrays compress")
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            with archive.open(member) as file:
                array = np.lib.format.read_array(file, allow_pickle=False)
                if name in arrays or file.read(1):
                    raise InputError(f"{name} is there twice, or longer than its shape says")
            if array.size and not array.itemsize:  # which any number of take no place
                raise InputError(f"{name} has items of no length")
            if array.dtype.kind == "U":
                array.tolist()  # stumbles over what is no character
            arrays[name] = array
    return arrays


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            arrays: dict[str, np.ndarray] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata: Mapping[str, str] = file.metadata() or {}
        given = [name for name in _NAMES if name in metadata]
        return arrays | {name: np.array(parse_json(metadata[name])) for name in given}
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
    if not (float(x.min()) >= -LARGEST and float(x.max()) <= LARGEST):
        row = int(np.argmin([(np.abs(row.astype(np.float64)) <= LARGEST).all() for row in x]))
        raise InputError(
            f"Expected finite numbers that float32 can hold in x of {path}; row {row} has others."
        )
    return torch.tensor(as_torch_has(x))


def as_torch_has(x: np.ndarray) -> np.ndarray:
    """The same numbers in a type that torch has: of this machine's byte order, 64 bits at most."""
    native = x.dtype.newbyteorder("=")
    if x.dtype.kind == "f" and x.dtype.itemsize > 8:
        native = np.dtype(np.float64)
    elif x.dtype.kind == "u" and x.dtype.itemsize > 1:
        native = np.dtype(np.int64)
    return x.astype(native, copy=False)


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
