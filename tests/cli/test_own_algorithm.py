"""Algorithms of one's own on the command line: trained, continued, swept, collected."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import python_environment
from tests.sweep_jobs import write_bank

PLUGIN = Path(__file__).parents[2] / "examples" / "plugin"
SPREAD = "hessalign_spread:Spread"


@pytest.fixture
def plugin(tmp_path):
    """The example beside data in the folder where commands are given; it is not installed."""
    write_bank(tmp_path / "data")
    shutil.copytree(PLUGIN / "src" / "hessalign_spread", tmp_path / "hessalign_spread")
    return tmp_path


def hessalign(folder, *words, site=None):
    environment = python_environment()
    if site is not None:
        environment["PYTHONPATH"] += f"{os.pathsep}{site}"
    result = subprocess.run(
        [sys.executable, "-m", "hessalign", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def records(folder):
    (path,) = folder.rglob("results.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_train_and_continue_by_the_name_of_the_module(plugin):
    words = ["train", "--dataset", "bank", "--data-dir", "data", "--algorithm", SPREAD,
             "--test-domains", "Bern", "--output", "run", "steps=11", "hidden=4",
             "penalty_weight=3"]  # fmt: skip
    printed = hessalign(plugin, *words)
    assert f"algorithm: {SPREAD}" in printed
    found = records(plugin / "run")
    assert found[0]["args"]["algorithm"] == SPREAD
    assert found[0]["hparams"]["penalty_weight"] == 3
    assert found[0]["hparams"]["hidden"] == 4
    before = [each.read_bytes() for each in (plugin / "run").rglob("results.jsonl")]
    hessalign(plugin, *words)  # a complete run is read
    assert before == [each.read_bytes() for each in (plugin / "run").rglob("results.jsonl")]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["local", "ray"])
def test_sweep_in_processes_and_collect_by_the_name_of_the_module(plugin, launcher):
    words = ["sweep", "run", "--datasets", "bank", "--data-dir", "data", "--algorithms", "erm",
             SPREAD, "--test-domains", "Bern", "--trials", "1", "--draws", "2", "--steps", "11",
             "--output", "out", "--launcher", launcher, "--jobs", "2", "hidden=4"]  # fmt: skip
    assert "4 runs in out: 4 done." in hessalign(plugin, *words)
    weights = {
        run["hparams"].get("penalty_weight")
        for path in (plugin / "out").rglob("results.jsonl")
        for run in map(json.loads, path.read_text().splitlines())
    }
    assert len(weights) == 3  # ERM has none; a default and a draw
    assert 1.0 in weights
    collected = hessalign(plugin, "collect", "out", "--selection", "oracle")
    assert re.search(rf"^{SPREAD} .*\d+\.\d", collected, re.M)


@pytest.mark.slow
def test_the_example_package_is_installed_and_swept(tmp_path):
    """By its entry points, the data set too; offline."""
    source, site = tmp_path / "plugin", tmp_path / "site"
    shutil.copytree(PLUGIN, source)
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation",
         "--no-index", "--disable-pip-version-check", "--target", str(site), str(source)],
        check=True,
        capture_output=True,
        timeout=200,
    )  # fmt: skip
    assert "spread: " in hessalign(tmp_path, "algorithms", "spread", site=site)
    words = ["sweep", "run", "--datasets", "wards", "--data-dir", ".", "--algorithms", "erm",
             "spread", "--trials", "1", "--draws", "2", "--steps", "31", "--output", "out",
             "--launcher", "local", "--jobs", "2", "hidden=4"]  # fmt: skip
    assert "12 runs in out: 12 done." in hessalign(tmp_path, *words, site=site)
    collected = hessalign(tmp_path, "collect", "out", "--selection", "oracle", site=site)
    assert re.search(r"^Algorithm +north +east +south +Avg", collected, re.M)
    assert re.search(r"^spread .*\d+\.\d", collected, re.M)
