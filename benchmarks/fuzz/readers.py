"""Readers under damaged files, each beside an independent one.

A target makes valid files in a folder and returns what damages one, has it read, and says whether
it was refused or accepted; what was accepted is compared with what another reader finds.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import io
import json
import math
import random
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import yaml
from PIL import Image
from safetensors.numpy import save as save_tensors
from torch import nn

import hessalign as ha
from benchmarks.fuzz.findings import (
    ACCEPTED,
    REFUSED,
    Attempt,
    FindingError,
    independent,
    judged,
    same,
)
from benchmarks.fuzz.mutations import (
    damaged,
    damaged_json,
    damaged_lines,
    damaged_safetensors,
    damaged_table,
    damaged_zip,
    payload,
    zip_members,
)
from benchmarks.fuzz.tables import Table, check_table, read_named
from hessalign.bench.data import files, mnist, read_dataset
from hessalign.bench.data.image_cache import open_images, prepare_images
from hessalign.bench.data.images import read_image
from hessalign.bench.data.samples import DomainDataset
from hessalign.bench.models import weights
from hessalign.bench.runs import run_folder
from hessalign.bench.runs.job import Job, read_file
from hessalign.bench.runs.records import read_lines
from hessalign.bench.runs.run import load_run, train_job
from hessalign.bench.sweep.execution import job_status
from hessalign.bench.sweep.selection.reading import read_run
from hessalign.bench.sweep.specification import make_specification

CANARY: Final = "canary"
"""The file that code in an input would make."""


# --- tables and manifests -------------------------------------------------------------------------


def _check_table(path: Path, named: Mapping[str, str], data: DomainDataset) -> None:
    if data.table is None:
        entries = independent(lambda: _manifest_rows(path), "a manifest")
        _check_manifest(path, entries, data)
    else:
        label, domain = named.get("label"), named.get("domain")
        check_table(independent(lambda: Table(path, label, domain), "a table"), data)


def table(folder: Path) -> Attempt:
    """A table of measurements: numbers, words, identifiers, with missing ones."""
    source = np.random.default_rng(0)
    lines = ["age,chol,y,domain", '61,"1.5",ill,north', "48,-2e-3,well,south"]
    lines += [f"{a},{b:.3g},{'ill' if a % 2 else 'well'},north" for a, b in
              zip(source.integers(20, 90, 6), source.normal(size=6), strict=True)]  # fmt: skip
    plain = ("\n".join(lines) + "\n").encode()
    names = "patient_id;kg;ward;unit;note;dose;outcome;clinic"
    rows = [
        f"{900 + i};{'?' if i % 5 == 0 else f'{60 + i},5'};{('red', 'green')[i % 2]};kg;"
        f"seen {i}x;{i % 4};{('ill', 'well', 'well')[i % 3]};{3 + i // 4}"
        for i in range(12)
    ]
    mixed = "\n".join([names, *rows, ""])
    named = {"label": "outcome", "domain": "clinic"}
    kinds: list[tuple[str, bytes, str, dict[str, str]]] = [
        ("table.csv", plain, ",", {}),
        ("table.csv", mixed.encode(), ";", named),
        ("table.tsv", mixed.replace(";", "\t").encode(), "\t", named),
    ]

    def attempt(source: random.Random) -> str:
        name, valid, separator, named = source.choice(kinds)
        path = folder / name
        path.write_bytes(damaged_table(source, valid, separator))
        said = "".join(f":{key}={value}" for key, value in named.items())
        return judged(
            lambda: read_dataset(path.with_name(name + said)),
            lambda data: _check_table(path, named, data),
        )

    return attempt


def _manifest_rows(path: Path) -> list[Mapping[str, Any]]:
    """What a manifest in a table lists."""

    def fits(header: list[str]) -> bool:
        names = [name.strip() for name in header]
        return {"path", "class", "domain"} <= {*names} and len({*names}) == len(names)

    header, rows, _ = read_named(path, fits)
    stripped = [[cell.strip() for cell in row] for row in (header, *rows)]
    return [dict(zip(stripped[0], row, strict=True)) for row in stripped[1:]]


def _check_manifest(path: Path, entries: list[Mapping[str, Any]], data: DomainDataset) -> None:
    expected = sorted(
        (str(e["domain"]), str(e["class"]), str(path.parent / str(e["path"]))) for e in entries
    )
    found = sorted(
        (domain.name, data.classes[label], str(image))
        for domain in data.domains
        for image, label in zip(domain.paths, domain.labels.tolist(), strict=True)
    )
    same(found, expected, "images")


def manifest_csv(folder: Path) -> Attempt:
    """A manifest of images as CSV."""
    rows = [f"{number}.png,{'ab'[number % 2]},{'xyz'[number % 3]},0" for number in range(8)]
    return _manifest(folder, "scans.csv", "\n".join(["path,class,domain,held_out", *rows, ""]))


def manifest_jsonl(folder: Path) -> Attempt:
    """A manifest of images as JSON lines."""
    rows = [{"path": f"{n}.png", "class": "ab"[n % 2], "domain": "xyz"[n % 3]} for n in range(8)]
    return _manifest(folder, "scans.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


def _manifest(folder: Path, name: str, text: str) -> Attempt:
    path, lines = folder / name, name.endswith("jsonl")
    for number in range(8):
        (folder / f"{number}.png").touch()

    def entries() -> list[Mapping[str, Any]]:
        text = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
        return [json.loads(line) for line in text.split("\n") if line.strip()]

    def check(data: DomainDataset) -> None:
        if lines:
            _check_manifest(path, independent(entries, "a manifest"), data)
        else:
            _check_table(path, {}, data)

    def attempt(source: random.Random) -> str:
        path.write_bytes((damaged_lines if lines else damaged)(source, text.encode()))
        return judged(lambda: read_dataset(path), check)

    return attempt


def wilds_columns(folder: Path) -> Attempt:
    """Columns of a table of WILDS."""
    text = "split,filename,category\n" + "".join(f"train,{n}.jpg,{n % 3}\n" for n in range(9))
    path, names = folder / "metadata.csv", ("filename", "category")

    def attempt(source: random.Random) -> str:
        path.write_bytes(damaged(source, text.encode()))

        def check(columns: list[list[str]]) -> None:
            header, rows, _ = independent(
                lambda: read_named(path, lambda header: {*names} <= {*header}), "columns"
            )
            expected = [[row[header.index(name)] for row in rows] for name in names]
            same(columns, expected, "columns")

        return judged(lambda: files.read_columns(path, names), check)

    return attempt


# --- arrays ---------------------------------------------------------------------------------------


def _arrays() -> dict[str, np.ndarray]:
    source = np.random.default_rng(0)
    x = source.normal(size=(18, 4)).astype(np.float32)
    return {"x": x, "y": np.arange(18) % 3, "domain": np.arange(18) // 6}


def _npy(content: bytes) -> np.ndarray:
    """An array in numpy's format, all of the content and nothing else."""
    if content[:6] != b"\x93NUMPY":
        raise ValueError("no array")
    wide = content[6] > 1
    length = int.from_bytes(content[8 : 12 if wide else 10], "little")
    start = (12 if wide else 10) + length
    header = ast.literal_eval(content[start - length : start].decode("latin-1"))
    dtype, shape = np.dtype(header["descr"]), tuple(header["shape"])
    count = math.prod(shape)
    if dtype.hasobject or len(content) - start != count * dtype.itemsize:
        raise ValueError("the content is not as long as its shape says")
    order = "F" if header["fortran_order"] else "C"
    return np.frombuffer(content, dtype, count, start).reshape(shape, order=order)  # type: ignore[call-overload,no-any-return]


def _read_npz(content: bytes) -> dict[str, np.ndarray]:
    """Arrays of an archive by its own index; checksums are checked, names are there once."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        if archive.testzip() is not None or len({*archive.namelist()}) < len(archive.namelist()):
            raise ValueError("a damaged member, or one that is there twice")
    members = zip_members(content)
    return {name.removesuffix(".npy"): _npy(inner) for name, inner in members.items()}


def _read_tensors(content: bytes) -> dict[str, np.ndarray]:
    kinds = {
        "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2",
        "I8": "i1", "U8": "u1", "BOOL": "?", "U16": "<u2", "U32": "<u4", "U64": "<u8",
    }  # fmt: skip
    length = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    found: dict[str, np.ndarray] = {}
    for name, entry in header.items():
        if name == "__metadata__":
            given = [key for key in ("classes", "domains") if key in (entry or {})]
            found |= {key: np.array(json.loads(entry[key])) for key in given}
        else:
            first, last = entry["data_offsets"]
            found[name] = np.frombuffer(data[first:last], kinds[entry["dtype"]]).reshape(
                entry["shape"]
            )
    return found


def _check_arrays(read: Callable[[], dict[str, np.ndarray]], data: DomainDataset) -> None:
    arrays = independent(read, "arrays")

    def names(values: np.ndarray, given: str) -> list[str]:
        if given in arrays and values.dtype.kind != "U":
            return [str(arrays[given][value]) for value in values]
        return list(map(str, values))

    domains, labels = names(arrays["domain"], "domains"), names(arrays["y"], "classes")
    for number, each in enumerate(data.domains):
        rows = [
            row
            for row, name in enumerate(domains)
            if (
                "domains" not in arrays
                or arrays["domain"].dtype.kind == "U"
                or arrays["domain"][row] == number
            )
            and name == each.name
        ]
        same([data.classes[k] for k in each.labels.tolist()], [labels[r] for r in rows], "labels")
        x = arrays["x"][rows].astype(np.float64)
        if not np.array_equal(each.inputs.double().numpy(), x):  # type: ignore[union-attr]
            raise FindingError("x differs from what an independent reader finds")
    same(len(data), len(domains), "samples")


def npz(folder: Path) -> Attempt:
    """Arrays of numpy."""
    path, buffers = folder / "bank.npz", []
    more: dict[str, Any] = {"held_out": np.arange(18) % 2, "classes": ["a", "b", "c"]}
    for save in (np.savez, np.savez_compressed):
        for extra in ({}, more):
            buffers.append(io.BytesIO())
            save(buffers[-1], **_arrays(), **extra)
    hidden = np.array([1, None], object)
    buffer = io.BytesIO()
    np.save(buffer, hidden, allow_pickle=True)
    end = buffer.getvalue().index(b"\n") + 1
    secret = buffer.getvalue()[:end] + payload(folder / CANARY)

    def attempt(source: random.Random) -> str:
        content = damaged_zip(source, source.choice(buffers).getvalue(), secret)
        path.write_bytes(content)
        return judged(
            lambda: files.read_arrays(path),
            lambda data: _check_arrays(lambda: _read_npz(content), data),
        )

    return attempt


def safetensors(folder: Path) -> Attempt:
    """Arrays of safetensors."""
    path = folder / "bank.safetensors"
    names = {"classes": json.dumps(["a", "b", "c"]), "domains": json.dumps(["x", "y", "z"])}
    valid = [save_tensors(_arrays()), save_tensors(_arrays(), metadata=names)]

    def attempt(source: random.Random) -> str:
        content = damaged_safetensors(source, source.choice(valid))
        path.write_bytes(content)
        return judged(
            lambda: files.read_arrays(path),
            lambda data: _check_arrays(lambda: _read_tensors(content), data),
        )

    return attempt


# --- configurations and records -------------------------------------------------------------------


def specification(folder: Path) -> Attempt:
    """The file of a sweep."""
    path = folder / "sweep.yaml"
    entries = {
        "datasets": ["bank"], "data_dir": "data", "algorithms": ["erm", "vrex"], "trials": 2,
        "draws": 3, "steps": 21, "overrides": {"hidden": 4, "lr": 1e-3}, "test_domains": [0],
        "selections": ["oracle"], "holdout_fraction": 0.2,
    }  # fmt: skip
    valid = yaml.safe_dump(entries)

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(each) for key, each in value.items()}
        try:
            return None if value == "none" else float(value) if isinstance(value, str) else value
        except ValueError:
            return value

    def attempt(source: random.Random) -> str:
        if source.random() < 0.5:
            content = damaged(source, valid.encode())
        else:
            changed = damaged_json(source, entries)
            content = yaml.safe_dump(changed, allow_unicode=True).encode("utf-8", "surrogatepass")
        path.write_bytes(content)

        def check(found: dict[str, object]) -> None:
            expected = independent(lambda: plain(yaml.safe_load(content.decode())), "YAML")
            if repr(found) != repr(expected):  # NaN is not equal to itself
                raise FindingError(f"YAML: read {found}, expected {expected}"[:300])
            judged(lambda: make_specification(found), lambda spec: None)

        return judged(lambda: read_file(path), check)

    return attempt


def _lines() -> bytes:
    args = Job("bank", "ERM", (0,), 0, 0, "data", steps=20).args
    accuracies = {f"env{e}_{part}_acc": 0.25 * e for e in range(3) for part in ("in", "out")}
    records = [
        {**accuracies, "loss": 1 / (step + 1), "step": step, "epoch": 0.1 * step, "seconds": 1.5,
         "step_time": 0.01, "hparams": {"lr": 0.001}, "args": args, "domain_names": ["a", "b", "c"]}
        for step in (0, 10, 19)
    ]  # fmt: skip
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def _parsed(content: bytes) -> list[dict[str, Any]]:
    found = []
    for line in content.split(b"\n"):
        try:
            fields = json.loads(line.decode())
        except (ValueError, RecursionError):
            continue
        found += [fields] if isinstance(fields, dict) else []
    return found


def results(folder: Path) -> Attempt:
    """The records of a run, as tables are made of them."""
    path, valid = folder / "results.jsonl", _lines()

    def attempt(source: random.Random) -> str:
        content = damaged_lines(source, valid)
        path.write_bytes(content)

        def check(found: tuple[Any, Any]) -> None:
            run, _ = found
            entries = {json.dumps(entry.get("step")): entry for entry in _parsed(content)}
            for record in () if run is None else run.records:
                entry = entries.get(json.dumps(record.step))
                if entry is None:  # on a line that begins with a torn one
                    continue
                expected = [entry.get(f"env{e}_out_acc") for e in range(len(record.outer))]
                same(repr(list(record.outer)), repr(expected), f"step {record.step}")

        return judged(lambda: read_run(folder), check)

    return attempt


def records(folder: Path) -> Attempt:
    """The records of a run, as it goes on from them."""
    path, valid = folder / "results.jsonl", _lines()

    def attempt(source: random.Random) -> str:
        content = damaged_lines(source, valid)
        path.write_bytes(content)

        def check(found: list[tuple[str, Any]]) -> None:
            expected = [entry.get("step") for entry in _parsed(content)]
            same([record.step for _, record in found], expected[: len(found)], "steps")

        return judged(lambda: read_lines(path), check)

    return attempt


def status(folder: Path) -> Attempt:
    """How far a job is, by its marks: claims, errors, and its end."""
    job = Job("bank", "ERM", (0,), 0, 0, "data")
    home = folder / job.folder
    claim = {"machine": "m", "process": 1, "started": "x", "launcher": "", "attempt": 0}
    valid = {"claim.0": json.dumps(claim).encode(), "done": _lines().splitlines()[0],
             "err.txt": b"Traceback\nValueError: x\n"}  # fmt: skip

    def attempt(source: random.Random) -> str:
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir()
        for name in source.sample(list(valid), source.randint(1, 3)):
            change = damaged if name == "err.txt" else damaged_lines
            (home / name).write_bytes(change(source, valid[name]))
        found = job_status(folder, job)
        done = (home / "done").exists()
        same(found.state == "done", done, "done")
        return ACCEPTED

    return attempt


# --- runs -----------------------------------------------------------------------------------------


def _trained(folder: Path) -> tuple[Job, Path]:
    data = folder / "data"
    data.mkdir()
    np.savez(data / "bank.npz", **_arrays())
    hparams = json.dumps({"hidden": 3, "batch_size": 2, "evaluate_every": 2})
    job = Job("bank", "VREx", (0,), 0, 0, str(data), steps=4, hparams=hparams)
    run_folder.SECONDS_BETWEEN_CHECKPOINTS = 0.0  # type: ignore[misc]
    return job, folder / "run"


def checkpoint(folder: Path) -> Attempt:
    """A checkpoint, from which a run goes on."""
    job, home = _trained(folder)
    kept: dict[str, bytes] = {}

    def keep(record: Any) -> None:
        found = {path.name: path.read_bytes() for path in home.iterdir() if path.name != "lock"}
        kept.update(found)
        if record.step == 3:
            kept["results.jsonl"] = found["results.jsonl"]

    train_job(job, home, report=keep)
    expected = (home / "results.jsonl").read_text()
    name = max(each for each in kept if each.startswith("checkpoint-"))

    def timeless(text: str) -> list[dict[str, Any]]:
        entries = [json.loads(line) for line in text.splitlines()]
        return [
            {key: value for key, value in entry.items() if key not in {"seconds", "step_time"}}
            for entry in entries
        ]

    def attempt(source: random.Random) -> str:
        shutil.rmtree(home)
        home.mkdir()
        content = damaged_zip(source, kept[name], payload(folder / CANARY))
        for file in ("config.json", "results.jsonl"):
            (home / file).write_bytes(kept[file])
        (home / name).write_bytes(content)
        warned: list[str] = []

        def check(run: Any) -> None:
            found = (home / "results.jsonl").read_text()
            if _whole_zip(content) and content != kept[name] and not warned:
                return  # another state with the right checksums: nobody can tell
            same(timeless(found), timeless(expected), "records after a damaged checkpoint")

        outcome = judged(lambda: train_job(job, home, warn=warned.append), check)
        return REFUSED if warned else outcome

    return attempt


def _whole_zip(content: bytes) -> bool:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return archive.testzip() is None
    except Exception:
        return False


def model(folder: Path) -> Attempt:
    """A trained model."""
    job, home = _trained(folder)
    train_job(job, home, keep_model=True)
    kept = {name: (home / name).read_bytes() for name in ("model.json", "model.safetensors")}
    x = _arrays()["x"]
    expected = ha.load(home).predict_proba(x)

    def attempt(source: random.Random) -> str:
        name = source.choice(list(kept))
        if name == "model.json":
            content = damaged(source, kept[name])
            if source.random() < 0.7:
                changed = damaged_json(source, json.loads(kept[name]))
                content = json.dumps(changed).encode("utf-8", "surrogatepass")
        else:
            content = damaged_safetensors(source, kept[name])
        for each, text in kept.items():
            (home / each).write_bytes(content if each == name else text)

        def check(found: np.ndarray) -> None:
            if name == "model.safetensors" and content != kept[name]:
                raise FindingError("damaged weights were accepted")
            if not np.isfinite(found).all():
                raise FindingError("probabilities that are not finite")
            if found.shape == expected.shape and not np.array_equal(found, expected):
                raise FindingError("the same weights give other probabilities")

        return judged(lambda: ha.load(home).predict_proba(x), check)

    return attempt


def folder_of_a_run(folder: Path) -> Attempt:
    """The folder of a complete run, any of its files, read with its data."""
    job, home = _trained(folder)
    train_job(job, home, keep_model=True)
    kept = {path.name: path.read_bytes() for path in home.iterdir() if path.name != "lock"}
    steps = [record.step for _, record in read_lines(home / "results.jsonl")]

    def attempt(source: random.Random) -> str:
        name = source.choice(["config.json", "results.jsonl", "done", "model.json"])
        change = damaged_lines if name in {"results.jsonl", "done"} else damaged
        content = change(source, kept[name])
        if name == "config.json" and source.random() < 0.6:
            changed = damaged_json(source, json.loads(kept[name]))
            content = json.dumps(changed).encode("utf-8", "surrogatepass")
        for each, text in kept.items():
            (home / each).write_bytes(content if each == name else text)

        def check(run: Any) -> None:
            if name != "results.jsonl":
                same([record.step for record in run.records], steps, "steps")

        return judged(lambda: load_run(home), check)

    return attempt


def backbone_weights(folder: Path) -> Attempt:
    """A file of weights."""
    module = nn.Linear(3, 2)
    buffer, old = io.BytesIO(), io.BytesIO()
    torch.save(module.state_dict(), buffer)
    torch.save(module.state_dict(), old, _use_new_zipfile_serialization=False)
    state = {name: value.numpy() for name, value in module.state_dict().items()}
    tensors = save_tensors(state)

    def attempt(source: random.Random) -> str:
        kind = source.choice(("zip", "zip", "old", "tensors"))
        if kind == "tensors":
            content = damaged_safetensors(source, tensors)
        elif kind == "old":
            content = damaged(source, old.getvalue())
            if source.random() < 0.1:
                content = payload(folder / CANARY)
        else:
            content = damaged_zip(source, buffer.getvalue(), payload(folder / CANARY))
        path = folder / ("w.safetensors" if kind == "tensors" else "w.pth")
        path.write_bytes(content)

        def check(found: dict[str, torch.Tensor]) -> None:
            if kind == "zip" and not _whole_zip(content) and content[:2] == b"PK":
                raise FindingError("weights with a wrong checksum were accepted")
            if kind == "tensors":
                expected = independent(lambda: _read_tensors(content), "weights")
                alike = all(
                    np.array_equal(
                        value.numpy(), expected[name], equal_nan=value.is_floating_point()
                    )
                    for name, value in found.items()
                    if value.dtype != torch.bfloat16
                )
                same(alike, True, "tensors")

        return judged(lambda: weights.read_state(path), check)

    return attempt


# --- images and archives --------------------------------------------------------------------------


def _whole_png(content: bytes) -> bool:
    """Whether all chunks up to the end of an image have their checksums."""
    place = 8
    while place + 8 <= len(content):
        if content[place + 4 : place + 8] == b"IEND":  # of which nothing else is read
            return True
        length = int.from_bytes(content[place : place + 4], "big")
        chunk = content[place + 4 : place + 8 + length]
        given = content[place + 8 + length : place + 12 + length]
        if len(given) < 4 or zlib.crc32(chunk) != int.from_bytes(given, "big"):
            return False
        place += 12 + length
    return False


def image(folder: Path) -> Attempt:
    """An image of any kind."""
    source = np.random.default_rng(0)
    pixels = Image.fromarray(source.integers(0, 256, (10, 12, 3)).astype(np.uint8))
    kinds = {}
    for kind in ("png", "jpeg", "bmp", "ppm", "webp", "tiff", "gif"):
        buffer = io.BytesIO()
        pixels.save(buffer, kind)
        kinds[kind] = buffer.getvalue()
    buffer = io.BytesIO()
    pixels.convert("P").save(buffer, "png")
    kinds["palette.png"] = buffer.getvalue()
    smooth = Image.fromarray(np.linspace(0, 255, 3072).reshape(32, 32, 3).astype(np.uint8))
    buffer = io.BytesIO()
    smooth.save(buffer, "tiff", compression="tiff_lzw")
    kinds["lzw.tiff"] = buffer.getvalue()

    def attempt(source: random.Random) -> str:
        kind = source.choice(sorted(kinds))
        content = damaged(source, kinds[kind])
        path = folder / f"image.{kind}"
        path.write_bytes(content)

        def expected() -> np.ndarray:
            with Image.open(io.BytesIO(content)) as opened:
                return np.asarray(opened.convert("RGB").resize((8, 8), Image.Resampling.BILINEAR))

        def check(found: Any) -> None:
            same(found.pixels.tolist(), independent(expected, "an image").tolist(), "pixels")
            if content[:8] == kinds["png"][:8] and not _whole_png(content):
                raise FindingError("a PNG with a wrong checksum was accepted")

        return judged(lambda: read_image(path, 8), check)

    return attempt


def cache(folder: Path) -> Attempt:
    """What is written of a cache of images."""
    root = folder / "pets"
    for name in ("a/cat/1.png", "b/dog/1.png"):
        (root / name).parent.mkdir(parents=True)
        Image.new("RGB", (9, 9), "red").save(root / name)
    data, place = read_dataset(root), folder / "cache"
    reader = prepare_images(data, place, 4)
    expected = [reader.read(domain, [0]).pixels.tolist() for domain in range(2)]
    path = place / "00-00000.json"
    valid = path.read_bytes()

    def attempt(source: random.Random) -> str:
        path.write_bytes(damaged_lines(source, valid))
        found = open_images(data, place, 4)  # it is made again
        same([found.read(domain, [0]).pixels.tolist() for domain in range(2)], expected, "pixels")
        return ACCEPTED

    return attempt


def idx(folder: Path) -> Attempt:
    """A file of MNIST's form, compressed."""
    header = bytes([0, 0, 8, 3]) + struct.pack(">III", 4, 5, 5)
    pixels = bytes(range(100))
    digest = hashlib.sha256(header + pixels).hexdigest()
    valid = gzip.compress(header + pixels)
    path = folder / "images.gz"

    def attempt(source: random.Random) -> str:
        path.write_bytes(damaged(source, valid))
        return judged(
            lambda: mnist._read_idx(folder, "images", (4, 5, 5), digest),
            lambda found: same(found.tobytes(), pixels, "pixels"),
        )

    return attempt


def given(folder: Path) -> Attempt:
    """Rows that a model is to predict, in a file."""
    job, home = _trained(folder)
    train_job(job, home, keep_model=True)
    trained, x = ha.load(home), _arrays()["x"]
    buffer, archive = io.BytesIO(), io.BytesIO()
    np.save(buffer, x)
    np.savez(archive, x=x)
    tensors = save_tensors({"x": x})

    def attempt(source: random.Random) -> str:
        kind = source.choice(("npy", "npz", "safetensors"))
        if kind == "npy":
            content = damaged(source, buffer.getvalue())
        elif kind == "npz":
            content = damaged_zip(source, archive.getvalue(), payload(folder / CANARY))
        else:
            content = damaged_safetensors(source, tensors)
        path = folder / f"rows.{kind}"
        path.write_bytes(content)

        def rows() -> np.ndarray:
            if kind == "npy":
                return _npy(content)
            arrays = _read_npz(content) if kind == "npz" else _read_tensors(content)
            return arrays["x"] if "x" in arrays else next(iter(arrays.values()))

        def check(found: np.ndarray) -> None:
            expected = trained.predict_proba(independent(rows, "rows"))
            if not np.array_equal(found, expected) or not np.isfinite(found).all():
                raise FindingError("other rows than an independent reader finds")

        return judged(lambda: trained.predict_proba(path), check)

    return attempt


READERS: Final[Mapping[str, tuple[float, Callable[[Path], Attempt]]]] = {
    "table": (12, table),
    "manifest.csv": (6, manifest_csv),
    "manifest.jsonl": (8, manifest_jsonl),
    "wilds": (4, wilds_columns),
    "npz": (10, npz),
    "safetensors": (12, safetensors),
    "yaml": (1.5, specification),
    "results": (10, results),
    "records": (8, records),
    "status": (4, status),
    "checkpoint": (0.2, checkpoint),
    "model": (1.5, model),
    "run": (0.4, folder_of_a_run),
    "weights": (5, backbone_weights),
    "image": (8, image),
    "cache": (0.5, cache),
    "idx": (4, idx),
    "rows": (3, given),
}
"""Readers by name, and how large a part of all inputs each gets."""
