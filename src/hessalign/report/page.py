"""Pages that open anywhere: one file, no network, no script, light or dark as the reader likes.

A page is a template that extends `page.html.j2` and shows its content by the pieces of
`parts.html.j2`. Whatever comes from outside is escaped by jinja2; only drawings, whose writer
escapes names itself, are put in as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from hessalign._version import __version__
from hessalign.report.svg import shortened

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
"""No script runs and nothing is fetched, whatever the page may contain."""


@final
@dataclass(frozen=True)
class Figure:
    """A drawing with a caption and a legend.

    Attributes:
        caption: What it shows.
        svg: The drawing.
        keys: Class of a mark in the drawing, and what it stands for.
    """

    caption: str
    svg: str
    keys: Sequence[tuple[str, str]] = ()


@final
@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        header: Column titles.
        rows: Cells as plain text; the first of each row names it.
        words: Whether cells hold text rather than numbers.
        folded: What is seen before it is opened by a click; nothing if it is open.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: bool = False
    folded: str = ""


@final
@dataclass(frozen=True)
class Section:
    """A part of a page: text, figures side by side, a table, and how its numbers were computed.

    Attributes:
        title: Its heading.
        how: How its numbers were computed.
        text: A paragraph that comes first.
        figures: Its figures.
        table: The numbers behind them.
    """

    title: str
    how: str
    text: str = ""
    figures: Sequence[Figure] = ()
    table: Table | None = None


def render_page(package: str, template: str, title: str, **content: object) -> str:
    """A page from a template.

    Args:
        package: The package that holds the template.
        template: Its file, which extends `page.html.j2`.
        title: Title of the page.
        content: What the template shows; `footnote` goes on in the sentence that says who made it.

    Returns:
        The page, complete in itself, with a final line end.
    """
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=ChoiceLoader([PackageLoader(name, "") for name in (package, __package__)]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["shortened"] = shortened
    frame = {"title": title, "policy": _POLICY, "version": __version__, "footnote": ""}
    return environment.get_template(template).render(**{**frame, **content})
