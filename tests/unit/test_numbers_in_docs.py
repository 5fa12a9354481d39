"""README and documentation show the newest results: python -m scripts.update_numbers."""

import re
from xml.etree import ElementTree

import pytest
from scripts import update_numbers

PAGES = list(update_numbers.BLOCKS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_show_the_newest_results(page):
    assert page.read_text(encoding="utf-8") == update_numbers.filled(page)


def test_the_picture_shows_the_newest_accuracies():
    shown = " ".join(ElementTree.parse(update_numbers.OVERVIEW).getroot().itertext())
    rows = update_numbers._accuracies()
    for name in update_numbers._SHOWN:
        assert f"{rows[name]['test_mean']:.1f} ± {rows[name]['test_std']:.1f}" in shown


def test_blocks_that_are_missing_are_told(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- one -->\nold\n<!-- /one -->\nb\n")
    monkeypatch.setattr(update_numbers, "BLOCKS", {page: {"one": lambda: "new"}})
    assert update_numbers.filled(page) == "a\n<!-- one -->\nnew\n<!-- /one -->\nb\n"
    page.write_text("a")
    with pytest.raises(ValueError, match="once in"):
        update_numbers.filled(page)


def test_both_audiences_find_their_lines_on_the_first_screen():
    lines = (PAGES[0]).read_text(encoding="utf-8").splitlines()
    assert len(lines) < 130
    assert next(line for line in lines[1:] if line.startswith("!["))
    screen = "\n".join(lines[:45])
    for words in ("make demo", "make test", "# 1, once", "# 2", "# 3", "hessalign reproduce"):
        assert re.search(re.escape(words), screen)
