"""Tables in Markdown, which is readable as it is, what their rows are made of, and notes."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from math import floor
from typing import Protocol, TypeVar

_Item = TypeVar("_Item")
_Key = TypeVar("_Key", bound=Hashable)


def grouped(items: Iterable[_Item], key: Callable[[_Item], _Key]) -> dict[_Key, list[_Item]]:
    """Items by what they have in common, in the order in which they come."""
    found: dict[_Key, list[_Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def plain(text: str) -> str:
    """Text on one line, without what moves the cursor of a terminal."""
    return "".join(each if each.isprintable() else "�" for each in text)


def plain_lines(text: str) -> str:
    """Text of several lines, without what else moves the cursor of a terminal."""
    return "\n".join(map(plain, text.split("\n")))


def markdown_text(text: str) -> str:
    """Text without tags, links, pictures, cells and lines of its own in Markdown."""
    # What follows an odd number of backslashes is escaped already.
    return re.sub(r"(?<!\\)((?:\\\\)*)([|<]|\](?=[(\[]))", r"\1\\\2", plain(text))


def markdown_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, text_columns: int = 1
) -> str:
    """A Markdown table with aligned columns, text to the left and numbers to the right.

    Returns:
        The table, without a final line end.

    Example:
        >>> print(markdown_table(["name", "value"], [["a", "1.0"]]))
        | name | value |
        |:-----|------:|
        | a    |   1.0 |
    """
    header, *rows = ([markdown_text(cell) for cell in row] for row in (header, *rows))
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    sides = ["<" if i < text_columns else ">" for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        columns = zip(cells, sides, widths, strict=True)
        return "| " + " | ".join(f"{cell:{side}{width}}" for cell, side, width in columns) + " |"

    rules = [
        ":" + "-" * (width + 1) if side == "<" else "-" * (width + 1) + ":"
        for side, width in zip(sides, widths, strict=True)
    ]
    return "\n".join([line(header), "|" + "|".join(rules) + "|", *map(line, rows)])


def whole_percents(shares: Sequence[float]) -> list[int]:
    """Shares in whole percent whose sum is the rounded one of the shares.

    Returns:
        Each rounded down, those that lose most by it up.

    Example:
        >>> whole_percents([1 / 3, 1 / 3, 1 / 3])
        [34, 33, 33]
    """
    exact = [100 * share for share in shares]
    found = [floor(value) for value in exact]
    order = sorted(range(len(exact)), key=lambda i: found[i] - exact[i])
    for i in order[: round(sum(exact)) - sum(found)]:
        found[i] += 1
    return found


class _Note(Protocol):
    """Something to tell: what it is about, in a word or two, and a sentence."""

    @property
    def kind(self) -> str: ...

    @property
    def text(self) -> str: ...


def first_notes(notes: Iterable[_Note], shown: int, rest: str) -> list[str]:
    """Notes by kind as lines, so many of each; `rest` says what lists or shows the others."""
    lines = []
    for kind, group in grouped(notes, lambda note: note.kind).items():
        lines += [plain(f"{kind}: {note.text}") for note in group[:shown]]
        if len(group) > shown:
            lines.append(f"{kind}: {len(group) - shown} more; {rest}")
    return lines
