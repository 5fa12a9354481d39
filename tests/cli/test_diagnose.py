"""`hessalign diagnose` on runs, arrays and tables."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from tests.colored import colored_job
from tests.diagnosis_data import shifted

from hessalign.bench.runs import load_run, train_job
from hessalign.bench.runs.run import trained_head
from hessalign.cli import main

JOB = colored_job("erm", test_images=80, width=6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "erm-seed0"
    train_job(JOB, path, keep_model=True)
    return path


@pytest.fixture
def arrays(tmp_path):
    z, y, domain = shifted("diversity", samples=60)
    path = tmp_path / "clinics.npz"
    names = np.array(["north", "east", "south", "west"])
    np.savez(path, x=z.numpy(), y=y.numpy(), domain=domain.numpy(), domains=names)
    return path


def test_arrays_on_the_terminal_as_json_and_as_a_page(arrays, tmp_path, capsys):
    html, numbers = tmp_path / "page.html", tmp_path / "numbers.json"
    words = ["diagnose", str(arrays), "--html", str(html), "--json", str(numbers)]
    assert main([*words, "--samples", "40", "--seed", "3"]) == 0
    captured = capsys.readouterr()
    found = json.loads(numbers.read_text())
    assert found["name"] == "clinics"
    assert found["domains"] == ["north", "east", "south", "west"]
    assert found["samples"] == [40] * 4
    assert found["available"] == [60] * 4
    assert found["seed"] == 3
    assert "A draw of 160 of 240 samples" in captured.out
    right = found["transfer"]["sites"][0]["unseen"]["accuracy"]["value"]
    assert f"{right * 100:.1f} %" in captured.out
    assert f"Written: {html}" in captured.out
    assert "<h1>Diagnosis of clinics</h1>" in html.read_text()
    assert "diagnosing 8/9  trying remedies" in captured.err


def test_a_table_gives_what_the_same_arrays_give(arrays, tmp_path, capsys):
    with np.load(arrays) as file:
        x, y, domain = (file[key] for key in ("x", "y", "domain"))
    rows = [",".join([*map(repr, map(float, row)), str(label), str(place)])
            for row, label, place in zip(x, y, domain, strict=True)]  # fmt: skip
    header = ",".join([*(f"f{i}" for i in range(x.shape[1])), "y", "domain"])
    table = tmp_path / "table.csv"
    table.write_text("\n".join([header, *rows]) + "\n")
    results = []
    for path in (arrays, table):
        output = tmp_path / f"{path.stem}.json"
        assert main(["diagnose", str(path), "--json", str(output)]) == 0
        results.append(json.loads(output.read_text())["distances"]["hessian"]["measured"])
    np.testing.assert_allclose(results[0], results[1], rtol=1e-5, atol=1e-7)


def test_a_run_is_diagnosed_at_its_own_head(folder, tmp_path, capsys):
    output = tmp_path / "run.json"
    assert main(["diagnose", str(folder.parent), "--json", str(output)]) == 0
    found = json.loads(output.read_text())
    assert found["name"] == "erm, seed 0"
    assert found["domains"] == ["source 1", "source 2", "target"]
    assert found["classes"] == ["digit from 5", "digit below 5"]
    assert found["available"] == [127, 127, 80]
    assert found["head"]["origin"] == "given"
    assert found["head"]["domains"] == ["source 1", "source 2"]
    assert not found["head"]["at_optimum"]
    trained = load_run(folder)
    seen = trained_head(trained, 10**6, seed=5)
    z, y, domain = seen.z, seen.y, seen.domain
    right = (trained.network.head(z).squeeze(1) > 0) == (y > 0.5)
    for e in range(3):
        wanted = float(right[domain == e].double().mean())
        assert found["head"]["accuracy"][e] == pytest.approx(wanted, abs=1e-6)
    assert "not at the best of its own training loss" in capsys.readouterr().out


def test_a_run_without_a_model(folder, tmp_path, capsys):
    assert main(["diagnose", str(tmp_path)]) == 2
    assert "Expected a complete run in" in capsys.readouterr().err
    (tmp_path / "config.json").write_text("{}")
    assert main(["diagnose", str(tmp_path)]) == 2
    assert "found a run that is not complete" in capsys.readouterr().err
    for name in ("config.json", "done", "results.jsonl"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    assert main(["diagnose", str(tmp_path)]) == 2
    assert "Expected the trained model in" in capsys.readouterr().err


def test_images_want_features_first(tmp_path, capsys):
    for domain in ("photo", "sketch"):
        (tmp_path / domain / "dog").mkdir(parents=True)
        (tmp_path / domain / "dog" / "1.png").touch()
    assert main(["diagnose", str(tmp_path)]) == 2
    assert "or run `hessalign features extract` first" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--samples", "1"], "Expected samples of 4 or more of each domain, got 1"),
        (["--l2", "-1"], "Expected an L2 weight of 0 or more"),
        (["--tolerance", "0"], "Expected a positive, finite tolerance"),
        (["--html", "nowhere/page.html"], "Expected a folder to write to, found none at nowhere"),
    ],
)
def test_mistakes_are_named(arrays, words, text, capsys):
    assert main(["diagnose", str(arrays), *words]) == 2
    assert text in capsys.readouterr().err


def test_a_row_that_is_not_finite_is_named(tmp_path, capsys):
    table = tmp_path / "table.csv"
    table.write_text("a,y,domain\n1,0,0\ninf,1,0\n")
    assert main(["diagnose", str(table)]) == 2
    assert f"in column 'a' of {table}; line 3 has 'inf'" in capsys.readouterr().err


def test_inputs_that_are_not_features(tmp_path, capsys):
    path = tmp_path / "images.npz"
    np.savez(path, x=np.zeros((8, 3, 4, 4)), y=np.arange(8) % 2, domain=np.arange(8) // 4)
    assert main(["diagnose", str(path)]) == 2
    assert "Expected features of shape [n, d]" in capsys.readouterr().err


def test_features_as_they_are(arrays, tmp_path):
    results = []
    for words in ([], ["--as-is"]):
        output = tmp_path / "found.json"
        assert main(["diagnose", str(arrays), "--json", str(output), *words]) == 0
        results.append(json.loads(output.read_text()))
    assert "features as they are" in results[1]["how"]
    assert "scaled to mean 0" in results[0]["how"]
    first, second = (torch.tensor(r["distances"]["hessian"]["measured"]) for r in results)
    assert not torch.allclose(first, second)


def test_images_are_diagnosed_through_a_backbone(tmp_path, capsys):
    rng = np.random.RandomState(0)
    for domain, light in (("day", 120), ("night", 20)):
        for label in ("plain", "striped"):
            place = tmp_path / "street" / domain / label
            place.mkdir(parents=True)
            for number in range(4):
                pixels = np.full((32, 32, 3), light, np.uint8) + rng.randint(40, size=(32, 32, 3))
                if label == "striped":
                    pixels[::4] = 255
                Image.fromarray(pixels.astype(np.uint8)).save(place / f"{number}.png")
    assert main(["diagnose", str(tmp_path / "street"), "--backbone", "mnist_cnn"]) == 0
    shown = capsys.readouterr().out
    assert "day" in shown
    assert "night" in shown
    bank = tmp_path / "street@mnist_cnn.safetensors"
    assert bank.exists()
    assert main(["diagnose", str(bank), "--backbone", "mnist_cnn"]) == 2
    assert "Expected images for the backbone 'mnist_cnn', got arrays" in capsys.readouterr().err


def test_one_domain_is_named(tmp_path, capsys):
    rng = np.random.RandomState(0)
    path = tmp_path / "lone.npz"
    np.savez(path, x=rng.randn(40, 3), y=np.arange(40) % 2, domain=np.full(40, "north"))
    assert main(["diagnose", str(path)]) == 2
    message = "Expected samples of at least 2 domains, got only domain north: a gap is between two."
    assert message in capsys.readouterr().err
