"""The formats in which the tables of a sweep can be written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from hessalign.bench.sweep.collected import (
    render_domainbed,
    render_latex,
    render_markdown,
    render_text,
)
from hessalign.bench.sweep.exported import render_csv, render_json
from hessalign.bench.sweep.selection import Collection


class Renderer(Protocol):
    """Writes the tables of a sweep."""

    def __call__(self, collection: Collection, *, chosen: bool = False) -> str:
        """The tables as text.

        Args:
            collection: The results.
            chosen: Whether to add the chosen runs.

        Returns:
            The text, with a final line end.
        """


FORMATS: Mapping[str, Renderer] = {
    "text": render_text,
    "domainbed": render_domainbed,
    "markdown": render_markdown,
    "latex": render_latex,
    "csv": render_csv,
    "json": render_json,
}
"""Renderers by name."""
