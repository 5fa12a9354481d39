"""The page of a diagnosis: complete, escaped, self-contained, and readable on a phone."""

import json
import re
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest
import torch
from tests.browser import measure, needs_browser
from tests.diagnosis_data import alike, shifted

from hessalign.diagnosis import diagnose
from hessalign.diagnosis.page import render_diagnosis_page
from hessalign.diagnosis.text import _plain, render_diagnosis_json, render_diagnosis_text
from hessalign.report.page import _POLICY

EVIL = "<script>document.documentElement.dataset.pwned = 1</script>"
ATTRIBUTE = "\"><img src=x onerror='document.documentElement.dataset.pwned=1'>&amp;"
NAMES = [EVIL, ATTRIBUTE, "c" * 200, "ordinary"]


class Elements(HTMLParser):
    """All elements of a page, and what is inside its styles."""

    def __init__(self, text):
        super().__init__()
        self.found, self.text, self.style = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def diagnosis():
    z, y, domain = shifted("correlation", samples=80)
    return diagnose(z, y, domain, name=EVIL, domain_names=NAMES, class_names=[EVIL, ATTRIBUTE])


@pytest.fixture(scope="module")
def page(diagnosis):
    return render_diagnosis_page(diagnosis)


def test_every_section_is_there_and_says_how(page):
    elements = Elements(page)
    assert page.count('<p class="how"><b>How:</b>') == 8
    assert sum(tag == "svg" for tag, _ in elements.found) >= 9
    for title in (
        "In plain words",
        "How far apart",
        "In what they differ",
        "Which classes and samples",
        "Label shift or feature shift",
        "Leave one domain out",
        "Does Hessian distance foretell the loss?",
        "The transfer bound",
        "The head",
    ):
        assert re.search(rf"<h2[^>]*>{re.escape(title)}</h2>", page), title


def test_nothing_is_fetched_and_nothing_runs(page):
    elements = Elements(page)
    tags = {tag for tag, _ in elements.found}
    assert not tags & {"script", "img", "link", "iframe", "object", "embed", "base", "form"}
    for _, attributes in elements.found:
        assert not {"src", "href", "srcset", "xlink:href"} & set(attributes)
        assert not [name for name in attributes if name.startswith("on")]
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)[1]
    assert "@import" not in style
    assert "url(" not in style
    assert not re.search(r"https?:", style)
    assert ("meta", {"http-equiv": "Content-Security-Policy", "content": _POLICY}) in elements.found


def test_names_are_shown_as_they_are(page):
    text = "".join(Elements(page).text)
    for name in NAMES:
        assert name in text
    assert EVIL not in page


def test_numbers_of_the_page_are_those_of_the_diagnosis(diagnosis, page):
    text = "".join(Elements(page).text)
    matrix = diagnosis.distances.hessian
    assert f"{float(matrix.measured[0, 3]):.3g}" in text
    assert f"two halves of ordinary: {float(matrix.halves[3]):.3g}" in text
    assert f"{100 * diagnosis.holdout.plain:.1f} %" in text


def test_json_holds_everything_and_parses(diagnosis):
    content = json.loads(render_diagnosis_json(diagnosis))
    assert content["domains"] == NAMES
    assert (
        content["distances"]["hessian"]["measured"] == diagnosis.distances.hessian.measured.tolist()
    )
    assert content["holdout"]["plain"] == diagnosis.holdout.plain
    for section in (
        "head",
        "distances",
        "spectral",
        "attributes",
        "contributions",
        "shift",
        "holdout",
        "crossing",
        "bounds",
    ):
        assert len(content[section]["how"]) > 50, section
    assert "parameters" not in content["head"]


def test_json_refuses_what_it_does_not_know():
    with pytest.raises(TypeError, match="Expected a value for JSON, got SimpleNamespace"):
        _plain(SimpleNamespace())


def test_text_has_a_table_for_each_section(diagnosis):
    text = render_diagnosis_text(diagnosis)
    assert text.count("\n## ") == 9
    assert "odd one out" in text
    lines = [line for line in text.splitlines() if not line.startswith(("|", "- ", "  "))]
    assert max(len(line) for line in lines if EVIL not in line and "c" * 50 not in line) <= 100


@needs_browser
@pytest.mark.parametrize("width", [320, 375, 1200])
def test_the_page_does_not_scroll_sideways(page, width, tmp_path):
    found = measure(page, width, tmp_path)
    assert found["width"] == width
    assert found["content"] <= width, found["wide"]
    assert found["wide"] == []


@needs_browser
def test_names_that_are_scripts_do_not_run(page, tmp_path):
    # Without the policy, which would stop them as well.
    bare = re.sub(r"<meta http-equiv[^>]*>", "", page)
    assert "Security-Policy" not in bare
    found = measure(bare, 800, tmp_path)
    assert found["title"] == f"Diagnosis of {EVIL}"
    assert found["scripts"] == 0
    assert not found["pwned"]


@needs_browser
def test_the_measurement_can_fail(tmp_path):
    wide = '<!doctype html><title>t</title><p style="width:600px">x</p>'
    found = measure(wide, 375, tmp_path)
    assert found["content"] >= 600
    assert len(found["wide"]) == 1
    evil = f"<!doctype html><title>t</title>{EVIL}"
    assert measure(evil, 375, tmp_path)["pwned"]


@needs_browser
def test_many_domains_and_classes_fit_too(tmp_path):
    z, _, domain = alike(14, 20, 3)
    y = torch.arange(280) % 14
    page = render_diagnosis_page(diagnose(z, y, domain))
    found = measure(page, 375, tmp_path)
    assert found["content"] <= 375, found["wide"]


def test_a_page_without_the_sections_that_need_l2():
    z, y, domain = shifted("diversity", samples=150, core=2, other=2)
    y = torch.where(torch.rand(600) < 0.2, 1 - y, y)
    found = diagnose(z, y, domain, l2=0.0)
    page = render_diagnosis_page(found)
    assert "The transfer bound" not in page
    assert "Without an L2 term" in page
    assert "## Transfer bound" not in render_diagnosis_text(found)
    assert json.loads(render_diagnosis_json(found))["bounds"] is None
