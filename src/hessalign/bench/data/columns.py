"""How the columns of a table become features: numbers as they are, words by a feature for each.

A missing number is NaN. What stands for one is decided where a model is fitted, from the samples
that it is fitted to; see `hessalign.diagnosis.preparation`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import numpy as np

from hessalign._errors import InputError

MISSING: Final = frozenset(
    (
        "", "?", "na", "n/a", "#n/a", "<na>", "nan", "-nan", "+nan", "null", "none", "missing", "-",
        ".",
    )
)  # fmt: skip
"""What stands for a missing value, whatever its capitals."""

MISSING_WORD: Final = "missing"
"""The value by which a column of words tells that it has none; no word of its own can be this."""

LARGEST: Final = float(np.finfo(np.float32).max)
"""Larger inputs become infinite in float32, which networks compute in."""

_LIKE_NUMBER: Final = re.compile(  # in time linear in the length of a cell
    r"[<>~$€£]?(\s*[-+])?[.,\s']*\d[\d.,\s']*(e[-+]?\d+\s*)?[%$€£]?", re.I
)
_DATE: Final = re.compile(r"\d\d?\.\s?\d\d?\.\s?(\d\d|\d{4})")


@final
@dataclass(frozen=True)
class Column:
    """A column that features are made of.

    Attributes:
        name: Its name in the header.
        values: Of a column of words all that occur, each of which has a feature; none for numbers.
    """

    name: str
    values: tuple[str, ...] = ()


@final
@dataclass(frozen=True)
class TableForm:
    """What the columns of a table are.

    Attributes:
        label: Name of the column of classes.
        domain: Name of the column of domains.
        columns: Those that features are made of, in their order.
        notes: What the reader of a table found worth knowing, a sentence each.

    Example:
        >>> TableForm("y", "clinic", (Column("age"), Column("sex", ("f", "m")))).features
        ('age', 'sex=f', 'sex=m')
    """

    label: str
    domain: str
    columns: tuple[Column, ...]
    notes: tuple[str, ...] = ()

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features."""
        return tuple(
            name
            for column in self.columns
            for name in ([f"{column.name}={value}" for value in column.values] or [column.name])
        )


def is_missing(cell: str) -> bool:
    """Whether a value is not there."""
    return cell.strip().lower() in MISSING


def is_like_number(cell: str) -> bool:
    """Whether a value was meant as a number, with a unit or in another notation."""
    found = cell.strip()
    return _LIKE_NUMBER.fullmatch(found) is not None and _DATE.fullmatch(found) is None


def parse_number(cell: str, comma: bool) -> float | None:
    """The number in a cell, with a decimal comma if so; NaN if it is missing, None if a word."""
    if is_missing(cell):
        return float("nan")
    if "_" in cell:  # which Python takes
        return None
    try:
        return float(cell.replace(",", ".") if comma else cell)
    except ValueError:
        return None


def parse_numbers(cells: Sequence[str], comma: bool) -> np.ndarray | None:
    """The numbers in some cells, see `parse_number`; None if there are words."""
    if "_" in "".join(cells):
        return None
    for made in (cells, ["nan" if cell in MISSING else cell for cell in cells]):
        with suppress(ValueError):
            return np.fromiter(map(float, made), np.float64, len(cells))
    numbers = [parse_number(cell, comma) for cell in cells]
    return None if None in numbers else np.array(numbers, np.float64)


def check_held(
    path: Path, name: str, lines: Sequence[int], cells: Sequence[str], numbers: np.ndarray
) -> None:
    """Refuse numbers that float32 cannot hold, with the line of the first."""
    beyond = np.abs(numbers) > LARGEST  # not where one is missing
    if beyond.any():
        place = int(beyond.argmax())
        raise InputError(
            f"Expected finite numbers that float32 can hold in column {name!r} of {path}; line "
            f"{lines[place]} has {cells[place].strip()!r}. Correct it, or leave it empty if it is "
            "missing."
        )


def make_features(
    path: Path,
    columns: Sequence[Column],
    places: Sequence[int],
    lines: Sequence[int],
    rows: Sequence[Sequence[str]],
    *,
    comma: bool,
) -> np.ndarray:
    """The features of some rows, given where each column stands in them and their lines."""
    blocks: list[np.ndarray] = []
    for column, place in zip(columns, places, strict=True):
        cells = [row[place] for row in rows]
        make = _one_hot if column.values else _numbers
        blocks.append(make(path, column, lines, cells, comma))
    return np.concatenate(blocks, axis=1)


def _numbers(
    path: Path, column: Column, lines: Sequence[int], cells: Sequence[str], comma: bool
) -> np.ndarray:
    numbers = parse_numbers(cells, comma)
    if numbers is None:
        place = next(i for i, cell in enumerate(cells) if parse_number(cell, comma) is None)
        raise InputError(expected_number(path, column.name, lines[place], cells[place]))
    check_held(path, column.name, lines, cells, numbers)
    return numbers[:, None].astype(np.float32)


def expected_number(path: Path, name: str, line: int, cell: str) -> str:
    """What is said of a word among numbers."""
    return (
        f"Expected numbers in column {name!r} of {path}; line {line} has {cell.strip()!r}. Write a "
        "number, with a point and without a unit, or leave it empty if it is missing; or remove "
        "the column."
    )


def _one_hot(
    path: Path, column: Column, lines: Sequence[int], cells: Sequence[str], comma: bool
) -> np.ndarray:
    """A column for each value, 1 where it is; a missing one has its own if one was seen."""
    known = {value: place for place, value in enumerate(column.values)}
    place_of = {}
    for cell in set(cells):
        text = MISSING_WORD if is_missing(cell) else cell.strip()
        if text not in known and text != MISSING_WORD:
            words = ", ".join(map(repr, column.values))
            raise InputError(
                f"Expected one of {words} in column {column.name!r} of {path}; line "
                f"{lines[cells.index(cell)]} has {text!r}. Correct it, or leave it empty."
            )
        place_of[cell] = known.get(text, len(known))
    return np.eye(len(known) + 1, len(known), dtype=np.float32)[[place_of[cell] for cell in cells]]
