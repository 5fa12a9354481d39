"""Data sets of Hugging Face, from folders and files that its package writes."""

import io
import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.pictures import picture

from hessalign.bench.data import find_dataset, read_dataset, split_dataset

pytestmark = [
    pytest.mark.skipif(find_spec("datasets") is None, reason="the extra hf is not installed"),
    pytest.mark.filterwarnings("ignore"),  # of packages that are not ours
]

SITES = ("north", "south")


@pytest.fixture(autouse=True)
def datasets(tmp_path, monkeypatch):
    """The package, which takes seconds to import, with a cache of its own."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    return datasets


def encoded(seed, kind="PNG"):
    content = io.BytesIO()
    picture(seed).save(content, kind)
    return {"bytes": content.getvalue(), "path": None}


def table(rows, start=0, sites=SITES, names=("image", "label", "site")):
    import datasets

    image, label, site = names
    features = datasets.Features({
        image: datasets.Image(), label: datasets.ClassLabel(names=["dog", "cat"]),
        site: datasets.Value("string"), "note": datasets.Value("string"),
    })  # fmt: skip
    content = {
        image: [encoded(start + row, "JPEG" if row % 2 else "PNG") for row in range(rows)],
        label: [row % 2 for row in range(rows)],
        site: [sites[row // 2 % len(sites)] for row in range(rows)],
        "note": ["-"] * rows,
    }
    return datasets.Dataset.from_dict(content, features=features)


def write(folder, **splits):
    import datasets

    datasets.DatasetDict(splits).save_to_disk(str(folder))
    return folder


def test_splits_become_held_out_parts_and_test_domains(tmp_path, datasets):
    splits = {
        "train": table(12),
        "validation": table(4, 20),
        "test": table(12, 40, ("north", "overseas")),
    }
    folder = write(tmp_path / "birds", **splits)
    data = read_dataset(Path(f"hf:{folder}"))
    assert (data.name, data.classes) == ("birds", ("cat", "dog"))
    assert data.domain_names == ("north", "overseas", "south")
    assert data.official_tests == ("overseas",)
    for domain, split in zip(data.domains, split_dataset(data, 0), strict=True):
        parts = [
            [domain.paths[row].parent.name for row in part] for part in (split.inner, split.outer)
        ]
        if domain.name == "overseas":
            assert {*parts[0], *parts[1]} == {"test"}
            assert len(domain) == 6
        else:
            assert parts == [["train"] * 6, ["validation"] * 2]
        for path, label in zip(domain.paths, domain.labels, strict=True):
            row = splits[path.parent.name].cast_column("image", datasets.Image(decode=False))[
                int(path.stem)
            ]
            assert path.read_bytes() == row["image"]["bytes"]
            assert path.suffix == (".jpg" if int(path.stem) % 2 else ".png")
            assert data.classes[label] == ["dog", "cat"][row["label"]]
            assert domain.name == row["site"]


def test_it_is_written_once_and_again_when_the_source_changes(tmp_path, monkeypatch):
    folder = write(tmp_path / "birds", train=table(12))
    first = find_dataset(f"hf:{folder}", tmp_path)
    assert all(domain.held_out is None for domain in first.domains)
    with monkeypatch.context() as context:
        context.setitem(sys.modules, "datasets", None)  # not needed any more
        assert find_dataset(f"hf:{folder}", tmp_path).fingerprint() == first.fingerprint()
        with pytest.raises(ImportError, match=r"needs Hugging Face's package .*hessalign\[hf\]"):
            find_dataset("hf:owner/elsewhere", tmp_path)
    write(tmp_path / "other", train=table(8))
    for path in (tmp_path / "other").rglob("*"):
        if path.is_file():
            (folder / path.relative_to(tmp_path / "other")).write_bytes(path.read_bytes())
    assert len(find_dataset(f"hf:{folder}", tmp_path)) == 8


def test_columns_and_splits_can_be_named(tmp_path):
    names = ("scan", "finding", "clinic")
    splits = {"fit": table(12, names=names), "check": table(4, 20, names=names)}
    folder = write(tmp_path / "scans", **splits)
    with pytest.raises(ValueError, match=r"Expected a column of domains in .*, found scan, find"):
        find_dataset(f"hf:{folder}", tmp_path)
    name = f"hf:{folder}:domain=clinic:train=fit:held_out=check"
    data = find_dataset(name, tmp_path)
    assert [len(domain.held_out) for domain in data.domains] == [2, 2]
    whole = find_dataset(f"hf:{folder}:domain=split", tmp_path)
    assert [(domain.name, len(domain)) for domain in whole.domains] == [("check", 4), ("fit", 12)]
    assert [domain.held_out for domain in whole.domains] == [None, None]
    for option, message in {
        "domain=clinics": r"Unknown column of .* for domain 'clinics'.*Did you mean 'clinic'",
        "domains=clinic": r"Unknown option of a data set of Hugging Face 'domains'",
        "domain=clinic:train=fitt": r"Unknown split of .* 'fitt'.*Did you mean 'fit'",
    }.items():
        with pytest.raises(ValueError, match=message):
            find_dataset(f"hf:{folder}:{option}", tmp_path)


def test_parquet_files_and_folders_of_them(tmp_path):
    (tmp_path / "birds").mkdir()
    table(12).to_parquet(str(tmp_path / "birds" / "train.parquet"))
    for name in ("hf:birds", "hf:birds/train.parquet"):
        data = find_dataset(name, tmp_path)
        assert [len(domain) for domain in data.domains] == [6, 6]
        assert data.classes == ("cat", "dog")


def test_single_files_are_of_kinds_that_the_package_reads(tmp_path):
    picture(0).save(tmp_path / "0.png")
    rows = [{"path": str(tmp_path / "0.png"), "label": "ab"[n % 2], "domain": n} for n in range(4)]
    lines = "".join(f"{json.dumps(row)}\n" for row in rows)
    for name in ("birds.jsonl", "birds.JSON"):
        (tmp_path / name).write_text(lines)
        assert len(find_dataset(f"hf:{name}", tmp_path)) == 4
    with pytest.raises(ValueError, match="Expected a name, a folder or a file after hf:, got none"):
        find_dataset("hf:", tmp_path)
    (tmp_path / "birds.py").write_text("")  # the package would ask the hub for what is called py
    with pytest.raises(ValueError, match=r"Unknown kind of file .*birds.py: 'py'.*'parquet'"):
        find_dataset("hf:birds.py", tmp_path)


def test_rows_that_are_not_used_need_no_label(tmp_path):
    kept = {"train": table(12), "validation": table(4, 20)}
    hidden = table(4, 40).map(lambda row: {"label": -1})
    folder = write(tmp_path / "birds", **kept, test=hidden)
    assert len(find_dataset(f"hf:{folder}", tmp_path)) == 16
    write(tmp_path / "away", **kept, test=table(4, 40, ("east",)).map(lambda row: {"label": -1}))
    with pytest.raises(ValueError, match=r"row 0 of the split 'test' .* column 'label'; found -1"):
        find_dataset("hf:away", tmp_path)


def test_wrong_values_are_named_with_split_row_and_column(tmp_path, datasets):
    good = table(12)
    unlabelled = good.map(lambda row, place: {"label": -1 if place == 3 else 0}, with_indices=True)
    folder = write(tmp_path / "birds", train=unlabelled)
    with pytest.raises(ValueError, match=r"row 3 of the split 'train' .* column 'label'; found -1"):
        find_dataset(f"hf:{folder}", tmp_path)
    empty = datasets.Dataset.from_dict(
        {"image": [encoded(0), None], "label": ["a", "b"], "domain": [1, 2]},
        features=datasets.Features({
            "image": datasets.Image(), "label": datasets.Value("string"),
            "domain": datasets.Value("int64"),
        }),
    )  # fmt: skip
    folder = write(tmp_path / "gaps", train=empty)
    with pytest.raises(ValueError, match=r"Expected an image in row 1 of the split 'train' .*none"):
        find_dataset(f"hf:{folder}", tmp_path)
    for number, value in enumerate((3, ["a"])):
        columns = {"image": [value] * 4, "label": [0, 1, 0, 1], "domain": list("abab")}
        write(tmp_path / f"no{number}", train=datasets.Dataset.from_dict(columns))
        with pytest.raises(ValueError, match=r"images in the column 'image' .*hf:no.:image=COLUMN"):
            find_dataset(f"hf:no{number}", tmp_path)
    (tmp_path / "broken.parquet").write_bytes(b"no table")
    with pytest.raises(ValueError, match=r"Cannot load hf:broken.parquet \("):
        find_dataset("hf:broken.parquet", tmp_path)
