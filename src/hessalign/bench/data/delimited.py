"""Rows of text files: values between commas, semicolons or tabs, as spreadsheets write them."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Final

from hessalign._errors import InputError

_SEPARATORS: Final = {",": "a comma", ";": "a semicolon", "\t": "a tab"}

_BEGINNING: Final = 1 << 16  # characters by which the separator is told
_OFTEN: Final = 1 << 12  # rows between two reports


def read_rows(
    path: Path, report: Callable[[int, int], None] = lambda done, total: None
) -> Iterator[tuple[int, list[str]]]:
    """The rows of a file in UTF-8, header first, each with the number of its first line."""
    # Empty rows are left out, blanks around values are not. `report` is told now and then of the
    # bytes read so far and in all. Rows of other lengths and open quotes are refused by their line.
    separator, total, width = find_separator(path), path.stat().st_size, 0
    with path.open("rb") as stream, _utf8(path):
        file = io.TextIOWrapper(stream, "utf-8-sig", newline="")
        for number, (line, last, row) in enumerate(_lines(path, file, separator)):
            width = width or len(row)
            if len(row) != width:
                raise InputError(_wrong_length(path, line, last, row, width, separator))
            if number % _OFTEN == 0:
                report(stream.tell(), total)
            yield line, row
    report(total, total)


def find_separator(path: Path) -> str:
    """What stands between the values of a file: what cuts its first lines most alike."""
    with path.open(encoding="utf-8-sig", newline="") as file, _utf8(path):
        return _separator(file.read(_BEGINNING))


@contextmanager
def _utf8(path: Path) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:
        raise not_utf8(path) from error


def not_utf8(path: Path) -> InputError:
    """The error for a file that is not in UTF-8: where, and what it may be instead."""
    content = path.read_bytes()
    try:
        content.decode("utf-8-sig")
        found, line = "", 1  # it has changed since
    except UnicodeDecodeError as error:
        found = content[error.start : error.start + 1].hex()
        line = content.count(b"\n", 0, error.start) + 1
    wide = content[:2] in (b"\xff\xfe", b"\xfe\xff")
    kind = "UTF-16" if wide else "Latin-1 or Windows-1252, as older spreadsheets write it"
    return InputError(
        f"Expected text in UTF-8 in {path}, found the byte 0x{found} on line {line}. It may be "
        f"{kind}. Save it as UTF-8 (in Excel: CSV UTF-8)."
    )


def _separator(beginning: str) -> str:
    """The separator for which most rows are as long as the first, which has several values."""

    def fit(separator: str) -> tuple[bool, int, int]:
        try:
            rows = csv.reader(io.StringIO(beginning, newline=""), delimiter=separator)
            lengths = [len(row) for row in rows if row] or [0]
        except csv.Error:
            return False, 0, 0
        return lengths[0] > 1, lengths.count(lengths[0]), lengths[0]

    return max(_SEPARATORS, key=fit)


def _lines(path: Path, file: Iterable[str], separator: str) -> Iterator[tuple[int, int, list[str]]]:
    """First and last line of each row that is not empty, and its values."""
    ended = False

    def end() -> Iterator[str]:
        nonlocal ended
        ended = True
        yield from ()

    reader, line = csv.reader(chain(file, end()), delimiter=separator, skipinitialspace=True), 1
    try:
        for row in reader:
            if row and (row[0].strip() or "".join(row).strip()):
                yield line, reader.line_num, row
            if ended:  # a row that is complete is there before the end is seen
                raise csv.Error("the file ends inside quotes")
            line = reader.line_num + 1
    except csv.Error as error:
        raise InputError(
            f"Cannot read the row that begins on line {line} of {path}: {error}. A quote may not "
            "be closed."
        ) from error


def _wrong_length(
    path: Path, line: int, last: int, row: list[str], width: int, separator: str
) -> str:
    found = f"Expected {width} values on line {line} of {path}, found {len(row)}"
    if last > line:
        return f"{found}; the row goes on to line {last}: a quote may not be closed."
    if len(row) > width:
        return f"{found}. Put values that contain {_SEPARATORS[separator]} in quotes."
    return f"{found}. Leave the place of a missing value empty."
