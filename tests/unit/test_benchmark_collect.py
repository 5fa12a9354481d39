"""The benchmark of `hessalign collect` writes a sweep that is complete, and measures it."""

import json

import pytest
from benchmarks import collect as benchmark

from hessalign.bench.sweep.selection import collect

pytestmark = pytest.mark.slow


def test_the_sweep_is_one_that_domainbed_could_have_written(tmp_path):
    assert benchmark.write_sweep(tmp_path, 200) == sum(
        path.stat().st_size for path in tmp_path.glob("*/results.jsonl")
    )
    found = collect(tmp_path)
    assert found.records == 200 * 18
    assert found.notes == ()
    assert all(not cell.reasons for table in found.tables for cell in table.rows[0].cells)
    line = next(tmp_path.glob("*/results.jsonl")).read_text().splitlines()[0]
    assert 900 < len(line) < 1500
    assert json.loads(line)["args"]["dataset"] == "PACS"


def test_both_measurements_are_reported(capsys, tmp_path):
    assert benchmark.main(["--runs", "3", "--output", str(tmp_path)]) == 0
    text = (tmp_path / "collect.md").read_text()
    assert capsys.readouterr().out == text
    record = json.loads((tmp_path / "collect.json").read_text())
    assert 0 < record["seconds"] < 120
    assert 20 < record["megabytes"] < 2000
    assert f"3 runs with 18 records each, 0 MB: {record['seconds']:.1f} s (at most 20)" in text
