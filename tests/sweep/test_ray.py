"""The Ray launcher with clusters that exist, that do not answer, and that are too small."""

import re
import subprocess
import sys
import threading
import time

import pytest
from tests import sweep_jobs
from tests.sweep_jobs import (
    interrupt_when_begun,
    logged,
    make_jobs,
    make_tasks,
    results,
    write_bank,
)

from hessalign.sweep import RayLauncher, SerialLauncher, sweep_status

CLUSTER = """
import sys, ray
found = ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False,
                 logging_level="ERROR", object_store_memory=100 << 20)
print(found.address_info["gcs_address"], flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def address():
    """The address of a cluster that somebody else has started."""
    process = subprocess.Popen(
        [sys.executable, "-c", CLUSTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process.stdout.readline().strip()
    finally:
        process.communicate("")


def test_a_sweep_on_an_existing_cluster_saves_on_interrupt_and_goes_on(address, tmp_path):
    jobs = make_jobs(write_bank(tmp_path / "data"), 4)
    sweep = tmp_path / "sweep"
    launcher = RayLauncher(address, jobs=2)
    with pytest.raises(ValueError, match=r"with 1000 CPUs and 0 GPUs .* 2 CPUs and 0 GPUs\. Ask f"):
        list(RayLauncher(address, cpus_per_run=1000).run(make_tasks(sweep, jobs), sweep_jobs.train))

    timer = threading.Thread(target=interrupt_when_begun, args=(sweep,))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        list(launcher.run(make_tasks(sweep, jobs), sweep_jobs.train_slowly))
    timer.join()
    begun = {job for kind, job, *_ in logged(sweep) if kind == "begun"}
    assert 0 < len(begun) <= 2
    assert all(list((sweep / folder).glob("checkpoint-*.pt")) for folder in begun)
    assert {status.state for status in sweep_status(sweep, jobs)} == {"left"}

    outcomes = list(launcher.run(make_tasks(sweep, jobs, "two"), sweep_jobs.train))
    assert [outcome.state for outcome in outcomes] == ["done"] * 4
    list(SerialLauncher().run(make_tasks(tmp_path / "serial", jobs), sweep_jobs.train))
    assert results(sweep, jobs) == results(tmp_path / "serial", jobs)
    first_steps = [job for kind, job, *step in logged(sweep) if (kind, step) == ("step", ["0"])]
    assert sorted(first_steps) == sorted(job.folder for job in jobs)


@pytest.mark.parametrize("listens", [False, True], ids=["nobody", "somebody else"])
def test_an_address_that_does_not_answer_is_refused_in_time(listens, tmp_path):
    import socket

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        if listens:
            other.listen()
        port = other.getsockname()[1]
        launcher = RayLauncher(f"127.0.0.1:{port}", connect_seconds=4)
        start = time.monotonic()
        text = rf"Expected a Ray cluster at 127\.0\.0\.1:{port}, got no answer within 4 s"
        with pytest.raises(ConnectionError, match=text):
            list(launcher.run(make_tasks(tmp_path, []), sweep_jobs.train))
        assert time.monotonic() - start < 30


def test_the_reason_for_which_a_cluster_cannot_be_joined_is_passed_on(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    launcher = RayLauncher("ray://", connect_seconds=60)
    with pytest.raises(ConnectionError, match=r"Expected a Ray cluster at ray://: \w+Error"):
        list(launcher.run(make_tasks(tmp_path, []), sweep_jobs.train))


def test_a_missing_ray_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=re.escape("pip install 'hessalign[ray]'")):
        list(RayLauncher().run(make_tasks(tmp_path, []), sweep_jobs.train))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"jobs": 0}, "Expected 1 or more jobs, got 0"),
        ({"cpus_per_run": 0}, "Expected more than 0 CPUs and 0 or more GPUs per run, got 0 and 0"),
        ({"gpus_per_run": -1}, "per run, got 1 and -1"),
    ],
)
def test_what_a_run_gets_is_checked(options, text):
    with pytest.raises(ValueError, match=text):
        RayLauncher(**options)
