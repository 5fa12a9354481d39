"""Heart disease in four hospitals: the shipped file is the original, and its counts are known."""

import hashlib
import os
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from scripts import build_heart

import hessalign as ha
from hessalign.bench.data import find_dataset, heart, read_dataset

ROOT = Path(__file__).parents[4]
SHIPPED = files("hessalign.bench.data").joinpath("heart.csv")
SHA256 = "bb50dc04423ea7182ac99a38366204a9c3d96621ca3c1d3064732ead8ff6a926"
FILES = {
    "Cleveland": "processed.cleveland.data", "Hungary": "processed.hungarian.data",
    "Switzerland": "processed.switzerland.data", "VA Long Beach": "processed.va.data",
}  # fmt: skip


@pytest.fixture
def originals():
    """Folder of the four original files, where there is one."""
    folder = Path(os.environ.get("HESSALIGN_HEART", ROOT.parent / "shared" / "data" / "heart"))
    if not (folder / "processed.va.data").is_file():
        pytest.skip("the four processed files are not at hand; HESSALIGN_HEART may name the folder")
    return folder


def test_patients_and_who_is_sick():
    data = ha.load_heart()
    assert data.classes == ("healthy", "sick")
    counts = {part.name: part.counts(2) for part in data.domains}
    assert counts == {
        "Cleveland": [164, 139], "Hungary": [188, 106],
        "Switzerland": [8, 115], "VA Long Beach": [51, 149],
    }  # fmt: skip
    shares = [sick / (healthy + sick) for healthy, sick in counts.values()]
    assert (round(min(shares), 2), round(max(shares), 2)) == (0.36, 0.93)


def test_what_is_missing_and_what_is_zero():
    data = ha.load_heart()
    names = data.table.features
    assert len(names) == 13
    missing = [part.inputs.isnan().sum(0).tolist() for part in data.domains]
    gaps = {name: row for name, *row in zip(names, *missing, strict=True) if any(row)}
    assert gaps == {
        "trestbps": [0, 1, 2, 56], "chol": [0, 23, 0, 7], "fbs": [0, 8, 75, 7],
        "restecg": [0, 1, 1, 0], "thalach": [0, 1, 1, 53], "exang": [0, 1, 1, 53],
        "oldpeak": [0, 0, 6, 56], "slope": [0, 190, 17, 102], "ca": [4, 291, 118, 198],
        "thal": [2, 266, 52, 166],
    }  # fmt: skip
    zeros = {
        name: [int((part.inputs[:, names.index(name)] == 0).sum()) for part in data.domains]
        for name in ("chol", "trestbps")
    }
    assert zeros == {"chol": [0, 0, 123, 49], "trestbps": [0, 0, 0, 1]}
    notes = " ".join(data.table.notes)
    assert "Column 'chol' is '0' in every row of Switzerland: is it missing there?" in notes
    assert "'chol' is 0 for 49 patients of VA Long Beach too, and 'trestbps' for one" in notes


def test_the_shipped_file_is_the_originals_in_other_words(originals, tmp_path):
    data = ha.load_heart()
    for part in data.domains:
        lines = (originals / FILES[part.name]).read_text().split()
        wanted = np.array(
            [[np.nan if cell == "?" else float(cell) for cell in line.split(",")] for line in lines]
        )
        np.testing.assert_array_equal(part.inputs.numpy(), wanted[:, :-1].astype(np.float32))
        np.testing.assert_array_equal(part.labels.numpy(), wanted[:, -1] > 0)
    assert build_heart.main([str(originals), "--output", str(tmp_path / "built.csv")]) == 0
    assert (tmp_path / "built.csv").read_bytes() == SHIPPED.read_bytes()


def test_the_shipped_file_is_the_one_that_was_built():
    assert hashlib.sha256(SHIPPED.read_bytes()).hexdigest() == SHA256


def test_other_originals_are_refused(tmp_path, capsys):
    assert build_heart.main([str(tmp_path)]) == 1
    for name in FILES.values():
        (tmp_path / name).write_text("63,1,1,145,233,1,2,150,0,2.3,3,0,6,0\n")
    assert build_heart.main([str(tmp_path), "--output", str(tmp_path / "built.csv")]) == 1
    assert "processed.cleveland.data: expected SHA-256 a74b7efa" in capsys.readouterr().err


def test_it_goes_by_its_name_unless_the_user_has_another(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shipped = ha.load_heart()
    assert read_dataset(Path("heart")) is shipped
    assert find_dataset("heart", tmp_path) is shipped
    with pytest.raises(ValueError, match="Expected no options of heart, got label"):
        read_dataset(Path("heart:label=sex"))
    (tmp_path / "heart.csv").write_text("x,y,domain\n1,a,b\n2,c,d\n")
    assert find_dataset("heart", tmp_path).classes == ("a", "c")


def test_the_credit_is_given():
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    for text in (notice, heart.__doc__):
        flat = " ".join(text.split())
        for words in ("Janosi", "Steinbrunn", "Pfisterer", "Detrano", "10.24432/C52P4X", "CC BY"):
            assert words in flat
