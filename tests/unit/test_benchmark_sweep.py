"""The benchmark of sweeps does what it says, on a bank that is far smaller."""

import json

import numpy as np
import pytest
from benchmarks import sweep as benchmark

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(benchmark, "DOMAINS", (20, 30, 25))
    monkeypatch.setattr(benchmark, "FEATURES", 5)


def test_the_bank_has_the_sizes_it_should(tmp_path):
    benchmark.write_bank(tmp_path)
    with np.load(tmp_path / "bank.npz") as bank:
        assert bank["x"].shape == (75, 5)
        assert np.bincount(bank["domain"]).tolist() == [20, 30, 25]
        assert bank["y"].max() < benchmark.CLASSES


def test_a_launcher_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark, "ALGORITHMS", ("erm",))
    arguments = ["--launchers", "serial", "--steps", "3", "--draws", "2"]
    assert benchmark.main([*arguments, "--output", str(tmp_path)]) == 0
    (row,) = json.loads((tmp_path / "sweep.json").read_text())["launchers"]
    assert row["launcher"] == "serial"
    assert row["runs"] == 6
    assert row["with_start"] > 0
    assert row["settled"] > 0
    text = (tmp_path / "sweep.md").read_text()
    assert "6 runs of 3 steps, 1 algorithms, 75 × 5 features" in text
    assert f"| serial | {row['with_start']:.1f} | {row['settled']:.1f} |" in text


def test_failing_runs_are_not_measured(tmp_path, monkeypatch):
    benchmark.write_bank(tmp_path)
    monkeypatch.setattr(benchmark, "training_work", lambda spec: lambda job, folder: None)
    with pytest.raises(RuntimeError, match="30 of 30 runs failed, first: RuntimeError: Expected"):
        benchmark.measure(tmp_path, "serial", 3, 1, 1)
