"""The page of a sweep: complete, escaped, self-contained, sortable, and readable on a phone."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest
from tests.browser import measure, needs_browser, scripted
from tests.sweeps import record, write

from hessalign.bench.sweep.overview import look
from hessalign.bench.sweep.page import _by_powers, render_sweep_page, summarise

EVIL = "<script>document.documentElement.dataset.pwned = 1</script>"
ATTRIBUTE = "\"><img src=x onerror='document.documentElement.dataset.pwned=1'>&amp;"
DOMAINS = [EVIL, ATTRIBUTE, "c" * 80]
SECTIONS = (
    "Three model selections side by side",
    "What failed, and what is missing",
    "Accuracy per domain",
    "Every run against its hyper-parameters",
    "Learning curves",
    "Hessian distance against OOD accuracy",
    "Costs",
)


class Elements(HTMLParser):
    """All elements of a page, and its text."""

    def __init__(self, text):
        super().__init__()
        self.found, self.text = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text.append(data)


def write_runs(folder, *, algorithms=("ERM", EVIL), dataset=EVIL, **fields):
    """Runs of three domains, two trials and three draws, some steps each."""
    rng = np.random.default_rng(0)
    for algorithm in algorithms:
        for number in range(18):
            domain, trial, draw = number % 3, number // 3 % 2, number // 6
            hparams = {"lr": 10.0 ** -(3 + draw), "weight_decay": 0.0 if draw < 1 else 0.1**draw}
            key = {"seed": draw, "trial": trial, "dataset": dataset, "algorithm": algorithm}
            more = {"hparams": {**hparams, ATTRIBUTE: draw}, "domain_names": DOMAINS, **fields}
            levels = rng.uniform(0.4, 0.8, 4)
            records = [
                record(step, (domain,), **key, level=level, args={"steps": 4}, **more)
                for step, level in enumerate(levels)
            ]
            write(folder / f"{algorithm[:1].strip('<') or 'x'}{number}", records)
    return folder


@pytest.fixture(scope="module")
def overview(tmp_path_factory):
    folder = write_runs(tmp_path_factory.mktemp("sweep"), seconds=1800.0, hessian_distance=0.5)
    write(folder / "gone", [record(0, (0,), dataset=EVIL, trial=9, args={"steps": 4})], done=False)
    (folder / "gone" / "err.txt").write_text(f"Traceback\nRuntimeError: {ATTRIBUTE}\n")
    return look(folder)


@pytest.fixture(scope="module")
def page(overview):
    return render_sweep_page(overview)


def test_every_section_is_there_and_says_how(page):
    for title in SECTIONS:
        assert f"<h2>{title}</h2>" in page, title
    assert page.count('<p class="how"><b>How:</b>') == len(SECTIONS)
    for selection in ("training-domain", "leave-one-out", "oracle"):
        assert f'<th colspan="2">{selection}</th>' in page


def test_nothing_is_fetched_and_only_our_script_may_run(page):
    elements = Elements(page)
    tags = [tag for tag, _ in elements.found]
    assert not {"img", "link", "iframe", "object", "embed", "base", "form"} & set(tags)
    assert tags.count("script") == 1
    for _, attributes in elements.found:
        assert not {"src", "href", "srcset", "xlink:href"} & set(attributes)
        assert not [name for name in attributes if name.startswith("on")]
    (policy,) = [a["content"] for _, a in elements.found if "Policy" in a.get("http-equiv", "")]
    assert re.fullmatch(
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-[\\w+/]+='", policy
    )


def test_names_and_reasons_are_shown_as_they_are(page):
    text = "".join(Elements(page).text)
    for name in (*DOMAINS, f"RuntimeError: {ATTRIBUTE}"):
        assert name in text
    assert EVIL not in page


def test_runs_that_fail_alike_stand_together(tmp_path):
    """A reason that all runs of an algorithm have is a row; of many reasons most are folded."""
    write_runs(tmp_path, algorithms=("ERM",), dataset="PACS")
    for number in range(60):
        folder = tmp_path / f"gone{number}"
        key = {"dataset": "PACS", "trial": number, "algorithm": "VREx"}
        write(folder, [record(0, (0,), **key, args={"steps": 4})], done=False)
        reason = "no space" if number < 40 else f"stopped at {number}"
        (folder / "err.txt").write_text(f"Traceback\nOSError: {reason}\n")
    page = render_sweep_page(look(tmp_path))
    assert page.count("OSError: no space") == 1
    assert re.search(r"and 39 more</td><td>.*OSError: no space", page)
    seen, _, folded = page.partition("<summary>9 further reasons</summary>")
    assert seen.count("OSError: stopped") == 11
    assert folded.count("OSError: stopped") == 9


def test_numbers_of_the_page_are_those_of_the_runs(overview, page):
    text = "".join(Elements(page).text)
    table = overview.tables(EVIL)["oracle"]
    cell = table.rows[0].cells[1]
    assert f"{cell.mean:.1f} ± {cell.error:.1f}" in text
    assert text.count("9.000") == 2  # hours: 18 runs of half an hour of each algorithm
    assert page.count("<circle") >= 36 * 3  # lr, weight decay, their own, and distances
    assert page.count('class="line') >= 36 * 2


def test_every_run_is_a_point_and_powers_have_logarithmic_axes(overview, page):
    assert len(overview.points) == 36
    drawn = re.findall(r"against lr</title>(.*?)</svg>", page, re.DOTALL)
    assert [each.count("<circle") for each in drawn] == [18, 18]
    places = sorted({float(x) for x in re.findall(r'<circle cx="([\d.]+)"', drawn[0])})
    assert places[1] - places[0] == pytest.approx(places[2] - places[1], abs=0.2)
    assert _by_powers("ERM", "lr", [1.0, 1.1])
    assert _by_powers("HGP", "learning_rate", [1.0, 1.1])  # of Colored MNIST
    assert _by_powers("VREx", "vrex_lambda", [1.0, 1.1])
    assert not _by_powers("ERM", "resnet_dropout", [0.001, 0.5])
    assert _by_powers("somebody's own", "temperature", [0.001, 0.5])


def test_a_sweep_that_goes_on_is_loaded_again(overview, page):
    assert 'http-equiv="refresh"' not in page
    assert '<meta http-equiv="refresh" content="5">' in render_sweep_page(overview, refresh=True)


def test_without_distances_the_page_says_how_to_measure_them(tmp_path):
    found = look(write_runs(tmp_path, algorithms=("IRM", "VREx"), dataset="PACS"))
    page = render_sweep_page(found)
    assert "hessalign sweep run … hessian_distance=true" in page
    assert "What failed" not in page
    assert "to ERM" not in page
    assert "to ERM" not in summarise(found)


def test_one_trial_has_no_standard_error(tmp_path):
    for number, name in enumerate(("ERM", "VREx")):
        for domain in range(3):
            level = 0.5 + 0.1 * number
            records = [record(step, (domain,), algorithm=name, level=level) for step in (0, 1)]
            write(tmp_path / f"{name}{domain}", records)
    found = look(tmp_path)
    assert "60.0 ± 0.0" not in render_sweep_page(found)
    assert "60.0 (+10.0 ± 0.0)" in summarise(found)  # of three domains


def test_a_page_before_the_first_run_is_done(tmp_path):
    write(tmp_path / "one", [record(0, (0,))], done=False)
    page = render_sweep_page(look(tmp_path))
    assert "No run is finished yet" in page
    assert "its last record is of step 0" in page


def test_points_of_very_many_runs_are_drawn_in_less_space(tmp_path, monkeypatch):
    for name in ("ERM", "VREx"):
        write_runs(tmp_path / name, algorithms=(name,), dataset="PACS")
    found = look(tmp_path)
    full = len(render_sweep_page(found))
    monkeypatch.setattr("hessalign.bench.sweep.page._DESCRIBED", 0)
    bare = render_sweep_page(found)
    assert "<circle" not in re.search(r"against lr</title>(.*?)</svg>", bare, re.DOTALL)[1]
    assert len(bare) < full


@needs_browser
@pytest.mark.parametrize("width", [390, 1200])
def test_the_page_does_not_scroll_sideways(page, width, tmp_path):
    found = measure(page, width, tmp_path)
    assert found["width"] == width
    assert found["content"] <= width, found["wide"]
    assert found["wide"] == []
    assert not found["pwned"]
    assert found["scripts"] == 1


NAMES = """
const figure = frame.contentDocument.querySelector("svg:has(.row)");
const box = element => element.getBoundingClientRect();
const [left, tops] = [box(figure).left, [...figure.querySelectorAll(".line.chosen")].map(box)];
const under = [...figure.querySelectorAll(".row")].filter(name => tops.some(line =>
  line.top < box(name).bottom + 2 && line.bottom > box(name).top - 2));
show({lines: tops.length, under: under.length});
"""


@needs_browser
def test_names_do_not_cover_intervals(page, tmp_path):
    found = scripted(page, NAMES, tmp_path)
    assert found == {"lines": 2, "under": 0}


SORT = """
const page = frame.contentDocument, table = page.querySelector("#costs");
const button = column => table.tHead.rows[0].cells[column].querySelector("button");
const cells = column => [...table.tBodies[0].rows].map(row => row.cells[column].textContent);
const found = {tag: button(4).tagName, reached: button(4).tabIndex};
button(4).focus(); found.focused = page.activeElement === button(4);
button(4).click(); found.down = cells(4); found.said = table.tHead.rows[0].cells[4].ariaSort;
button(4).click(); found.up = cells(4);
button(0).click(); found.names = cells(0);
found.said_of = [...table.tHead.rows[0].cells].filter(cell => cell.ariaSort).length;
show(found);
"""

AGAIN = """
const page = frame.contentDocument, fold = page.querySelector("details");
const title = page.querySelector("#costs").tHead.rows[0].cells[4];
if (!frame.again) {
  frame.again = [title.ariaSort, fold.open];
  title.querySelector("button").click(); fold.open = !fold.open;
  frame.contentWindow.dispatchEvent(new Event("pagehide"));
  frame.srcdoc += " ";
} else show({before: frame.again, after: [title.ariaSort, fold.open]});
"""


@needs_browser
def test_tables_are_sorted_by_mouse_and_keyboard(tmp_path):
    for name, seconds in (("ERM", 3600.0 * 2), ("VREx", 3600.0 * 10), ("CORAL", 60.0)):
        write_runs(tmp_path / name, algorithms=(name,), dataset="PACS", seconds=seconds)
    found = scripted(render_sweep_page(look(tmp_path)), SORT, tmp_path)
    assert (found["tag"], found["reached"], found["focused"]) == ("BUTTON", 0, True)
    assert found["down"] == ["180.000", "36.000", "0.300"]
    assert found["said"] == "descending"
    assert found["up"] == found["down"][::-1]
    assert found["names"] == ["CORAL", "ERM", "VREx"]
    assert found["said_of"] == 1


@needs_browser
def test_a_page_that_is_loaded_again_looks_as_it_was_left(overview, tmp_path):
    found = scripted(render_sweep_page(overview, refresh=True), AGAIN, tmp_path)
    assert found["before"][0] is None
    assert found["after"] == ["descending", not found["before"][1]]
