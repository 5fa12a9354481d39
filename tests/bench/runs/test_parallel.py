"""Runs in processes of their own give what they give alone."""

import multiprocessing
import os
import signal
import time

import pytest
import torch

from hessalign.bench.runs import (
    ColoredMnistConfig,
    RunFolderError,
    train_colored_mnist,
    train_many,
)

TINY = {"train_images": 200, "test_images": 60, "steps": 3, "jump": 1, "width": 8}


def test_runs_equal_those_of_one_process_and_report_every_record():
    configs = [ColoredMnistConfig(name, **TINY) for name in ("hutchinson", "erm")]
    seen = []
    runs = train_many(
        configs, 2, lambda config, record: seen.append((config.algorithm, record.step))
    )
    assert [run.config.algorithm for run in runs] == ["hutchinson", "erm"]
    assert sorted(seen) == [("erm", 0), ("erm", 2), ("hutchinson", 0), ("hutchinson", 2)]
    for config, run in zip(configs, runs, strict=True):
        alone = train_colored_mnist(config)
        for ours, theirs in zip(run.network.parameters(), alone.network.parameters(), strict=True):
            assert torch.equal(ours, theirs)


def test_a_failing_run_is_reported():
    with pytest.raises(ValueError, match="Unknown algorithm 'hpg'"):
        train_many([ColoredMnistConfig("hpg", **TINY)], 1, lambda config, record: None)


def test_jobs_are_checked():
    with pytest.raises(ValueError, match="Expected 1 or more jobs, got 0"):
        train_many([], 0, lambda config, record: None)


@pytest.mark.parametrize("jobs", [1, 2])
def test_warnings_of_runs_are_passed_on(jobs, tmp_path):
    config = ColoredMnistConfig("erm", **TINY)
    (tmp_path / "checkpoint-00000002.pt").write_bytes(b"")
    warnings = []
    train_many(
        [config], jobs, lambda config, record: None, lambda config: tmp_path, warnings.append
    )
    assert len(warnings) == 1
    assert "checkpoint-00000002.pt" in warnings[0]


def test_a_process_that_is_killed_is_explained():
    def kill(config, record):
        for process in multiprocessing.active_children():
            if "Manager" not in process.name:
                process.kill()

    configs = [ColoredMnistConfig("erm", **TINY, seed=seed) for seed in range(4)]
    with pytest.raises(ChildProcessError, match=r"one was killed by SIGKILL, .* fewer processes"):
        train_many(configs, 2, kill)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("failing", [False, True])
def test_the_runs_that_go_on_are_saved_and_no_other_is_begun(failing, tmp_path):
    """Whether by Ctrl-C, which only this process hears, or because one of them has failed."""
    endless = {**TINY, "steps": 10**6, "evaluate_every": 10}
    configs = [ColoredMnistConfig("erm", **endless, seed=seed) for seed in range(8)]
    if failing:
        configs.insert(1, ColoredMnistConfig("erm", **TINY, seed=8))
        (tmp_path / "8").mkdir()
        (tmp_path / "8" / "config.json").write_text("{")
    stop = (
        pytest.raises(RunFolderError, match="Expected a configuration")
        if failing
        else pytest.raises(KeyboardInterrupt)
    )

    def interrupt(config, record):
        if not failing and all(list(tmp_path.glob(f"{seed}/records.jsonl")) for seed in (0, 1)):
            os.kill(os.getpid(), signal.SIGINT)

    with stop:
        train_many(configs, 2, interrupt, lambda config: tmp_path / str(config.seed))
    begun = {int(path.name) for path in tmp_path.iterdir() if list(path.glob("records.jsonl"))}
    assert begun <= {0, 1}
    assert all(list(tmp_path.glob(f"{seed}/checkpoint-*.pt")) for seed in begun)


def test_a_failing_run_is_noticed_while_another_has_much_to_tell(tmp_path):
    talkative = ColoredMnistConfig("erm", **{**TINY, "steps": 10**6, "evaluate_every": 1})
    others = [ColoredMnistConfig("erm", **TINY, seed=seed) for seed in (1, 2)]
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "config.json").write_text("{")
    with pytest.raises(RunFolderError, match="Expected a configuration"):
        train_many(
            [talkative, *others],
            2,
            lambda config, record: time.sleep(0.01),  # slower than it talks
            lambda config: tmp_path / str(config.seed),
        )


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_while_processes_start_is_not_lost(tmp_path):
    configs = [ColoredMnistConfig("erm", **{**TINY, "steps": 9000}, seed=seed) for seed in (0, 1)]

    def folder(config):
        if config.seed == 1:  # the first process has been started and is importing
            os.kill(os.getpid(), signal.SIGINT)
        return tmp_path / str(config.seed)

    with pytest.raises(KeyboardInterrupt):
        train_many(configs, 2, lambda config, record: None, folder)
    assert not list(tmp_path.glob("*/done.json"))
