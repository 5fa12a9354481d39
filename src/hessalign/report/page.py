"""Pages that open anywhere: one file, no network, light or dark as the reader likes.

A page is a template that extends `page.html.j2` and shows its content by the pieces of
`parts.html.j2` and `figures.svg.j2`. Whatever comes from outside is escaped by jinja2. No script
runs but `page.js`, on pages that ask for it. Plain text may be a template too.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from textwrap import fill
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, final

from hessalign._version import __version__

if TYPE_CHECKING:
    from jinja2 import Environment

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
"""No script runs and nothing is fetched, whatever the page may contain."""

REFRESH: Final = 5  # seconds after which a page is loaded again that is being written anew

LABELLED: Final = 12  # up to this many rows a heat map has names and numbers


class Mark(NamedTuple):
    """A value in a figure."""

    value: float
    text: str  # what is written on it
    title: str  # what it says when pointed at, or read aloud


@final
@dataclass(frozen=True)
class Figure:
    """A drawing with a caption, and a title for those who cannot see it."""

    kind: Literal["heat_map", "bars"]
    caption: str
    title: str
    marks: Sequence[Sequence[Mark]]  # by row
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
    keys: Sequence[tuple[str, str]] = ()  # class of a mark in the drawing, what it stands for


def shortened(name: str, length: int) -> str:
    """A name, or its beginning and its end: names that begin alike can be told apart."""
    end = (length - 1) // 3
    return name if len(name) <= length else f"{name[: length - 1 - end]}…{name[len(name) - end :]}"


def render_page(package: str, template: str, title: str, **content: object) -> str:
    """A page, complete in itself, from a template of a package.

    A `footnote` goes on in the sentence that says who made it. If `script` is true tables can be
    sorted, and no other script runs, by its hash in the policy. If `refresh` is true the page is
    loaded again now and then.

    Returns:
        HTML.
    """
    frame = {"title": title, "policy": _POLICY, "version": __version__, "footnote": ""}
    script = ""
    if content.get("script"):
        script = files(__package__).joinpath("page.js").read_text("utf-8")
        digest = b64encode(sha256(script.encode()).digest()).decode()
        frame["policy"] += f"; script-src 'sha256-{digest}'"
    seconds = REFRESH if content.get("refresh") else 0
    return render_template(
        package, template, **{**frame, **content, "script": script, "refresh": seconds}
    )


def render_template(package: str, template: str, **content: object) -> str:
    """A template of a package with what it shows; markup is escaped if it is of HTML."""
    return _environment(package).get_template(template).render(content)


@cache
def _environment(package: str) -> Environment:
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, select_autoescape

    environment = Environment(
        loader=ChoiceLoader([PackageLoader(name, "") for name in (package, __package__)]),
        autoescape=select_autoescape(("html.j2", "svg.j2")),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"shortened": shortened, "wrapped": _wrapped, "g": "{:g}".format}
    environment.globals["labelled"] = LABELLED
    return environment


def _wrapped(text: str, first: str = "", rest: str = "") -> str:
    return fill(text, 100, initial_indent=first, subsequent_indent=rest)
