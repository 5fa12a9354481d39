"""The lines of a CSV file, the same for every kind of table."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from hessalign._errors import InputError


def csv_lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    r"""The header of a CSV file, then its lines; blanks around values are not part of them.

    Args:
        path: The file, in UTF-8.

    Yields:
        The number of a line and its values, as many as the header has; empty lines are passed over.

    Raises:
        InputError: If it is not text in UTF-8, or a line is not as long as the header.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "a.csv"
        >>> _ = path.write_text("age, y\n\n61, ill\n")
        >>> list(csv_lines(path))
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
    """What to say of a file that is not text in UTF-8.

    Args:
        path: The file.
        error: What was found.

    Returns:
        An error's text.
    """
    found = error.object[error.start : error.start + 1].hex()
    return f"Expected text in UTF-8 in {path}, found the byte 0x{found}. Save it as UTF-8."
