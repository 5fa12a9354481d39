"""Tables in Markdown, which is readable as it is."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pstdev


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
