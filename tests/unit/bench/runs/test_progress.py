import io
import re

import pytest

from hessalign.bench.runs import ColoredMnistConfig, Record
from hessalign.bench.runs import progress as progress_module
from hessalign.bench.runs.progress import CountProgress, Progress, RunsProgress, StageProgress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def record(step, seconds=4.0):
    terms = {"loss": 1.0, "risk": 0.5, "hessian": 0.1, "penalty": 0.1}
    metrics = {"train_accuracy": 0.8, "test_accuracy": 0.2, "hessian_distance": 0.3}
    return Record(step, seconds, terms, metrics)


def test_a_terminal_gets_one_line_that_is_rewritten():
    stream = Terminal()
    progress = Progress("hgp", 3, stream)
    for step in range(3):
        progress(record(step, 4.0 * (step + 1)))
    text = stream.getvalue()
    assert text.count("\n") == 1
    assert text.endswith("\n")
    assert text.count("\r") == 3
    assert "step  3/3  train 80.0 %  OOD 20.0 %  risk 0.500  hessian 1.0e-01" in text
    first, second, third = text.split("\r")[1:]
    assert first.endswith("‖H₁−H₂‖ 3.00e-01")
    assert second.endswith("‖H₁−H₂‖ 3.00e-01  0.2 steps/s  4 s left")
    assert third.rstrip().endswith("‖H₁−H₂‖ 3.00e-01  0.2 steps/s")


def test_a_log_gets_plain_lines_now_and_then(monkeypatch):
    clock = iter([0.0, 1.0, 11.0, 11.0, 12.0, 12.0])
    monkeypatch.setattr("hessalign.bench.runs.progress.time.monotonic", lambda: next(clock))
    stream = io.StringIO()
    progress = Progress("hgp", 4, stream)
    for step in (0, 1, 2, 3):
        progress(record(step))
    lines = stream.getvalue().splitlines()
    assert "\r" not in stream.getvalue()
    assert [line.split()[2] for line in lines] == ["2/4", "4/4"]


ERM, FULL = ColoredMnistConfig("erm"), ColoredMnistConfig("full", seed=3, imbalance="paper")


def test_several_runs_share_one_line_on_a_terminal():
    stream = Terminal()
    progress = RunsProgress(2, 2, stream)
    progress(FULL, record(0))
    progress(ERM, record(0))
    assert "0/2 runs" in stream.getvalue()
    *_, last = stream.getvalue().split("\r")
    assert "paper full #3   1/2 OOD 20.0 %   erm #0   1/2 OOD 20.0 %" in last
    progress(FULL, record(1))
    assert "\n" not in stream.getvalue()
    progress(ERM, record(1))
    *_, last = stream.getvalue().split("\r")
    assert last.startswith("2/2 runs")
    assert last.endswith("\n")


def test_several_runs_in_a_log_have_lines_of_their_own():
    stream = io.StringIO()
    progress = RunsProgress(2, 2, stream)
    progress(FULL, record(0))
    progress(FULL, record(1))
    progress(ERM, record(1))
    lines = stream.getvalue().splitlines()
    assert [line.split("   ")[0] for line in lines] == ["1/2 runs", "2/2 runs"]
    assert "paper full #3 step" in lines[0]


def lefts(text):
    """The times left that were shown, in seconds."""
    units = {"s": 1, "min": 60, "h": 3600}
    return [
        float(number) * units[unit]
        for number, unit in re.findall(r"runs, ([\d.]+) (s|min|h) left", text)
    ]


def test_time_left_counts_the_steps_that_are_left():
    stream = Terminal()
    progress = RunsProgress(2, 100, stream)
    for step in range(50, 99):  # continued: fifty steps were taken before, in as many seconds
        progress(ERM, record(step, step + 1.0))
    # A step takes a second; a hundred and one are left.
    assert lefts(stream.getvalue())[-1] == pytest.approx(101, rel=0.05)


@pytest.mark.parametrize("startup", [0.5, 40.0])
@pytest.mark.parametrize("jobs", [1, 8])
def test_time_left_is_told_when_it_is_right_within_a_factor_of_two(startup, jobs):
    """The first step takes long, and runs that begin together report together."""
    stream = Terminal()
    progress = RunsProgress(2 * jobs, 200, stream, jobs)
    shown = []
    for step in range(0, 200, 10):
        for seed in range(jobs):
            seconds = startup + step * 0.5
            progress(ColoredMnistConfig("erm", seed=seed), record(step, seconds))
            *_, line = stream.getvalue().split("\r")
            shown += [(left, 200 * 0.5 + (200 - step) * 0.5) for left in lefts(line)]
    assert shown
    for told, true in shown:
        assert true / 2 <= told <= 2 * true


def test_the_first_evaluation_does_not_count_as_a_step():
    """It may take as long as a hundred steps."""
    stream = Terminal()
    progress = Progress("erm", 1000, stream)
    progress(record(0, 100.0))
    assert "left" not in stream.getvalue()
    for step in range(300, 1000, 300):
        progress(record(step, 100.0 + step))
    *_, last = stream.getvalue().split("\r")
    assert re.search(r"[01]\.\d steps/s  \d+ s left", last)


def test_counting_says_how_long_it_takes_once_it_knows(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now[0])
    stream = Terminal()
    progress = CountProgress("extracting", "images", stream)
    progress(64, 6400)  # continued
    now[0] = 20.0  # the processes start
    progress(128, 6400)
    assert "left" not in stream.getvalue()
    for done in range(192, 6400, 64):
        now[0] += 2.0
        progress(done, 6400)
        *_, line = stream.getvalue().split("\r")
        for found in re.findall(r"(\d+) s left", line):
            true = (6400 - done) / 32
            assert true / 2 <= float(found) <= 2 * true
    assert "31 images/s" in stream.getvalue()


@pytest.mark.parametrize("kind", [Terminal, io.StringIO])
def test_stages_on_a_terminal_and_in_a_file(kind):
    stream = kind()
    progress = StageProgress("diagnosing", stream)
    progress("a long first stage", 0, 2)
    progress("second", 1, 2)
    progress("done", 2, 2)
    written = stream.getvalue()
    if kind is Terminal:
        assert written.count("\n") == 1
        assert written.split("\r")[2].startswith("diagnosing 1/2  second  0 s ")
    else:
        assert written.splitlines()[1] == "diagnosing 1/2  second  0 s"
    assert written.endswith("\n")
