"""Pieces of a page: tables, figures with captions, legends. Every text is escaped here."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from hessalign.report.page_style import STYLE

POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
"""No script runs and nothing is fetched, whatever the page may contain."""


def page(title: str, body: str) -> str:
    """A page that needs nothing but itself.

    Args:
        title: Its title.
        body: HTML of its content.

    Returns:
        The page, with a final line end.
    """
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f"<title>{escape(title)}</title>\n<style>\n{STYLE}\n</style>\n</head>\n<body>\n<main>\n"
        f"{body}\n</main>\n</body>\n</html>\n"
    )


def section(title: str, content: str, how: str) -> str:
    """A part of the page, with how it was computed below.

    Args:
        title: Its heading.
        content: HTML.
        how: How its numbers were computed.

    Returns:
        HTML.
    """
    return (
        f"<section>\n<h2>{escape(title)}</h2>\n{content}\n"
        f'<p class="how"><b>How:</b> {escape(how)}</p>\n</section>'
    )


def paragraph(text: str) -> str:
    """A paragraph.

    Args:
        text: Plain text.

    Returns:
        HTML.
    """
    return f"<p>{escape(text)}</p>"


def bullets(texts: Sequence[str]) -> str:
    """A list.

    Args:
        texts: Plain texts.

    Returns:
        HTML.
    """
    return "<ul>" + "".join(f"<li>{escape(text)}</li>" for text in texts) + "</ul>"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, words: bool = False) -> str:
    """A table that scrolls inside its box where it is too wide.

    Args:
        header: Column titles.
        rows: Cells as plain text; the first of each row names it.
        words: Whether cells hold text rather than numbers.

    Returns:
        HTML.

    Example:
        >>> "&lt;b&gt;" in table(["name", "value"], [["<b>", "1"]])
        True
    """
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in header)
    lines = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
        + "</tr>\n"
        for row in rows
    )
    kind = ' class="words"' if words else ""
    return (
        f'<div class="table" tabindex="0"><table{kind}>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{lines}</tbody></table></div>"
    )


def captioned(caption: str, svg: str, keys: Sequence[tuple[str, str]] = ()) -> str:
    """A figure with a caption and a legend.

    Args:
        caption: What it shows.
        svg: The drawing.
        keys: Class of a mark in the drawing, and what it stands for.

    Returns:
        HTML.
    """
    legend = "".join(
        f'<span><i class="key {kind}"></i>{escape(text)}</span>' for kind, text in keys
    )
    below = f'<p class="keys">{legend}</p>' if legend else ""
    return f"<figure><figcaption>{escape(caption)}</figcaption>{svg}{below}</figure>"


def folded(summary: str, content: str) -> str:
    """Content that opens on a click.

    Args:
        summary: What is seen before.
        content: HTML.

    Returns:
        HTML.
    """
    return f"<details><summary>{escape(summary)}</summary>\n{content}\n</details>"
