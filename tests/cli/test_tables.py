"""Tables from the command line: checked, diagnosed, trained on, and predicted."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import hessalign as ha
from hessalign.bench.data import read_table, split_dataset
from hessalign.cli import main

COLUMNS = ["--label", "outcome", "--domain", "clinic"]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A table with gaps, words, identifiers, semicolons and decimal commas."""
    rng = np.random.default_rng(0)
    lines = ["patient_id;kg;ward;age;outcome;clinic"]
    for i in range(240):
        y = int(rng.integers(2))
        kg = "" if rng.random() < 0.1 else f"{70 + 10 * y + 8 * rng.normal():.2f}".replace(".", ",")
        ward = "?" if rng.random() < 0.1 else ("red", "green")[int(rng.random() < 0.3 + 0.4 * y)]
        lines.append(f"{9000 + i};{kg};{ward};{rng.integers(20, 90)};{['well', 'ill'][y]};{i % 3}")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "patients.csv").write_text("\n".join(lines) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(*words):
    flags = ["--test-domains", "2", "--steps", "60", "--output", "runs", "batch_size=16"]
    return main(["train", "--dataset", *words, *flags])


def test_it_is_checked(place, capsys):
    assert main(["datasets", "check", "data/patients.csv", *COLUMNS]) == 0
    shown = capsys.readouterr().out
    assert "Column 'patient_id' is left out: whole numbers that hardly repeat" in shown
    assert "patients is fine: 240 samples, 5 features of 3 columns." in shown


def test_it_is_trained_on_and_predicted_as_by_hand(place, capsys):
    assert train("patients", "--data-dir", "data", *COLUMNS) == 0
    shown = capsys.readouterr()
    assert "patients:label=outcome:domain=clinic" in shown.out
    assert "Column 'patient_id' is left out" in shown.err
    (folder,) = Path("runs").iterdir()
    described = json.loads((folder / "model.json").read_text())
    assert described["network"]["input_shape"] == [6]  # five features and where kg is missing

    data = read_table(place / "data" / "patients.csv", "outcome", "clinic")
    model = ha.load(folder)
    splits = split_dataset(data, trial_seed=0)
    seen = np.concatenate([data.domains[e].inputs.numpy()[splits[e].inner] for e in (0, 1)])
    fill = np.nanmedian(seen.astype(np.float64), axis=0)

    def columns(x):
        return np.c_[np.where(np.isnan(x), fill, x), np.isnan(x[:, 0])]

    mean, spread = columns(seen).mean(0), columns(seen).std(0)
    weights = load_file(folder / "model.safetensors")
    (weight,) = (each for each in weights.values() if each.ndim == 2)
    (bias,) = (each for each in weights.values() if each.ndim == 1)
    x = data.domains[2].inputs.numpy()
    logits = (columns(x) - mean) / spread @ weight.T + bias
    wanted = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(model.predict_proba(x), wanted, rtol=1e-3, atol=1e-5)

    assert main(["predict", "runs", "data/patients.csv", "--output", "found.csv"]) == 0
    with open("found.csv", newline="") as file:
        found = list(csv.DictReader(file))
    assert [row["path"] for row in found] == [f"data/patients.csv:{i}" for i in range(2, 242)]
    got = [float(row["probability_well"]) for row in found[2::3]]
    np.testing.assert_allclose(got, wanted[:, 1], rtol=1e-3, atol=1e-5)


def test_mistakes_are_told_in_the_words_of_the_file(place, capsys):
    file = "data/patients.csv"
    cases = {
        ("diagnose", file): "patient_id, kg, ward, age, outcome, clinic. Name the one that has",
        ("diagnose", file, "--label", "outcom"): "Did you mean 'outcome'?",
        ("diagnose", "data", *COLUMNS): "Expected a table for label, domain, got the folder data",
        ("datasets", "check", file, "--label", "ward", "--domain", "age"): f"of {file} on line",
    }
    for words, text in cases.items():
        assert main(list(words)) == 2
        told = capsys.readouterr().err
        assert text in told
        assert "manifest" not in told
    assert train("patients", "--data-dir", "data") == 2
    assert "--label COLUMN" in capsys.readouterr().err
    np.savez("arrays.npz", x=np.eye(4), y=[0, 1, 0, 1], domain=[0, 0, 1, 1])
    assert main(["diagnose", "arrays.npz", *COLUMNS]) == 2
    assert "Expected a table (.csv, .tsv) for label, domain" in capsys.readouterr().err


def test_other_tables_than_it_was_trained_on_are_refused(place, capsys):
    assert train("patients", "--data-dir", "data", *COLUMNS) == 0
    Path("new.csv").write_text("kg,ward,age\n70,red,50\n71,blue,40\n")
    assert main(["predict", "runs", "new.csv"]) == 2
    assert "line 3 has 'blue'. Correct it, or leave it empty" in capsys.readouterr().err
    Path("new.csv").write_text("kg,age\n70,50\n")
    assert main(["predict", "runs", "new.csv"]) == 2
    assert "it lacks ward, and has kg, age" in capsys.readouterr().err
    model = ha.load(next(Path("runs").iterdir()))
    with pytest.raises(ValueError, match=r"Expected x of shape \[n, 5\], got \[2, 6\]"):
        model.predict(np.ones((2, 6)))
    with pytest.raises(ValueError, match="Expected finite real numbers"):
        model.predict(np.full((2, 5), np.inf))
    assert len(model.predict(np.full((2, 5), np.nan))) == 2


def test_a_model_of_arrays_takes_no_table(place, capsys):
    rng = np.random.default_rng(0)
    np.savez("data/bank.npz", x=rng.normal(size=(60, 2)), y=[0, 1] * 30, domain=np.arange(60) % 3)
    assert train("bank", "--data-dir", "data") == 0
    assert main(["predict", "runs", "data/patients.csv"]) == 2
    assert "got the table data/patients.csv: it was not trained on one" in capsys.readouterr().err


def test_it_is_diagnosed_with_its_notes(place, capsys):
    words = ["data/patients.csv", *COLUMNS, "--json", "found.json", "--html", "found.html"]
    assert main(["diagnose", *words]) == 0
    assert "Column 'patient_id' is left out" in capsys.readouterr().out
    found = json.loads(Path("found.json").read_text())
    assert found["name"] == "patients"
    assert found["classes"] == ["ill", "well"]
    assert found["domains"] == ["0", "1", "2"]
    assert found["notes"][0].startswith("Column 'patient_id' is left out")
    assert "patient_id" in Path("found.html").read_text()


def test_heart_is_trained_on(place, capsys):
    assert train("heart") == 0
    shown = capsys.readouterr()
    assert "| Switzerland   | test  |" in shown.out
    assert "Column 'ca' is mostly missing in Hungary (99 %)" in shown.err


def test_heart_is_diagnosed(place):
    assert main(["diagnose", "heart", "--samples", "60", "--json", "heart.json"]) == 0
    found = json.loads(Path("heart.json").read_text())
    assert found["available"] == [303, 294, 123, 200]
    assert found["classes"] == ["healthy", "sick"]
