"""A diagnosis as page, text and JSON: complete, escaped, self-contained, readable on a phone."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from tests.browser import measure, needs_browser, screenshot, scripted
from tests.diagnosis_data import (
    alike,
    answered,
    cause_report,
    evidence_only,
    remedy_report,
    shifted,
    transfer_report,
)

from hessalign.diagnosis import diagnose
from hessalign.diagnosis.page import render_diagnosis_page
from hessalign.diagnosis.text import (
    _plain,
    render_diagnosis_json,
    render_diagnosis_text,
    split_terms,
)

EVIL = "<script>document.documentElement.dataset.pwned = 1</script>"
ATTRIBUTE = "\"><img src=x onerror='document.documentElement.dataset.pwned=1'>&amp;"
NAMES = [EVIL, ATTRIBUTE, "c" * 200, "ordinary"]
UNSEEN, WITHIN = [0.78, 0.74, 0.48, 0.7], [0.82, 0.8, 0.9, 0.76]
GAINS = {"standardise": 0.09, "weights": 0.01, "leave_out": -0.05, "align": -0.001}
QUESTIONS = ["Will it hold on a site it has not seen?", "Why not?", "What helps?"]
EVIDENCE = [
    "Distances of Hessians and gradients",
    "Attributes that differ",
    "Classes and samples that contribute",
    "Labels or features",
    "Does Hessian distance foretell the loss?",
    "The transfer bound",
    "The head",
]


class Elements(HTMLParser):
    """All elements of a page and its text, and the headings in order."""

    def __init__(self, text):
        super().__init__()
        self.found, self.text, self.headings = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if re.fullmatch(r"h\d", tag):
            self.headings.append((int(tag[1]), ""))

    def handle_data(self, data):
        self.text.append(data)
        if self.headings and not self.headings[-1][1]:
            self.headings[-1] = (self.headings[-1][0], data)


def all_answers(found):
    """A diagnosis of four sites with something to say to each question."""
    causes = cause_report(("label", 2, True), ("offset", None, False), ("scale", 0, False), odd=2)
    remedies = remedy_report(UNSEEN, GAINS, "standardise")
    return answered(found, transfer_report(UNSEEN, WITHIN), causes, remedies)


@pytest.fixture(scope="module")
def diagnosis():
    z, y, domain = shifted("correlation", samples=40)
    names = {"domain_names": NAMES, "class_names": [EVIL, ATTRIBUTE]}
    return all_answers(evidence_only(z, y, domain, name=EVIL, **names))


@pytest.fixture(scope="module")
def page(diagnosis):
    return render_diagnosis_page(diagnosis)


def test_three_questions_in_order_then_evidence_folded_away(page):
    headings = Elements(page).headings
    second = [text for level, text in headings if level == 2]
    assert second == ["Verdict", *QUESTIONS, "Evidence", "What the words mean"]
    assert [text for level, text in headings if level == 3] == EVIDENCE
    assert [level for level, _ in headings].count(1) == 1
    assert page.count('<details class="evidence"') == len(EVIDENCE)
    assert " open" not in re.findall(r"<details[^>]*>", page)
    assert page.count('<p class="how"><b>How:</b>') == len(EVIDENCE)
    assert page.count("<summary>How it was computed</summary>") == 3


def test_no_mathematics_before_the_fold(page, diagnosis):
    before = page[page.index("<body>") : page.index('<section id="evidence">')]
    folded = r'title="[^"]*"|<p class="how">.*?</p>'  # what a term means and how it was computed
    shown = re.sub(folded, "", before, flags=re.DOTALL)
    assert not re.search(r"logit|hessian|gradient|table 1|theorem|domain\b", shown, re.IGNORECASE)
    text = render_diagnosis_text(diagnosis)
    assert not re.search(r"logit|hessian|gradient|table 1", text, re.IGNORECASE)


def test_nothing_is_fetched_and_only_our_script_may_run(page):
    elements = Elements(page)
    tags = [tag for tag, _ in elements.found]
    assert not {"img", "link", "iframe", "object", "embed", "base", "form"} & set(tags)
    assert tags.count("script") == 1
    for _, attributes in elements.found:
        assert not {"src", "srcset", "xlink:href"} & set(attributes)
        assert attributes.get("href", "#").startswith("#")
        assert not [name for name in attributes if name.startswith("on")]
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)[1]
    assert not re.search(r"@import|url\(|https?:", style)
    policy = dict(elements.found)["meta"] and re.search(
        r"Security-Policy\" content=\"(.*?)\"", page
    )
    assert re.match(r"default-src 'none'; .*; script-src 'sha256-[\w+/]+='$", policy[1])


def test_every_link_has_its_place_and_every_table_its_caption(page):
    elements = Elements(page)
    places = [attributes["id"] for _, attributes in elements.found if "id" in attributes]
    assert len(places) == len(set(places))
    links = {attributes["href"][1:] for _, attributes in elements.found if "href" in attributes}
    assert links <= set(places)
    assert {"verdict", "hold", "why", "help", "evidence", "terms"} <= links
    tags = [tag for tag, _ in elements.found]
    assert tags.count("table") == tags.count("caption") > 8
    assert tags.count("svg") >= 10


def test_names_are_shown_as_they_are_or_in_full_when_pointed_at(page):
    elements = Elements(page)
    said = "".join(elements.text) + " ".join(a.get("title", "") for _, a in elements.found)
    for name in NAMES:
        assert name in said
    assert EVIL not in page
    assert "<img" not in page
    assert f"<title>{'c' * 200}</title>" in page  # of a name in a drawing
    assert 'title="' + "c" * 200 + '"' in page  # and in a table


def test_numbers_of_the_page_are_those_of_the_diagnosis(diagnosis, page):
    text = "".join(Elements(page).text)
    matrix = diagnosis.distances.hessian
    assert f"{float(matrix.measured[0, 3]):.3g}" in text
    assert f"two halves of ordinary: {float(matrix.halves[3]):.3g}" in text
    assert "ordinary, site unseen: 70.0 % (65.0 to 75.0)" in text
    assert "label shift, " + "c" * 200 + ": largest difference of class shares 0.42; costs" in text
    assert "standardising per site, ordinary: +13.5" in text
    assert "+42.0 (+37.0 to +47.0)" in text


def test_shares_add_up(page, diagnosis):
    rows = re.findall(r'<table[^>]*id="shift-table">.*?<tbody>(.*?)</tbody>', page, re.DOTALL)[0]
    for row in rows.split("<tr>")[1:]:
        values = [int(value) for value in re.findall(r"<td>(\d+) %</td>", row)]
        assert sum(values[1:4]) == sum(values[4:7]) == 100
    assert rows.count("<tr>") == len(diagnosis.shift.pairs)


def test_terms_are_linked_once_and_names_are_not():
    pieces = split_terms("AUC and label shift at “AUC site”, AUC and Label shifts")
    assert [piece for piece in pieces if piece[1]] == [
        ("AUC", "AUC"),
        ("label shift", "label shift"),
    ]
    assert "".join(text for text, _ in pieces).endswith("at “AUC site”, AUC and Label shifts")


def test_terms_of_a_bound_stand_under_their_names(diagnosis, page):
    entry = diagnosis.bounds.pairs[-1]
    rows = re.findall(r'<table[^>]*id="bound-table">.*?<tbody>(.*?)</tbody>', page, re.DOTALL)[0]
    row = rows.split("<tr>")[-1]
    values = (entry.value, entry.hessian_term, entry.gradient_term, entry.target_term)
    wanted = [f"{value:.3g}" for value in (*values, entry.remainder)]
    assert re.findall("<td>(.*?)</td>", row) == wanted
    assert f'title="ordinary → {"c" * 200}">ordinary → {"c" * 10}…{"c" * 5}</span>' in row


def test_json_holds_everything_and_parses(diagnosis):
    content = json.loads(render_diagnosis_json(diagnosis))
    assert content["domains"] == NAMES
    measured = diagnosis.distances.hessian.measured
    assert content["distances"]["hessian"]["measured"] == measured.tolist()
    first = content["transfer"]["sites"][0]
    assert first["unseen"]["accuracy"] == {"value": 0.78, "low": 0.73, "high": 0.8300000000000001}
    assert content["causes"]["findings"][0]["cause"] == "label"
    assert content["remedies"]["trials"][1]["gain"]["value"] == 0.09
    assert content["verdict"]["headline"] == diagnosis.verdict.headline
    sections = "transfer causes remedies head distances spectral attributes contributions shift"
    for section in (*sections.split(), "crossing", "bounds"):
        assert len(content[section]["how"]) > 30, section
    assert "parameters" not in content["head"]


def test_json_refuses_what_it_does_not_know():
    with pytest.raises(TypeError, match="Expected a value for JSON, got SimpleNamespace"):
        _plain(SimpleNamespace())


def test_names_move_no_cursor_in_the_text(diagnosis):
    text = render_diagnosis_text(replace(diagnosis, name="a\x1b[2J\x07"))
    assert "Diagnosis of a�[2J�" in text
    assert all(line.isprintable() for line in text.split("\n"))


def test_text_is_short_and_has_the_same_order(diagnosis):
    text = render_diagnosis_text(diagnosis)
    assert re.findall(r"(?m)^## (.*)$", text) == QUESTIONS
    assert text.index(diagnosis.verdict.headline[:40]) < text.index("## Will it hold")
    assert "| ordinary" in text
    assert len(text.splitlines()) < 90
    lines = [line for line in text.splitlines() if not line.startswith(("|", "#"))]
    assert max(len(line) for line in lines if EVIL not in line and "c" * 50 not in line) <= 100


@needs_browser
@pytest.mark.parametrize("width", [390, 1200])
def test_the_page_does_not_scroll_sideways(page, width, tmp_path):
    # Without the policy, which would stop scripts in names as well, and with all that is folded.
    bare = re.sub(r"<meta http-equiv[^>]*>", "", page).replace("<details", "<details open")
    assert "Security-Policy" not in bare
    found = measure(bare, width, tmp_path)
    assert (found["width"], found["title"]) == (width, f"Diagnosis of {EVIL}")
    assert found["content"] <= width, found["wide"]
    assert found["wide"] == []
    assert found["scripts"] == 1
    assert not found["pwned"]


CUT = """
const outside = text => {
  const inner = text.getBoundingClientRect();
  const outer = text.closest("svg").getBoundingClientRect();
  return inner.width && (inner.left < outer.left - 3 || inner.right > outer.right + 3);
};
const texts = [...frame.contentDocument.querySelectorAll("svg text")];
show({all: texts.length, cut: texts.filter(outside).map(text => text.textContent)});
"""


@needs_browser
def test_names_in_drawings_are_not_cut(tmp_path):
    z, y, domain = shifted("correlation", samples=40)
    hospital = "Klinikum der Ludwig-Maximilians-Universität München, Campus Großhadern"
    found = all_answers(evidence_only(z, y, domain, domain_names=[hospital, *NAMES[1:]]))
    drawn = scripted(
        render_diagnosis_page(found).replace("<details", "<details open"), CUT, tmp_path
    )
    assert drawn["all"] > 50
    assert drawn["cut"] == []


SORT = """
const page = frame.contentDocument, table = page.querySelector("#transfer");
const title = column => table.tHead.rows[0].cells[column];
const cells = column => [...table.tBodies[0].rows].map(row => row.cells[column].textContent);
const count = what => title(2).querySelectorAll(what).length;
const found = {links: count("a"), inside: count("button a")};
found.label = title(2).querySelector("button").ariaLabel;
title(2).querySelector("button").click(); found.down = cells(2); found.said = title(2).ariaSort;
title(2).querySelector("button").click(); found.up = cells(2);
found.last = table.rows[table.rows.length - 1].cells[0].textContent;
show(found);
"""


@needs_browser
def test_tables_sort_and_keep_their_links_and_their_mean(page, tmp_path):
    found = scripted(page, SORT, tmp_path)
    assert (found["links"], found["inside"], found["label"]) == (1, 0, "sort by unseen")
    assert [text[:4] for text in found["down"]] == ["78.0", "74.0", "70.0", "48.0"]
    assert found["up"] == found["down"][::-1]
    assert (found["said"], found["last"]) == ("descending", "mean")


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1200])
def test_pictures_of_the_page(page, width, scheme, tmp_path):
    picture = Image.open(screenshot(page, width, scheme, tmp_path, height=2600)).convert("RGB")
    assert picture.width == width
    paper = (255, 255, 255) if scheme == "light" else (18, 22, 29)
    edges = {picture.getpixel((x, y)) for x in (1, width - 2) for y in range(picture.height)}
    assert edges == {paper}  # nothing is cut
    colours = picture.getcolors(1 << 20)
    ink = sum(count for count, colour in colours if colour != paper)
    assert 0.1 < ink / picture.width / picture.height < 0.7
    marks = {"light": (217, 119, 6), "dark": (245, 169, 74)}[scheme]  # intervals, over paper
    near = [n for n, c in colours if sum(abs(a - b) for a, b in zip(c, marks, strict=True)) < 40]
    assert sum(near) > 100


@pytest.mark.slow
@needs_browser
def test_the_measurement_can_fail(tmp_path):
    wide = '<!doctype html><title>t</title><p style="width:600px">x</p>'
    found = measure(wide, 375, tmp_path)
    assert found["content"] >= 600
    assert len(found["wide"]) == 1
    evil = f"<!doctype html><title>t</title>{EVIL}"
    assert measure(evil, 375, tmp_path)["pwned"]


def many_sites():
    z, _, domain = alike(14, 20, 3)
    return evidence_only(z, torch.arange(280) % 14, domain)


@pytest.mark.slow
@needs_browser
def test_many_sites_and_classes_fit_too(tmp_path):
    found = many_sites()
    report = transfer_report([0.7] * 13 + [0.4], [0.75] * 14, chance=1 / 14)
    causes = cause_report(*(("label", e, e % 2 > 0) for e in range(13)))
    tried = remedy_report([0.7] * len(found.focus), GAINS)  # on the sites looked at one by one
    found = answered(found, report, causes, tried)
    page = render_diagnosis_page(found)
    assert "4 others" in page  # of the classes, so that shares add up
    assert "11 of 14 sites" in page
    measured = measure(page.replace("<details", "<details open"), 390, tmp_path)
    assert measured["content"] <= 390, measured["wide"]


def test_a_page_of_two_sites_with_answers_missing():
    z, y, domain = alike(2, 20, 3)
    found = evidence_only(z, y, domain)
    report = transfer_report([0.7, 0.75], None, auc=False, chance=1 / 3)
    found = answered(found, report, cause_report(), remedy_report([0.7, 0.75], {}))
    page = render_diagnosis_page(found)
    assert "With two sites each model has seen a single one" in page
    assert ">AUC</a>" not in page[: page.index(chr(60) + 'section id="help"')]
    assert "No difference found" in page
    assert "crossing" not in page
    assert "–" in render_diagnosis_text(found)
    assert json.loads(render_diagnosis_json(found))["transfer"]["mean_drop"] is None


def test_a_page_without_the_sections_that_need_l2():
    z, y, domain = shifted("diversity", samples=150, core=2, other=2)
    y = torch.where(torch.rand(600, generator=torch.Generator().manual_seed(0)) < 0.2, 1 - y, y)
    found = diagnose(z, y, domain, l2=0.0)
    page = render_diagnosis_page(found)
    assert "The transfer bound" not in page
    assert "Without an L2 term" in page
    assert "needs an L2 term" in page
    assert "needs an L2 term" in render_diagnosis_text(found)
    content = json.loads(render_diagnosis_json(found))
    assert content["bounds"] is content["transfer"] is None
