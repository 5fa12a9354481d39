"""`hessalign attack` on a tiny trained run."""

import json
import re
import shutil

import numpy as np
import pytest
import torch
from tests.colored import colored_job

from hessalign.bench.runs import load_run, train_job
from hessalign.bench.runs.run import trained_head
from hessalign.cli import main
from hessalign.heads import worst_case_gap

JOB = colored_job("hgp", test_images=80, width=6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("run")
    train_job(JOB, path, keep_model=True)
    return path


def test_the_table_holds_what_the_attack_finds(folder, capsys, tmp_path):
    command = ["attack", str(folder), "--delta", "0.1", "--delta", "0.5", "--samples", "40"]
    assert main([*command, "--output", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    found = json.loads((tmp_path / "attack.json").read_text())
    assert [attack["delta"] for attack in found["attacks"]] == [0.1, 0.5]
    assert f"{found['attacks'][1]['gap']:.3f}" in out
    assert "target: loss, accuracy" in out
    assert (tmp_path / "attack.png").stat().st_size > 10_000
    # The saved gap is the difference of the saved losses.
    for attack in found["attacks"]:
        first, second = attack["pair"]
        assert attack["gap"] == pytest.approx(attack["losses"][first] - attack["losses"][second])
        assert attack["distance"] <= attack["delta"] * (1 + 1e-9)
    assert found["gap"] <= found["attacks"][0]["gap"] <= found["attacks"][1]["gap"]
    # And both say whether it is proved.
    certified = [attack["certified"] for attack in found["attacks"]]
    assert re.findall(r"\| +(yes|no) +\|", out) == ["yes" if each else "no" for each in certified]
    assert all(attack["limit"] >= attack["gap"] * (1 - 1e-9) for attack in found["attacks"])


def test_a_tiny_radius_is_certified_and_a_large_one_is_not(folder, capsys, tmp_path):
    command = ["attack", str(folder), "--delta", "0.001", "100", "--samples", "40"]
    assert main([*command, "--output", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "attack.json").read_text())
    assert [attack["certified"] for attack in found["attacks"]] == [True, False]
    assert "Certified: whether it is proved" in capsys.readouterr().out


def test_published_states_its_reach_and_is_never_better(folder, capsys, tmp_path):
    gaps = {}
    for mode in ("published", "exact"):
        command = ["attack", str(folder), "--mode", mode, "--delta", "0.3", "--samples", "40"]
        assert main([*command, "--output", str(tmp_path / mode)]) == 0
        content = json.loads((tmp_path / mode / "attack.json").read_text())
        gaps[mode] = content["attacks"][0]["gap"]
    assert "It cannot move further than about" in capsys.readouterr().out
    assert gaps["published"] <= gaps["exact"] + 1e-12


def test_features_are_those_of_the_network_and_balanced_between_domains(folder):
    trained = load_run(folder)
    found = trained_head(trained, 30, seed=1)
    z, y, domain = found.z, found.y, found.domain
    assert domain.bincount().tolist() == [30, 30, 30]
    everything = trained_head(trained, 10**6, seed=1).domain
    assert everything.bincount().tolist() == [127, 127, 80]
    logits = trained.network.head(z).squeeze(1)
    result = worst_case_gap(z, y, domain, trained.network.head, 0.1, loss="binary")
    losses = torch.nn.functional.binary_cross_entropy_with_logits(
        logits.double(), y.double(), reduction="none"
    )
    means = torch.stack([losses[domain == e].mean() for e in range(3)])
    torch.testing.assert_close(result.losses, means.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--mode", "exakt"], r"Unknown mode 'exakt'.*Did you mean 'exact'"),
        (["--samples", "0"], "Expected --samples of 1 or more, got 0"),
        (["--delta", "-1"], r"(?i)expected .*delta"),
    ],
)
def test_mistakes_are_named(folder, words, text, capsys):
    assert main(["attack", str(folder), *words]) == 2
    assert re.search(text, capsys.readouterr().err)


def test_a_folder_without_a_model_is_named(folder, tmp_path, capsys):
    assert main(["attack", str(tmp_path)]) == 2
    assert "Expected a complete run in" in capsys.readouterr().err
    (tmp_path / "config.json").write_text("{}")
    assert main(["attack", str(tmp_path)]) == 2
    assert "found a run that is not complete" in capsys.readouterr().err
    (tmp_path / "done").write_text("{}")
    (tmp_path / "config.json").write_text('{"x": 1}')
    assert main(["attack", str(tmp_path)]) == 2
    assert "Expected the arguments of a job, missing: dataset" in capsys.readouterr().err


def test_a_run_on_a_data_set_of_ones_own(tmp_path, capsys):
    rng = np.random.RandomState(0)
    y = rng.randint(3, size=90)
    x = rng.randn(90, 4)
    x[:, 0] += y
    domain = np.array(["a", "b", "c"])[np.arange(90) % 3]
    np.savez(tmp_path / "bank.npz", x=x, y=y, domain=domain)
    words = ["--dataset", "bank", "--data-dir", str(tmp_path), "--test-domains", "b"]
    assert main(["train", *words, "--steps", "3", "--output", str(tmp_path / "runs")]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    assert capsys.readouterr().out.endswith(f"Saved in {run}\n")
    assert main(["attack", str(tmp_path / "runs"), "--delta", "0.2", "--samples", "20"]) == 0
    out = capsys.readouterr().out
    assert out.endswith(f"Saved in {run / 'attack'}\n")
    assert "b (unseen): loss, accuracy" in out
    found = json.loads((run / "attack" / "attack.json").read_text())
    assert (found["domains"], found["unseen"]) == (["a", "b", "c"], [1])
    (attack,) = found["attacks"]
    assert attack["gap"] == pytest.approx(
        attack["losses"][attack["pair"][0]] - attack["losses"][attack["pair"][1]]
    )
    assert f"{attack['gap']:.3f}" in out

    np.savez(tmp_path / "bank.npz", x=x[:, :3], y=y, domain=domain)
    assert main(["attack", str(run)]) == 2
    assert re.search(r"do not fit the data set bank in .*Use the data", capsys.readouterr().err)
    shutil.copytree(run, tmp_path / "runs" / "second")
    assert main(["attack", str(tmp_path / "runs")]) == 2
    assert re.search(r"Expected one run in .*runs, found 2: .*second", capsys.readouterr().err)
    (run / "model.safetensors").write_bytes(b"junk")
    assert main(["attack", str(run)]) == 2
    assert "model.safetensors, found" in capsys.readouterr().err
