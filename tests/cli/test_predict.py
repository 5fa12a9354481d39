"""`hessalign predict` and `hessalign export`, from training on."""

import csv
import io
import json
import os
import shutil
import sys

import numpy as np
import pytest
from PIL import Image

import hessalign as ha
from hessalign.cli import main

CLASSES = ("cat", "dog, small", "owl\nbarn")
BACKBONE = (
    "from torch import nn\n\n\ndef small():\n"
    "    layers = nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1)\n"
    "    return nn.Sequential(*layers, nn.Flatten())\n"
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A run on images, one on features, and photographs to be classified."""
    folder = tmp_path_factory.mktemp("place")
    rng = np.random.RandomState(0)
    for domain in ("art", "photo", "sketch"):
        for number, label in enumerate(CLASSES):
            home = folder / "pets" / domain / label
            home.mkdir(parents=True)
            for each in range(5):
                pixels = rng.randint(0, 100, size=(12, 15, 3)) + 60 * number
                Image.fromarray(pixels.astype(np.uint8)).save(home / f"{each}.png")
    y, domain = rng.randint(2, size=60), np.arange(60) % 3
    x = rng.randn(60, 4) + 3 * y[:, None]
    np.savez(folder / "bank.npz", x=x, y=y, domain=domain, classes=["ill", "well"])
    photos = folder / "photos"
    (photos / "inner").mkdir(parents=True)
    for name in ("a, b.png", "inner/c\nd.jpg", "e.png"):
        pixels = rng.randint(0, 256, size=(20, 30, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(photos / name)
    (folder / "predict_backbone.py").write_text(BACKBONE)
    sys.path.insert(0, str(folder))
    os.environ["HESSALIGN_BATCH_WORKERS"] = "0"
    try:
        train(folder, "pets", "images", "backbone=predict_backbone:small", "image_size=12")
        train(folder, "bank", "vectors")
        yield folder
    finally:
        sys.path.remove(str(folder))
        del os.environ["HESSALIGN_BATCH_WORKERS"]


def train(folder, dataset, output, *words):
    flags = [
        "--data-dir",
        folder,
        "--test-domains",
        "1",
        "--steps",
        "3",
        "--output",
        folder / output,
    ]
    words = ("train", "--dataset", dataset, *flags, "batch_size=4", *words)
    assert main([str(word) for word in words]) == 0


def run(*words):
    return main([str(word) for word in words])


def rows_of(path):
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        return list(csv.DictReader(file))


def test_a_folder_of_photographs_becomes_a_table(place, tmp_path, capsys):
    output = tmp_path / "new" / "found.csv"
    assert run("predict", place / "images", place / "photos", "--output", output) == 0
    captured = capsys.readouterr()
    assert captured.out == f"Written: {output}\n"
    assert "3/3 samples" in captured.err
    rows = rows_of(output)
    paths = sorted(str(path) for path in (place / "photos").rglob("*.*g"))
    assert [row["path"] for row in rows] == paths
    model = ha.load(place / "images")
    assert list(rows[0]) == ["path", "class", *(f"probability_{name}" for name in CLASSES)]
    assert [row["class"] for row in rows] == model.predict(paths).tolist()
    found = np.array([[row[f"probability_{name}"] for name in CLASSES] for row in rows], np.float32)
    assert found.tobytes() == model.predict_proba(paths).tobytes()


def test_without_output_the_table_is_printed(place, capsys):
    assert run("predict", place / "images", place / "photos" / "e.png") == 0
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out, newline="")))
    assert [row[0] for row in rows] == ["path", str(place / "photos" / "e.png")]


def test_arrays_of_features_and_probabilities(place, tmp_path):
    output = tmp_path / "found.npz"
    assert run("predict", place / "images", place / "photos", "--output", output) == 0
    with np.load(output, allow_pickle=False) as found:
        model = ha.load(place / "images")
        paths = found["path"].tolist()
        assert found["features"].tobytes() == model.features(paths).tobytes()
        assert found["probabilities"].tobytes() == model.predict_proba(paths).tobytes()
        assert found["class"].tolist() == model.predict(paths).tolist()
        assert found["classes"].tolist() == list(CLASSES)


def test_files_of_arrays_as_inputs(place, tmp_path):
    x = np.load(place / "bank.npz")["x"]
    np.save(tmp_path / "more.npy", x[:2])
    output = tmp_path / "found.csv"
    words = (place / "bank.npz", tmp_path / "more.npy", "--output", output, "--batch-size", "7")
    assert run("predict", place / "vectors", *words) == 0
    rows = rows_of(output)
    assert len(rows) == 62
    assert rows[59]["path"] == f"{place / 'bank.npz'}#59"
    assert rows[61]["path"] == f"{tmp_path / 'more.npy'}#1"
    assert [row["class"] for row in rows[:60]] == ha.load(place / "vectors").predict(x).tolist()


def test_what_cannot_be_read_is_named_and_the_rest_is_there(place, tmp_path, capsys):
    shutil.copytree(place / "photos", tmp_path / "photos")
    (tmp_path / "photos" / "text.png").write_text("no image")
    torn = tmp_path / "photos" / "torn.png"
    torn.write_bytes((tmp_path / "photos" / "e.png").read_bytes()[:300])
    output = tmp_path / "found.csv"
    words = (tmp_path / "photos", tmp_path / "gone.jpg", "--output", output, "--batch-size", "2")
    assert run("predict", place / "images", *words) == 1
    shown = capsys.readouterr().err
    assert shown.count("hessalign: The image ") == 3
    assert "text.png is unreadable: not an image of any known kind" in shown
    assert "torn.png is truncated" in shown
    assert "gone.jpg is unreadable: No such file or directory" in shown
    assert "3 of 6 could not be read and are left out." in shown
    assert "6/6 samples" in shown
    assert len(rows_of(output)) == 3


def test_names_that_are_not_utf8_come_out_as_they_were(place, tmp_path, capsys):
    name = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.png")
    shutil.copy(place / "photos" / "e.png", name)
    output = tmp_path / "found.csv"
    assert run("predict", place / "images", name, "--output", output) == 0
    assert b"caf\xe9.png," in output.read_bytes()
    assert rows_of(output)[0]["path"] == name
    capsys.readouterr()
    assert run("predict", place / "images", name) == 0
    assert "caf\\udce9.png," in capsys.readouterr().out


def test_an_interrupted_table_leaves_the_old_one(place, tmp_path, monkeypatch):
    output = tmp_path / "found.csv"
    output.write_text("old")

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("hessalign.bench.runs.trained.TrainedModel._of", stop)
    assert run("predict", place / "images", place / "photos", "--output", output) == 130
    assert output.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["found.csv"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["vectors", "photos"], "Expected arrays [n, 4], on which this model was trained"),
        (["images", "bank.npz"], "got [60, 4]. Give one row per sample"),
        (["photos", "photos"], "Expected a trained model, model.json and model.safetensors"),
        (["nothing", "photos"], "found no folder"),
        (["images", "photos", "--output", "found.txt"], "Expected --output as *.csv or *.npz"),
        (["images", "photos", "--batch-size", "0"], "Expected a batch_size of 1 or more, got 0"),
        (["images", "photos", "--algorithm", "erm"], "Expected --algorithm with --select"),
        (["images", "photos", "--test-domain", "art"], "Expected --test-domain with --select"),
        (["images", "flat.npy"], "Expected flat.npy of shape [n, 3, "),
    ],
)
def test_what_is_wrong_is_said(place, words, text, capsys, monkeypatch):
    monkeypatch.chdir(place)
    np.save("flat.npy", np.zeros((4, 5), np.float32))
    assert run("predict", *words) == 2
    captured = capsys.readouterr()
    assert text in captured.err
    assert not captured.out


def test_the_best_run_of_a_sweep(place, tmp_path, capsys):
    words = (
        "sweep", "run", "--datasets", "bank", "--data-dir", place, "--algorithms", "erm", "hgp",
        "--trials", "1", "--draws", "2", "--test-domains", "1", "--steps", "5",
        "--output", tmp_path / "sweep", "--launcher", "serial",
    )  # fmt: skip
    assert run(*words, "--keep-models") == 0
    capsys.readouterr()
    output = tmp_path / "found.csv"
    chosen = ("--select", "training-domain", "--output", output)
    assert run("predict", tmp_path / "sweep", place / "bank.npz", *chosen) == 0
    shown = capsys.readouterr().err
    assert "training-domain chooses " in shown
    folder = shown.split("chooses ")[1].split(":")[0]
    expected = ha.load(folder).predict(place / "bank.npz").tolist()
    assert [row["class"] for row in rows_of(output)] == expected
    assert run("predict", tmp_path / "sweep", place / "bank.npz") == 2
    assert "Expected one trained model in" in capsys.readouterr().err
    for path in (tmp_path / "sweep").rglob("model.json"):
        path.unlink()
    assert run("predict", tmp_path / "sweep", place / "bank.npz", *chosen) == 2
    assert "keep_models: true" in capsys.readouterr().err


def test_export_says_what_the_file_takes(place, tmp_path, capsys):
    output = tmp_path / "model.ts"
    assert run("export", place / "vectors", "--format", "torchscript", "--output", output) == 0
    assert capsys.readouterr().out == f"{output}: x [n, 4] to logits [n, 2]; checked.\n"
    assert run("export", place / "vectors", "--format", "onx", "--output", output) == 2
    assert "Did you mean 'onnx'" in capsys.readouterr().err


@pytest.mark.slow
def test_a_photograph_through_onnx_without_this_package(place, tmp_path, capsys):
    output = tmp_path / "model.onnx"
    assert run("export", place / "images", "--format", "onnx", "--output", output) == 0
    assert capsys.readouterr().out == f"{output}: x [n, 3, 12, 12] to logits [n, 3]; checked.\n"
    import onnxruntime

    session = onnxruntime.InferenceSession(output)
    about = json.loads(session.get_modelmeta().custom_metadata_map["model.json"])
    assert about["classes"] == list(CLASSES)
    paths = sorted((place / "photos").rglob("*.*g"))
    mean, std = (np.array(about["normalisation"][name]) for name in ("mean", "std"))
    pixels = [
        np.asarray(Image.open(path).convert("RGB").resize((12, 12), Image.Resampling.BILINEAR))
        for path in paths
    ]
    x = ((np.stack(pixels) / 255 - mean) / std).transpose(0, 3, 1, 2).astype(np.float32)
    logits = session.run(["logits"], {"x": x})[0]
    expected = np.log(ha.load(place / "images").predict_proba(paths))
    shifted = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    assert np.allclose(shifted, expected, atol=1e-4)
