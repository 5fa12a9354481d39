"""Small figures as SVG text that goes into a page: no library, no script, no network.

Colours are the page's CSS variables, so figures follow its light or dark scheme. Every name is
escaped. Each figure has a title for those who cannot see it, and each mark one of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final, final

LABELLED: Final = 12
"""Up to this many rows a heat map has names and numbers."""

_NAME: Final = 14
"""Characters of a name that are drawn; the whole name is in the mark's title."""


_ROW_NAME: Final = 24
"""The same for names beside a figure."""


_SMALLEST: Final = 0.7
"""Figures do not shrink further than this: they scroll inside their box instead."""


@final
@dataclass(frozen=True)
class Mark:
    """A value in a figure.

    Attributes:
        value: The value.
        text: What is written on it.
        title: What it says when pointed at, or read aloud.
    """

    value: float
    text: str
    title: str


def shortened(name: str, length: int) -> str:
    """A name, or its beginning."""
    return name if len(name) <= length else name[: length - 1] + "…"


def _short(name: str, length: int = _NAME) -> str:
    """A name that fits, escaped.

    Returns:
        The name, or its beginning.

    Example:
        >>> _short("a<b"), _short("a very long name indeed")
        ('a&lt;b', 'a very long n…')
    """
    return escape(shortened(name, length))


def _figure(width: float, height: float, title: str, body: str) -> str:
    """A drawing that scales with the page, down to where its text would be too small."""
    size = f"max-width:{width:g}px;min-width:{_SMALLEST * width:.0f}px"
    return (
        f'<div class="draw"><svg viewBox="0 0 {width:g} {height:g}" role="img" style="{size}" '
        f'preserveAspectRatio="xMinYMin meet"><title>{escape(title)}</title>{body}</svg></div>'
    )


def heat_map(
    rows: Sequence[str], columns: Sequence[str], marks: Sequence[Sequence[Mark]], title: str
) -> str:
    """A table of values as coloured squares."""
    named = max(len(rows), len(columns)) <= LABELLED
    longest = min(_ROW_NAME, max(map(len, rows)))
    left, top = (24 + 7.6 * longest, 76.0) if named else (8.0, 8.0)
    cell = 56.0 if named else max(2.0, 400 / len(columns))
    tall = min(cell, 40.0) if named else cell
    most = max((mark.value for row in marks for mark in row), default=0.0)
    parts = []
    if named:
        for i, name in enumerate(rows):
            y = top + (i + 0.5) * tall
            parts.append(_text(left - 8, y, _short(name, _ROW_NAME), "end"))
        for j, name in enumerate(columns):
            x = left + (j + 0.5) * cell
            label = _short(name)
            parts.append(
                f'<text x="{x - 4:g}" y="{top - 8:g}" transform="rotate(-35 {x - 4:g} {top - 8:g})"'
                f">{label}</text>"
            )
    for i, row in enumerate(marks):
        for j, mark in enumerate(row):
            share = mark.value / most if most > 0 else 0.0
            x, y = left + j * cell, top + i * tall
            gap = 2 if named else 0
            parts.append(
                f'<g><title>{escape(mark.title)}</title><rect x="{x:g}" y="{y:g}" '
                f'width="{cell - gap:g}" height="{tall - gap:g}" rx="{3 if named else 0}" '
                f'class="heat" fill-opacity="{0.06 + 0.94 * max(0.0, share):.3f}"/>'
            )
            if named:
                tone = "on" if share > 0.5 else "off"
                parts.append(
                    f'<text x="{x + cell / 2 - 1:g}" y="{y + tall / 2 - 1:g}" class="value {tone}" '
                    f'text-anchor="middle" dominant-baseline="central">{escape(mark.text)}</text>'
                )
            parts.append("</g>")
    # Slanted names of the last columns stick out to the right.
    width = left + len(columns) * cell + (72 if named else 8)
    return _figure(width, top + len(rows) * tall + 8, title, "".join(parts))


def bars(names: Sequence[str], marks: Sequence[Sequence[Mark]], title: str) -> str:
    """Horizontal bars, each made of one or more parts on a common scale."""
    longest = min(_ROW_NAME, max(map(len, names)))
    left, width, tall = 24 + 7.6 * longest, 340.0, 30.0
    most = max((sum(max(0.0, m.value) for m in row) for row in marks), default=0.0) or 1.0
    parts = []
    for i, (name, row) in enumerate(zip(names, marks, strict=True)):
        y, x = i * tall + 4, left
        parts.append(_text(left - 10, y + tall / 2 - 2, _short(name, _ROW_NAME), "end"))
        for j, mark in enumerate(row):
            length = width * max(0.0, mark.value) / most
            parts.append(
                f'<g><title>{escape(mark.title)}</title><rect x="{x:g}" y="{y:g}" '
                f'width="{length:.1f}" height="{tall - 8:g}" class="part{j}"/></g>'
            )
            x += length
        text = "  ".join(mark.text for mark in row if mark.text)
        parts.append(_text(x + 8, y + tall / 2 - 2, escape(text), "start"))
    return _figure(left + width + 70, len(names) * tall + 8, title, "".join(parts))


def dots(names: Sequence[str], marks: Sequence[Sequence[Mark]], title: str) -> str:
    """Values up to 1 as dots on a line for each name, joined; the scale starts below the least."""
    longest = min(_ROW_NAME, max(map(len, names)))
    left, width, tall, top = 24 + 7.6 * longest, 400.0, 32.0, 26.0
    least = min(mark.value for row in marks for mark in row)
    start = max(0.0, math.floor(10 * least - 0.2) / 10)
    scale = width / (1 - start)
    parts = []
    for step in range(6):
        share = start + (1 - start) * step / 5
        x, end = left + width * step / 5, top + len(names) * tall
        parts.append(f'<line x1="{x:g}" y1="{top:g}" x2="{x:g}" y2="{end:g}" class="grid"/>')
        parts.append(_text(x, top - 12, f"{100 * share:.0f} %", "middle"))
    for i, (name, row) in enumerate(zip(names, marks, strict=True)):
        y = top + (i + 0.5) * tall
        places = [left + scale * (min(1.0, mark.value) - start) for mark in row]
        parts.append(_text(left - 12, y, _short(name, _ROW_NAME), "end"))
        parts.append(
            f'<line x1="{min(places):.1f}" y1="{y:g}" x2="{max(places):.1f}" y2="{y:g}" '
            'class="join"/>'
        )
        for j, (x, mark) in enumerate(zip(places, row, strict=True)):
            parts.append(
                f'<g><title>{escape(mark.title)}</title><circle cx="{x:.1f}" cy="{y:g}" r="7" '
                f'class="dot{j}"/></g>'
            )
    return _figure(left + width + 30, top + len(names) * tall + 8, title, "".join(parts))


def scatter(points: Sequence[tuple[float, float, str]], labels: tuple[str, str], title: str) -> str:
    """Points in the plane."""
    left, top, width, tall = 72.0, 12.0, 440.0, 240.0
    across = [x for x, _, _ in points]
    up = [y for _, y, _ in points]
    low, span = min(up), (max(up) - min(up)) or 1.0
    most = max(across) or 1.0
    parts = [
        f'<path d="M{left:g} {top:g}V{top + tall:g}H{left + width:g}" class="axis"/>',
        _text(left + width / 2, top + tall + 20, escape(f"{labels[0]} →"), "middle"),
        f'<text x="14" y="{top:g}" transform="rotate(-90 14 {top:g})" text-anchor="end">'
        f"{escape(labels[1])} →</text>",
        _text(left, top + tall + 20, "0", "start"),
        _text(left + width - 10, top + tall + 20, f"{most:.3g}", "end"),
        _text(left - 6, top + 10, f"{max(up):.2g}", "end"),
        _text(left - 6, top + tall - 10, f"{low:.2g}", "end"),
    ]
    for x, y, text in points:
        place = left + 10 + (width - 20) * x / most
        height = top + 10 + (tall - 20) * (1 - (y - low) / span)
        parts.append(
            f"<g><title>{escape(text)}</title>"
            f'<circle cx="{place:.1f}" cy="{height:.1f}" r="6" class="dot1"/></g>'
        )
    return _figure(left + width + 16, top + tall + 32, title, "".join(parts))


def _text(x: float, y: float, text: str, anchor: str) -> str:
    place = f'x="{x:g}" y="{y:g}" text-anchor="{anchor}"'
    return f'<text {place} dominant-baseline="central">{text}</text>'
