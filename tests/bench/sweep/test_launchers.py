"""Launchers have every job done once, whatever happens to their workers."""

import dataclasses
import os
import signal
import stat
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import pytest
from tests import sweep_jobs
from tests.sweep_jobs import (
    interrupt_when_begun,
    kill_workers,
    killing,
    logged,
    make_jobs,
    make_tasks,
    results,
    write_bank,
)

from hessalign.bench.sweep import (
    Launcher,
    LocalLauncher,
    Outcome,
    RayLauncher,
    Retries,
    SerialLauncher,
    Task,
    run_jobs,
    sweep_status,
)
from hessalign.bench.sweep.execution import execute
from hessalign.bench.sweep.launcher import Waiting

JOBS, KILLS = 60, 10


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_bank(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def jobs(data):
    return make_jobs(data, JOBS)


@pytest.fixture(scope="module")
def expected(jobs, tmp_path_factory):
    """What the serial launcher finds."""
    sweep = tmp_path_factory.mktemp("serial")
    outcomes = list(SerialLauncher().run(make_tasks(sweep, jobs), sweep_jobs.train))
    assert [outcome.state for outcome in outcomes] == ["done"] * JOBS
    assert all(outcome.seconds > 0 for outcome in outcomes)
    return results(sweep, jobs)


def counts(sweep, word):
    return Counter(job for kind, job, *_ in logged(sweep) if kind == word)


def states(outcomes):
    return Counter(outcome.state for outcome in outcomes)


def no_claims(sweep):
    return not list(sweep.glob("*/claim.*"))


@pytest.mark.parametrize("name", ["local", "ray"])
def test_killed_workers_cost_nothing_but_time(name, jobs, expected, tmp_path):
    launcher: Launcher = LocalLauncher(2) if name == "local" else RayLauncher(jobs=2)
    work, kills = killing(jobs, KILLS)
    assert kills >= KILLS
    outcomes = list(launcher.run(make_tasks(tmp_path, jobs), work))
    assert states(outcomes) == {"done": JOBS}
    assert sorted(each.task.job.folder for each in outcomes) == sorted(j.folder for j in jobs)
    assert sum(counts(tmp_path, "killed").values()) == kills
    assert counts(tmp_path, "done") == {job.folder: 1 for job in jobs}
    assert results(tmp_path, jobs) == expected
    # Those that were killed went on from their checkpoint: step 0 came once, and the last one too.
    steps = Counter((job, int(step)) for kind, job, *step in logged(tmp_path) if kind == "step"
                    for step in step)  # fmt: skip
    assert {steps[job.folder, step] for job in jobs for step in (0, 10)} == {1}
    assert no_claims(tmp_path)


@pytest.mark.parametrize("name", ["local", "ray"])
def test_workers_may_be_killed_at_any_moment(name, jobs, expected, tmp_path):
    retries = Retries(JOBS, 0.01)
    launcher: Launcher = (
        LocalLauncher(2, retries) if name == "local" else RayLauncher(jobs=2, retries=retries)
    )
    ended = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        killed = pool.submit(kill_workers, tmp_path, KILLS, ended)
        try:
            outcomes = list(launcher.run(make_tasks(tmp_path, jobs), sweep_jobs.train_in_sight))
        finally:  # else a failure waits for the thread, for ever
            ended.set()
    assert len(killed.result()) == KILLS
    assert states(outcomes) == {"done": JOBS}
    assert results(tmp_path, jobs) == expected
    assert no_claims(tmp_path)


def test_two_launchers_share_the_jobs_of_one_folder(jobs, expected, tmp_path):
    few = jobs[:24]
    outcomes: dict[str, list[Outcome]] = {"one": [], "two": []}

    def launch(name):
        tasks = make_tasks(tmp_path, few, name)
        work = partial(sweep_jobs.train_together, launcher=name, launchers=tuple(outcomes))
        outcomes[name] = list(LocalLauncher(2).run(tasks, work))

    threads = [threading.Thread(target=launch, args=(name,)) for name in outcomes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts(tmp_path, "done") == {job.folder: 1 for job in few}
    assert results(tmp_path, few) == {job.folder: expected[job.folder] for job in few}
    both = [state for found in outcomes.values() for state in states(found)]
    assert "failed" not in both
    executed = {name: sum(each.seconds > 0 and each.state == "done" for each in found)
                for name, found in outcomes.items()}  # fmt: skip
    assert sum(executed.values()) == len(few)
    assert min(executed.values()) > 0


def statuses(sweep, jobs):
    return sweep_status(sweep, jobs)


@pytest.mark.parametrize("launcher", [SerialLauncher(), LocalLauncher(2)])
def test_a_failing_job_keeps_its_traceback_and_does_not_stop_the_others(launcher, data, tmp_path):
    jobs = [*make_jobs(data, 3, algorithms=["VREx"]), *make_jobs(data, 3, algorithms=["ERM"])]
    make_tasks(tmp_path, jobs)
    work = sweep_jobs.fail_for
    outcomes = run_jobs(tmp_path, statuses(tmp_path, jobs), launcher, work)
    assert states(outcomes) == {"failed": 3, "done": 3}
    for job in jobs[:3]:
        text = (tmp_path / job.folder / "err.txt").read_text()
        assert "Traceback (most recent call last):" in text
        assert text.endswith("ZeroDivisionError: deliberately\n")
    assert {each.error for each in outcomes if each.error} == {"ZeroDivisionError: deliberately"}
    after = statuses(tmp_path, jobs)
    assert [each.state for each in after] == ["failed"] * 3 + ["done"] * 3
    assert after[0].error == "ZeroDivisionError: deliberately"
    # Another launcher leaves them alone, unless it is told to try them again.
    assert run_jobs(tmp_path, after, launcher, work) == []
    again = run_jobs(tmp_path, after, launcher, work, retry_failed=True)
    assert states(again) == {"failed": 3}
    assert counts(tmp_path, "failing") == {job.folder: 2 for job in jobs[:3]}
    mended = run_jobs(
        tmp_path, statuses(tmp_path, jobs), launcher, sweep_jobs.train, retry_failed=True
    )
    assert states(mended) == {"done": 3}
    assert not list(tmp_path.glob("*/err.txt"))


def test_a_job_that_failed_in_other_hands_is_not_tried_again(data, tmp_path):
    (job,) = make_jobs(data, 1)
    (task,) = make_tasks(tmp_path, [job])
    work = partial(sweep_jobs.fail_for, algorithm="ERM")
    assert execute(task, work).state == "failed"
    second = execute(dataclasses.replace(task, launcher="two"), work)
    assert (second.state, second.error) == ("failed", "ZeroDivisionError: deliberately")
    assert len(logged(tmp_path)) == 1


def test_a_diverged_run_is_a_failure_like_others(data, tmp_path):
    (job,) = make_jobs(data, 1)
    job = dataclasses.replace(job, hparams='{"lr": 1e20, "hidden": 8}')
    (outcome,) = SerialLauncher().run(make_tasks(tmp_path, [job]), sweep_jobs.train)
    assert outcome.state == "failed"
    assert "DivergedError" in outcome.error
    assert "DivergedError" in (tmp_path / job.folder / "err.txt").read_text()


def test_a_job_must_say_itself_that_it_is_done(data, tmp_path):
    (outcome,) = SerialLauncher().run(make_tasks(tmp_path, make_jobs(data, 1)), sweep_jobs.forget)
    assert outcome.state == "failed"
    assert "after the job, found none" in outcome.error


def test_a_job_whose_workers_always_die_is_given_up(data, tmp_path):
    jobs = make_jobs(data, 2)
    launcher = LocalLauncher(2, Retries(attempts=2, delay=0.01))
    outcomes = list(launcher.run(make_tasks(tmp_path, jobs), sweep_jobs.die))
    assert states(outcomes) == {"failed": 2}
    text = (tmp_path / jobs[0].folder / "err.txt").read_text()
    assert text.startswith("Its worker was lost 2 times, most recently: it was killed by SIGKILL, ")
    assert "fewer at once" in text


def test_delays_double_and_ready_tasks_do_not_wait_for_them(data, tmp_path, monkeypatch):
    now = [100.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("hessalign.bench.sweep.launcher.time", clock)
    first, second = make_tasks(tmp_path, make_jobs(data, 2))
    waiting = Waiting([first, second], Retries(attempts=3, delay=5.0))
    taken = waiting.next()
    assert waiting.ended(taken, now[0], "why") is None
    assert waiting.next() == second
    assert waiting.next() is None
    assert waiting
    now[0] += 4.9
    assert waiting.next() is None
    now[0] += 0.2
    again = waiting.next()
    assert again == dataclasses.replace(first, attempt=1)
    assert not waiting
    assert Retries(delay=1.0, longest=3.0).seconds(3) == 3.0
    failure = waiting.ended(dataclasses.replace(first, attempt=2), now[0] - 7, "why")
    assert failure.state == "failed"
    assert failure.seconds == 7.0


def test_a_folder_that_a_machine_does_not_see_stops_the_sweep(data, tmp_path):
    tasks = [Task(job, tmp_path / "nowhere") for job in make_jobs(data, 2)]
    for launcher in (SerialLauncher(), LocalLauncher(1)):
        with pytest.raises(FileNotFoundError, match=r"Expected the folder of the sweep, .*nowhere"):
            list(launcher.run(tasks, sweep_jobs.train))
    assert not (tmp_path / "nowhere").exists()


def test_a_job_that_another_process_trains_without_a_claim_is_left_to_it(data, tmp_path):
    import fcntl

    (task,) = make_tasks(tmp_path, make_jobs(data, 1))
    task.folder.mkdir()
    with (task.folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert execute(task, sweep_jobs.train).state == "elsewhere"
    assert execute(task, sweep_jobs.train).state == "done"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_job_folder_that_cannot_be_written_fails_with_the_reason(data, tmp_path):
    (task,) = make_tasks(tmp_path, make_jobs(data, 1))
    task.folder.mkdir(mode=stat.S_IRUSR | stat.S_IXUSR)
    outcome = execute(task, sweep_jobs.train)
    assert outcome.state == "failed"
    assert "Permission denied" in outcome.error


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("name", ["serial", "local"])
def test_an_interrupt_lets_workers_save_and_gives_their_jobs_up(name, data, tmp_path, expected):
    launcher = SerialLauncher() if name == "serial" else LocalLauncher(2)
    jobs = make_jobs(data, 6)
    timer = threading.Thread(target=interrupt_when_begun, args=(tmp_path,))
    timer.start()
    # So slowly that none can end before it is interrupted, on however busy a machine.
    work = partial(sweep_jobs.train_slowly, seconds=1.0)
    with pytest.raises(KeyboardInterrupt):
        list(launcher.run(make_tasks(tmp_path, jobs), work))
    timer.join()
    begun, done = counts(tmp_path, "begun"), counts(tmp_path, "done")
    assert 0 < len(begun) <= launcher.parallel
    assert not done
    for folder in begun:
        assert list((tmp_path / folder).glob("checkpoint-*.pt"))
    assert {status.state for status in statuses(tmp_path, jobs)} == {"left"}
    outcomes = list(launcher.run(make_tasks(tmp_path, jobs, "two"), sweep_jobs.train))
    assert states(outcomes) == {"done": 6}
    assert results(tmp_path, jobs) == {job.folder: expected[job.folder] for job in jobs}
    resumed = [(job, step) for kind, job, *step in logged(tmp_path) if kind == "step"]
    assert all(resumed.count((folder, ["0"])) == 1 for folder in begun)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_before_the_first_step_is_not_lost(data, tmp_path):
    """While a job reads its data nothing listens but the launcher."""
    (first, second) = make_jobs(data, 2, steps=10**6)
    with pytest.raises(KeyboardInterrupt):
        list(SerialLauncher().run(make_tasks(tmp_path, [first, second]), train_interrupted_early))
    assert list((tmp_path / first.folder).glob("checkpoint-00000001.pt"))
    assert not (tmp_path / second.folder).exists()


def train_interrupted_early(job, folder):
    os.kill(os.getpid(), signal.SIGINT)
    sweep_jobs.train(job, folder)


def test_the_number_of_processes_is_checked():
    with pytest.raises(ValueError, match="Expected jobs of 1 or more, got 0"):
        LocalLauncher(0)
