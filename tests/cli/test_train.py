"""`hessalign train` on data sets of one's own."""

import json
import re
import sys

import numpy as np
import pytest

from hessalign.cli import main


@pytest.fixture
def bank(tmp_path):
    rng = np.random.RandomState(0)
    y = rng.randint(2, size=120)
    x = rng.randn(120, 4)
    x[:, 0] += 6 * y
    np.savez(tmp_path / "bank.npz", x=x, y=y, domain=np.array(["a", "b", "c"])[np.arange(120) % 3])
    return tmp_path


def train(bank, *words):
    flags = ["train", "--dataset", "bank", "--data-dir", str(bank), "--output", str(bank / "runs")]
    return main([*flags, *words])


def test_names_in_any_alphabet_are_printed_as_they_are(tmp_path, capsys):
    y = np.arange(60) % 2
    domain = np.array(["Köln", "Łódź", "東京"])[np.arange(60) % 3]
    np.savez(tmp_path / "bank.npz", x=np.stack([y, -y], 1) + 0.0, y=y, domain=domain)
    assert train(tmp_path, "--test-domains", "Köln", "--steps", "1") == 0
    assert "train:\n- Łódź\n- 東京\ntest:\n- Köln\n" in capsys.readouterr().out


def test_it_trains_shows_every_domain_and_keeps_domainbeds_records(bank, capsys):
    words = ["--algorithm", "hgp", "--test-domains", "b", "--steps", "11", "--restarts", "2"]
    assert train(bank, *words, "alpha=0", "beta=1", "lr=0.1") == 0
    captured = capsys.readouterr()
    assert "train:\n- a\n- c\ntest:\n- b\n" in captured.out
    rows = [line.split("|")[1:3] for line in captured.out.splitlines() if line.startswith("| ")]
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["domain", "role"], ["a", "train"], ["b", "test"], ["c", "train"],
    ]  # fmt: skip
    assert "hgp #1" in captured.err
    assert "validation 100.0 %" in captured.err  # the classes are six deviations apart
    found = sorted((bank / "runs").glob("*/results.jsonl"))
    assert len(found) == 2
    record = json.loads(found[0].read_text().splitlines()[-1])
    assert record["args"]["algorithm"] == "HGP"
    assert record["hparams"]["penalty_alpha"] == 0
    assert all((path.parent / "done").exists() for path in found)
    assert all((path.parent / "model.safetensors").exists() for path in found)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--test-domains", "d"], "Unknown domain of bank 'd'. Expected one of: 'a', 'b', 'c'"),
        (["--test-domains", "3"], "Unknown domain of bank '3'"),
        (["--test-domains", "0,1,2"], "Expected test domains of bank that leave one or more"),
        ([], "Expected --test-domains for the data set 'bank', got none"),
        (["--test-domains", "0", "hiden=3"], "Did you mean 'hidden'?"),
        (["--test-domains", "0", "--algorithm", "hpg"], "Did you mean 'hgp'?"),
        (["--test-domains", "0", "--steps", "0"], "Expected steps of 1 or more, got 0"),
        (["--test-domains", "0", "--steps", "-3"], "Expected steps of 1 or more, got -3"),
        (["--test-domains", "0", "steps=many"], "Expected steps as a whole number, got 'many'"),
        (["--test-domains", "0", "batch_size=0"], "Expected batch_size of 1 or more, got 0"),
        (
            ["--test-domains", "0", "batch_size=1.5"],
            "batch_size as a whole number of 1 or more, got 1.5",
        ),
        (
            ["--test-domains", "0", "hidden=2.7"],
            "Expected hidden as a whole number of 0 or more, got 2.7",
        ),
        (
            ["--test-domains", "0", "lr=abc"],
            "Expected lr as a finite number of 0 or more, got 'abc'",
        ),
        (["--test-domains", "0", "lr=nan"], "Expected lr as a finite number of 0 or more, got nan"),
        (
            ["--test-domains", "0", "lr=2020-01-01"],
            "as a finite number of 0 or more, got '2020-01-01'",
        ),
        (
            ["--test-domains", "0", "weight_decay=-1"],
            "weight_decay as a finite number of 0 or more, got -1",
        ),
        (
            ["--test-domains", "0", "data_augmentation=maybe"],
            "Expected data_augmentation as true or false, got 'maybe'",
        ),
    ],
)
def test_what_is_wrong_is_named_before_anything_is_begun(bank, capsys, words, text):
    assert train(bank, "--steps", "2", *words) == 2
    captured = capsys.readouterr()
    assert text in captured.err
    assert captured.out == ""
    assert not (bank / "runs").exists()


def test_everything_that_is_wrong_is_named_at_once(bank, capsys):
    words = ["--test-domains", "a,x,y", "learnrate=3", "lr=abc", "batch_size=-3", "steps=0"]
    assert train(bank, "--algorithm", "hgp", *words, "alpha=-1", "seed=one") == 2
    shown = capsys.readouterr().err
    assert shown.count("\n- ") == 8, shown
    for text in (
        "Unknown domain of bank 'x'",
        "Unknown domain of bank 'y'",
        "Unknown hyper-parameter of HGP 'learnrate'",
        "Expected lr as a finite number of 0 or more, got 'abc'",
        "Expected batch_size of 1 or more, got -3",
        "Expected steps of 1 or more, got 0",
        "Expected alpha as a finite number of 0 or more, got -1",
        "Expected seed as a whole number, got 'one'",
    ):
        assert text in shown, text
    assert not (bank / "runs").exists()


def test_an_unknown_algorithm_does_not_hide_the_rest(bank, capsys):
    assert train(bank, "--test-domains", "0,1,2", "--algorithm", "hpg", "alpha=1", "lr=abc") == 2
    shown = capsys.readouterr().err
    assert "Unknown algorithm 'hpg'" in shown
    assert "Expected lr as a finite number" in shown
    assert "alpha" not in shown  # nobody knows whether it has such an option
    assert main(["train", "--dataset", "bank", "--algorithm", "hpg", "--data-dir", "nowhere"]) == 2
    shown = capsys.readouterr().err
    for text in (
        "Unknown algorithm 'hpg'",
        "Expected the data set 'bank'",
        "--test-domains, --out",
    ):
        assert text in shown


def test_a_sweep_names_everything_that_is_wrong_too(bank, capsys):
    command = ["sweep", "run", "--datasets", "bank", "--data-dir", str(bank), "--algorithms", "erm"]
    words = ["learnrate=3", "lr=abc", "batch_size=-3"]
    assert main([*command, "--output", str(bank / "sweep"), *words]) == 2
    assert capsys.readouterr().err.count("\n- ") == 3


def test_help_lists_the_keys_of_every_data_set(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    shown = capsys.readouterr().out
    for key in (
        "train_images",
        "lr",
        "batch_size",
        "weight_decay",
        "backbone",
        "weights",
        "hidden",
    ):
        assert re.search(rf"\b{key}\b", shown), key


def test_a_file_may_list_test_domains(bank, capsys):
    (bank / "run.yaml").write_text("test_domains: [a, 1]\n")
    assert train(bank, "--steps", "1", "--config", str(bank / "run.yaml")) == 0
    assert "test:\n- a\n- b\n" in capsys.readouterr().out


def test_a_domain_that_is_too_small_to_be_split_is_named(bank, capsys):
    domain = np.repeat(["large", "small"], [20, 4])
    np.savez(bank / "bank.npz", x=np.eye(24), y=np.arange(24) % 2, domain=domain)
    assert train(bank, "--steps", "2", "--test-domains", "large") == 2
    text = "Expected 5 or more samples in each domain of bank, of which 20% are held out; 'small' h"
    assert text in capsys.readouterr().err


def test_a_name_without_a_folder_is_looked_up_in_the_catalogue(capsys):
    assert main(["train", "--dataset", "PAC"]) == 2
    assert "Did you mean 'PACS'?" in capsys.readouterr().err
    assert main(["train", "--dataset", "PACS"]) == 2
    assert "Expected --data-dir, --test-domains, --output" in capsys.readouterr().err


# --- backbones whose weights are random -----------------------------------------------------------


OWN = """
import torch

def make(loaded=False):
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
    )
    if loaded:
        torch.nn.init.ones_(net[0].weight)
        torch.nn.init.zeros_(net[0].bias)
    return net

def make_loaded():
    return make(loaded=True)
"""


@pytest.fixture
def images(tmp_path, monkeypatch):
    """A small data set of images, and networks of one's own for them."""
    x = np.random.default_rng(0).integers(0, 255, (24, 3, 32, 32)).astype(np.uint8)
    np.savez(tmp_path / "small.npz", x=x, y=[0, 1] * 12, domain=[0] * 12 + [1] * 12)
    (tmp_path / "own_nets.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_nets", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("backbone", "random"),
    [
        ("timm:resnet10t", True),
        ("resnet18", True),
        ("mnist_cnn", True),
        ("own_nets:make", True),
        ("own_nets:make_loaded", False),
    ],
)
def test_features_of_random_weights_are_warned_of(images, capsys, backbone, random):
    command = ["features", "extract", "small.npz", "--backbone", backbone, "--jobs", "1"]
    assert main([*command, "--output", "bank.npz"]) == 0
    shown = capsys.readouterr().err
    assert ("random" in shown) == random, shown
    assert ("--weights" in shown) == random, shown


def test_weights_that_are_given_are_not_warned_of(images, capsys):
    import torch
    from own_nets import make

    torch.save(make().state_dict(), "own.pt")
    command = ["features", "extract", "small.npz", "--backbone", "own_nets:make", "--jobs", "1"]
    assert main([*command, "--weights", "own.pt", "--output", "bank.npz"]) == 0
    assert "random" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "random"),
    [
        (["backbone=own_nets:make"], True),
        (["backbone=own_nets:make_loaded"], False),
        (["backbone=resnet18", "weights=none"], True),
    ],
)
def test_runs_from_random_weights_are_warned_of(images, capsys, words, random):
    data = ["--data-dir", ".", "--steps", "1", "--output", "out", "batch_size=2", *words]
    assert main(["train", "--dataset", "small", "--test-domains", "0", *data]) == 0
    shown = capsys.readouterr().err
    assert ("random" in shown) == random, shown
    assert ("weights=" in shown) == random, shown
    sweep = ["--datasets", "small", "--algorithms", "erm", "--trials", "1", "--draws", "1", *data]
    assert main(["sweep", "run", "--launcher", "serial", "--test-domains", "0", *sweep]) == 0
    assert ("random" in capsys.readouterr().err) == random


@pytest.mark.parametrize(
    ("algorithm", "test", "warned"),
    [("hgp", "a,b", True), ("coral", "a,b", True), ("erm", "a,b", False), ("hgp", "a", False)],
)
def test_one_training_domain_leaves_nothing_to_align(bank, capsys, algorithm, test, warned):
    words = ["--algorithm", algorithm, "--test-domains", test, "--steps", "2", "--restarts", "2"]
    assert train(bank, *words) == 0
    assert capsys.readouterr().err.count("only one domain to train on (bank: ") == warned
