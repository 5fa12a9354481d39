"""Benchmarks with official splits, from their files to a trained model, as a user meets them."""

import json
import re

import numpy as np
import pytest
import yaml
from tests.benchmark_files import make_camelyon, make_fmow, make_iwildcam, make_spawrious

from hessalign._processes import WORKERS_VARIABLE
from hessalign.bench.data import PRESETS, read_dataset
from hessalign.bench.runs import load_run
from hessalign.cli import main

TINY = """
import torch
from torch import nn

def tiny():
    torch.manual_seed(0)
    return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 4))
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with data/ and a backbone of a few numbers."""
    (tmp_path / "tiny_net.py").write_text(TINY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(WORKERS_VARIABLE, "0")
    return tmp_path


SMALL = ["backbone=tiny_net:tiny", "image_size=16", "batch_size=4"]


def train(dataset, *words, steps="2"):
    """Train; the data set is looked for in data/."""
    given = ["--dataset", dataset, "--data-dir", "data", "--output", "out", "--steps", steps]
    return main(["train", *given, *SMALL, *words])


def test_official_test_domains_are_the_default_and_a_word(place, capsys):
    make_camelyon(place / "data")
    assert train("WILDSCamelyon") == 0
    captured = capsys.readouterr()
    shown = yaml.safe_load(captured.out.split("\n\n")[0])
    assert shown["train"] == ["hospital_0", "hospital_3", "hospital_4"]
    assert shown["test"] == ["hospital_1", "hospital_2"]
    assert "official split" not in captured.err
    (folder,) = (place / "out").iterdir()
    run = load_run(folder)
    for number, (inner, outer) in enumerate(zip(run.plan.inner, run.plan.outer, strict=True)):
        row = next(line for line in captured.out.splitlines() if f"| hospital_{number} |" in line)
        final = [run.final[f"env{number}_{part}_acc"] for part in ("in", "out")]
        both = np.average(final, weights=[len(inner), len(outer)])
        assert [float(cell) for cell in re.findall(r"[\d.]+(?= \|)", row)[-3:]] == pytest.approx(
            [100 * final[0], 100 * final[1], 100 * both], abs=0.05
        )
    assert train("WILDSCamelyon", "--test-domains", "official") == 0  # which is done already
    assert list((place / "out").iterdir()) == [folder]
    assert train("WILDSCamelyon", "--test-domains", "hospital_2", "--algorithm", "hgp") == 0
    said = capsys.readouterr().err
    assert "official split of WILDSCamelyon does not train on hospital_1; here they" in said


def test_a_bank_of_features_keeps_the_official_split(place):
    make_iwildcam(place / "data")
    command = ["features", "extract", "WILDSiWildCam:groups=3", "--backbone", "tiny_net:tiny"]
    assert main([*command, "--size", "16", "--jobs", "1", "--output", "data/cams@tiny.npz"]) == 0
    bank = read_dataset(place / "data" / "cams@tiny.npz")
    assert bank.official_tests == ("val", "test")
    images = read_dataset(place / "data", "WILDSiWildCam:groups=3")
    for ours, theirs in zip(bank.domains, images.domains, strict=True):
        assert (ours.held_out is None) == (theirs.held_out is None)
        if theirs.held_out is not None:
            assert ours.held_out.tolist() == theirs.held_out.tolist()


def test_every_verb_takes_them(place, capsys):
    make_fmow(place / "data")
    make_iwildcam(place / "data")
    assert train("WILDSFMoW:domain=year", "--test-domains", "2016,2017") == 0
    assert "does not train on 2013, 2015" in capsys.readouterr().err
    command = ["diagnose", "data/iwildcam_v2.0", "--backbone", "tiny_net:tiny", "--samples", "20"]
    assert main(command) == 2  # there are fewer than ten cameras to train on
    assert "Expected groups from 1 to 9" in capsys.readouterr().err
    (folder,) = (place / "out").iterdir()
    assert main(["predict", str(folder), "data/fmow_v1.1/images/rgb_img_0.png"]) == 0
    assert "probability_zoo" in capsys.readouterr().out
    make_camelyon(place / "data")
    assert main(["diagnose", "data/camelyon17_v1.0", "--backbone", "tiny_net:tiny"]) == 0
    sweep = ["--datasets", "WILDSiWildCam:groups=3:without=val", "--data-dir", "data",
             "--algorithms", "erm", "--test-domains", "test", "--trials", "1", "--draws", "1",
             "--steps", "2", "--selections", "training-domain", "--output", "sweep"]  # fmt: skip
    assert main(["sweep", "run", *sweep, "--launcher", "serial", *SMALL]) == 0
    assert main(["collect", "sweep"]) == 0
    assert "WILDSiWildCam:groups=3:without=val" in capsys.readouterr().out
    config = next(place.glob("sweep/*/config.json"), None)
    assert config is None or json.loads(config.read_text())["test_envs"] == [3]


def test_variants_have_caches_of_their_own(place, capsys):
    make_spawrious(place / "data", each=3)
    prepare = ["datasets", "prepare", "data/spawrious224", "--workers", "1", "--size", "16"]
    for setting in ("SpawriousO2O_easy", "SpawriousM2M_hard"):
        assert main([*prepare, "--preset", setting]) == 0
        folder = place / "data" / f"spawrious224.{setting}.hessalign-16"
        assert folder.is_dir()
    capsys.readouterr()
    assert train("SpawriousO2O_easy") == 0
    assert "image by image" not in capsys.readouterr().err
    assert train("SpawriousO2O_hard") == 0
    assert (
        "prepare data/spawrious224 --preset SpawriousO2O_hard --size 16" in capsys.readouterr().err
    )


def test_prepare_by_name_says_where_to_get_it_and_checks_it(place, capsys):
    prepare = ["datasets", "prepare"]
    for name, preset in PRESETS.items():
        assert main([*prepare, name]) == 1
        out = capsys.readouterr().out
        assert out.startswith(f"{name}: {preset.source}")
        assert f"licence: {preset.licence}" in out
        assert preset.size in out
        assert f"Unpack it to data/{preset.folder}, then" in out
    folder = make_fmow(place / "data")
    assert main([*prepare, "WILDSFMoW", "--workers", "1"]) == 1
    out = capsys.readouterr().out
    official = next(line for line in out.splitlines() if line.startswith("| official"))
    assert official.replace("|", "").split()[1:] == ["train"] * 4 + ["test"] * 2
    assert "count: val: expected 19915 images, found 20." in out
    assert "count: in all: expected 130369 images, found" in out
    year = [*prepare, "WILDSFMoW:domain=year", "--workers", "1", "--size", "16"]
    assert main(year) == 0
    assert "80 images of WILDSFMoW:domain=year are in data/fmow" in capsys.readouterr().out
    damaged = next((folder / "images").iterdir())
    damaged.write_text("no image")
    assert main(["datasets", "check", *year[2:5]]) == 1
    assert f"unreadable: {damaged.relative_to(place)}: not an image" in capsys.readouterr().out
    (folder / "rgb_metadata.csv").unlink()
    assert main([*prepare, "WILDSFMoW"]) == 1
    assert "missing: rgb_metadata.csv" in capsys.readouterr().out
    assert main([*prepare, "WILDSFMoV"]) == 2
    assert main([*prepare, "ColoredMNIST"]) == 1
    assert "made from the four MNIST files" in capsys.readouterr().out


def test_many_domains_are_told(place, capsys):
    rng = np.random.default_rng(0)
    domain = np.repeat(np.arange(40), 6)
    np.savez("cameras.npz", x=rng.normal(size=(240, 3)), y=domain % 2, domain=domain)
    given = ["--dataset", "cameras", "--data-dir", ".", "--test-domains", "0", "--output", "out"]
    assert main(["train", *given, "--steps", "2"]) == 0
    assert "A step takes 32 samples of each of 39 domains, 1,248 in all" in capsys.readouterr().err
