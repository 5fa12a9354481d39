"""The benchmark of `hessalign diagnose` writes features that are as many as asked for."""

import numpy as np
import pytest
from benchmarks import diagnose as benchmark


def test_the_features_are_as_many_as_asked_for(tmp_path):
    path = tmp_path / "features.npz"
    benchmark.write_features(path, benchmark.Size(3, 50, 4, 2))
    with np.load(path) as file:
        assert file["x"].shape == (150, 4)
        assert file["x"].dtype == np.float32
        assert np.bincount(file["domain"]).tolist() == [50, 50, 50]
        assert set(file["y"]) == {0, 1}


def test_measurements_are_printed(capsys):
    words = ["--domains", "2", "--samples", "20", "--features", "3", "--classes", "2"]
    assert benchmark.main(words) == 0
    line = capsys.readouterr().out
    assert line.startswith("2 domains × 20 samples × 3 features × 2 classes: ")
    seconds, cpu, megabytes = (float(part.split()[0]) for part in line.split(": ")[1].split(", "))
    assert 0 < seconds < 120
    assert cpu > 0
    assert 20 < megabytes < 2000


def test_a_failure_is_not_measured(tmp_path):
    with pytest.raises(RuntimeError, match=r"Diagnosing .* failed: .*found nothing at"):
        benchmark.measure(tmp_path / "none.npz")
