"""Commands with a data set and a head of one's own, named by their module."""

import sys

import pytest

from hessalign.cli import main

CODE = """
import torch
from dataclasses import dataclass
from torch import nn
from hessalign.bench.algorithms import AbstractObjective, ObjectiveTerms
from hessalign.bench.data import DomainDataset, DomainSamples

def pets(seed):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(20) % 2
    x = torch.randn(20, 3, generator=generator) + y[:, None]
    held_out = torch.tensor([0, 1, 2])
    names = ("photo", "sketch", "oil")
    return DomainDataset(
        "pets", ("cat", "dog"), tuple(DomainSamples(name, x, y, held_out) for name in names)
    )

def head(features, outputs):
    return nn.Sequential(nn.Linear(features, 5), nn.Tanh(), nn.Linear(5, outputs))

@dataclass(frozen=True)
class Config:
    weight: float = 1.0

    def __post_init__(self):
        if self.weight > 5:
            raise ValueError("too heavy")

class Faulty(AbstractObjective):
    config = Config()

    def __init__(self, config, setting):
        super().__init__(config, setting)
        if config.weight == 2:
            raise KeyError("two")

    def terms(self, step):
        if self.config.weight == 3:
            raise KeyError("three")
        return ObjectiveTerms(step.statistics.risk)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "own_parts.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("own_parts", None)


@pytest.fixture
def offered(folder, monkeypatch):
    """A package is installed that offers the data set as `pets`."""
    info = folder / "own_parts-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-parts\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[hessalign.datasets]\npets = own_parts:pets\n")
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])


TRAIN = ["--test-domains", "oil", "--steps", "3", "--output", "out", "head=own_parts:head"]


def test_training_on_data_of_ones_own_with_a_head_of_ones_own(folder, capsys):
    assert main(["train", "--dataset", "own_parts:pets", *TRAIN]) == 0, capsys.readouterr().err
    assert list(folder.glob("out/*/done"))


def test_training_on_data_that_a_package_offers(folder, offered, capsys):
    assert main(["train", "--dataset", "pets", *TRAIN]) == 0, capsys.readouterr().err
    assert list(folder.glob("out/*/done"))


def test_data_of_ones_own_need_no_folder_but_test_domains_and_output(folder, capsys):
    assert main(["train", "--dataset", "own_parts:pets"]) == 2
    said = capsys.readouterr().err
    assert "Expected --test-domains, --output for the data set 'own_parts:pets'" in said


def test_a_name_that_is_not_there_is_told_with_the_nearest(folder, capsys):
    words = ["train", "--dataset", "own_parts:pet", "--test-domains", "oil",
             "--output", "out"]  # fmt: skip
    assert main(words) == 2
    assert "Unknown data set in own_parts 'pet'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("weight", "told"),
    [
        (9, "cannot be configured; it raised ValueError: too heavy"),
        (2, "cannot be made; it raised KeyError: 'two'"),
        (3, "cannot be trained; it raised KeyError: 'three'"),
        (1, "Expected 'risk' of the terms as a tensor of one number, got shape [2]."),
    ],
)
def test_faults_of_an_algorithm_of_ones_own_are_told_as_its_own(folder, capsys, weight, told):
    words = ["train", "--dataset", "own_parts:pets", "--algorithm", "own_parts:Faulty", *TRAIN]
    assert main([*words, f"weight={weight}"]) == 2
    said = capsys.readouterr().err
    assert told in said
    if "it raised" in told:
        assert "The algorithm 'own_parts:Faulty' cannot" in said
        assert f"({folder / 'own_parts.py'}, line " in said


def test_data_that_packages_offer_are_listed(offered, capsys):
    assert main(["datasets", "list"]) == 0
    assert "Installed packages offer: pets.\n" in capsys.readouterr().out
    assert main(["datasets", "check", "pets"]) == 0


def test_checking_data_of_ones_own(folder, capsys):
    assert main(["datasets", "check", "own_parts:pets"]) == 0
    assert "pets is fine: 60 samples, arrays." in capsys.readouterr().out


@pytest.mark.slow
def test_a_sweep_over_data_of_ones_own(folder):
    from tests.commands import finished

    result = finished(folder, "sweep", "run", "--datasets", "own_parts:pets", "--data-dir", ".",
                      "--algorithms", "erm", "--test-domains", "0", "--trials", "1", "--draws", "2",
                      "--output", "out", "--launcher", "local", "--steps", 3)  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "2 runs in out: 2 done." in result.stdout
