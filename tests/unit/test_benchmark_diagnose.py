"""The benchmark of `hessalign diagnose` writes features that are as many as asked for."""

import json

import numpy as np
import pytest
from benchmarks import diagnose as benchmark
from benchmarks.process import measure_command

pytestmark = pytest.mark.slow


def test_the_features_are_as_many_as_asked_for(tmp_path):
    path = tmp_path / "features.npz"
    benchmark.write_features(path, benchmark.Size(3, 50, 4, 2))
    with np.load(path) as file:
        assert file["x"].shape == (150, 4)
        assert file["x"].dtype == np.float32
        assert np.bincount(file["domain"]).tolist() == [50, 50, 50]
        assert set(file["y"]) == {0, 1}


def test_measurements_are_reported(tmp_path):
    words = ["--domains", "2", "--samples", "20", "--features", "3", "--classes", "2"]
    assert benchmark.main([*words, "--output", str(tmp_path)]) == 0
    (row,) = json.loads((tmp_path / "diagnose.json").read_text())["sizes"]
    assert row["size"] == "2 domains × 20 samples × 3 features × 2 classes"
    assert 0 < row["seconds"] < 120
    assert row["cpu_seconds"] > 0
    assert 20 < row["megabytes"] < 2000
    assert f"| {row['size']} | {row['seconds']:.1f} |" in (tmp_path / "diagnose.md").read_text()


def test_a_table_is_read_alone_and_diagnosed(tmp_path):
    words = ["--table", "--domains", "2", "--samples", "50", "--features", "4"]
    assert benchmark.main([*words, "--output", str(tmp_path)]) == 0
    read, diagnosed = json.loads((tmp_path / "diagnose-table.json").read_text())["sizes"]
    size = "2 domains × 50 samples × 4 features × 2 classes"
    assert (read["size"], diagnosed["size"]) == (f"datasets check: {size}", f"diagnose: {size}")


def test_the_memory_of_the_measuring_process_is_not_counted(tmp_path):
    held = np.ones(2**28)
    assert held.nbytes > 2**31 - 1
    used = measure_command(["algorithms"])
    assert 20 < used.megabytes < 1000


def test_a_failure_is_not_measured(tmp_path):
    with pytest.raises(RuntimeError, match=r"hessalign diagnose .* failed: .*found nothing at"):
        benchmark.measure(tmp_path / "none.npz")
