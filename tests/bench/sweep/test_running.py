"""Jobs in a folder, a sweep's or not, report what they write while they run."""

import json
import threading
from functools import partial

import pytest
from tests import sweep_jobs
from tests.sweep_jobs import interrupt_when_begun, make_jobs, results, write_bank

from hessalign.bench.sweep import (
    LocalLauncher,
    RayLauncher,
    SerialLauncher,
    Task,
    execution,
    run_jobs,
    sweep_status,
)

LAUNCHERS = {
    "serial": SerialLauncher,
    "local": lambda: LocalLauncher(2),
    "ray": lambda: RayLauncher(jobs=2),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_bank(tmp_path_factory.mktemp("data"))


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(execution, "_SECONDS_BETWEEN_LOOKS", 0.02)


class Seen:
    """What was reported, in its order, and how much of it before the job was done."""

    def __init__(self, folder):
        self.folder, self.events, self.early = folder, [], 0

    def outcome(self, outcome):
        self.events.append((outcome.task.job.folder, outcome.state))

    def record(self, job, record):
        self.early += not (self.folder / job.folder / "done").exists()
        self.events.append((job.folder, record["step"]))


@pytest.mark.parametrize("name", ["serial", "local", pytest.param("ray", marks=pytest.mark.slow)])
def test_plain_jobs_report_their_records_while_they_run(name, data, tmp_path):
    folder, jobs = tmp_path / "runs", make_jobs(data, 4)
    seen = Seen(folder)
    outcomes = run_jobs(
        folder, jobs, LAUNCHERS[name](), sweep_jobs.train_slowly,
        report=seen.outcome, report_record=seen.record,
    )  # fmt: skip
    assert [outcome.state for outcome in outcomes] == ["done"] * 4
    for job, records in zip(jobs, results(folder, jobs).values(), strict=True):
        steps = [record["step"] for record in records]
        assert len(steps) > 1
        assert [what for where, what in seen.events if where == job.folder] == [*steps, "done"]
    assert seen.early >= 4  # that of step 0, if no other
    lines = (folder / "jobs.txt").read_text().splitlines()
    assert lines == [f"{job.folder}  {job.describe()}" for job in jobs]
    more = make_jobs(data, 5)
    assert len(run_jobs(folder, more, SerialLauncher(), sweep_jobs.train)) == 1
    assert len((folder / "jobs.txt").read_text().splitlines()) == 5
    assert {status.state for status in sweep_status(folder, more)} == {"done"}


def test_the_folder_of_a_sweep_has_its_specification_alone(data, tmp_path):
    (tmp_path / "sweep.yaml").touch()
    run_jobs(tmp_path, make_jobs(data, 1), SerialLauncher(), sweep_jobs.train)
    assert not (tmp_path / "jobs.txt").exists()


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("name", ["serial", "local"])
def test_an_interrupt_passes_and_old_records_are_not_reported_again(name, data, tmp_path):
    jobs = make_jobs(data, 2)
    first, second = Seen(tmp_path), Seen(tmp_path)
    timer = threading.Thread(target=interrupt_when_begun, args=(tmp_path,))
    timer.start()
    work = partial(sweep_jobs.train_slowly, seconds=0.5)
    with pytest.raises(KeyboardInterrupt):
        run_jobs(tmp_path, jobs, LAUNCHERS[name](), work, report_record=first.record)
    timer.join()
    assert {thread.name for thread in threading.enumerate()}.isdisjoint({"records", "claim"})
    there = {
        job.folder: len((tmp_path / job.folder / "results.jsonl").read_text().splitlines())
        for job in jobs
        if (tmp_path / job.folder / "results.jsonl").exists()
    }
    assert there
    run_jobs(tmp_path, jobs, LAUNCHERS[name](), sweep_jobs.train, report_record=second.record)
    for folder, count in there.items():
        records = results(tmp_path, [job for job in jobs if job.folder == folder])[folder]
        new = [record["step"] for record in records[count:]]
        assert [what for where, what in second.events if where == folder] == new


@pytest.mark.parametrize("name", ["serial", "local"])
def test_an_error_of_the_display_is_not_lost(name, data, tmp_path):
    def fail(job, record):
        raise ZeroDivisionError("deliberately")

    with pytest.raises(ZeroDivisionError, match="deliberately"):
        run_jobs(
            tmp_path, make_jobs(data, 3), LAUNCHERS[name](), sweep_jobs.train_slowly,
            report_record=fail,
        )  # fmt: skip


def test_records_that_a_continued_run_writes_again_are_reported_once(data, tmp_path):
    (job,) = make_jobs(data, 1)
    task = Task(job, tmp_path)
    task.folder.mkdir()
    path = task.folder / "results.jsonl"

    def write(*steps, pad="", end=""):
        path.write_text("".join(json.dumps({"step": step}) + f"{pad}\n" for step in steps) + end)

    added = execution._added_records(path)

    def new():
        return [record["step"] for record in next(added)]

    assert new() == []
    write(0, 5, pad="          ", end='{"st')
    assert new() == [0, 5]
    write(0)  # from its checkpoint
    assert new() == []
    write(0, 5, 10, end="\n[]\nnot a record\n")
    assert new() == [10]
    assert new() == []
    seen = []
    watch = execution._Watch(lambda job, record: seen.append(record))
    watch.begin(task)  # what is there is old
    with watch.ended(task):
        assert seen == []
