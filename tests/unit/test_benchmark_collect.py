"""The benchmark of `hessalign collect` writes a sweep that is complete, and measures it."""

import json

import pytest
from benchmarks import collect as benchmark

from hessalign.selection import collect


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


def test_both_measurements_are_printed(capsys):
    assert benchmark.main(["--runs", "3"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == "3 runs, 0 MB of records"
    seconds, megabytes = (float(part.split()[0]) for part in second.split(", "))
    assert 0 < seconds < 120
    assert 20 < megabytes < 2000


def test_a_failure_is_not_measured(tmp_path):
    with pytest.raises(RuntimeError, match=r"Collecting .* failed: hessalign: error: Expected fo"):
        benchmark.measure(tmp_path)
