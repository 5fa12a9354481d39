"""The benchmark of the choice of an evaluation measures the grid and reports the worst points."""

import json

import pytest
from benchmarks import evaluation as benchmark
from benchmarks.cases import Case

pytestmark = pytest.mark.slow


def test_the_grid_is_measured_and_reported(capsys, tmp_path, unchecked):
    assert benchmark.main(["--quick", "--output", str(tmp_path)]) == 0
    text = (tmp_path / "evaluation.md").read_text()
    assert capsys.readouterr().out == text
    record = json.loads((tmp_path / "evaluation.json").read_text())
    assert len(record["rows"]) == 4 * len(benchmark.KINDS)
    for row in record["rows"]:
        assert set(row["milliseconds"]) == {"primal", "dual", "auto"}
        fastest = min(row["milliseconds"][each] for each in ("primal", "dual"))
        assert row["ratio"] == row["milliseconds"]["auto"] / fastest
    assert text.count("\n| full | ") >= 1
    assert not (tmp_path / "evaluation.jsonl").exists()


def test_after_a_kill_it_goes_on(tmp_path, unchecked):
    shape = dict(zip(benchmark.QUICK, (8, 16, 2, 2), strict=True))
    known = {**shape, "kind": "full", "milliseconds": {"dual": 1.0, "auto": 7.0}, "ratio": 7.0}
    (tmp_path / "evaluation.jsonl").write_text(json.dumps(known) + "\n")
    assert benchmark.main(["--quick", "--output", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "evaluation.json").read_text())["rows"]
    assert rows[0] == known
    assert len(rows) == 4 * len(benchmark.KINDS)


def test_the_grid_of_the_benchmark_spans_the_shapes_in_use():
    assert {name: (min(v), max(v)) for name, v in benchmark.GRID.items()} == {
        "samples": (8, 512),
        "features": (16, 2048),
        "classes": (2, 345),
        "domains": (2, 6),
    }


def test_an_evaluation_without_hope_is_not_measured():
    assert benchmark.worthwhile(Case(2048, 345, 3, 8), "full") == ["dual", "auto"]
    assert benchmark.worthwhile(Case(16, 2, 2, 512), "full") == ["primal", "auto"]
    assert benchmark.worthwhile(Case(16, 2, 2, 8), "full") == ["primal", "dual", "auto"]
