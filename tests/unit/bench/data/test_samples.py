"""Sources of data: folders, manifests and arrays become the same description."""

import dataclasses
import zlib
from inspect import unwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.pictures import PACS, make_folder, needs_pacs, save

from hessalign._errors import UnknownNameError
from hessalign.bench.data import (
    DATASETS,
    PRESETS,
    DomainDataset,
    DomainSamples,
    find_dataset,
    read_arrays,
    read_dataset,
    read_image_folder,
    read_manifest,
)
from hessalign.bench.data.images import find_root, matching_preset, read_exclusions


def relative(data, root):
    return [[str(path.relative_to(root)) for path in domain.paths] for domain in data.domains]


# --- folders ------------------------------------------------------------------------------------


def test_order_is_that_of_image_folder(tmp_path):
    names = (
        "b/Zebra/1.JPG b/ant/10.png b/ant/9.png b/ant/sub/1.png a/ant/1.webp b/ant/notes.txt "
        ".git/ant/1.png b/ant/A.png x.png"
    )
    for name in names.split():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    data = read_image_folder(tmp_path)
    assert data.domain_names == ("a", "b")
    assert data.classes == ("Zebra", "ant")
    assert relative(data, tmp_path) == [
        ["a/ant/1.webp"],
        ["b/Zebra/1.JPG", "b/ant/10.png", "b/ant/9.png", "b/ant/A.png", "b/ant/sub/1.png"],
    ]
    assert [domain.labels.tolist() for domain in data.domains] == [[1], [0, 1, 1, 1, 1]]


def test_folders_below_a_class_are_sorted(tmp_path):
    names = [f"a/ant/{number}/1.png" for number in range(12)]
    for name in reversed(names):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    assert relative(read_image_folder(tmp_path), tmp_path) == [sorted(names)]


def test_a_class_missing_in_one_domain_keeps_the_labels_of_the_others(tmp_path):
    make_folder(tmp_path, classes=("cat", "dog"))
    save(tmp_path / "sketch" / "ape" / "1.png", 99)
    data = read_image_folder(tmp_path)
    assert data.classes == ("ape", "cat", "dog")
    assert data.domains[0].labels.tolist() == [1, 1, 2, 2]
    assert data.missing_classes() == {"photo": ("ape",)}


def test_a_domain_without_images_is_named(tmp_path):
    make_folder(tmp_path)
    (tmp_path / "empty" / "cat").mkdir(parents=True)
    with pytest.raises(
        ValueError, match=rf"Expected images in {tmp_path}/empty/<class>/, found no"
    ):
        read_image_folder(tmp_path)


def test_folders_that_are_not_there_or_hold_nothing(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"found no folder .*nowhere"):
        read_image_folder(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"a folder for each domain .*, found none"):
        read_image_folder(tmp_path)


def test_presets_are_found_under_the_names_of_domainbed_and_of_the_archive(tmp_path):
    preset = PRESETS["PACS"]
    for inner in (".", "PACS", "kfold"):
        root = tmp_path / inner.replace(".", "plain") / inner
        make_folder(root, preset.domains[::-1], preset.classes, each=1)
        given = tmp_path / inner.replace(".", "plain")
        assert find_root(given, preset) == root
        assert matching_preset(given) == "PACS"
        data = read_image_folder(given, "PACS")
        assert (data.name, data.domain_names) == ("PACS", preset.domains)
    assert matching_preset(make_folder(tmp_path / "other")) is None


def test_a_benchmark_may_lie_under_its_own_name(tmp_path):
    preset = PRESETS["OfficeHome"]
    make_folder(tmp_path / "OfficeHome", preset.domains, ("Bed", "Fan"), each=1)
    assert find_dataset("OfficeHome", tmp_path).root == tmp_path / "OfficeHome"


def test_a_missing_domain_of_a_preset_says_where_to_get_it(tmp_path):
    make_folder(tmp_path, ("art_painting", "photo"))
    with pytest.raises(
        FileNotFoundError, match=r"missing: cartoon, sketch\. PACS can be obtained f"
    ):
        read_image_folder(tmp_path, "PACS")
    with pytest.raises(UnknownNameError, match=r"Unknown preset 'PAC'.*Did you mean 'PACS'"):
        read_image_folder(tmp_path, "PAC")


def test_excluded_images_are_left_out_however_they_are_named(tmp_path, monkeypatch):
    root = make_folder(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    lines = ["photo/cat/0.png", "", f"{root}/sketch/dog/1.png", "photo/cat/gone.png", "photo/cat"]
    (root / "exclude.txt").write_text("\n".join(lines))
    assert read_exclusions(root)[1] == ["photo/cat/gone.png", "photo/cat"]
    for line in ("data/photo/cat/0.png", "../x/data/photo/cat/0.png"):
        (root / "exclude.txt").write_text(line)
        for given in (root, Path("data")):
            assert read_exclusions(given) == ({given / "photo" / "cat" / "0.png"}, [])
    (root / "exclude.txt").write_text("\n".join(lines))
    data = find_dataset("data", tmp_path)
    assert relative(data, root) == [
        ["photo/cat/1.png", "photo/dog/0.png", "photo/dog/1.png"],
        ["sketch/cat/0.png", "sketch/cat/1.png", "sketch/dog/0.png"],
    ]


def test_presets_agree_with_themselves_and_the_literature():
    known = {name: (preset.count, len(preset.classes)) for name, preset in PRESETS.items()}
    spawrious = [name for name in known if name.startswith("Spawrious")]
    assert [known.pop(name) for name in spawrious] == [(4 * 4 * 3168, 4)] * 6
    # Appendix E of the WILDS paper has the sizes of its parts, here without id_test.
    assert known == {
        "VLCS": (10729, 5), "PACS": (9991, 7), "OfficeHome": (15588, 65), "TerraIncognita": (0, 10),
        "DomainNet": (586575, 345), "SVIRO": (0, 7),
        "WILDSCamelyon": (302436 + 33560 + 34904 + 85054, 2),
        "WILDSFMoW": (76863 + 11483 + 19915 + 22108, 62),
        "WILDSiWildCam": (129809 + 7314 + 14961 + 42791, 0),
    }  # fmt: skip
    assert set(PRESETS) <= set(DATASETS)
    for preset in PRESETS.values():
        assert list(preset.classes) == sorted(set(preset.classes))
        if preset.layout == "folders":
            assert list(preset.domains) == sorted(preset.domains)
        assert len(preset.images) in {0, len(preset.domains)}
        assert preset.licence
        if preset.per_class:
            assert tuple(map(sum, preset.per_class)) == preset.images
            assert {len(row) for row in preset.per_class} == {len(preset.classes)}


@needs_pacs
def test_the_real_pacs_has_the_published_numbers():
    data = read_dataset(PACS, "PACS")
    assert [len(domain) for domain in data.domains] == [2048, 2344, 1670, 3929]
    assert [tuple(d.counts(7)) for d in data.domains] == list(PRESETS["PACS"].per_class)


# --- manifests ----------------------------------------------------------------------------------


def test_csv_and_json_lines_list_the_same_data(tmp_path):
    root = make_folder(tmp_path)
    lines = [
        (str(path.relative_to(root)), path.parent.name, path.parent.parent.name)
        for path in sorted(root.rglob("*.png"), reverse=True)
    ]
    (tmp_path / "m.csv").write_text(
        "class,path,domain\n" + "".join(f"{c},{p},{d}\n" for p, c, d in lines)
    )
    (tmp_path / "m.jsonl").write_text(
        "".join(f'{{"path": "{p}", "class": "{c}", "domain": "{d}"}}\n\n' for p, c, d in lines)
    )
    folder = read_image_folder(root)
    for suffix in ("csv", "jsonl"):
        data = read_dataset(tmp_path / f"m.{suffix}")
        assert (data.name, data.classes, data.domain_names) == ("m", folder.classes,
                                                                folder.domain_names)  # fmt: skip
        assert relative(data, root) == relative(folder, root)
        assert torch.equal(data.domains[1].labels, folder.domains[1].labels)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("m.csv", "path,klass,domain\n", "1 lacks class; it has path, klass, domain"),
        ("m.csv", "path,class,domain,x\n", "Unknown column in line 1 of .*: 'x'"),
        ("m.csv", "path,domain\n", "columns path, class, domain in .*, line 1 lacks class"),
        ("m.csv", "path,class,domain\n", "Expected images in .*found no lines"),
        ("m.csv", "path,class,domain\na,b\n", "Expected 3 values on line 2 of .*, found 2"),
        ("m.csv", "path,class,domain\na,,c\n", "Expected a value for 'class' on line 2 of"),
        ("m.csv", "path,class,domain\na, ,c\n", "Expected a value for 'class' on line 2 of"),
        ("m.csv", "", "lacks path, class, domain; it has none"),
        (
            "m.csv",
            'path,class,domain\n"a,b,c\n' + 30000 * "a,b,c\n",
            r"Cannot read the row that begins on line 2 .* quote",
        ),
        ("m.jsonl", '{"path": "a", "class": null, "domain": "c"}', "'class' on line 1 .*none"),
        ("m.jsonl", '{"path": "a", "class": ["b"], "domain": "c"}', r"for 'class' .*\['b'\]"),
        ("m.jsonl", "{\n", "Expected JSON on line 1 of"),
        ("m.jsonl", "\n[1]\n", r"Expected an object .* on line 2 of .*found '\[1\]'"),
        ("m.jsonl", '{"path": "a", "class": "b", "domain": "c", "x": 1}', "'x'.*Expected one of"),
        ("m.txt", "", r"named \*\.csv or \*\.jsonl"),
    ],
)
def test_mistakes_in_a_manifest_are_explained(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        read_manifest(tmp_path / name)


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
@pytest.mark.parametrize("name", ["m.csv", "m.jsonl", "numbers.csv"])
def test_text_that_is_not_in_utf_8_is_named(tmp_path, name, encoding):
    header = "x,y,domain" if name == "numbers.csv" else "path,class,domain"
    (tmp_path / name).write_bytes(f"{header}\n1,krank,Zürich\n".encode(encoding))
    with pytest.raises(ValueError, match=rf"Expected text in UTF-8 in .*{name}, found the byte 0x"):
        read_dataset(tmp_path / name)


def test_a_manifest_with_a_column_label_is_told_what_is_missing(tmp_path):
    (tmp_path / "m.csv").write_text("path,label,domain\n1.png,cat,photo\n")
    with pytest.raises(ValueError, match=r"line 1 lacks class; it has path, label, domain"):
        read_dataset(tmp_path / "m.csv")


def test_numbers_and_blanks_in_a_manifest(tmp_path):
    root = make_folder(tmp_path, domains=("0",), classes=("0",), each=2)
    (root / "m.jsonl").write_text(
        '{"path": "0/0/0.png", "class": 0, "domain": 0}\n'
        '{"path": "0/0/1.png", "class": 1, "domain": 0}\n'
    )
    data = read_dataset(root / "m.jsonl")
    assert (data.classes, data.domain_names) == (("0", "1"), ("0",))
    (root / "m.csv").write_text("path, class, domain\n0/0/0.png, cat,x\n0/0/1.png,cat , x\n")
    data = read_dataset(root / "m.csv")
    assert (data.classes, data.domain_names) == (("cat",), ("x",))


def test_a_manifest_with_missing_files_names_them(tmp_path):
    lines = "".join(f"{number}.png,cat,photo\n" for number in range(5))
    (tmp_path / "m.csv").write_text("path,class,domain\n" + lines)
    with pytest.raises(
        FileNotFoundError, match=r"do not exist: \S+/0.png, .*2.png and 2 more. Paths are relative"
    ):
        read_manifest(tmp_path / "m.csv")
    with pytest.raises(FileNotFoundError, match=r"found no file"):
        read_manifest(tmp_path / "none.csv")


# --- arrays -------------------------------------------------------------------------------------


def test_arrays_are_split_by_domain_in_their_order(tmp_path):
    x = np.arange(12, dtype=np.float32).reshape(6, 2)
    np.savez(tmp_path / "f.npz", x=x, y=[0, 1, 2, 0, 1, 2], domain=[1, 0, 1, 0, 1, 0],
             classes=["c", "a", "b"], domains=["north", "south"])  # fmt: skip
    data = read_dataset(tmp_path / "f.npz")
    assert (data.classes, data.domain_names) == (("c", "a", "b"), ("north", "south"))
    assert torch.equal(data.domains[0].inputs, torch.tensor(x[[1, 3, 5]]))
    assert data.domains[1].labels.tolist() == [0, 2, 1]
    assert data.domains[0].paths == ()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.eye(2), "y": [0, 1]}, "found x, y; missing: domain"),
        ({"x": np.eye(3), "y": [0, 1], "domain": [0, 0]}, "found 3 of x, 2 of y, 2 of domain"),
        ({"x": np.eye(2), "y": [0.5, 1], "domain": [0, 0]}, "whole numbers in y of .*float64"),
        (
            {"x": np.eye(2), "y": [0, 2], "domain": [0, 0], "classes": ["a"]},
            "names for the numbers 0 to 2 in y of .*got 1 names",
        ),
        ({"x": np.eye(2), "y": [0, -1], "domain": [0, 0], "classes": ["a"]}, "numbers -1 to 0"),
        ({"x": np.eye(2), "y": [0, 0], "domain": [0, 0], "classes": "a"}, "Expected a list of nam"),
        (
            {"x": np.eye(2), "y": [0, 1], "domain": [0, 2], "domains": ["a", "b", "c"]},
            "samples in the domain 'b' of f, found n",
        ),
        ({"x": [[1.0], [1e39]], "y": [0, 1], "domain": [0, 0]}, "float32 can hold in x .*row 1"),
        ({"x": 3.0, "y": [0], "domain": [0]}, r"one or more numbers per sample .*shape \(\)"),
        ({"x": np.empty((2, 0)), "y": [0, 1], "domain": [0, 0]}, r"got the shape \(2, 0\)"),
        ({"x": [[1.0], [np.nan]], "y": [0, 1], "domain": [0, 0]}, "finite numbers .*; row 1 has"),
        ({"x": ["a", "b"], "y": [0, 1], "domain": [0, 0]}, "Expected numbers in x"),
        ({"x": np.eye(2), "y": [[0], [1]], "domain": [0, 0]}, "one value per sample in y"),
    ],
)
def test_mistakes_in_arrays_are_explained(tmp_path, arrays, message):
    np.savez(tmp_path / "f.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        read_arrays(tmp_path / "f.npz")


def test_numbers_that_do_not_begin_at_0_name_themselves(tmp_path):
    np.savez(tmp_path / "f.npz", x=np.eye(4), y=[2, 1, 2, 1], domain=[2012, 2015, 2012, 2015])
    data = read_arrays(tmp_path / "f.npz")
    assert (data.classes, data.domain_names) == (("1", "2"), ("2012", "2015"))
    assert data.domains[0].labels.tolist() == [1, 1]


@pytest.mark.parametrize("what", ["classes", "domains"])
def test_names_that_are_there_twice_are_refused(tmp_path, what):
    names = {"classes": ["a", "b"], "domains": ["c", "d"], what: ["e", "e"]}
    np.savez(tmp_path / "f.npz", x=np.eye(2), y=[0, 1], domain=[0, 1], **names)
    with pytest.raises(ValueError, match=rf"Expected different {what} in f, got \['e'\] twice"):
        read_arrays(tmp_path / "f.npz")


def test_damaged_arrays_and_python_objects_are_refused(tmp_path):
    np.savez_compressed(tmp_path / "z.npz", x=np.arange(900).reshape(9, 100), y=0, domain=0)
    content = (tmp_path / "z.npz").read_bytes()
    causes = set()
    for place in range(60, 600, 20):
        (tmp_path / "z.npz").write_bytes(content[:place] + b"\xff" + content[place + 1 :])
        with pytest.raises(ValueError, match=r"Cannot read .*z\.npz: ") as caught:
            read_arrays(tmp_path / "z.npz")
        causes.add(type(caught.value.__cause__))
    assert zlib.error in causes
    with (tmp_path / "one.npz").open("wb") as file:
        np.save(file, np.eye(2))
    with pytest.raises(ValueError, match=r"Cannot read .*one\.npz: it holds one array"):
        read_arrays(tmp_path / "one.npz")
    (tmp_path / "f.npz").write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match=r"Cannot read .*f\.npz: "):
        read_arrays(tmp_path / "f.npz")
    np.savez(tmp_path / "o.npz", x=np.array([object()]), y=[0], domain=[0])
    with pytest.raises(ValueError, match=r"Object arrays cannot be loaded.*without objects"):
        read_arrays(tmp_path / "o.npz")


def test_safetensors_with_names_in_its_metadata(tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    arrays = {"x": np.eye(2, dtype=np.float32), "y": np.array([0, 1]), "domain": np.array([1, 0])}
    path = tmp_path / "f.safetensors"
    safetensors.save_file(arrays, path, metadata={"classes": '["a", "b"]'})
    data = read_arrays(path)
    assert (data.classes, data.domain_names) == (("a", "b"), ("0", "1"))
    assert data.domains[0].inputs.tolist() == [[0, 1]]
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match=r"Cannot read"):
        read_arrays(path)


# --- the description ----------------------------------------------------------------------------


def two_domains():
    photo = DomainSamples("photo", torch.zeros(2, 1), torch.tensor([0, 1]))
    return DomainDataset("pets", ("cat", "dog"), (photo, DomainSamples(
        "sketch", torch.zeros(1, 1), torch.tensor([1]))))  # fmt: skip


def test_a_domain_by_name_or_number():
    data = two_domains()
    assert [data.domain_index(domain) for domain in ("sketch", 1, "1", "photo")] == [1, 1, 1, 0]
    assert len(data) == 3
    photo, sketch = data.domains
    sites = (dataclasses.replace(photo, name="1"), dataclasses.replace(sketch, name="2"))
    numbered = dataclasses.replace(data, domains=sites)
    assert [numbered.domain_index(domain) for domain in (1, "1", 2, 0)] == [0, 0, 1, 0]
    for wrong in ("sketchy", 2, "2", -1):
        with pytest.raises(UnknownNameError, match=r"Unknown domain of pets .*'photo', 'sketch'"):
            data.domain_index(wrong)


def test_descriptions_that_contradict_themselves():
    samples = DomainSamples("photo", torch.zeros(1, 1), torch.tensor([1]))
    with pytest.raises(
        ValueError, match=r"labels from 0 to 0 in the domain 'photo' of pets, found 1"
    ):
        DomainDataset("pets", ("cat",), (samples,))
    with pytest.raises(ValueError, match=r"Expected different domains in pets, got \['photo'\]"):
        DomainDataset("pets", ("cat", "dog"), (samples, samples))
    with pytest.raises(ValueError, match=r"Expected at least one domain in pets"):
        DomainDataset("pets", ("cat",), ())
    with pytest.raises(ValueError, match=r"one label per input .* got 1 inputs and 2 labels"):
        DomainSamples("photo", (Path("a"),), torch.tensor([0, 1]))


def test_what_is_no_data_set(tmp_path):
    (tmp_path / "x.doc").touch()
    with pytest.raises(
        ValueError, match=r"Expected a folder, or a file named \.csv, \.tsv, \.jsonl, \.npz"
    ):
        read_dataset(tmp_path / "x.doc")
    (tmp_path / "x.csv").touch()
    with pytest.raises(ValueError, match=r"Expected a folder for a preset, got the file"):
        read_dataset(tmp_path / "x.csv", "PACS")


def test_data_that_are_made_are_made_once_for_a_seed(tmp_path, monkeypatch):
    scope = unwrap(find_dataset).__globals__
    made = []

    def make(folder, seed):
        made.append(seed)
        return two_domains()

    monkeypatch.setitem(scope["_MADE"], "ColoredMNIST", make)
    for seed in (1, 1, 2):
        find_dataset("ColoredMNIST", tmp_path, seed)
    scope["_make_once"].cache_clear()
    assert made == [1, 2]
