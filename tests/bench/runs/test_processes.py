"""One run by several processes: the same as by one, and an honest end."""

import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from tests import process_jobs
from tests.conftest import python_environment
from tests.process_jobs import cases, pretended, train_all, trained
from tests.together import run_together
from torch import nn
from torch.distributed import HashStore

from hessalign._errors import InputError
from hessalign.alignment.parts import Processes
from hessalign.bench.algorithms import DivergedError
from hessalign.bench.models.sharded import LostProcessError, _WholeBatch, meeting, sharing
from hessalign.bench.runs import Job, train_job
from hessalign.bench.runs.processes import (
    _SECONDS_TO_END,
    SECONDS_VARIABLE,
    _told_elsewhere,
    check_same,
    in_processes,
    taking_part,
)

EXACT = 1e-10


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((2, "quick"), id="2-quick"),
        pytest.param((2, "slow"), id="2", marks=pytest.mark.slow),
        pytest.param((3, "slow"), id="3", marks=pytest.mark.slow),
    ],
)
def group(request, tmp_path_factory):
    """What the processes of a group have after training, each on its own."""
    count, lane = request.param
    folder = tmp_path_factory.mktemp("processes")
    run_together(process_jobs.main, folder, count, lane)
    found = [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(count)]
    return cases(lane), found


def test_every_algorithm_ends_where_one_process_does(group):
    named, found = group
    for name, case in named.items():
        expected = trained(case)
        for each in found:
            errors = {
                key: float((value - expected["state"][key]).abs().max())
                for key, value in each[name]["state"].items()
            }
            assert errors.keys() == expected["state"].keys()
            assert max(errors.values()) <= EXACT, f"{name}: {errors}"
            predictions = each[name]["predictions"]
            assert torch.allclose(predictions, expected["predictions"], 0, EXACT), name
            for mine, one in zip(each[name]["terms"], expected["terms"], strict=True):
                assert mine == pytest.approx(one, rel=1e-9, abs=1e-9), name


def test_processes_stay_the_same_to_the_last_bit(group):
    first, *others = group[1]
    for other in others:
        for name, found in first.items():
            for key, value in found["state"].items():
                assert torch.equal(value, other[name]["state"][key]), f"{name}: {key}"


# --- runs -----------------------------------------------------------------------------------------


def colored(steps, **options):
    values = {"train_images": 600, "test_images": 200, "width": 8, **options}
    return Job("ColoredMNIST-IRM", "ERM", (2,), 0, 0, "", steps=steps, hparams=json.dumps(values))


CLOCK = ("step_time", "seconds")


def records(folder):
    """The numbers of all evaluations, but for the clock's."""
    lines = map(json.loads, (folder / "results.jsonl").read_text().splitlines())
    return [
        {k: v for k, v in line.items() if isinstance(v, float) and k not in CLOCK} for line in lines
    ]


def assert_same_model(first, second, tolerance=0.0):
    found, expected = (load_file(each / "model.safetensors") for each in (first, second))
    assert found.keys() == expected.keys()
    for name, value in found.items():
        assert torch.allclose(value, expected[name], 0, tolerance), name


def wait_for(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_process_ends_the_others_and_the_run_continues(tmp_path, victim):
    job, outcome = colored(40), []

    def train():
        try:
            in_processes(2, train_all, [(job, tmp_path / "killed")], tmp_path / "go on")
        except ChildProcessError as error:
            outcome.append(str(error))

    before = {each.pid for each in multiprocessing.active_children()}
    thread = threading.Thread(target=train)
    thread.start()
    wait_for(lambda: [path for path in tmp_path.glob("killed/checkpoint-*.pt")
                      if int(path.stem[-8:]) >= 5])  # fmt: skip
    ranks = sorted(e.pid for e in multiprocessing.active_children() if e.pid not in before)
    os.kill(ranks[victim], signal.SIGKILL)
    (tmp_path / "go on").touch()
    start = time.monotonic()
    thread.join(120)
    assert time.monotonic() - start < _SECONDS_TO_END  # by themselves
    assert outcome == [
        f"Process {victim} of 2 of a run, counted from 0, was killed by SIGKILL, perhaps because "
        "memory ran out. Run it again to continue from its last checkpoint."
    ]
    assert not (tmp_path / "killed" / "done").exists()
    shutil.copytree(tmp_path / "killed", tmp_path / "by_one")
    in_processes(2, train_all, [(job, tmp_path / "killed"), (job, tmp_path / "whole")])
    train_all([(job, tmp_path / "by_one"), (job, tmp_path / "one")])
    # Of two processes always the same bits; of one the same numbers, to rounding.
    assert_same_model(tmp_path / "killed", tmp_path / "whole")
    assert records(tmp_path / "killed") == records(tmp_path / "whole")
    assert_same_model(tmp_path / "by_one", tmp_path / "one", 1e-6)
    assert_same_model(tmp_path / "whole", tmp_path / "one", 1e-6)


@pytest.mark.slow
def test_a_run_of_one_process_continues_with_two(tmp_path):
    job = colored(20)

    def stop(record):
        if record.step == 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_job(job, tmp_path / "parts", evaluate="all", keep_model=True, report=stop)
    in_processes(2, train_all, [(job, tmp_path / "parts")])
    train_all([(job, tmp_path / "one")])
    assert_same_model(tmp_path / "parts", tmp_path / "one", 1e-6)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Images in files, and features in an array, of three domains."""
    folder, rng = tmp_path_factory.mktemp("data"), np.random.RandomState(0)
    for domain in "abc":
        for label in "xy":
            place = folder / "noise" / domain / label
            place.mkdir(parents=True)
            for number in range(15):
                size = (28 + rng.randint(9), 28 + rng.randint(9), 3)
                Image.fromarray(rng.randint(256, size=size).astype(np.uint8)).save(
                    place / f"{number}.png"
                )
    domain = np.arange(300) % 3
    x = rng.randn(300, 6).astype(np.float32) + domain[:, None]
    np.savez(folder / "rows.npz", x=x, y=rng.randint(3, size=300), domain=domain)
    return folder


def image_job(data, algorithm):
    values = {"image_size": 28, "lr": 0.01, "batch_size": 5, "backbone": "mnist_cnn"}
    hparams = json.dumps({**values, "optimizer": "sgd"})  # Adam would make rounding large
    return Job("noise", algorithm, (2,), 0, 0, str(data), steps=4, hparams=hparams)


@pytest.mark.slow
def test_images_and_features_give_the_records_of_one_process(data, tmp_path, monkeypatch):
    monkeypatch.setenv("HESSALIGN_BATCH_WORKERS", "0")
    # ERM needs its own images alone, Mixup all of them, and MTL adapts to the batches it predicts.
    jobs = {name: image_job(data, name) for name in ("ERM", "Mixup", "HGP")}
    hparams = json.dumps({"hidden": 7, "resnet_dropout": 0.2, "optimizer": "sgd"})
    for name in ("MTL", "DANN"):
        jobs[name] = Job("rows.npz", name, (1,), 0, 0, str(data), steps=6, hparams=hparams)
    in_processes(2, train_all, [(job, tmp_path / f"two-{name}") for name, job in jobs.items()])
    train_all([(job, tmp_path / f"one-{name}") for name, job in jobs.items()])
    for name in jobs:
        two, one = tmp_path / f"two-{name}", tmp_path / f"one-{name}"
        assert_same_model(two, one, 1e-5)
        for found, expected in zip(records(two), records(one), strict=True):
            assert found == pytest.approx(expected, rel=1e-4, abs=1e-6), name


@pytest.mark.slow
def test_an_error_of_all_processes_is_raised_once(tmp_path):
    with pytest.raises(DivergedError, match="not finite at step 1"):
        in_processes(2, train_all, [(colored(9, learning_rate=1e30), tmp_path)])


@pytest.mark.slow
def test_a_process_that_does_not_answer_is_not_waited_for_for_ever(tmp_path, monkeypatch):
    monkeypatch.setenv(SECONDS_VARIABLE, "20")  # in which both have to start, too
    outcome = []

    def train():
        try:
            in_processes(2, train_all, [(colored(10**6), tmp_path)])
        except Exception as error:
            outcome.append(str(error))

    thread = threading.Thread(target=train)
    thread.start()
    wait_for(lambda: list(tmp_path.glob("checkpoint-*.pt")))
    ranks = multiprocessing.active_children()
    os.kill(max(each.pid for each in ranks), signal.SIGSTOP)
    wait_for(lambda: len(multiprocessing.active_children()) < len(ranks))
    os.kill(max(each.pid for each in ranks), signal.SIGCONT)
    thread.join(120)
    assert len(outcome) == 1
    assert "ended, or did not answer in time" in outcome[0]


def torchrun(folder, *words, program=("-m", "hessalign", "train")):
    """What a program under torchrun prints, and its exit code."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2"]
    result = subprocess.run(
        [*command, *program, *words],
        cwd=folder,
        env=python_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    return result.returncode, result.stdout, result.stderr


WORDS = ("--output", "out", "steps=12", "train_images=600", "test_images=200", "width=8")


@pytest.mark.slow
def test_torchrun_speaks_with_one_voice(tmp_path):
    code, printed, shown = torchrun(tmp_path, "--algorithm", "hgp", *WORDS)
    assert code == 0, shown
    assert printed.count("Saved in") == printed.count("algorithm: hgp") == 1
    assert len(re.findall("12/12 steps", shown)) == 1, shown
    assert (tmp_path / "out" / "hgp-seed0" / "done").exists()


LEAVING = """
import os
from hessalign.bench.runs.processes import taking_part

with taking_part():
    import torch.distributed.nn.functional  # as optimisers do when they are made
for thread in os.listdir("/proc/self/task"):
    print(open(f"/proc/self/task/{thread}/comm").read().strip(), flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are listed on Linux")
def test_no_thread_of_the_group_outlives_it(tmp_path):
    (tmp_path / "leaving.py").write_text(LEAVING)
    code, printed, shown = torchrun(tmp_path, program=("leaving.py",))
    assert code == 0, shown
    assert "python" in printed
    assert "gloo" not in printed


@pytest.mark.slow
def test_torchrun_tells_an_error_once(tmp_path):
    code, printed, shown = torchrun(tmp_path, "--algorithm", "hgpp", *WORDS)
    assert code == 1
    assert not printed
    assert shown.count("Did you mean 'hgp'?") == 1


# --- parts ----------------------------------------------------------------------------------------


FIRST = pretended(0, 2)


def test_draws_that_cannot_be_shared_are_refused():
    layer = nn.Sequential(nn.Dropout(0.5), nn.AlphaDropout(0.5))
    with _WholeBatch(5, FIRST):
        layer[0](torch.ones(2, 3))
    refused = pytest.raises(InputError, match="draws random numbers in training by dropout or")
    with refused, _WholeBatch(5, FIRST):
        layer(torch.ones(2, 3))


def test_dropout_draws_for_all_rows_and_windows():
    whole, own = torch.ones(10, 3), torch.ones(4, 3)  # of 5 rows two windows each
    torch.manual_seed(3)
    expected = nn.functional.dropout(whole, 0.5)[:4]
    torch.manual_seed(3)
    with _WholeBatch(5, FIRST):
        found = nn.functional.dropout(own, 0.5)
    assert torch.equal(found, expected)


def test_batch_norm_may_follow_a_batch_of_too_few_rows_to_share(monkeypatch):
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda *_, **__: None)
    layer, x = nn.BatchNorm2d(2), torch.randn(3, 2, 4, 4)
    one, shared = x[:1], x[1:]
    found = layer(one).square().mean()  # by torch itself, as every process has all of it
    with _WholeBatch(len(shared), pretended(0, 1)):
        found = found + layer(shared).square().mean()
    found.backward()
    expected = nn.BatchNorm2d(2)
    sum(expected(part).square().mean() for part in (one, shared)).backward()
    assert torch.allclose(layer.weight.grad, expected.weight.grad)
    assert torch.allclose(layer.running_var, expected.running_var)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_batch_norm_averages_short_numbers_as_torch_does(monkeypatch, dtype):
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda *_, **__: None)
    layer, expected = nn.BatchNorm2d(2), nn.BatchNorm2d(2)
    x = (5 + torch.randn(60, 2, 9, 9)).to(dtype)  # whose sums such numbers cannot tell
    with _WholeBatch(len(x), pretended(0, 1)):
        found = layer(x)
    goal = expected(x)
    assert found.dtype == goal.dtype == dtype
    assert torch.allclose(found, goal, atol=0.02)
    for name in ("running_mean", "running_var"):
        assert torch.allclose(getattr(layer, name), getattr(expected, name), rtol=1e-5)


def test_what_is_lost_is_told_in_short():
    text = "[/a/pair.cc:537] Read error [127.0.0.1]:7580: Connection reset by peer. This is typical"
    with pytest.raises(LostProcessError) as raised, meeting():
        raise RuntimeError(text)
    assert "in time (Read error [127.0.0.1]:7580: Connection reset by peer). If" in str(
        raised.value
    )


def test_of_several_processes_the_leader_tells():
    store, same = HashStore(), InputError("Expected more.")
    assert not _told_elsewhere(same, store, 0)
    assert _told_elsewhere(InputError("Expected more."), store, 1)
    assert _told_elsewhere(LostProcessError("Gone."), store, 1)
    assert not _told_elsewhere(InputError("Expected less."), store, 1)


def test_a_process_alone_takes_no_part(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InputError, match="mine"), taking_part():
        raise InputError("mine")
    assert not torch.distributed.is_initialized()


def test_processes_that_have_drifted_apart_are_refused(monkeypatch):
    other = torch.zeros(4, dtype=torch.int64)
    monkeypatch.setattr(Processes, "gathered", lambda self, own: [own, other])
    layer = nn.Linear(2, 1)
    with sharing(FIRST), pytest.raises(InputError, match="the same parameters in all processes"):
        check_same(layer)
    layer.load_state_dict({name: 0 * each for name, each in layer.state_dict().items()})
    with sharing(FIRST):
        check_same(layer)
