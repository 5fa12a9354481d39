"""Data sets in a file of arrays: embeddings, small images, or any other numbers with labels."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from hessalign._errors import InputError
from hessalign.bench.data.samples import LARGEST, DomainDataset, DomainSamples

_ARRAYS: Final = ("x", "y", "domain")
_NAMES: Final = ("classes", "domains")
SUFFIXES: Final = (".npz", ".safetensors")

_Array = np.ndarray


def read_arrays(path: Path) -> DomainDataset:
    """Read inputs, labels and domains from a file.

    The file holds the arrays `x` (one row per sample), `y` and `domain` (one value per sample).
    Labels and domains are names or whole numbers; those that occur are sorted. The arrays `classes`
    and `domains` may name numbers from 0. In a `.safetensors` file, which holds no text, those two
    are JSON lists in its metadata. The rows of a domain keep their order.

    Args:
        path: A `.npz` or `.safetensors` file.

    Returns:
        The data set, called as the file, with `x` as a tensor.

    Raises:
        FileNotFoundError: If there is no such file.
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
    if path.suffix not in SUFFIXES:
        raise InputError(f"Expected arrays in a file named *.npz or *.safetensors, got {path}.")
    if not path.is_file():
        raise FileNotFoundError(f"Expected a file of arrays, found no file {path}.")
    arrays = _read_npz(path) if path.suffix == ".npz" else _read_safetensors(path)
    missing = [name for name in _ARRAYS if name not in arrays]
    if missing:
        raise InputError(
            f"Expected the arrays x, y and domain in {path}, found {', '.join(sorted(arrays))}; "
            f"missing: {', '.join(missing)}."
        )
    lengths = {name: len(np.atleast_1d(arrays[name])) for name in _ARRAYS}
    if len(set(lengths.values())) > 1 or lengths["x"] == 0:
        found = ", ".join(f"{count} of {name}" for name, count in lengths.items())
        raise InputError(f"Expected x, y and domain of the same samples in {path}, found {found}.")
    labels, classes = _numbered(path, "y", arrays["y"], arrays.get("classes"))
    domain, names = _numbered(path, "domain", arrays["domain"], arrays.get("domains"))
    x = _tensor(path, arrays["x"])
    domains = tuple(
        DomainSamples(name, x[domain == index], labels[domain == index])
        for index, name in enumerate(names)
    )
    return DomainDataset(path.stem, classes, domains, root=path)


def _read_npz(path: Path) -> dict[str, _Array]:
    try:
        file = np.load(path, allow_pickle=False)
        if isinstance(file, np.ndarray):
            raise InputError("it holds one array without a name")
        with file:
            return {name: file[name] for name in file.files}
    except Exception as error:  # a damaged file makes numpy stumble in any way
        raise InputError(
            f"Cannot read {path}: {error}. Expected what numpy.savez writes, without objects."
        ) from error


def _read_safetensors(path: Path) -> dict[str, _Array]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            arrays: dict[str, _Array] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata: Mapping[str, str] = file.metadata() or {}
        names = {name: np.array(json.loads(metadata[name])) for name in _NAMES if name in metadata}
    except (SafetensorError, ValueError, TypeError) as error:  # numpy does not have every type
        raise InputError(
            f"Cannot read {path}: {error}. Expected what safetensors writes, with x as float32 or "
            "another type of numpy."
        ) from error
    return arrays | names


def _tensor(path: Path, x: _Array) -> Tensor:
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
    return torch.tensor(_native(x))


def _native(x: _Array) -> _Array:
    """The same numbers in a type that torch has: of this machine's byte order, 64 bits at most."""
    if x.dtype.kind == "f" and x.dtype.itemsize > 8:
        return x.astype(np.float64)
    if x.dtype.kind == "u" and x.dtype.itemsize > 1:
        return x.astype(np.int64)
    return x.astype(x.dtype.newbyteorder("="), copy=False)


def _numbered(
    path: Path, name: str, values: _Array, names: _Array | None
) -> tuple[Tensor, tuple[str, ...]]:
    """Numbers from 0, and what they stand for."""
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
