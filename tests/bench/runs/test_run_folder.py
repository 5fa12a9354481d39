"""Runs that are killed, interrupted, damaged, or started twice."""

import errno
import json
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import time

import pytest
import torch
from safetensors.torch import load_file
from tests.colored import colored_job

from hessalign._processes import Interruption
from hessalign.bench.algorithms import DivergedError
from hessalign.bench.runs import RunFolder, RunFolderError, read_records, run_folder, train_job
from hessalign.bench.runs import run as run_module
from hessalign.bench.runs.records import Record, RecordForm

OPTIONS = {
    "train_images": 300,
    "test_images": 100,
    "jump": 25,
    "width": 12,
    "evaluate_every": 7,
    "probes": 3,
}
STEPS = 60
JOB = colored_job("hutchinson", steps=STEPS, **OPTIONS)


def train(folder, job=JOB, **callbacks):
    return train_job(job, folder, keep_model=True, **callbacks)


@pytest.fixture(autouse=True)
def frequent_checkpoints(monkeypatch):
    monkeypatch.setattr(run_folder, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run that nothing happened to."""
    folder = tmp_path_factory.mktemp("whole")
    train(folder)
    return folder


def in_a_process(folder, job=JOB):
    process = multiprocessing.get_context("fork").Process(target=train, args=(folder, job))
    process.start()
    return process


def outcome(folder):
    """All that a run leaves behind, except how long it took."""
    model = load_file(folder / "model.safetensors")
    lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    return model, [timeless(line) for line in lines]


def timeless(line):
    """A record without what depends on the clock or on the place."""
    kept = {key: value for key, value in line.items() if key not in {"seconds", "step_time"}}
    return {**kept, "args": {**line["args"], "output_dir": None}}


def assert_same_outcome(first, second):
    (model, lines), (other_model, other_lines) = outcome(first), outcome(second)
    assert lines == other_lines
    assert model.keys() == other_model.keys()
    assert all(torch.equal(model[name], other_model[name]) for name in model)


def test_killed_at_random_moments_ends_bit_identical(tmp_path, whole):
    start = time.monotonic()
    train(tmp_path / "timed")
    longest = (time.monotonic() - start) / 6
    moments = random.Random(0)
    kills, steps = 0, set()
    while kills < 25 or len(steps) <= 5:
        process = in_a_process(tmp_path / "killed")
        time.sleep(moments.uniform(0.0, longest))
        finished = (tmp_path / "killed" / "done").exists()
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert process.exitcode == -signal.SIGKILL or finished
        if finished:  # begin another run rather than kill one that has nothing left to do
            assert_same_outcome(tmp_path / "killed", whole)
            (tmp_path / "killed").rename(tmp_path / f"killed-{kills}")
        kills += 1
        steps |= {path.name for path in tmp_path.glob("killed/checkpoint-*")}
        if kills > 10 and len(steps) <= 5:  # the machine is busy: let the next one come further
            longest *= 1.2
    assert len(steps) > 5  # they did die at different places
    train(tmp_path / "killed")
    assert_same_outcome(tmp_path / "killed", whole)


def stop_after(step, action):
    """A report that does something once a step has been taken."""
    return lambda record: action() if record.step >= step else None


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_saves_the_step_in_progress_and_the_same_command_continues(tmp_path, whole):
    interrupt = stop_after(49, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "a", report=interrupt)
    assert (tmp_path / "a" / "checkpoint-00000050.pt").exists()
    train(tmp_path / "a")
    assert_same_outcome(tmp_path / "a", whole)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def interrupt_between_looking_and_stopping(monkeypatch, step):
    """A signal that comes just after the loop has looked whether there was one."""

    def is_due(self, state, every):
        if state.step == step + 1:
            os.kill(os.getpid(), signal.SIGINT)
        return False

    monkeypatch.setattr(RunFolder, "is_due", is_due)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_at_the_worst_moment_saves_too(tmp_path, monkeypatch):
    interrupt_between_looking_and_stopping(monkeypatch, 20)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path)
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-00000022.pt"]


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_in_the_last_step_is_heeded_once_the_run_is_complete(tmp_path, monkeypatch):
    interrupt_between_looking_and_stopping(monkeypatch, STEPS - 1)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path)
    assert (tmp_path / "done").exists()


@pytest.mark.usefixtures("interruptible")
def test_an_interruption_within_another_hears_what_came_before_and_tells_what_came():
    outer = Interruption()
    outer.__enter__()
    with Interruption() as inner:
        os.kill(os.getpid(), signal.SIGINT)
        assert inner.requested
    assert outer.requested
    with Interruption() as inner:
        assert inner.requested
    with pytest.raises(KeyboardInterrupt), Interruption():
        os.kill(os.getpid(), signal.SIGINT)  # the second
    with pytest.raises(KeyboardInterrupt):
        outer.__exit__(None, None, None)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


class StopError(Exception):
    pass


def stop():
    raise StopError


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    """The folder of a run that was stopped, with a checkpoint after every step."""
    folder = tmp_path_factory.mktemp("half")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_folder, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
        with pytest.raises(StopError):
            train(folder, report=stop_after(35, stop))
    return folder


@pytest.fixture
def half_a_run(half):
    """Copy it to a folder; its checkpoints there."""

    def copy(folder):
        shutil.copytree(half, folder, dirs_exist_ok=True)
        return sorted(folder.glob("checkpoint-*.pt"))

    return copy


def test_the_last_two_checkpoints_are_kept_and_none_when_done(tmp_path, half_a_run):
    assert [path.name for path in half_a_run(tmp_path)] == [
        "checkpoint-00000034.pt",
        "checkpoint-00000035.pt",
    ]
    train(tmp_path)
    assert not list(tmp_path.glob("checkpoint-*"))
    expected = {"config.json", "results.jsonl", "model.safetensors", "model.json", "done"}
    assert expected <= set(os.listdir(tmp_path))


def foreign(path):
    content = torch.load(path, weights_only=True)
    torch.save({**content, "config": "{}"}, path)


class Evil:
    def __reduce__(self):
        return (os._exit, (1,))


def with_betas(path):
    content = torch.load(path, weights_only=True)
    [optimizer] = content["state"]["optimizers"].values()
    optimizer["param_groups"][0]["betas"] = (1e9, 0.999)
    torch.save(content, path)


def with_negative_steps(path):
    content = torch.load(path, weights_only=True)
    [optimizer] = content["state"]["optimizers"].values()
    for entry in optimizer["state"].values():
        entry["step"] *= -1
    torch.save(content, path)


DAMAGES = {
    "torn": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "empty": lambda path: path.write_bytes(b""),
    "noise": lambda path: path.write_bytes(b"not a checkpoint" * 50),
    "foreign": foreign,
    "other betas": with_betas,
    "negative steps": with_negative_steps,
    "code": lambda path: torch.save({"config": Evil()}, path),
    "incomplete": lambda path: torch.save(
        {"config": json.dumps(stored(path), sort_keys=True)}, path
    ),
    "a tensor": lambda path: torch.save(torch.zeros(2), path),
    "a list": lambda path: torch.save([1], path),
    "no state": lambda path: torch.save(
        {"config": json.dumps(stored(path), sort_keys=True), "state": [1]}, path
    ),
    "another state": lambda path: torch.save(
        {"config": json.dumps(stored(path), sort_keys=True), "state": {"algorithm": 1}}, path
    ),
}


def stored(path):
    found = json.loads((path.parent / "config.json").read_text())
    del found["data_folder"]  # it stands beside what the run is
    return found


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    tmp_path, whole, half_a_run, damage
):
    _, newest = half_a_run(tmp_path / "a")
    DAMAGES[damage](newest)
    warnings, steps = [], []
    train(tmp_path / "a", report=lambda record: steps.append(record.step), warn=warnings.append)
    assert len(warnings) == 1
    assert str(newest) in warnings[0]
    assert re.search(r"Trying checkpoint-\d+\.pt instead\.$", warnings[0])
    assert ("another configuration" in warnings[0]) == (damage == "foreign")
    assert min(steps) == 35  # continued at step 34, whose next evaluation this is
    assert_same_outcome(tmp_path / "a", whole)


def without_optimizers(path):
    """A checkpoint whose parameters are loaded before it is found to be damaged."""
    content = torch.load(path, weights_only=True)
    del content["state"]["optimizers"]
    torch.save(content, path)


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b""), without_optimizers])
def test_when_all_checkpoints_are_damaged_the_run_starts_anew(tmp_path, whole, half_a_run, damage):
    for path in half_a_run(tmp_path / "a"):
        damage(path)
    warnings = []
    train(tmp_path / "a", warn=warnings.append)
    assert len(warnings) == 2
    assert warnings[0].endswith(" instead.")
    assert warnings[1].endswith(" There is no other: the run begins afresh.")
    assert_same_outcome(tmp_path / "a", whole)


def test_a_complete_run_is_read_and_not_repeated(tmp_path):
    first = train(tmp_path)
    seen = []
    again = train(tmp_path, report=seen.append)
    assert not seen
    assert again.records == first.records
    for ours, theirs in zip(again.network.parameters(), first.network.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_folder_of_another_configuration_is_refused(tmp_path, half_a_run):
    half_a_run(tmp_path)
    other = colored_job("hutchinson", seed=5, steps=STEPS, **OPTIONS)
    with pytest.raises(RunFolderError, match=r"configuration: .*trial_seed is 0 there and 5 here"):
        train(tmp_path, other)
    train(tmp_path)  # and nothing was lost


def test_a_second_process_is_refused(tmp_path):
    with (
        RunFolder(tmp_path, {"a": 1}, lambda message: None),
        pytest.raises(
            RunFolderError, match=rf"Another process \(number {os.getpid()}\) is training"
        ),
    ):
        RunFolder(tmp_path, {"a": 1}, lambda message: None).__enter__()
    with RunFolder(tmp_path, {"a": 1}, lambda message: None):
        pass


def test_a_damaged_configuration_is_named(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(RunFolderError, match=r"Expected a configuration in .*config\.json"):
        train(tmp_path)


def fill_the_disk_then_train(folder, limit):
    """Files beyond so many bytes cannot be written, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        train(folder)
    except RunFolderError as error:
        (folder / "message").write_text(str(error))
        os._exit(7)


def test_a_full_disk_leaves_the_previous_checkpoint(tmp_path, whole, half_a_run):
    _, newest = half_a_run(tmp_path / "a")
    before = newest.read_bytes()
    limit = len(before) // 2
    process = multiprocessing.get_context("fork").Process(
        target=fill_the_disk_then_train, args=(tmp_path / "a", limit)
    )
    process.start()
    process.join()
    assert process.exitcode == 7
    message = (tmp_path / "a" / "message").read_text()
    assert "Could not write" in message
    assert f"{newest} is intact" in message
    assert newest.read_bytes() == before
    assert not list((tmp_path / "a").glob("*.partial"))
    train(tmp_path / "a")
    assert_same_outcome(tmp_path / "a", whole)


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    def full(path, content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(run_folder, "write_atomically", full)
    with pytest.raises((RunFolderError, OSError), match="No space left on device"):
        train(tmp_path)


def test_divergence_names_the_checkpoint_before_it(tmp_path):
    options = {**OPTIONS, "learning_rate": 1e30}
    job = colored_job("hutchinson", steps=STEPS, **options)
    with pytest.raises(DivergedError, match=r"not finite at step \d+") as error:
        train(tmp_path, job)
    newest = max(tmp_path.glob("checkpoint-*"))
    assert str(error.value).endswith(f"The checkpoint before it is {newest}.")


@pytest.mark.parametrize("steps", [4, 9])
def test_parameters_that_are_not_finite_are_never_kept(tmp_path, monkeypatch, steps):
    """A finite loss with a gradient that is not: neither a checkpoint nor a result holds it."""
    step_of = torch.optim.Adam.step
    taken = []

    def step(optimizer, *arguments):
        taken.append(1)
        if len(taken) == 4:
            optimizer.param_groups[0]["params"][0].grad[0] = float("nan")
        return step_of(optimizer, *arguments)

    monkeypatch.setattr(torch.optim.Adam, "step", step)
    job = colored_job("hutchinson", steps=steps, **OPTIONS)
    with pytest.raises(DivergedError, match=r"step 3 .*parameters that are not finite: .*weight"):
        train(tmp_path, job)
    assert not (tmp_path / "done").exists()
    newest = torch.load(max(tmp_path.glob("checkpoint-*")), weights_only=True)
    assert newest["state"]["step"] == 3
    train(tmp_path, job)  # goes on from there
    assert (tmp_path / "done").exists()


def test_old_records_say_what_made_them(tmp_path, monkeypatch):
    """A run continued by another version of the program keeps the lines of the first."""
    monkeypatch.setattr(run_module, "describe_software", lambda: {"git": "first"})
    with pytest.raises(StopError):
        train(tmp_path, report=stop_after(35, stop))
    monkeypatch.setattr(run_module, "describe_software", lambda: {"git": "second"})
    train(tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    versions = {line["step"]: line["software"]["git"] for line in lines}
    assert versions[28] == "first"
    assert versions[42] == "second"


def test_a_torn_last_line_is_tolerated_and_a_bad_one_in_the_middle_named(tmp_path):
    path = tmp_path / "results.jsonl"
    line = RecordForm().line([Record(1, 0.5, {"loss": 1.0}, {"test_loss": 2.0})])
    path.write_text(f"{line}\n{line}\n{line[:20]}")
    assert len(read_records(path)) == 2
    path.write_text(f"{line}\n{line[:20]}\n{line}\n")
    with pytest.raises(ValueError, match=r"Expected a record on line 2 of .*results\.jsonl"):
        read_records(path)
    assert read_records(tmp_path / "none.jsonl") == []


def test_every_line_says_what_made_it(whole):
    for line in (whole / "results.jsonl").read_text().splitlines():
        entry = json.loads(line)
        assert entry["args"]["trial_seed"] == 0
        assert json.loads(entry["args"]["hparams"]) == OPTIONS
        assert entry["hparams"]["probes"] == 3
        assert (entry["hparams"]["alpha"], entry["hparams"]["fidelity"]) == (1.0, "released")
        assert entry["software"]["torch"] == torch.__version__
        assert {"hessalign", "numpy", "python"} <= entry["software"].keys()


def test_a_complete_run_is_read_while_its_folder_is_locked(tmp_path):
    def refuse(message):
        raise AssertionError(message)

    with RunFolder(tmp_path, {"a": 1}, refuse):
        (tmp_path / "done").write_text("{}\n")
        with RunFolder(tmp_path, {"a": 1}, refuse) as reader:
            assert reader.done
        with (
            pytest.raises(RunFolderError, match="belongs to another configuration"),
            RunFolder(tmp_path, {"a": 2}, refuse),
        ):
            pass
