"""The Ray launcher with clusters that exist, that do not answer, and that are too small."""

import json
import re
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests import sweep_jobs
from tests.conftest import python_environment
from tests.sweep_jobs import logged, make_tasks, wait_until, write_bank

from hessalign.bench.sweep import RayLauncher, ray_cluster
from hessalign.bench.sweep.claims import is_claimed

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
        process.communicate("", timeout=200)


@pytest.mark.usefixtures("interruptible")
def test_a_sweep_on_an_existing_cluster_saves_on_interrupt_and_goes_on(cluster, tmp_path):
    address, environment = cluster
    write_bank(tmp_path / "data")

    def run():
        words = [
            "--datasets",
            "bank",
            "--algorithms",
            "erm",
            "--trials",
            "1",
            "--draws",
            "2",
            "--test-domains",
            "0",
            "1",
            "--steps",
            "2001",
            "--output",
            "sweep",
            "--launcher",
            "ray",
            "--address",
            address,
        ]
        return subprocess.Popen(
            [sys.executable, "-m", "hessalign", "sweep", "run", *words], cwd=tmp_path,
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    process = run()
    sweep = tmp_path / "sweep"
    wait_until(lambda: any("\n" in path.read_text() for path in sweep.glob("*/results.jsonl")))
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 130, error
    assert "what was done is saved. The same command continues:\n  hessalign sweep run " in error
    assert "Traceback" not in error
    assert list(sweep.glob("*/checkpoint-*.pt"))
    finished = {path.parent.name for path in sweep.glob("*/done")}
    assert len(finished) < 4
    assert not any(map(is_claimed, sweep.glob("*/")))

    process = run()
    printed, error = process.communicate(timeout=240)
    assert process.returncode == 0, error
    assert "4 runs in sweep: 4 done." in printed
    assert len(list(sweep.glob("*/done"))) == 4


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
        (
            "print('x.AuthenticationError: no'); raise OSError",
            "x.AuthenticationError: no Give this machine the token of the cluster: .*",
        ),
    ],
)
def test_the_reason_for_which_a_cluster_cannot_be_joined_is_passed_on(
    script, reason, tmp_path, monkeypatch
):
    monkeypatch.setattr(ray_cluster, "_PROBE", f"import sys; sys.stdout = sys.stderr; {script}")
    with pytest.raises(ConnectionError, match=rf"at head:1, could not join it: {reason}$"):
        list(RayLauncher("head:1").run(make_tasks(tmp_path, []), sweep_jobs.train))


MACHINES = """
import json, sys, threading
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

from hessalign.bench.sweep import RayLauncher, Retries
from tests import sweep_jobs

data, sweep = map(Path, sys.argv[1:])
jobs = sweep_jobs.make_jobs(data, 8)
memory = {"object_store_memory": 80 << 20, "include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 1, **memory})
second = cluster.add_node(num_cpus=1, num_gpus=1, object_store_memory=80 << 20)
lost = second.node_id

def fail():
    def there():
        return any(line[0] == "machine" and line[2] == lost for line in sweep_jobs.logged(sweep))
    sweep_jobs.wait_until(there)
    cluster.remove_node(second, allow_graceful=False)

threading.Thread(target=fail).start()
launcher = RayLauncher(cluster.address, gpus_per_run=1, retries=Retries(20, 0.1))
outcomes = list(launcher.run(sweep_jobs.make_tasks(sweep, jobs), sweep_jobs.train_on_ray))
print(json.dumps({
    "lost": lost,
    "states": [each.state for each in outcomes],
    "attempts": max(each.task.attempt for each in outcomes),
    "done": sum((sweep / job.folder / "done").exists() for job in jobs),
    "parallel": launcher.parallel,
}))
cluster.shutdown()
"""


def test_runs_go_to_two_machines_and_those_of_a_lost_one_go_on_elsewhere(tmp_path):
    """Two nodes of a cluster with a token, one GPU each; the second is lost while it trains."""
    write_bank(tmp_path / "data")
    sweep, script = tmp_path / "sweep", tmp_path / "machines.py"
    script.write_text(MACHINES)
    token = tmp_path / "token"
    token.write_text(secrets.token_hex(16))
    root = Path(__file__).parents[3]
    environment = python_environment() | {
        "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)
    }  # fmt: skip
    environment["PYTHONPATH"] += f":{root}"
    result = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "data"), str(sweep)],
        env=environment, capture_output=True, text=True, check=False, timeout=280, cwd=tmp_path,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout.strip().splitlines()[-1])
    assert found["states"] == ["done"] * 8
    assert found["done"] == 8
    assert found["attempts"] >= 1
    lines = [line[1:] for line in logged(sweep) if line[0] == "machine"]
    assert len({machine for _, machine, _ in lines}) == 2
    assert {devices for *_, devices in lines} == {"0"}  # the only one of each machine
    moved = {job for job, machine, _ in lines if machine == found["lost"]}
    assert {job for job, machine, _ in lines if machine != found["lost"]} & moved


def test_without_the_token_the_way_to_it_is_told(cluster, tmp_path):
    address, _ = cluster
    script = (
        "import sys\n"
        "from hessalign.bench.sweep import RayLauncher\n"
        f"list(RayLauncher({address!r}, connect_seconds=100).run([], print))\n"
    )
    environment = python_environment() | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "wrong" * 8}
    result = subprocess.run(
        [sys.executable, "-c", script],
        env=environment, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert result.returncode != 0
    assert f"Expected a Ray cluster at {address}, could not join it" in result.stderr
    assert "RAY_AUTH_TOKEN_PATH=FILE" in result.stderr


class Cluster:
    """What the launcher asks Ray about machines."""

    def __init__(self, *resources):
        self._nodes = [{"Alive": True, "Resources": found} for found in resources]
        self._nodes.append({"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}})

    def nodes(self):
        return self._nodes


@pytest.mark.parametrize(
    ("options", "submitted", "parallel"),
    [
        ({}, 2 * 10, 10),
        ({"cpus_per_run": 4}, 2 * 2, 2),  # one on each machine
        ({"cpus_per_run": 3}, 2 * 3, 3),
        ({"gpus_per_run": 0.5}, 2 * 2, 2),
        ({"gpus_per_run": 0.6}, 2 * 1, 1),  # none has a part of two
        ({"jobs": 3}, 3, 3),  # exactly so many on a cluster that is not ours
        ({"jobs": 30}, 30, 10),
    ],
)
def test_how_many_runs_a_cluster_is_given(options, submitted, parallel):
    launcher = RayLauncher("head:1", **options)
    assert launcher._room(Cluster({"CPU": 6.0}, {"CPU": 4.0, "GPU": 1.0})) == submitted
    assert launcher.parallel == parallel


def test_a_run_that_no_machine_has_room_for_is_refused():
    text = r"with 8 CPUs and 0 GPUs for a run, found .*: 6 CPUs and 0 GPUs; 4 CPUs and 1 GPUs\. Ask"
    with pytest.raises(ValueError, match=text):
        RayLauncher(cpus_per_run=8)._room(Cluster({"CPU": 6.0}, {"CPU": 4.0, "GPU": 1.0}), least=1)
    assert RayLauncher(cpus_per_run=8)._room(Cluster()) == 0


def test_a_missing_ray_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=re.escape("pip install 'hessalign[ray]'")):
        list(RayLauncher().run(make_tasks(tmp_path, []), sweep_jobs.train))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"jobs": 0}, "Expected jobs of 1 or more, got 0"),
        ({"cpus_per_run": 0}, "Expected more than 0 CPUs and 0 or more GPUs per run, got 0 and 0"),
        ({"gpus_per_run": -1}, "per run, got 1 and -1"),
        ({"gpus_per_run": 1.5}, "a fraction of one GPU or a whole number of them per run, got 1.5"),
    ],
)
def test_what_a_run_gets_is_checked(options, text):
    with pytest.raises(ValueError, match=text):
        RayLauncher(**options)
