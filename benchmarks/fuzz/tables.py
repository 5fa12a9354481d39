"""What a table should be read as, found without the package's readers.

Rows are cut by an expression of their own, numbers told by another; which columns become features,
and of which kind, follows docs/your-own-data.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.fuzz.findings import FindingError, same
from hessalign.bench.data.samples import DomainDataset

SEPARATORS: Final = (",", ";", "\t")

_MISSING: Final = {
    "", "-", ".", "?", "na", "n/a", "#n/a", "<na>", "nan", "-nan", "+nan", "null", "none",
    "missing",
}  # fmt: skip
_NUMBER: Final = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_INFINITE: Final = {sign + name for sign in ("", "-", "+") for name in ("inf", "infinity")}
_IDS: Final = {
    "id", "uuid", "guid", "identifier", "index", "idx", "mrn", "key", "row", "no", "nr", "number",
    "patient", "subject",
}  # fmt: skip
_WORDS: Final = 32


# --- rows -----------------------------------------------------------------------------------------


def cut(text: str, separator: str) -> list[list[str]]:
    """The rows of a text that are not blank, as RFC 4180 has them.

    Ends of lines are those of any system, blanks before a value are no part of it, and what follows
    a closed quote belongs to the value.

    Args:
        text: All of a file.
        separator: What stands between values.

    Returns:
        The values of each row.

    Raises:
        ValueError: If a quote is not closed.
    """
    plain = rf"[^{separator}\r\n]*"
    quoted = re.compile(rf' *"([^"]*(?:""[^"]*)*)"(?!")({plain})')
    bare, end = re.compile(rf" *({plain})"), re.compile(r"\r\n|\r|\n|\Z")
    rows: list[list[str]] = [[]]
    place = 0
    while True:
        if found := quoted.match(text, place):
            rows[-1].append(found[1].replace('""', '"') + found[2])
        else:
            found = bare.match(text, place)
            assert found is not None
            if found[1].startswith('"'):
                raise ValueError("a quote is not closed")
            rows[-1].append(found[1])
        place = found.end()
        if stop := end.match(text, place):
            place = stop.end()
            if not stop[0]:
                return [row for row in rows if "".join(row).strip()]
            rows.append([])
        else:
            place += 1  # over the separator


def read_cells(path: Path, separator: str) -> list[list[str]]:
    """The rows of a file, all as long as the first."""
    rows = cut(path.read_bytes().decode("utf-8-sig"), separator)
    if len({len(row) for row in rows}) > 1:
        raise ValueError(f"rows of different lengths: {sorted({len(row) for row in rows})}")
    return rows


def read_named(
    path: Path, fits: Callable[[list[str]], bool]
) -> tuple[list[str], list[list[str]], str]:
    """Header, rows and separator of a file, by the separator that gives a header that fits."""
    problems = []
    for separator in SEPARATORS:
        try:
            header, *rows = read_cells(path, separator)
        except ValueError as error:
            problems.append(str(error))
            continue
        if fits(header):
            return header, rows, separator
    raise ValueError(f"no separator gives the columns that are needed; {problems}")


# --- values ---------------------------------------------------------------------------------------


def _missing(cell: str) -> bool:
    return cell.strip().lower() in _MISSING


def _number(cell: str, separator: str) -> str | None:
    """A number as Python writes it; None if it is none. Commas are decimal ones, or none."""
    text = cell.strip()
    text = text if separator == "," else text.replace(",", ".")
    return text if _NUMBER.fullmatch(text) or text.lower() in _INFINITE else None


def _value(name: str, separator: str) -> Decimal | None:
    """The value of a name that is a number, exactly."""
    text = _number(name, separator)
    if text is None or not np.isfinite(float(text)):
        return None
    try:
        return Decimal(text)
    except InvalidOperation:
        return None


def _names(cells: Sequence[str], separator: str) -> tuple[list[str], list[int]]:
    """The names in a column, sorted, and which each row has; equal numbers are one."""
    if any(map(_missing, cells)):
        raise ValueError("a class or a domain is missing")
    texts = [cell.strip() for cell in cells]
    values = [_value(text, separator) for text in texts]
    keys: list[Any] = texts if None in values else values
    known = sorted(set(keys))
    return [texts[keys.index(key)] for key in known], [known.index(key) for key in keys]


@dataclass
class _Expected:
    """A column that features are made of: its place, its words if it has some, its features."""

    place: int
    words: tuple[str, ...]
    features: np.ndarray


def _numbers(place: int, cells: Sequence[str], separator: str) -> _Expected:
    values = [
        float("nan") if _missing(cell) else float(_number(cell, separator) or "x") for cell in cells
    ]
    features = np.array(values)[:, None]
    if (np.abs(features) > np.finfo(np.float32).max).any():
        raise ValueError("a number that float32 cannot hold")
    return _Expected(place, (), features.astype(np.float32))


def _expected(place: int, name: str, cells: Sequence[str], separator: str) -> _Expected | None:
    """What a column should become; None if it has to be left out, and that is noted."""
    there = [cell.strip() for cell in cells if not _missing(cell)]
    numbers = [text for text in there if _number(text, separator) is not None]
    if not there or (len(numbers) == len(there) and _identifies(name, cells, separator)):
        return None
    if len(numbers) == len(there):
        return _numbers(place, cells, separator)
    words = sorted(set(there))
    repeat = len(words) <= _WORDS and 2 * len(words) <= len(cells)
    if 2 * len(numbers) >= len(there) and (len(set(numbers)) > 10 or not repeat):
        raise ValueError(f"a word in column {name!r} of numbers")
    if not repeat:
        return None
    words += ["missing"] if len(there) < len(cells) else []
    texts = ["missing" if _missing(cell) else cell.strip() for cell in cells]
    features = [[float(text == word) for word in words] for text in texts]
    return _Expected(place, tuple(words), np.array(features, np.float32))


def _identifies(name: str, cells: Sequence[str], separator: str) -> bool:
    """Whether whole numbers hardly repeat under a name that is one of identifiers."""
    if not _is_name_of_ids(name) or any(map(_missing, cells)):
        return False
    values = [float(_number(cell, separator) or "x") for cell in cells]
    whole = all(value == np.floor(value) for value in values)
    return whole and 2 * len(set(values)) > max(len(values), 2)


def _is_name_of_ids(name: str) -> bool:
    said = re.sub(r" \(\d+\)\Z", "", name or "column 1")  # of several that are called the same
    last = re.split(r"[\W_]", said)[-1]
    camel = re.search(r"[a-z]I[dD]\Z", said) is not None
    unnamed = re.fullmatch(r"(unnamed: |column )\d+", said.lower()) is not None
    numbered = said.endswith("#") and re.fullmatch(r"[\W_]?", said[-2:-1]) is not None
    return last.lower() in _IDS or camel or unnamed or numbered


# --- tables ---------------------------------------------------------------------------------------


class Table:
    """The table in a file; a ValueError if there is none.

    Args:
        path: The file.
        label: The column of classes, if it was named.
        domain: That of domains.

    Attributes:
        header: The names of the columns.
        rows: The cells of each row.
        classes: Their names, sorted.
        labels: The class of each row.
        domains: Their names, sorted.
        homes: The domain of each row.
        columns: What features are made of.
        left_out: How many columns are not.
    """

    def __init__(self, path: Path, label: str | None, domain: str | None) -> None:
        def both(header: list[str]) -> list[list[int]]:
            return [_places(header, label, ("y", "label")), _places(header, domain, ("domain",))]

        header, self.rows, separator = read_named(
            path, lambda header: [len(each) for each in both(header)] == [1, 1]
        )
        (at_label,), (at_domain,) = both(header)
        self.header = [name.strip() for name in header]
        if label is None and "path" in self.header:
            raise ValueError("it lists images")
        self.classes, self.labels = _names([row[at_label] for row in self.rows], separator)
        self.domains, self.homes = _names([row[at_domain] for row in self.rows], separator)
        found = [
            _expected(place, name, [row[place] for row in self.rows], separator)
            for place, name in enumerate(self.header)
            if place not in (at_label, at_domain)
        ]
        self.columns = [column for column in found if column is not None]
        self.left_out = len(found) - len(self.columns)


def _places(header: Sequence[str], asked: str | None, usual: Sequence[str]) -> list[int]:
    """Where columns stand that are called as asked for, or by a usual name."""
    names = [name.strip() for name in header]
    if asked is not None:
        return [place for place, name in enumerate(names) if name == asked]
    return [place for place, name in enumerate(names) if name.lower() in usual]


def check_table(expected: Table, data: DomainDataset) -> None:
    """Compare a data set with the table in a file.

    Args:
        expected: The table.
        data: What was read.

    Raises:
        FindingError: If a row, a label, a domain, a feature or a note is not what is there.
    """
    same(data.classes, tuple(expected.classes), "classes")
    same(data.domain_names, tuple(expected.domains), "domains")
    x = np.concatenate([column.features for column in expected.columns], axis=1)
    for number, part in enumerate(data.domains):
        own = [row for row, home in enumerate(expected.homes) if home == number]
        labels = [expected.labels[row] for row in own]
        same(part.labels.tolist(), labels, f"labels of {part.name}")
        if not np.array_equal(part.inputs.numpy(), x[own], equal_nan=True):  # type: ignore[union-attr]
            raise FindingError(f"features of {part.name!r} are others than in the file")
    _check_form(data, expected.header, expected.columns, expected.left_out)
    _check_notes(data, expected.rows, expected.columns)


def _check_form(
    data: DomainDataset, header: Sequence[str], kept: Sequence[_Expected], left_out: int
) -> None:
    """Names and kinds of the columns that are kept, and a note for each of the others."""
    assert data.table is not None
    same(len(data.table.columns), len(kept), "columns that are kept")
    names = [column.name for column in data.table.columns]
    same(len(set(names)), len(names), "different names of columns")
    for column, expected in zip(data.table.columns, kept, strict=True):
        same(column.values, expected.words, f"words of {column.name!r}")
        name = header[expected.place] or f"column {expected.place + 1}"
        same(column.name[: len(name)], name, "name of a column")
    notes = [note for note in data.table.notes if " is left out: " in note]
    same(len(notes), left_out, "notes on columns that are left out")


def _check_notes(
    data: DomainDataset, rows: Sequence[Sequence[str]], kept: Sequence[_Expected]
) -> None:
    """Whether what never changes, is there twice, or is missing, is pointed out."""
    assert data.table is not None
    notes = data.table.notes
    cells = [tuple(row[each.place].strip() for row in rows) for each in kept]
    raw = [tuple(row[each.place] for row in rows) for each in kept]
    constant = sum(len(set(each)) == 1 and not _missing(each[0]) for each in cells)
    told = sum(note.endswith(" in every row: it tells nothing.") for note in notes)
    same(told, constant if len(rows) > 1 else 0, "columns that never change")
    copies = sum(raw.count(each) > 1 for each in set(raw))
    told = sum(note.endswith(" hold the same in every row: one is enough.") for note in notes)
    same(told, copies, "columns that hold the same")
    missing = sum(map(_missing, [cell for each in cells for cell in each]))
    begin = f"{missing:,} values are missing ("
    same(any(note.startswith(begin) for note in notes), missing > 0, f"{missing} missing values")
