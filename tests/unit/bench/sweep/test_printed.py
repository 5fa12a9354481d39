"""Tables of a sweep in every format."""

import csv
import io
import json
import re

import pytest
from tests.sweeps import write_sweep

from hessalign.bench.sweep.printed import FORMATS, _chosen_rows, _latex_escape
from hessalign.bench.sweep.selection import collect

ORACLE = "test-domain validation set (oracle)"
PLAIN = (
    f"Total records: 48\n\n-------- Dataset: Debug28, model selection method: {ORACLE}\n"
    "Algorithm             0                     1                     2                     Avg"
    "                  \n"
    "ERM                   56.5 +/- 0.4          66.5 +/- 0.4          76.5 +/- 0.4          66.5"
    "                 \n"
    f"\n-------- Averages, model selection method: {ORACLE}\n"
    "Algorithm                  Debug28                    Avg                       \n"
    "ERM                        66.5 +/- 0.4               66.5                      \n"
)


@pytest.fixture
def complete(tmp_path):
    return collect(write_sweep(tmp_path), ["oracle"])


@pytest.fixture
def lacking(tmp_path):
    """No pair {0,2} in trial 1, no run with test domain 1 at all."""
    without = {(1, (0, 2)), (0, (1,)), (1, (1,))}
    return collect(write_sweep(tmp_path, without=without), ["leave-one-out"])


PAIR = "trial 1: no run with test domains {0,2}"
SINGLE = "trials 0, 1: no run with test domains {1}"
AVERAGE = "trial 0: no value for 1, average of the others; trial 1: no value on any domain"


# --- for readers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["text", "domainbed"])
def test_plain_text_is_domainbeds_where_nothing_is_missing(complete, name):
    assert FORMATS[name](complete) == PLAIN


def test_domainbed_prints_an_x_without_a_reason(lacking):
    lines = FORMATS["domainbed"](lacking).splitlines()
    cells = re.split(r" {2,}", lines[4].strip())
    assert cells == ["ERM", "56.0 +/- 0.0", "X", "76.0 +/- 0.0", "X"]
    assert {len(line) for line in lines[3:5]} == {5 * 20 + 4 * 2 + 1}
    assert "no run" not in "".join(lines)
    assert re.split(r" {2,}", lines[8].strip()) == ["ERM", "66.0 +/- 0.0", "66.0"]


def test_text_marks_what_is_missing_and_lists_the_reasons_after_the_tables(lacking):
    text = FORMATS["text"](lacking)
    cells = re.split(r" {2,}", text.splitlines()[4].strip())
    assert cells == ["ERM", "56.0 +/- 0.0 [1]", "missing [2]", "76.0 +/- 0.0 [1]", "missing [3]"]
    _, _, listed = text.partition("\n-------- Missing\n")
    first, second, third, fourth = listed.splitlines()
    assert (first, second) == (f"[1] {PAIR}", f"[2] {SINGLE}")
    assert third == "[3] no value in column 1"
    assert fourth.startswith(f"[4] {AVERAGE}")


def test_markdown_has_the_reasons_below_each_table(lacking):
    text = FORMATS["markdown"](lacking)
    assert text.startswith("36 records.\n\n## Dataset: Debug28, model selection method: leave-one")
    assert "| ERM       | 56.0 ± 0.0 [1] | missing [2] | 76.0 ± 0.0 [1] | missing [3] |" in text
    first, second = text.split("## ")[1:]
    assert f"\n- [1] {PAIR}\n- [2] {SINGLE}\n- [3] no value in column 1\n" in first
    assert f"\n- [1] {AVERAGE}" in second


def test_latex_compiles_in_principle_and_has_the_reasons_below_each_table(lacking):
    text = FORMATS["latex"](lacking)
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 2
    assert text.replace(r"\{", "").count("{") == text.replace(r"\}", "").count("}")
    assert (
        r"ERM & 56.0 $\pm$ 0.0\textsuperscript{1} & missing\textsuperscript{2} & "
        r"76.0 $\pm$ 0.0\textsuperscript{1} & missing\textsuperscript{3} \\"
    ) in text
    below = r"{\footnotesize \textsuperscript{1} trial 1: no run with test domains \{0,2\}}"
    assert below in text
    header = next(line for line in text.splitlines() if line.startswith("Algorithm"))
    assert header == r"Algorithm & 0 & 1 & 2 & Avg \\"


def test_latex_escapes_names():
    assert _latex_escape(r"a_b 50% \x ~^ #&$") == (
        r"a\_b 50\% \textbackslash{}x \textasciitilde{}\textasciicircum{} \#\&\$"
    )
    # Without a T1 encoding these would print as ¡, ¿ and a dash.
    assert _latex_escape("<50|>80") == r"\textless{}50\textbar{}\textgreater{}80"
    assert _latex_escape("[9] *") == "{[}9] {*}"  # after the end of a line, a length and a star


EVIL = (
    "<script>alert(1)</script>|\\\\<b>\\\\|\n\x1b[2J & $x_1$ \\input{/etc/passwd} ![p](http://a/b)"
)


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_names_with_markup_show_as_they_are_in_every_format(tmp_path, name):
    collection = collect(write_sweep(tmp_path, algorithms=(EVIL,), dataset=EVIL), ["oracle"])
    text = FORMATS[name](collection, chosen=name != "domainbed")
    if name in {"csv", "json"}:
        read = csv.DictReader(io.StringIO(text)) if name == "csv" else json.loads(text)["tables"]
        assert next(iter(read))["dataset"] == EVIL
        return
    assert "\x1b" not in text
    if name == "markdown":
        text = re.sub(r"\\.", "", text)  # a backslash and what it escapes
        assert "<" not in text
        assert "](" not in text
        rows = [line for line in text.splitlines() if line.startswith("|")]
        assert {row.count("|") for row in rows[:3]} == {6}
    if name == "latex":
        assert r"\input{" not in text.replace(r"\textbackslash{}input\{", "")
        assert all(line.endswith(r"\\") for line in text.splitlines() if " & " in line)


def test_chosen_runs_are_added_on_request(complete, tmp_path):
    hparams = '{"batch_size": 8, "lr": 0.1}'
    rows = _chosen_rows(complete.tables[0])
    assert len(rows) == 6
    assert rows[1] == [
        "ERM", "0", "1", "0.570000", "0.570000", "1", "1", str(tmp_path / "ERM-1-1-0"), hparams
    ]  # fmt: skip
    assert _chosen_rows(complete.tables[1]) == []
    for name in ("text", "domainbed"):
        text = FORMATS[name](complete, chosen=True)
        assert text.startswith(FORMATS[name](complete))
        added = text[len(FORMATS[name](complete)) :].splitlines()
        assert (
            added[1] == f"-------- Chosen runs, Dataset: Debug28, model selection method: {ORACLE}"
        )
        assert [re.split(r" {2,}", line) for line in added[3:]] == rows
    markdown = FORMATS["markdown"](complete, chosen=True)
    assert [cell.strip() for cell in markdown.splitlines()[-9].split("|")[1:-1]] == rows[3]
    latex = FORMATS["latex"](complete, chosen=True)
    assert " & ".join(map(_latex_escape, rows[5])) + r" \\" in latex.splitlines()


# --- for programs ---------------------------------------------------------------------------------


def test_csv_has_a_line_per_cell(lacking):
    lines = list(csv.DictReader(io.StringIO(FORMATS["csv"](lacking))))
    assert [line["domain"] for line in lines] == ["0", "1", "2"]
    assert lines[1] == {
        "selection": "leave-one-out", "dataset": "Debug28", "algorithm": "ERM", "domain": "1",
        "mean": "", "standard_error": "", "trials": "0", "missing": SINGLE,
    }  # fmt: skip
    assert float(lines[0]["mean"]) == pytest.approx(56)
    assert (lines[0]["trials"], lines[0]["missing"]) == ("1", PAIR)


def test_csv_has_a_line_per_trial_with_the_chosen_runs(lacking, tmp_path):
    lines = list(csv.DictReader(io.StringIO(FORMATS["csv"](lacking, chosen=True))))
    assert [(line["domain"], line["trial_seed"]) for line in lines] == [
        ("0", "0"), ("1", ""), ("2", "0")
    ]  # fmt: skip
    first = lines[0]
    assert first["run"] == str(tmp_path / "ERM-0-1-0")
    assert json.loads(first["hparams"]) == {"batch_size": 8, "lr": 0.1}
    found = [first[name] for name in ("accuracy", "validation_accuracy", "step", "hparams_seed")]
    assert [float(value) for value in found] == pytest.approx([0.56, 0.71, 1, 1])


def test_json_holds_everything(lacking, tmp_path):
    found = json.loads(FORMATS["json"](lacking, chosen=True))
    assert (found["records"], found["notes"]) == (36, [])
    dataset, averages = found["tables"]
    assert (dataset["dataset"], dataset["columns"]) == ("Debug28", ["0", "1", "2"])
    assert (averages["dataset"], averages["columns"]) == (None, ["Debug28"])
    (row,) = dataset["rows"]
    assert (row["algorithm"], row["average"]) == ("ERM", None)
    first, second, _ = row["cells"]
    assert first["mean"] == pytest.approx(56)
    assert first["missing"] == [PAIR]
    assert first["trials"] == [
        {
            "trial_seed": 0,
            "accuracy": 0.56,
            "validation_accuracy": pytest.approx(0.71),
            "step": 1,
            "hparams_seed": 1,
            "run": str(tmp_path / "ERM-0-1-0"),
            "hparams": {"batch_size": 8, "lr": 0.1},
        }
    ]
    assert (second["mean"], second["trials"], second["missing"]) == (None, [], [SINGLE])
    brief = json.loads(FORMATS["json"](lacking))
    assert brief["tables"][0]["rows"][0]["cells"][0]["trials"] == [
        {"trial_seed": 0, "accuracy": 0.56}
    ]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_ends_its_last_line(complete, name):
    for chosen in (False, True):
        text = FORMATS[name](complete, chosen=chosen)
        assert text.endswith("\n")
        assert not text.endswith("\n\n")


def test_plain_text_cuts_long_names_as_domainbed_does(tmp_path):
    name = "AnAlgorithmWithALongName"
    text = FORMATS["text"](collect(write_sweep(tmp_path, algorithms=[name]), ["oracle"]))
    rows = [line for line in text.splitlines() if line.startswith("AnAlg")]
    assert [row.split()[0] for row in rows] == [name[:20], name]
    assert [len(row) for row in rows] == [5 * 20 + 4 * 2 + 1, 3 * 25 + 2 * 2 + 1]
