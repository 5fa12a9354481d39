"""The gallery shows every example as it is now, and what it printed is what its pictures draw."""

import re
from xml.etree import ElementTree

import pytest
from scripts import build_gallery as gallery


@pytest.fixture(scope="module")
def printed():
    """What the page says that the examples printed."""
    text = gallery.PAGE.read_text(encoding="utf-8")
    outputs = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    return dict(zip(gallery.EXAMPLES, outputs, strict=True))


def test_the_page_is_up_to_date(printed):
    assert gallery.page(printed) == gallery.PAGE.read_text(encoding="utf-8")
    scripts = {path.stem for path in (gallery.PAGE.parents[1] / "examples").glob("*.py")}
    # A backbone, and one that has a page of its own.
    assert scripts - set(gallery.EXAMPLES) == {"efficientnet_lite0", "four_hospitals"}


@pytest.mark.parametrize("name", gallery.EXAMPLES)
def test_pictures_show_what_was_printed(name, printed):
    file = gallery.PAGE.parent / "images" / "gallery" / f"{name}.svg"
    assert file.stat().st_size < 40_000
    shown = " ".join(ElementTree.parse(file).getroot().itertext())
    rows = re.findall(r"(?m)^ *(\w+)(?: \w+)? +\d+\.\d ± ", printed[name]) or ["step"]
    assert [row for row in rows if row not in shown] == []


@pytest.mark.parametrize("corner", ["", "beta"])
def test_tables_are_read(corner):
    lines = [f" {corner}    seen    the next", "plain  9.0 ± 1.0   5.0 ± 2.0", "end"]
    titles, rows = gallery._table("\n".join(lines))
    assert titles == [corner, "seen", "the next"]
    assert rows == {"plain": [(9.0, 1.0), (5.0, 2.0)]}
