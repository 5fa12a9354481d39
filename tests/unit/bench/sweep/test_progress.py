"""The display of a sweep: counts, what goes on, and a time left that can be trusted."""

import io
import re

import pytest
from tests.sweep_jobs import make_jobs

from hessalign.bench.sweep import Job, JobStatus, LocalLauncher, Outcome, Task
from hessalign.bench.sweep import progress as progress_module
from hessalign.bench.sweep.progress import SweepProgress, _Running


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def always_due(monkeypatch):
    monkeypatch.setattr(progress_module.Progress, "due", True)


def make(tmp_path, count, stream, parallel=2):
    jobs = make_jobs(tmp_path, count, steps=100)
    statuses = [JobStatus(job, "left") for job in jobs]
    launcher = LocalLauncher(parallel)
    return jobs, SweepProgress(statuses, launcher, stream, lambda job: f"#{jobs.index(job)}")


def record(step, seconds, **fields):
    return {"step": step, "seconds": seconds, "args": {"steps": 100}, **fields}


def last_line(stream):
    return re.split(r"[\r\n]", stream.getvalue().rstrip())[-1]


def left(stream):
    found = re.search(r"([\d.]+) (s|min|h) left", last_line(stream))
    units = {"s": 1, "min": 60, "h": 3600}
    return None if found is None else float(found[1]) * units[found[2]]


def test_runs_that_go_on_are_shown_with_step_and_accuracy(tmp_path):
    stream = Terminal()
    jobs, progress = make(tmp_path, 4, stream)
    progress.record(jobs[0], record(9, 5.0, env0_in_acc=0.25, env1_in_acc=0.9))
    progress.record(jobs[1], record(4, 5.0, env0_in_acc=0.5))
    both = "10/100 OOD 25.0 % #0   5/100 OOD 50.0 % #1"
    assert last_line(stream) == f"0/4 runs  2 running  2 waiting   {both}"
    progress(Outcome(Task(jobs[0], tmp_path), "done", 50.0))
    assert last_line(stream).rstrip() == "1/4 runs  2 running  1 waiting   5/100 OOD 50.0 % #1"
    progress.close()
    assert stream.getvalue().endswith("\n")


def test_what_others_do_runs_until_it_is_done(tmp_path):
    """Two sweeps share a folder: what one had claimed the other counts as it ends."""
    stream = Terminal()
    jobs, progress = make(tmp_path, 6, stream)
    for job in jobs[:2]:
        progress(Outcome(Task(job, tmp_path), "elsewhere"))
    assert last_line(stream) == "0/6 runs  4 running  2 waiting"
    for job, name in ((jobs[0], "done"), (jobs[1], "err.txt")):
        (tmp_path / job.folder).mkdir()
        (tmp_path / job.folder / name).write_text("broken")
    progress(Outcome(Task(jobs[2], tmp_path), "done", 50.0))
    assert last_line(stream) == "2/6 runs  1 failed  2 running  1 waiting"


def test_a_log_has_the_newest(tmp_path):
    stream = io.StringIO()
    jobs, progress = make(tmp_path, 4, stream)
    for job in jobs[:2]:
        progress.record(job, record(9, 5.0))
    assert last_line(stream) == "0/4 runs  2 running  2 waiting   10/100 #1"


def test_time_left_follows_from_the_steps_before_any_run_is_done(tmp_path):
    """Two at a time, a second for a step: 4 runs of 100 steps take 200 s."""
    stream = Terminal()
    jobs, progress = make(tmp_path, 4, stream)
    for step in range(0, 50, 10):
        progress.record(jobs[0], record(step, 5.0 + step))
        assert left(stream) is None  # of one of two nothing is known
    for step in range(0, 50, 10):
        progress.record(jobs[1], record(step, 5.0 + step))
    told = left(stream)
    assert told is not None
    assert 0.75 < told / (200 - 41) < 1.25
    for job in jobs[:2]:
        progress(Outcome(Task(job, tmp_path), "done", 104.0))
    assert 0.75 < left(stream) / 100 < 1.25
    progress(Outcome(Task(jobs[2], tmp_path), "done", 104.0))
    assert 0.75 < left(stream) / 100 < 1.25  # the last one alone takes no less


def test_a_run_that_does_not_say_how_long_it_is_takes_the_steps_of_its_data_set():
    for dataset, text in (("ColoredMNIST-IRM", "251/501"), ("PACS", "251/5001")):
        job = Job(dataset, "ERM", (2,), 0, 0, "data")
        running = _Running(job)
        running.update({"step": 250, "seconds": 2.0, "args": {"steps": None}})
        assert running.text.startswith(text)
