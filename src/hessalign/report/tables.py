"""Tables in Markdown, which is readable as it is, and lists of notes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean, pstdev
from typing import Protocol


def markdown_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, text_columns: int = 1
) -> str:
    """A Markdown table with aligned columns, text to the left and numbers to the right.

    Args:
        header: Column titles.
        rows: Cells, one sequence per row.
        text_columns: How many of the first columns hold text.

    Returns:
        The table, without a final line end.

    Example:
        >>> print(markdown_table(["name", "value"], [["a", "1.0"]]))
        | name | value |
        |:-----|------:|
        | a    |   1.0 |
    """
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    text = [i < text_columns for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.ljust(width) if is_text else cell.rjust(width)
            for cell, width, is_text in zip(cells, widths, text, strict=True)
        ]
        return "| " + " | ".join(padded) + " |"

    rules = [
        ":" + "-" * (width + 1) if is_text else "-" * (width + 1) + ":"
        for width, is_text in zip(widths, text, strict=True)
    ]
    return "\n".join([line(header), "|" + "|".join(rules) + "|", *map(line, rows)])


def mean_and_std(values: Sequence[float]) -> str:
    """Accuracies as people write them: percent, and the spread if there is more than one.

    Returns:
        For example "71.0 ± 0.5".

    Example:
        >>> mean_and_std([0.70, 0.72]), mean_and_std([0.7])
        ('71.0 ± 1.0', '70.0')
    """
    text = f"{100 * fmean(values):.1f}"
    return text if len(values) == 1 else f"{text} ± {100 * pstdev(values):.1f}"


class Note(Protocol):
    """Something to tell."""

    @property
    def kind(self) -> str:
        """What it is about, in a word or two."""

    @property
    def text(self) -> str:
        """A sentence."""


def first_notes(notes: Iterable[Note], shown: int, rest: str) -> list[str]:
    """Notes by kind as lines, so many of each; `rest` says what lists or shows the others.

    Returns:
        Lines.

    Example:
        >>> from types import SimpleNamespace as New
        >>> first_notes([New(kind="count", text="a …"), New(kind="count", text="b …")], 1, "--all")
        ['count: a …', 'count: 1 more; --all']
    """
    kinds: dict[str, list[str]] = {}
    for note in notes:
        kinds.setdefault(note.kind, []).append(note.text)
    lines = []
    for kind, texts in kinds.items():
        lines += [f"{kind}: {text}" for text in texts[:shown]]
        if len(texts) > shown:
            lines.append(f"{kind}: {len(texts) - shown} more; {rest}")
    return lines
