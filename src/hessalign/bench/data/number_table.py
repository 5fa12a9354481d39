"""Data sets in a CSV file of numbers: one sample per line, with its label and its domain."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch

from hessalign._errors import InputError
from hessalign.bench.data.csv_lines import csv_lines
from hessalign.bench.data.manifest import PATH
from hessalign.bench.data.samples import LARGEST, DomainDataset, DomainSamples

LABELS: Final = ("y", "label")
DOMAIN: Final = "domain"
SUFFIX: Final = ".csv"


def is_number_table(path: Path) -> bool:
    """Whether a file is a CSV file with a column for labels, as this module reads.

    Args:
        path: A file.

    Returns:
        Whether its header has a column "y" or "label", and none for paths, as a manifest has.
    """
    if path.suffix != SUFFIX or not path.is_file():
        return False
    _, header = next(csv_lines(path), (1, []))
    return PATH not in header and any(cell in LABELS for cell in header)


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
    lines = csv_lines(path)
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


def _columns(path: Path, header: list[str]) -> tuple[int, int]:
    found = [i for i, cell in enumerate(header) if cell in LABELS]
    places = [i for i, cell in enumerate(header) if cell == DOMAIN]
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
