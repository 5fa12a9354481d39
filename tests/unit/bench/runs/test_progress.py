"""What is said about runs while they go on."""

import io
import re

import pytest

from hessalign.bench.runs import ColoredMnistConfig, Record
from hessalign.bench.runs.progress import RunsProgress, run_progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def record(step, seconds=4.0):
    terms = {"loss": 1.0, "risk": 0.5, "hessian": 0.1, "penalty": 0.1}
    metrics = {"train_accuracy": 0.8, "test_accuracy": 0.2, "hessian_distance": 0.3}
    return Record(step, seconds, terms, metrics)


def test_a_run_shows_its_steps_and_what_was_measured():
    stream = Terminal()
    show = run_progress("hgp", 3, stream)
    for step in range(3):
        show(record(step, 4.0 * (step + 1)))
    first, second, third = stream.getvalue().split("\r")[1:]
    measured = "train 80.0 %  OOD 20.0 %  risk 0.500  hessian 1.0e-01  ‖H₁−H₂‖ 3.00e-01"
    assert first == f"hgp          1/3 steps  {measured}"
    assert second == f"hgp          2/3 steps  15 steps/min  4 s left  {measured}"
    assert third.rstrip() == f"hgp          3/3 steps  15 steps/min  {measured}"
    assert third.endswith("\n")


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
    assert [line.split("  ")[0] for line in lines] == ["1/2 runs", "2/2 runs"]
    assert "paper full #3 2/2  train 80.0 %  OOD 20.0 %  risk 0.500" in lines[0]


def lefts(text):
    """The times left that were shown, in seconds."""
    units = {"s": 1, "min": 60, "h": 3600}
    return [
        float(number) * units[unit]
        for number, unit in re.findall(r"runs  ([\d.]+) (s|min|h) left", text)
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
