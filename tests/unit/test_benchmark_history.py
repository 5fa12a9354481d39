"""The history of benchmarks: one line a run, and what became worse is told."""

import json

import pytest
from benchmarks import __main__ as command
from benchmarks import history
from benchmarks.history import append_entry, make_entry, read_history, regressions
from benchmarks.targets import Target

MACHINE = {"cpu": "A", "torch": "2", "date": "2026-01-01T00:00:00+00:00"}


@pytest.fixture(autouse=True)
def commit(monkeypatch):
    """Spare asking git every time; gives what does ask."""
    ask = history._commit
    monkeypatch.setattr(history, "_commit", lambda: "abc")
    return ask


def targets(speed, cost):
    return [Target("speed", speed, "at least", 10), Target("cost", cost, "at most", 2, " MB")]


def entry(speed=100.0, cost=1.0, quick=False, **machine):
    record = {"machine": {**MACHINE, **machine}, "quick": quick}
    return make_entry(record, targets(speed, cost))


def worse(speed, cost, earlier):
    return regressions(entry(speed, cost), earlier, targets(speed, cost))


def test_a_run_is_a_line_that_is_read_again(tmp_path, commit):
    file = tmp_path / "history.jsonl"
    assert read_history(file) == []
    for speed in (100.0, 90.0):
        append_entry(file, entry(speed))
    first, second = map(json.loads, file.read_text().splitlines())
    assert (first["date"], first["machine"]["cpu"]) == (MACHINE["date"], "A")
    assert second["measured"] == {"speed": 90.0, "cost": 1.0}
    assert second["commit"] == "abc"
    assert commit() is None or len(commit()) > 6
    assert read_history(file) == [first, second]


@pytest.mark.parametrize(
    ("speed", "cost", "told"),
    [
        (100, 1, []),
        (84, 1.19, []),
        (83, 1, ["speed"]),
        (100, 1.21, ["cost"]),
        (400, 0.1, []),  # better is not worse
        (10, 9, ["speed", "cost"]),
    ],
)
def test_what_is_worse_by_more_than_a_fifth_is_told(speed, cost, told):
    found = worse(speed, cost, [entry()])
    assert [sentence.partition(":")[0] for sentence in found] == told


def test_the_median_of_the_last_five_counts():
    early = [entry(1000.0)] * 3
    last = [entry(100.0), entry(100.0), entry(100.0), entry(900.0), entry(900.0)]
    assert worse(90, 1, early + last) == []
    (sentence,) = worse(80, 1, early + last)
    assert "1.25 times worse than the median of 5 runs before, 100×" in sentence


def test_other_machines_quick_runs_and_unknown_numbers_do_not_count():
    without = {**entry(), "measured": {}}
    assert worse(1, 99, [entry(quick=True), entry(cpu="B"), without]) == []


def test_the_command_appends_and_tells_without_failing(tmp_path, monkeypatch, capsys):
    speeds = iter([100.0, 50.0])
    monkeypatch.setattr(command, "run_table", lambda *_: ({}, targets(next(speeds), 1.0)))
    monkeypatch.setattr(command, "write_report", lambda *_: ("bench.json", "bench.md"))
    assert command.main(["--tables", "head", "--output", str(tmp_path)]) == 0
    assert "worse" not in capsys.readouterr().err
    assert command.main(["--tables", "head", "--output", str(tmp_path)]) == 0
    assert "worse: speed: 50×, 2.00 times worse" in capsys.readouterr().err
    assert len(read_history(tmp_path / "history.jsonl")) == 2
