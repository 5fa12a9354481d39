"""The Ray launcher with clusters that exist, that do not answer, and that are too small."""

import re
import secrets
import signal
import subprocess
import sys
import time

import pytest
from tests import sweep_jobs
from tests.conftest import python_environment
from tests.sweep_jobs import MAIN, make_tasks, wait_until, write_bank

from hessalign.sweep import RayLauncher, ray_cluster
from hessalign.sweep.claims import is_claimed

CLUSTER = """
import sys, ray
found = ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False,
                 logging_level="ERROR", object_store_memory=100 << 20)
print(found.address_info["gcs_address"], flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def cluster():
    """A cluster that somebody else has started, as its address and the environment to join it."""
    environment = python_environment() | {
        "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-c", CLUSTER],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process.stdout.readline().strip(), environment
    finally:
        process.communicate("")


def test_a_sweep_on_an_existing_cluster_saves_on_interrupt_and_goes_on(cluster, tmp_path):
    address, environment = cluster
    write_bank(tmp_path / "data")

    def run(*flags, **options):
        words = [
            "--datasets",
            "bank",
            "--algorithms",
            "erm",
            "--trials",
            "1",
            "--draws",
            "2",
            "--steps",
            "3001",
            "--output",
            "sweep",
            "--launcher",
            "ray",
            "--address",
            address,
        ]
        return subprocess.Popen(
            [sys.executable, "-c", MAIN, "sweep", "run", *words, *flags], cwd=tmp_path,
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options,
        )  # fmt: skip

    _, error = run("--cpus-per-run", "1000").communicate()
    assert re.search(r"with 1000 CPUs and 0 GPUs .* 2 CPUs and 0 GPUs\. Ask for fewer", error)

    process = run()
    sweep = tmp_path / "sweep"
    wait_until(lambda: any("\n" in path.read_text() for path in sweep.glob("*/results.jsonl")))
    process.send_signal(signal.SIGINT)
    _, error = process.communicate()
    assert process.returncode == 130, error
    assert "What was going on is saved in sweep. Run the same command to continue." in error
    assert "Traceback" not in error
    assert list(sweep.glob("*/checkpoint-*.pt"))
    finished = {path.parent.name for path in sweep.glob("*/done")}
    assert len(finished) < 6
    assert not any(map(is_claimed, sweep.glob("*/")))

    process = run()
    printed, error = process.communicate()
    assert process.returncode == 0, error
    assert "6 runs in sweep: 6 done." in printed
    assert len(list(sweep.glob("*/done"))) == 6


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


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("raise RuntimeError('another version')", "RuntimeError: another version"),
        ("print('x.AuthenticationError: no'); raise OSError", "x.AuthenticationError: no"),
    ],
)
def test_the_reason_for_which_a_cluster_cannot_be_joined_is_passed_on(
    script, reason, tmp_path, monkeypatch
):
    monkeypatch.setattr(ray_cluster, "_PROBE", f"import sys; sys.stdout = sys.stderr; {script}")
    with pytest.raises(ConnectionError, match=rf"at head:1, could not join it: {reason}$"):
        list(RayLauncher("head:1").run(make_tasks(tmp_path, []), sweep_jobs.train))


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
