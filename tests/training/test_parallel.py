"""Runs in processes of their own give what they give alone."""

import multiprocessing

import pytest
import torch

from hessalign.training import ColoredMnistConfig, train_colored_mnist, train_many

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
    with pytest.raises(ChildProcessError, match=r"one was killed, .* with fewer processes"):
        train_many(configs, 2, kill)
