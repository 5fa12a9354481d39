import io

import pytest

from hessalign.report import progress as progress_module
from hessalign.report.progress import Progress, RunsProgress, StageProgress
from hessalign.training import ColoredMnistConfig, Record


class Terminal(io.StringIO):
    def isatty(self):
        return True


def record(step):
    terms = {"loss": 1.0, "risk": 0.5, "hessian": 0.1, "penalty": 0.1}
    metrics = {"train_accuracy": 0.8, "test_accuracy": 0.2, "hessian_distance": 0.3}
    return Record(step, 4.0, terms, metrics)


def test_a_terminal_gets_one_line_that_is_rewritten():
    stream = Terminal()
    progress = Progress("hgp", 3, stream)
    for step in range(3):
        progress(record(step))
    text = stream.getvalue()
    assert text.count("\n") == 1
    assert text.endswith("\n")
    assert text.count("\r") == 3
    assert "step  3/3  train 80.0 %  OOD 20.0 %  risk 0.500  hessian 1.0e-01" in text
    assert "‖H₁−H₂‖ 3.00e-01  0.8 steps/s  0 s left" in text


def test_a_log_gets_plain_lines_now_and_then(monkeypatch):
    clock = iter([0.0, 1.0, 11.0, 11.0, 12.0, 12.0])
    monkeypatch.setattr("hessalign.report.progress.time.monotonic", lambda: next(clock))
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
    assert last.startswith("2/2 runs, 0 s left")
    assert last.endswith("\n")


def test_several_runs_in_a_log_have_lines_of_their_own():
    stream = io.StringIO()
    progress = RunsProgress(2, 2, stream)
    progress(FULL, record(0))
    progress(FULL, record(1))
    progress(ERM, record(1))
    lines = stream.getvalue().splitlines()
    assert [line.split("   ")[0].split(",")[0] for line in lines] == ["1/2 runs", "2/2 runs"]
    assert "paper full #3 step" in lines[0]


def test_time_left_counts_the_steps_of_this_session(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    progress = RunsProgress(2, 100, stream)
    progress(ERM, record(50))  # continued: fifty steps were taken before
    now[0] = 60.0
    progress(ERM, record(99))
    # 100 counted for the finished run in 60 s, 100 to go.
    assert "1/2 runs, 60 s left" in stream.getvalue()


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
