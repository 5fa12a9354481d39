"""Commands that have several processes: what becomes of them when one is killed or interrupted."""

import json
import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest
from tests.commands import (
    IGNORING,
    begun,
    finished,
    outlives,
    session,
    wait_for,
    write_images,
)
from tests.sweep_jobs import write_bank

from hessalign.bench.sweep import claims

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are read in /proc"),
    pytest.mark.usefixtures("interruptible"),
    pytest.mark.timeout(600),  # where others use the machine too, a process needs a minute to start
]

ENDLESS = 10**6
IMAGES = ("backbone=mycnn:small", "image_size=16", "batch_size=2")
SWEEP = ("--algorithms", "erm", "vrex", "--test-domains", "0", "--trials", "1", "--draws", "1",
         "--output", "out")  # fmt: skip
TRAINING = ("train", "--dataset", "shapes", "--data-dir", ".", "--test-domains", "red",
            "--output", "out", *IMAGES)  # fmt: skip
REPRODUCTION = (
    *("reproduce", "figure4", "--restarts", "1", "--jobs", "2", "--cache", "out"),
    *("train_images=200", "test_images=60", "jump=2", "width=6"),
)


@pytest.fixture
def folder(tmp_path):
    """A folder with images, a feature bank, and a user's module of backbones."""
    write_bank(tmp_path / "data")
    return write_images(tmp_path)


def sweep_of_images(launcher, steps):
    return ("sweep", "run", "--datasets", "shapes", "--data-dir", ".", *SWEEP,
            "--launcher", launcher, "--steps", steps, *IMAGES)  # fmt: skip


def sweep_of_features(launcher, steps):
    return ("sweep", "run", "--datasets", "bank", "--data-dir", "data", *SWEEP,
            "--launcher", launcher, "--steps", steps, "hidden=4")  # fmt: skip


def records(folder):
    """Lines of records that the runs of a command have made so far."""
    files = list(folder.glob("out/*/results.jsonl"))
    return {path.parent: text.count("\n") for path in files if (text := path.read_text())}


def said_how_to_continue(error, words):
    return (
        f"The same command continues:\n  {shlex.join(['hessalign', *map(str, words)])}\n" in error
    )


@pytest.mark.parametrize("launcher", ["serial", "local", "ray"])
def test_a_sweep_of_images_has_processes_that_make_batches(folder, launcher):
    result = finished(folder, *sweep_of_images(launcher, 3))
    assert result.returncode == 0, result.stderr
    assert "2 runs in out: 2 done." in result.stdout


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (sweep_of_features("local", ENDLESS), 4),  # two runs, the server, and the tracker
        (sweep_of_images("local", ENDLESS), 6),  # and two that make batches
        ((*TRAINING, "--steps", ENDLESS), 2),
        ((*REPRODUCTION, f"steps={ENDLESS}", "evaluate_every=10"), 4),
    ],
    ids=["sweep", "sweep of images", "images", "reproduce"],
)
def test_no_process_outlives_a_command_that_was_killed(folder, words, count):
    with begun(folder, *words) as process:
        wait_for(process, lambda: len(records(folder)) >= min(2, count - 1))
        assert len(session(process)) > count
        process.kill()
        assert not outlives(process)


def test_no_process_outlives_an_extraction_that_was_killed(tmp_path):
    write_images(tmp_path, each=400, size=4)
    words = ("features", "extract", "shapes", "--backbone", "mycnn:slow", "--size", "8",
             "--jobs", "2")  # fmt: skip
    with begun(tmp_path, *words) as process:
        wait_for(process, lambda: list(tmp_path.glob("*.parts/*.npy")))
        assert len(session(process)) > 3
        process.kill()
        assert not outlives(process)


def processes(process, kind):
    """Numbers of the processes of a kind, ascending."""
    return sorted(number for number, line in session(process).items() if kind in line)


def kill_first(process, kind):
    """Kill the first process of a kind as soon as it is there."""
    os.kill(wait_for(process, lambda: processes(process, kind))[0], signal.SIGKILL)


def test_the_server_of_a_sweep_may_be_killed_as_soon_as_it_starts(folder):
    with begun(folder, *sweep_of_features("local", 5)) as process:
        kill_first(process, "forkserver")
        output, error = process.communicate(timeout=240)
    assert process.returncode == 0, error
    assert "2 runs in out: 2 done." in output
    assert "Traceback" not in error


def test_the_server_of_a_sweep_may_be_killed_later(folder):
    with begun(folder, *sweep_of_features("local", 2001)) as process:
        wait_for(process, lambda: len(records(folder)) == 2)
        kill_first(process, "forkserver")
        output, error = process.communicate(timeout=240)
    assert process.returncode == 0, error
    assert "2 runs in out: 2 done." in output


@pytest.mark.parametrize("place", [0, -1], ids=["server", "run"])
def test_any_process_of_a_reproduction_that_is_killed_is_replaced(folder, place):
    words = (*REPRODUCTION, "steps=601", "evaluate_every=10")
    with begun(folder, *words) as process:
        wait_for(process, lambda: len(records(folder)) >= 2)
        os.kill(processes(process, "forkserver")[place], signal.SIGKILL)
        output, error = process.communicate(timeout=300)
    assert process.returncode == 0, error
    assert "Saved in results/figure4" in output
    assert "Traceback" not in error
    assert len(list(folder.glob("out/*/done"))) == 6
    steps = {tuple(json.loads(line)["step"] for line in path.read_text().splitlines())
             for path in folder.glob("out/*/results.jsonl")}  # fmt: skip
    assert steps == {tuple(range(0, 601, 10))}


def test_ctrl_c_while_processes_start_that_make_batches(folder):
    words = (*TRAINING, "--steps", ENDLESS)
    with begun(folder, *words) as process:
        wait_for(process, lambda: any("spawn_main" in line for line in session(process).values()))
        os.killpg(process.pid, signal.SIGINT)
        _, error = process.communicate(timeout=240)
    assert process.returncode == 130, error
    assert "Traceback" not in error
    assert said_how_to_continue(error, words)
    assert list(folder.glob("out/*/checkpoint-*.pt"))


@pytest.mark.parametrize(
    ("words", "number"),
    [
        (sweep_of_images("local", ENDLESS), signal.SIGINT),
        (sweep_of_images("local", ENDLESS), signal.SIGTERM),
        ((*REPRODUCTION, f"steps={ENDLESS}", "evaluate_every=10"), signal.SIGTERM),
    ],
    ids=["sweep-SIGINT", "sweep-SIGTERM", "reproduce-SIGTERM"],
)
def test_a_signal_to_all_processes_has_runs_saved(folder, words, number):
    """Ctrl-C reaches a group, and what ends a job on a cluster reaches all its processes."""
    with begun(folder, *words) as process:
        wait_for(process, lambda: records(folder))
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            for each in session(process):
                os.kill(each, number)
        _, error = process.communicate(timeout=240)
    assert process.returncode == 130, error
    assert "Traceback" not in error
    assert said_how_to_continue(error, words)
    saved = {path.parent for path in folder.glob("out/*/checkpoint-*.pt")}
    assert saved >= set(records(folder))


@pytest.mark.parametrize(
    "words",
    [
        sweep_of_features("local", ENDLESS),
        sweep_of_features("ray", ENDLESS),
        (*REPRODUCTION, f"steps={ENDLESS}", "evaluate_every=10"),
    ],
    ids=["local", "ray", "reproduce"],
)
def test_a_command_that_ignores_ctrl_c_stops_and_saves_when_it_is_terminated(folder, words):
    with begun(folder, *words, before=IGNORING) as process:
        wait_for(process, lambda: records(folder))
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(2)
        assert process.poll() is None
        process.terminate()
        _, error = process.communicate(timeout=240)
    assert process.returncode == 130, error
    saved = {path.parent for path in folder.glob("out/*/checkpoint-*.pt")}
    assert saved >= set(records(folder))


@pytest.fixture
def small_disk(folder):
    """A file system of a megabyte, all but 80 kB of it in use."""
    place = folder / "small"
    place.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place],
        check=False, capture_output=True, timeout=20,
    )  # fmt: skip
    if mount.returncode != 0:
        pytest.skip("no file system can be mounted here")
    try:
        (place / "rest").write_bytes(bytes(940 * 1024))
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True, timeout=20)


def test_a_full_disk_is_told_and_the_same_command_continues_when_there_is_room(folder, small_disk):
    words = ["sweep", "run", "--datasets", "bank", "--data-dir", "data", "--algorithms", "erm",
             "--trials", "1", "--draws", "2", "--output", small_disk / "out",
             "--steps", "21"]  # fmt: skip
    full = finished(folder, *words)
    assert full.returncode == 1, full.stdout
    assert "No space left on device" in full.stdout
    assert " failed. --retry-failed does the failed ones again.\n" in full.stdout
    assert "running" not in full.stdout
    (small_disk / "rest").unlink()
    start = time.monotonic()
    again = finished(folder, *words, "--retry-failed")
    assert again.returncode == 0, again.stdout
    assert "6 done." in again.stdout
    assert time.monotonic() - start < claims._STALE_SECONDS / 2
