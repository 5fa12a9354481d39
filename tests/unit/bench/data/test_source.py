"""Data sets that users bring as functions, splits of their own, and fingerprints."""

import hashlib
import json
import sys

import numpy as np
import pytest
import torch

from hessalign.bench.data import (
    DomainDataset,
    DomainSamples,
    find_dataset,
    read_dataset,
    split_dataset,
    split_domain,
)

CODE = """
import torch
from hessalign.bench.data import DomainDataset, DomainSamples

calls = []

def pets(data_dir, seed=7, size=10):
    calls.append((data_dir, seed))
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(size, 2, generator=generator), torch.arange(size) % 2
    domains = (DomainSamples("photo", x, y), DomainSamples("sketch", x + 1, y))
    return DomainDataset("pets", ("cat", "dog"), domains)

def still():
    calls.append("still")
    return pets(None)

def anything(**given):
    return pets(None)

def greedy(data_dir, path, url):
    return pets(None)

def fails(data_dir):
    return {}["lost"]

def other():
    return [1]

number = 3
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The module `own_data` in the current folder, and a package that offers one of its sets."""
    (tmp_path / "own_data.py").write_text(CODE)
    info = tmp_path / "site" / "own_data-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-data\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[hessalign.datasets]\nour-pets = own_data:pets\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])
    yield tmp_path
    sys.modules.pop("own_data", None)


def calls():
    return sys.modules["own_data"].calls


def test_a_function_is_given_the_folder_and_the_seed_and_called_once_for_them(own):
    first = find_dataset("own_data:pets", own, 1)
    assert find_dataset("own_data:pets", str(own), 1) is first
    assert find_dataset("own_data:pets", own, 2) is not first
    assert calls() == [(own, 1), (own, 2)]
    assert first.domain_names == ("photo", "sketch")


def test_a_function_without_parameters_is_called_once_for_all_seeds(own):
    assert find_dataset("own_data:still", own, 1) is find_dataset("own_data:still", own, 2)
    assert calls().count("still") == 1
    assert find_dataset("own_data:anything", own, 1).name == "pets"


def test_an_entry_point_offers_a_data_set_by_name(own):
    assert find_dataset("our-pets", own, 1).name == "pets"
    with pytest.raises(FileNotFoundError, match=r"Installed packages offer: our-pets\. A function"):
        find_dataset("our-pet", own)


def test_what_is_in_the_folder_comes_before_what_packages_offer(own):
    (own / "our-pets.csv").write_text("a,y,domain\n1,x,p\n2,x,q\n")
    assert find_dataset("our-pets", own).domain_names == ("p", "q")


def test_commands_that_take_a_path_take_a_function_too(own):
    from pathlib import Path

    assert read_dataset(Path("own_data:pets")).name == "pets"
    assert read_dataset(Path("our-pets")).name == "pets"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_data:pets", r"Cannot find the data set 'no_data:pets': No module named 'no_data'"),
        ("own_data:pet", r"Unknown data set in own_data 'pet'.*Did you mean 'pets'"),
        ("own_data:number", r"Expected a function that returns a DomainDataset .* got int"),
        ("own_data:other", r"Expected 'own_data:other' to return a .*DomainDataset, got list"),
        ("own_data:greedy", r"it needs path, url too\. Give them defaults"),
        ("own_data:fails", r"data set 'own_data:fails' .* KeyError: 'lost' \(.*py, line 25\)"),
    ],
)
def test_functions_that_do_not_work(own, name, message):
    with pytest.raises(ValueError, match=message):
        find_dataset(name, own)


# --- splits of their own -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_manifest_may_mark_what_is_held_out(tmp_path, kind):
    rows = [("a", 0), ("b", 1), ("c", 0), ("d", 0), ("e", 0), ("f", 0), ("g", 0), ("h", 0)]
    for name, _ in rows:
        (tmp_path / f"{name}.png").touch()
    entries = [
        {
            "path": f"{name}.png",
            "class": "x",
            "domain": "p" if name < "d" else "q",
            "held_out": mark,
        }
        for name, mark in rows
    ]
    path = tmp_path / f"pets.{kind}"
    lines = [json.dumps(entry) for entry in entries]
    if kind == "csv":
        lines = [",".join(entries[0]), *(",".join(map(str, each.values())) for each in entries)]
    path.write_text("\n".join(lines))
    data = read_dataset(path)
    assert [domain.held_out for domain in data.domains[1:]] == [None]
    assert [data.domains[0].paths[row].name for row in data.domains[0].held_out] == ["b.png"]
    path.write_text(
        "\n".join(lines).replace("b.png,x,p,1", "b.png,x,p,yes").replace(": 1}", ": 2}")
    )
    with pytest.raises(ValueError, match=rf"Expected 0 or 1 for 'held_out' on line \d of {path}"):
        read_dataset(path)


def test_arrays_may_mark_what_is_held_out(tmp_path):
    path, y = tmp_path / "pets.npz", [0] * 6
    arrays = {"x": np.arange(6.0)[:, None], "y": y, "domain": list("pqpqpr")}
    np.savez(path, **arrays, held_out=[0, 0, 1, 0, 0, 1], official_tests=["q"])
    data = read_dataset(path)
    assert data.official_tests == ("q",)
    assert data.domains[0].inputs[data.domains[0].held_out].tolist() == [[2.0]]
    assert [domain.held_out for domain in data.domains[1:]] == [None, None]  # none, and all
    for wrong in ([0, 1], [0, 0, 2, 0, 0, 0], [0.5] * 6):
        np.savez(path, **arrays, held_out=wrong)
        with pytest.raises(ValueError, match="held_out"):
            read_dataset(path)
    np.savez(path, **arrays, official_tests=["s"])
    with pytest.raises(ValueError, match="Unknown official test domain of pets 's'"):
        read_dataset(path)


def samples(count, held_out=None, name="photo"):
    places = None if held_out is None else torch.tensor(held_out, dtype=torch.int64)
    x = torch.arange(2.0 * count).reshape(count, 2)
    return DomainSamples(name, x, torch.arange(count) % 2, places)


def dataset(*domains):
    return DomainDataset("pets", ("cat", "dog"), domains)


def test_a_data_set_may_bring_its_split():
    data = dataset(samples(10), samples(3, [2], "sketch"))
    for trial in (0, 1):
        first, second = split_dataset(data, trial)
        drawn = split_domain(10, trial, 0)
        assert first.inner.tolist() == drawn.inner.tolist()
        assert first.outer.tolist() == drawn.outer.tolist()
        assert (second.inner.tolist(), second.outer.tolist()) == ([0, 1], [2])


def test_a_split_may_hold_out_nothing():
    (split,) = split_dataset(dataset(samples(3, [])), 0)
    assert (split.inner.tolist(), split.outer.tolist()) == ([0, 1, 2], [])


def test_a_domain_that_is_too_small_is_named_unless_it_has_a_split():
    with pytest.raises(ValueError, match=r"Expected 5 or more samples .*; 'sketch' has 3\. Merge"):
        split_dataset(dataset(samples(3, [0]), samples(3, name="sketch")), 0)


@pytest.mark.parametrize("held_out", [[3], [-1], [1, 1], [0, 1, 2], list(range(9))])
def test_places_that_cannot_be_held_out(held_out):
    with pytest.raises(ValueError, match=r"different places from 0 to 2 in held_out of .*'photo'"):
        samples(3, held_out)


# --- fingerprints --------------------------------------------------------------------------------


def test_a_fingerprint_is_the_checksum_that_feature_banks_have_kept():
    data = dataset(samples(4), samples(2, name="sketch"))
    digest = hashlib.sha256(json.dumps([["cat", "dog"], ["photo", "sketch"]]).encode())
    for domain in data.domains:
        digest.update(domain.labels.numpy().tobytes())
        digest.update(domain.inputs.numpy().tobytes())
    assert data.fingerprint() == digest.hexdigest()


def test_whatever_is_different_changes_the_fingerprint(tmp_path):
    def files(length, name="1.png"):
        (tmp_path / "dog").mkdir(exist_ok=True)
        (tmp_path / "dog" / name).write_bytes(bytes(length))
        paths = (tmp_path / "dog" / name,)
        return dataset(DomainSamples("photo", paths, torch.tensor([1])))

    one = samples(4)
    changed = DomainSamples("photo", one.inputs + 1, one.labels)
    relabelled = DomainSamples("photo", one.inputs, 1 - one.labels)
    different = [
        dataset(one),
        dataset(changed),
        dataset(relabelled),
        dataset(samples(4, name="sketch")),
        dataset(samples(4, [1])),
        dataset(samples(4, [2])),
        dataset(samples(4, [])),
        DomainDataset("pets", ("cat", "hound"), (one,)),
    ]
    prints = [data.fingerprint() for data in different]
    prints += [files(3).fingerprint(), files(4).fingerprint(), files(4, "2.png").fingerprint()]
    assert len(set(prints)) == len(prints)
    assert dataset(samples(4)).fingerprint() == prints[0]


def test_inputs_of_any_type_have_a_fingerprint():
    x = torch.ones(2, 3, dtype=torch.bfloat16).T
    data = DomainDataset("a", ("x",), (DomainSamples("d", x, torch.zeros(3, dtype=torch.int64)),))
    assert len(data.fingerprint()) == 64
