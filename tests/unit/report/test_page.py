"""Pages: everything from outside is escaped, wherever it stands."""

from html.parser import HTMLParser

import pytest
from jinja2 import UndefinedError

from hessalign.report.page import Figure, Mark, render_page

EVIL = "<script>alert('\"&')</script>"
KINDS = ("heat_map", "bars")

TEMPLATE = """{% extends "page.html.j2" %}
{% import "parts.html.j2" as parts %}
{% block content %}
{{ parts.cards([(word, word)]) }}{{ parts.bullets([word]) }}
{% call parts.section(word, word, figures, word) %}
{% set row = [word, (word, word)] %}
{{ parts.table(row, [row], folded=folded, caption=word, total=[word, word]) }}
{% endcall %}
{% endblock %}
"""

MARKS = [[Mark(1.0, EVIL, EVIL)]]
FIGURES = [Figure(k, EVIL, EVIL, MARKS, [EVIL], [EVIL] * 2, [("part0", EVIL)]) for k in KINDS]


class Content(HTMLParser):
    """What a page is made of."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.text = [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package with a template, as one that comes later would have it."""
    folder = tmp_path / "pages_of_a_test"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "one.html.j2").write_text(TEMPLATE)
    monkeypatch.syspath_prepend(tmp_path)
    return folder.name


@pytest.mark.parametrize(
    ("figures", "folded"), [(FIGURES, EVIL), (FIGURES[:1], "")], ids=["folded", "open"]
)
def test_markup_is_escaped_everywhere(package, figures, folded):
    content = {"word": EVIL, "figures": figures, "folded": folded, "footnote": EVIL}
    page = render_page(package, "one.html.j2", EVIL, **content)
    found = Content(page)
    assert not {"script", "img"} & set(found.tags)
    assert "<script" not in page
    # Title, card (two), list, heading, paragraph, how, footer; a figure: caption, key, title,
    # title of a mark; names and numbers of the drawing are cut or shown.
    assert sum(EVIL in text for text in found.text) >= 12
    assert page.endswith("</html>\n")
    assert found.tags.count("svg") == len(figures)
    assert ("details" in found.tags) == bool(folded)
    assert ('class="figures"' in page) == (len(figures) > 1)


def test_a_page_follows_the_scheme_of_the_reader(package):
    page = render_page(package, "one.html.j2", "t", word="w", figures=FIGURES, folded="")
    assert "prefers-color-scheme: dark" in page
    assert "color-scheme: light dark" in page


def test_what_a_template_lacks_is_an_error(package):
    with pytest.raises(UndefinedError, match="'word' is undefined"):
        render_page(package, "one.html.j2", "t", figures=FIGURES, folded="")
