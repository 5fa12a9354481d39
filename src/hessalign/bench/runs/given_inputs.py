"""What a trained model is asked about, prepared as its evaluation prepared it.

Arrays, tensors, files of arrays, tables, image files and folders of them become batches of tensors.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final, Literal, final

import numpy as np
import torch
from torch import Tensor

from hessalign._errors import InputError, InputTypeError
from hessalign._numbers import check_count
from hessalign.bench.data import Column, DomainDataset, ImageError, normalise, read_image
from hessalign.bench.data.delimited import read_rows
from hessalign.bench.data.files import as_torch_has, load_npz
from hessalign.bench.data.images import EXTENSIONS
from hessalign.bench.data.tables import TABLES, table_features
from hessalign.diagnosis.preparation import Preparation

InputKind = Literal["images", "arrays"]
"""Whether a model was trained on image files or on arrays."""

_PathLike = str | os.PathLike[str]
Given = np.ndarray | Tensor | _PathLike | Sequence[_PathLike]
"""What a model can be asked about."""

_ARRAY_FILES: Final = (".npy", ".npz", ".safetensors")

_Shape = tuple[int, ...]
_Batch = tuple[tuple[str, ...], Tensor]
"""Names of some samples, and the samples as the network takes them."""


@final
@dataclass(frozen=True)
class TableInputs:
    """The columns of a table, and how their features were made ready, see `Preparation`."""

    columns: tuple[Column, ...]  # what features are made of
    fill: tuple[float, ...]
    marked: tuple[int, ...]
    mean: tuple[float, ...]
    scale: tuple[float, ...]

    def prepare(self, x: Tensor) -> Tensor:
        """The inputs of the network for features in which NaN is missing."""
        fill, mean, scale = (torch.tensor(part) for part in (self.fill, self.mean, self.scale))
        marked = torch.tensor(self.marked, dtype=torch.int64)
        return Preparation(fill, marked, mean, scale).apply(x.float())


def make_table_inputs(data: DomainDataset, preparation: Preparation) -> TableInputs:
    """All that a trained model keeps of its table."""
    columns = () if data.table is None else data.table.columns
    parts = (preparation.fill, preparation.marked, preparation.mean, preparation.scale)
    return TableInputs(columns, *(tuple(part.tolist()) for part in parts))


def read_table_inputs(values: Mapping[str, Any]) -> TableInputs:
    """The same from plain values."""
    columns = tuple(Column(each["name"], tuple(each["values"])) for each in values["columns"])
    parts = (tuple(values[name]) for name in ("fill", "marked", "mean", "scale"))
    return TableInputs(columns, *parts)


def given_batches(
    given: Given,
    kind: InputKind,
    shape: _Shape,
    batch_size: int,
    unreadable: Callable[[InputError], None] | None = None,
    table: TableInputs | None = None,
) -> Iterator[_Batch]:
    """Inputs of any form as batches, with their names: paths of images, rows, lines of tables."""
    # `unreadable` is called with what is wrong with an image, which is then left out; of a model
    # that was trained on a table, that says how rows are made ready.
    check_count(batch_size, "a batch_size")
    make = partial(_array_batches, kind, shape, batch_size, table)
    if isinstance(given, np.ndarray | Tensor):
        yield from make(given)
        return
    arrays, images = _told_apart(_paths(given))
    for path in arrays:
        if path.suffix.lower() in TABLES:
            yield from _table_batches(path, table, batch_size)
        else:
            yield from make(_read_array(path), path)
    if images:
        if kind != "images":
            raise InputError(
                f"Expected arrays [n, {_written(shape)}], on which this model was trained, got the "
                f"images {images[0]}, …. Give an array, a tensor, or a file of one "
                f"({', '.join(_ARRAY_FILES)}); of a model trained on features, those that the same "
                "backbone makes of the images (`hessalign features extract`)."
            )
        readable = _readable_images(_find_images(images), shape[-1], unreadable)
        while some := list(islice(readable, batch_size)):
            names, pixels = zip(*some, strict=True)
            yield names, normalise(torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2))


def count_given(paths: Iterable[_PathLike]) -> int:
    """How many samples, also unreadable ones, files of arrays, images and folders of them hold."""
    arrays, images = _told_apart(map(Path, paths))
    return sum(map(_count_rows, arrays)) + len(_find_images(images))


def _count_rows(path: Path) -> int:
    if path.suffix.lower() in TABLES:
        return sum(1 for _ in read_rows(path)) - 1
    return len(_read_array(path))


def _told_apart(paths: Iterable[Path]) -> tuple[list[Path], list[Path]]:
    """Files of arrays and tables, and the rest: images and folders of them."""
    every = list(paths)
    files = (*_ARRAY_FILES, *TABLES)
    arrays = [path for path in every if path.suffix.lower() in files and not path.is_dir()]
    return arrays, [path for path in every if path not in arrays]


def _find_images(paths: Iterable[Path]) -> list[Path]:
    """Files as they are named, and the images in folders, sorted, without what is hidden."""
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        inside = []
        for place, folders, files in os.walk(path):
            folders[:] = [name for name in folders if not name.startswith(".")]
            shown = (name for name in files if not name.startswith("."))
            inside += [Path(place, name) for name in shown if name.lower().endswith(EXTENSIONS)]
        if not inside:
            raise InputError(
                f"Expected images ({', '.join(EXTENSIONS)}) in the folder {path}, found none."
            )
        found += sorted(inside)
    return found


def _paths(given: object) -> list[Path]:
    each = [given] if isinstance(given, str | os.PathLike) else given
    if not isinstance(each, Iterable):
        raise InputTypeError(f"Expected arrays, tensors, or paths, got {type(given).__name__}.")
    paths = list(each)
    if wrong := [path for path in paths if not isinstance(path, str | os.PathLike)]:
        raise InputTypeError(
            f"Expected a list of paths, got one with {type(wrong[0]).__name__}. Numbers are to be "
            "given as one array or tensor, with one row per sample."
        )
    if not paths:
        raise InputError("Expected one or more samples, got an empty list.")
    return [Path(path) for path in paths]


def _readable_images(
    paths: Iterable[Path], size: int, unreadable: Callable[[InputError], None] | None
) -> Iterator[tuple[str, np.ndarray]]:
    """Names and pixels of the images that can be read, resized as in evaluation."""
    for path in paths:
        try:
            yield str(path), read_image(path, size).pixels
        except ImageError as error:
            told = InputError(
                f"The image {path} is {error.damage}: {error.reason}. Replace it, or leave it out."
            )
            if unreadable is None:
                raise told from error
            unreadable(told)


def _read_array(path: Path) -> np.ndarray:
    """The rows in a file: its array `x`, or the only one it holds."""
    try:
        if path.suffix.lower() == ".safetensors":
            from safetensors.numpy import load_file

            arrays: dict[str, np.ndarray] = load_file(path)
        else:
            with path.open("rb") as file:
                if file.read(2) != b"PK":
                    file.seek(0)
                    return _read_npy(file)
            arrays = load_npz(path)
    except OSError:
        raise
    except Exception as error:  # a damaged file makes its reader stumble in any way
        raise InputError(f"Cannot read {path}: {error}. Expected an array of numbers.") from error
    if "x" not in arrays and len(arrays) != 1:
        found = ", ".join(sorted(arrays)) or "none"
        raise InputError(f"Expected an array called x in {path}, or a single one, found: {found}.")
    return arrays["x"] if "x" in arrays else next(iter(arrays.values()))


def _read_npy(file: IO[bytes]) -> np.ndarray:
    array: np.ndarray = np.load(file, allow_pickle=False)
    if file.read(1):
        raise InputError("it is longer than its shape says")
    return array


def _array_batches(
    kind: InputKind,
    shape: _Shape,
    batch_size: int,
    table: TableInputs | None,
    rows: np.ndarray | Tensor,
    path: Path | None = None,
) -> Iterator[_Batch]:
    what, prefix = ("x", "") if path is None else (str(path), f"{path}#")
    if table is not None:
        shape = (len(table.fill),)
    tensor = _checked(rows, shape, what, missing=table is not None)
    if kind == "images" and tensor.dtype != torch.uint8:
        least, most = float(tensor.min()), float(tensor.max())
        if not tensor.is_floating_point() or least < 0 or most > 1:
            raise InputError(
                f"Expected images in {what} as uint8 from 0 to 255 or floats from 0 to 1, got "
                f"{tensor.dtype} from {least:g} to {most:g}. Images that are normalised already "
                "are for the network itself: model.network(x)."
            )
    for first in range(0, len(tensor), batch_size):
        part = tensor[first : first + batch_size]
        names = tuple(f"{prefix}{row}" for row in range(first, first + len(part)))
        if table is not None:
            yield names, table.prepare(part)
        else:
            yield names, normalise(part) if kind == "images" else part.float()


def _table_batches(path: Path, table: TableInputs | None, batch_size: int) -> Iterator[_Batch]:
    """Rows of a table, named by their lines."""
    if table is None:
        raise InputError(
            f"Expected what this model was trained on, got the table {path}: it was not trained on "
            f"one. Give arrays ({', '.join(_ARRAY_FILES)}) or images."
        )
    rows = table_features(path, table.columns)
    while some := list(islice(rows, batch_size)):
        lines, features = zip(*some, strict=True)
        x = torch.from_numpy(np.stack(features))
        yield tuple(f"{path}:{line}" for line in lines), table.prepare(x)


def _checked(
    rows: np.ndarray | Tensor, shape: _Shape, what: str, *, missing: bool = False
) -> Tensor:
    """Rows as a tensor, of numbers that float32 can hold and of the shape that is taken."""
    if isinstance(rows, np.ndarray):
        if rows.dtype.kind not in "fiub":
            raise InputError(f"Expected numbers in {what}, got {rows.dtype}.")
        rows = torch.from_numpy(np.require(as_torch_has(rows), requirements=["C", "W"]))
    rows = rows.detach()
    if tuple(rows.shape[1:]) != shape or rows.ndim == 0:
        raise InputError(_wrong_shape(tuple(rows.shape), shape, what))
    if len(rows) == 0:
        raise InputError(f"Expected one or more samples in {what}, got none.")
    held = (rows.nan_to_num(0.0, math.inf, -math.inf) if missing else rows).float()
    if rows.is_complex() or not bool(held.isfinite().all()):
        raise InputError(
            f"Expected finite real numbers that float32 can hold in {what}, got others."
        )
    return rows


def _wrong_shape(found: _Shape, shape: _Shape, what: str) -> str:
    remedy = "Give one row per sample, as in training."
    if found == shape:
        remedy = f"For a single sample, give {what}[None]."
    elif len(shape) == 3 and found[1:] == (*shape[1:], shape[0]):
        remedy = "The channels come first: permute the axes, (0, 3, 1, 2)."
    elif len(shape) == 3 and len(found) == 4 and found[1] == shape[0]:
        remedy = f"Resize the images to {shape[1]}×{shape[2]} pixels; image files are resized."
    elif len(shape) == 3 and len(found) == 4:
        remedy = f"Give images of {shape[0]} channels, as those that it was trained on."
    elif len(shape) == 1 and len(found) == 2:
        remedy = f"Give the {shape[0]} features that it was trained on, in the same order."
    return f"Expected {what} of shape [n, {_written(shape)}], got [{_written(found)}]. {remedy}"


def _written(shape: Sequence[int]) -> str:
    return ", ".join(map(str, shape))
