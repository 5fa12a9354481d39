"""Files that were damaged, or made to do harm: what the fuzzer found, and bombs."""

import gzip
import hashlib
import io
import json
import os
import pickle
import random
import resource
import struct
import subprocess
import sys
import tarfile
import time
import zipfile
import zlib
from collections import Counter

import numpy as np
import pytest
import torch
from benchmarks.fuzz.findings import FindingError, independent
from benchmarks.fuzz.functions import FUNCTIONS
from benchmarks.fuzz.readers import CANARY, READERS
from benchmarks.fuzz.tables import Table, check_table
from PIL import Image
from tests.colored import colored_job
from tests.conftest import python_environment

from hessalign._errors import ConfigurationError
from hessalign._files import parse_json
from hessalign.bench.data import files, mnist, read_dataset, read_table
from hessalign.bench.data.columns import is_like_number
from hessalign.bench.data.files import read_arrays
from hessalign.bench.data.image_cache import open_images, prepare_images
from hessalign.bench.data.images import ImageError, read_image
from hessalign.bench.data.inspection import inspect_dataset
from hessalign.bench.models import NetworkSpec, make_network
from hessalign.bench.models.weights import WeightsError, read_state
from hessalign.bench.runs import read_records, run_folder, train_job
from hessalign.bench.runs.given_inputs import given_batches
from hessalign.bench.runs.job import Job, read_file
from hessalign.bench.runs.model_description import ModelDescription, TrainedModelError, write_model
from hessalign.bench.runs.trained import load
from hessalign.bench.sweep.execution import job_status
from hessalign.bench.sweep.selection.reading import read_run

DEEP = "[" * 100_000
ARRAYS = {"x": np.ones((6, 4)), "y": np.arange(6) % 2, "domain": np.arange(6) // 3}
JOB = Job("bank", "ERM", (0,), 0, 0, "data")


def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def write_npz(path, *more, compression=zipfile.ZIP_STORED, **changed):
    members = {f"{name}.npy": npy(array) for name, array in ARRAYS.items()}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in [*{**members, **changed}.items(), *more]:
            archive.writestr(name, content)
    return path


def test_json_of_any_depth_is_a_value_error():
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json(DEEP)


# --- arrays ---------------------------------------------------------------------------------------


SHORTER = npy(ARRAYS["x"]).replace(b"(6, 4)", b"(6, 2)")
CODES = np.array(["a"] * 6).view(np.uint32) + 0x7FFFFFFF


@pytest.mark.parametrize(
    ("more", "changed", "reason"),
    [
        ([], {"x.npy": SHORTER}, "x is there twice, or longer than its shape says"),
        ([("x.npy", npy(np.zeros((6, 4))))], {}, "x is there twice"),
        ([], {"y.npy": b"no array"}, "magic string"),
        ([], {"y.npy": npy(CODES.view("<U1"))}, "."),
        ([], {"y.npy": pickle.dumps([1])}, "."),
        ([], {"y.npy": npy(np.zeros(6, "V"))}, "y has items of no length"),
        ([("z.npy", npy(np.zeros(10**5, "V")))], {}, "z has items of no length"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_arrays_that_are_not_what_they_say(tmp_path, more, changed, reason):
    path = write_npz(tmp_path / "bank.npz", *more, **changed)
    with pytest.raises(ValueError, match=f"Cannot read .*{reason}"):
        read_arrays(path)


@pytest.mark.parametrize("given", ["north", [["north"]]])
def test_official_tests_that_are_no_list_are_refused(tmp_path, given):
    path = write_npz(tmp_path / "bank.npz", ("official_tests.npy", npy(given)))
    with pytest.raises(
        ValueError, match=r"Expected a list of domains in official_tests of .*, got"
    ):
        read_arrays(path)


def test_a_flipped_bit_in_what_the_shape_leaves_out_is_noticed_too(tmp_path):
    content = write_npz(tmp_path / "bank.npz").read_bytes()
    place = content.index(b"(6, 4)") + 4
    (tmp_path / "bank.npz").write_bytes(content[:place] + b"2" + content[place + 1 :])
    with pytest.raises(ValueError, match="Cannot read"):
        read_arrays(tmp_path / "bank.npz")


def test_an_archive_that_grows_without_measure_is_refused_before_it_does(tmp_path, monkeypatch):
    bomb = ("zeros.npy", npy(np.zeros(2**18)))
    path = write_npz(tmp_path / "bank.npz", bomb, compression=zipfile.ZIP_DEFLATED)
    assert read_arrays(path).classes == ("0", "1")
    monkeypatch.setattr(files, "_BOMB_BYTES", 2**20)
    with pytest.raises(ValueError, match=r"it would grow to 2,09\d,\d\d\d bytes"):
        read_arrays(path)


def test_names_that_climb_out_of_an_archive_write_nothing(tmp_path, monkeypatch):
    path = write_npz(tmp_path / "bank.npz", ("../../evil.npy", npy(np.ones(1))))
    (tmp_path / "in").mkdir()
    monkeypatch.chdir(tmp_path / "in")
    read_arrays(path)
    assert sorted(each.name for each in tmp_path.rglob("*")) == ["bank.npz", "in"]


def test_rows_in_a_file_that_is_longer_than_its_shape(tmp_path):
    (tmp_path / "rows.npy").write_bytes(SHORTER)
    with pytest.raises(ValueError, match="it is longer than its shape says"):
        next(iter(given_batches(tmp_path / "rows.npy", "arrays", (2,), 8, None)))


@pytest.mark.parametrize("kind", ["symlink", "hard link", "device", "tar"])
def test_archives_of_other_kinds_are_no_data(tmp_path, kind):
    """Nothing here is ever unpacked: what is in an archive is read from it, or not at all."""
    path = tmp_path / "bank.npz"
    with tarfile.open(path, "w") as archive:
        entry = tarfile.TarInfo("../../evil")
        types = {
            "symlink": tarfile.SYMTYPE,
            "hard link": tarfile.LNKTYPE,
            "device": tarfile.CHRTYPE,
        }
        entry.type, entry.linkname = types.get(kind, tarfile.REGTYPE), "/etc/passwd"
        archive.addfile(entry)
    with pytest.raises(ValueError, match="Cannot read"):
        read_arrays(path)


# --- checkpoints and weights ----------------------------------------------------------------------


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def flipped(content):
    """Content of an archive with one bit of a tensor changed."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        name = next(each for each in archive.namelist() if "/data/" in each)
        piece = archive.read(name)
    place = content.index(piece)
    return content[:place] + bytes([piece[0] ^ 1]) + content[place + 1 :]


def test_a_flipped_bit_in_weights_is_noticed(tmp_path):
    buffer = io.BytesIO()
    torch.save({"w": torch.arange(100.0)}, buffer)
    (tmp_path / "w.pth").write_bytes(flipped(buffer.getvalue()))
    with pytest.raises(WeightsError, match=r"Cannot read the weights .* in it is damaged"):
        read_state(tmp_path / "w.pth")


@pytest.mark.parametrize("old", [False, True])
def test_code_in_weights_is_not_run(tmp_path, old):
    content = {"w": torch.ones(2), "evil": Evil(tmp_path / "canary")}
    torch.save(content, tmp_path / "w.pth", _use_new_zipfile_serialization=not old)
    with pytest.raises(WeightsError, match="Cannot read the weights"):
        read_state(tmp_path / "w.pth")
    assert not (tmp_path / "canary").exists()


def test_weights_that_promise_more_bytes_than_there_is_memory_are_refused(tmp_path):
    promise = b"\x80\x04" + b"\x8e" + struct.pack("<Q", 2**46)  # BINBYTES8
    (tmp_path / "w.pth").write_bytes(promise + bytes(100))
    with pytest.raises(WeightsError, match=r"Cannot read the weights .* 70368744177664 bytes"):
        read_state(tmp_path / "w.pth")


def test_an_empty_file_of_weights_is_refused(tmp_path):
    (tmp_path / "w.pth").touch()
    with pytest.raises(WeightsError, match=r"Cannot read the weights .* empty file"):
        read_state(tmp_path / "w.pth")


@pytest.fixture
def stopped(tmp_path, monkeypatch):
    """A run that was stopped after some checkpoints, and what has it go on and looks at its end."""
    monkeypatch.setattr(run_folder, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    options = {"train_images": 120, "test_images": 40, "width": 4, "evaluate_every": 2}
    job = colored_job("erm", steps=8, **options)

    def stop(record):
        if record.step == 6:
            raise KeyboardInterrupt

    train_job(job, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train_job(job, tmp_path / "run", report=stop)

    def go_on():
        warnings = []
        train_job(job, tmp_path / "run", warn=warnings.append)
        found, expected = (read_records(tmp_path / n / "results.jsonl") for n in ("run", "whole"))
        assert [r.metrics for r in found] == [r.metrics for r in expected]
        return warnings

    return tmp_path / "run", go_on


def test_a_flipped_bit_in_a_checkpoint_costs_the_steps_since_the_one_before(stopped):
    folder, go_on = stopped
    before, newest = sorted(folder.glob("checkpoint-*.pt"))
    newest.write_bytes(flipped(newest.read_bytes()))
    (warning,) = go_on()
    assert f"{newest}: " in warning
    assert warning.endswith(f"Trying {before.name} instead.")


def _optimiser(state):
    return state["optimizers"]["main"]


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state["python"][1].__setitem__(0, 2**80),
        lambda state: _optimiser(state)["state"][0].update(exp_avg=[1.0]),
        lambda state: _optimiser(state)["state"][0].update(exp_avg=torch.zeros(0)),
        lambda state: _optimiser(state)["state"][0].update(exp_avg_sq=torch.zeros(4).to_sparse()),
        lambda state: _optimiser(state)["param_groups"][0].pop("betas"),
        lambda state: state.update(seconds={}),
        lambda state: state.update(step=state["step"] + 0.5),
        lambda state: state.update(step=10**30),
    ],
)
def test_a_whole_checkpoint_with_another_content_is_not_used(stopped, change):
    folder, go_on = stopped
    newest = max(folder.glob("checkpoint-*.pt"))
    content = torch.load(newest)
    change(content["state"])
    torch.save(content, newest)
    (warning,) = go_on()
    assert warning.startswith(f"Cannot use {newest}: ")


def test_records_that_were_lost_after_a_checkpoint_are_made_again(stopped):
    """As by a power failure: the checkpoint was on the disk, what was appended before it not."""
    folder, go_on = stopped
    lines = (folder / "results.jsonl").read_text().splitlines(keepends=True)
    (folder / "results.jsonl").write_text(lines[0])
    warnings = go_on()
    assert "it follows 3 records, of which 1 are left" in warnings[0]
    assert warnings[-1].endswith("the run begins afresh.")


def test_what_a_killed_process_was_writing_is_removed(stopped):
    folder, go_on = stopped
    (folder / "results.jsonl.77.partial").write_text("half of")
    go_on()
    assert not list(folder.glob("*.partial"))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"weights_sha256": 7}, "names and a checksum as text, got "),
        ({"classes": [["a"], "b"]}, "names and a checksum as text, got "),
        ({"algorithm": 1}, "names and a checksum as text, got "),
        ({"trained_on": [None]}, "names and a checksum as text, got None"),
        ({"classes": "ab"}, "its classes are no list"),
        ({"trained_on": 2, "adapted": True}, "its trained_on are no list"),
        ({"options": 5, "adapted": True}, "options by their names, got 5"),
    ],
)
def test_a_description_of_other_types_is_refused(tmp_path, change, expected):
    spec = NetworkSpec((4,), outputs=2)
    write_model(tmp_path, ModelDescription(spec, classes=("a", "b")), make_network(spec))
    path = tmp_path / "model.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(TrainedModelError, match=expected):
        load(tmp_path)


@pytest.mark.parametrize(
    "change", [{"hidden": 10**30}, {"hidden": 2**40}, {"input_shape": [2**63]}]
)
def test_a_description_of_sizes_that_no_memory_has_is_refused(tmp_path, change):
    spec = NetworkSpec((4,), outputs=2)
    write_model(tmp_path, ModelDescription(spec, classes=("a", "b")), make_network(spec))
    path = tmp_path / "model.json"
    content = json.loads(path.read_text())
    content["network"].update(change)
    path.write_text(json.dumps(content))
    with pytest.raises(TrainedModelError, match=r"of [01] to 16,777,216"):
        load(tmp_path)


# --- images ---------------------------------------------------------------------------------------


def test_a_png_with_a_wrong_checksum_is_refused_unless_damage_is_allowed(tmp_path):
    path = tmp_path / "a.png"
    pixels = np.random.default_rng(0).integers(0, 256, (9, 9, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(path)
    content = bytearray(path.read_bytes())
    content[content.index(b"IDAT") + 20] ^= 1
    path.write_bytes(content)
    with pytest.raises(ImageError, match="broken PNG file"):
        read_image(path, 4)


def chunk(kind, content):
    crc = struct.pack(">I", zlib.crc32(kind + content))
    return struct.pack(">I", len(content)) + kind + content + crc


def test_an_image_that_would_fill_the_memory_is_refused(tmp_path):
    size = 60_000
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0))
    body = chunk(b"IDAT", zlib.compress(bytes(10**6))) + chunk(b"IEND", b"")
    (tmp_path / "bomb.png").write_bytes(b"\x89PNG\r\n\x1a\n" + header + body)
    with pytest.raises(ImageError, match="bomb"):
        read_image(tmp_path / "bomb.png", 8)


def write_pets(root):
    for name in ("a/cat/1.png", "b/dog/1.png"):
        (root / name).parent.mkdir(parents=True)
        Image.new("RGB", (9, 9), "red").save(root / name)


@pytest.mark.parametrize("special", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_what_has_no_end_is_no_image(tmp_path, special):
    """A pipe that nobody writes to would be waited for, a device would fill the memory."""
    write_pets(tmp_path / "pets")
    for name in ("2.png", "3.png"):
        special(tmp_path / "pets" / "a" / "cat" / name)
    found = inspect_dataset(read_dataset(tmp_path / "pets"))
    unreadable = [each.text for each in found if each.kind == "unreadable"]
    assert len(unreadable) == 2
    assert all(text.endswith("not a file.") for text in unreadable)


def test_links_in_a_circle_are_followed_once(tmp_path):
    """With two of them there would be as many paths as ways to walk, a thousand millions."""
    write_pets(tmp_path / "pets")
    (tmp_path / "pets" / "a" / "cat" / "back").symlink_to("..")
    assert [len(domain) for domain in read_dataset(tmp_path / "pets").domains] == [1, 1]


@pytest.mark.parametrize("sizes", [None, 3, [], [[1, 2, 3]], [["a", "b"]], [[1, 2**70]]])
def test_a_cache_whose_description_is_damaged_is_made_again(tmp_path, sizes):
    write_pets(tmp_path / "pets")
    data = read_dataset(tmp_path / "pets")
    prepare_images(data, tmp_path / "cache", 4)
    path = tmp_path / "cache" / "00-00000.json"
    described = json.loads(path.read_text())
    path.write_text(json.dumps({**described, "sizes": sizes}))
    warnings = []
    found = open_images(data, tmp_path / "cache", 4, warn=warnings.append).read(0, [0])
    assert found.original_sizes.tolist() == [[9, 9]]
    assert "is damaged: 1 of 2 parts" in warnings[0]


def test_a_compressed_file_is_read_no_further_than_it_should_be_long(tmp_path):
    header = bytes([0, 0, 8, 2]) + struct.pack(">II", 2, 3)
    (tmp_path / "images.gz").write_bytes(gzip.compress(header + bytes(2**26), 1))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match="expected content of SHA-256"):
        mnist._read_idx(tmp_path, "images", (2, 3), "0" * 64)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**15  # kilobytes
    content = header + bytes(6)
    (tmp_path / "images.gz").write_bytes(gzip.compress(content))
    digest = hashlib.sha256(content).hexdigest()
    assert mnist._read_idx(tmp_path, "images", (2, 3), digest).shape == (2, 3)


# --- marks and records of sweeps ------------------------------------------------------------------


@pytest.mark.parametrize(
    "claim", [DEEP, "[]", '{"process": []}', '{"attempt": "x"}', '{"process": 1e300}', "\0"]
)
def test_a_damaged_claim_holds_nothing(tmp_path, claim):
    valid = {"machine": "m", "process": 1, "started": "x", "launcher": "", "attempt": 0}
    home = tmp_path / JOB.folder
    home.mkdir()
    text = json.dumps({**valid, **json.loads(claim)}) if claim.startswith("{") else claim
    (home / "claim.0").write_text(text)
    assert job_status(tmp_path, JOB).state == "left"


@pytest.mark.parametrize("seconds", ["1" * 400, "NaN", "Infinity", '"1"', "[" * 10**5])
def test_a_damaged_end_is_still_an_end(tmp_path, seconds):
    home = tmp_path / JOB.folder
    home.mkdir()
    (home / "done").write_text(f'{{"seconds": {seconds}}}')
    found = job_status(tmp_path, JOB)
    assert (found.state, found.seconds) == ("done", None)


@pytest.mark.parametrize("special", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_what_has_no_end_is_no_record(tmp_path, special):
    special(tmp_path / "results.jsonl")
    run, (note,) = read_run(tmp_path)
    assert (run, note.kind) == (None, "run not started")
    assert read_records(tmp_path / "results.jsonl") == []


@pytest.mark.parametrize("repeated", ["[{}]", "{{<<: [{}]}}"])
def test_a_configuration_whose_anchors_stand_for_too_many_values_is_refused(tmp_path, repeated):
    lines = ["a0: &a0 {x: 1, y: 2}"]
    for level in range(1, 6):
        lines.append(f"a{level}: &a{level} " + repeated.format(", ".join([f"*a{level - 1}"] * 10)))
    path = tmp_path / "sweep.yaml"
    path.write_text("\n".join(lines))
    with pytest.raises(ConfigurationError, match="more than 100,000 values"):
        read_file(path)
    path.write_text("\n".join(lines[:3]))
    assert len(read_file(path)) == 3
    path.write_text("a: &a [*a]")
    with pytest.raises(ConfigurationError, match="more than 100,000 values"):
        read_file(path)


def test_records_with_lines_of_nothing_but_brackets_are_read_in_no_time(tmp_path):
    accuracies = {f"env{e}_{part}_acc": 0.5 for e in range(3) for part in ("in", "out")}
    record = {**accuracies, "step": 0, "seconds": 10**400, "args": JOB.args, "hparams": {}}
    nested = '{"a":' * 30_000
    (tmp_path / "results.jsonl").write_text(f"{nested}\n{json.dumps(record)}\n{nested}\n")
    run, _ = read_run(tmp_path)
    assert run.unreadable == (1, 3)
    assert run.seconds is None


# --- tables ---------------------------------------------------------------------------------------


def write_table(folder, text):
    path = folder / "clinics.csv"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("header", ["x,y,domain", "domain,y,x"])
def test_a_quote_that_is_open_at_the_end_is_an_error(tmp_path, header):
    path = write_table(tmp_path, f'{header}\n1,a,1\n2,a,"2\n')
    with pytest.raises(ValueError, match=r"begins on line 3 .*ends inside quotes. A quote may not"):
        read_table(path)
    path.write_text(path.read_text().replace('"', ""))
    assert len(read_table(path)) == 2


def test_a_column_that_is_called_as_a_repeated_one_would_be_keeps_its_own_values(tmp_path):
    path = write_table(tmp_path, "kg,kg,kg (2),kg,y,domain\n1,2,3,4,a,b\n5,6,7,8,a,b\n")
    data = read_table(path)
    assert data.table.features == ("kg", "kg (3)", "kg (2)", "kg (4)")
    assert data.domains[0].inputs.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]


@pytest.mark.parametrize(
    "names",
    [
        ("12345678901234567", "12345678901234568"),  # equal as floats
        ("1e999", "2e999"),  # both infinite
        ("1e-99999999999999999999", "0"),
    ],
)
def test_names_of_domains_that_floats_cannot_tell_apart_are_not_merged(tmp_path, names):
    lines = "".join(f"{i},a,{names[i % 2]}\n" for i in range(6))
    data = read_table(write_table(tmp_path, f"x,y,domain\n{lines}"))
    assert {part.name: part.inputs[:, 0].tolist() for part in data.domains} == {
        names[0]: [0, 2, 4],
        names[1]: [1, 3, 5],
    }


def test_a_signed_nan_is_missing_and_no_class(tmp_path):
    path = write_table(tmp_path, "x,y,domain\n1,2,a\n+nan,1,a\n")
    assert read_table(path).domains[0].inputs[:, 0].isnan().tolist() == [False, True]
    path.write_text("x,y,domain\n1,2,a\n2,+NaN,a\n3,1,a\n")
    with pytest.raises(ValueError, match=r"Expected a value in column 'y' .* on line 3"):
        read_table(path)


def test_a_word_among_many_numbers_with_decimal_commas_is_an_error(tmp_path):
    lines = "".join(f"{'x' if i == 40 else f'{i % 15},5'};a;b\n" for i in range(60))
    with pytest.raises(ValueError, match=r"Expected numbers in column 'kg' .* line 42 has 'x'"):
        read_table(write_table(tmp_path, f"kg;y;domain\n{lines}"))


@pytest.mark.parametrize(
    "cell", ["9" * 100_000 + "x", "$" + " " * 50_000 + "5" + " " * 50_000 + "x"]
)
def test_what_begins_like_a_number_is_told_from_one_in_no_time(tmp_path, cell):
    path = write_table(tmp_path, f"kg,x,y,domain\n{cell},1,a,b\n1,2,a,b\n2,3,a,b\n")
    start = time.process_time()
    with pytest.raises(ValueError, match="Expected numbers in column 'kg'"):
        read_table(path)
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    ("cell", "like"),
    [("12 %", True), ("< 5", True), ("1'000.5", True), ("1e3 €", True), ("$ -5", True),
     ("- 5", True), ("5x", False), ("%", False), ("e3", False), ("2020-01-01", False),
     ("1.12.2020", False), ("01. 02. 21", False), ("1.200.300", True), ("1.2.200", True)],
)  # fmt: skip
def test_what_was_meant_as_a_number(cell, like):
    assert is_like_number(cell) == like


@pytest.mark.parametrize("name", ["patient\nid", "patient_id"])
def test_identifiers_over_two_lines_or_there_twice_are_left_out(tmp_path, name):
    lines = "".join(f"{i},{i},{i % 3},a,b\n" for i in range(9))
    data = read_table(write_table(tmp_path, f'"{name}","{name}",x,y,domain\n{lines}'))
    assert data.table.features == ("x",)


def test_a_manifest_with_a_column_twice_is_refused(tmp_path):
    for name in ("1.png", "2.png"):
        (tmp_path / name).touch()
    path = write_table(tmp_path, "path,class,domain,path\n1.png,a,b,2.png\n")
    with pytest.raises(ValueError, match=r"Expected each column once .* line 1 has path, class"):
        read_dataset(path)


# --- the commands ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        *READERS,
        *(name for name in FUNCTIONS if name != "diagnose"),
        pytest.param("diagnose", marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_some_inputs_of_every_target_give_no_finding(tmp_path, monkeypatch, unchecked, name):
    """Until one was accepted and compared with what another reader finds."""
    seconds = run_folder.SECONDS_BETWEEN_CHECKPOINTS
    monkeypatch.setattr(run_folder, "SECONDS_BETWEEN_CHECKPOINTS", seconds)  # targets change it
    share, prepare = {**READERS, **FUNCTIONS}[name]
    attempt, least = prepare(tmp_path), 20 if share >= 2 else 2
    outcomes = Counter()
    while outcomes.total() < least or not outcomes["accepted"]:
        assert outcomes.total() < 1000
        outcomes[attempt(random.Random(f"7/{name}/{outcomes.total()}"))] += 1
    assert not (tmp_path / CANARY).exists()


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("x,y,domain\n1,a,b\n2,a,c\n", "x,y,domain\n1,a,b\n3,a,c\n"),
        ("x,y,domain\n1,a,b\n2,a,c\n", "x,y,domain\n1,a,b\n2,d,c\n"),
        ("x,y,domain\n1,a,b\n2,a,c\n", "x,y,domain\n1,a,c\n2,a,b\n"),
        ("x;y;domain\n1,5;a;b\n2;a;c\n", "x;y;domain\n15;a;b\n2;a;c\n"),
        ("x,y,domain\n1,a,b\n?,a,c\n", "x,y,domain\n1,a,b\n0,a,c\n"),
        ("x,y,domain\np,a,b\np,a,c\n", "x,y,domain\nq,a,b\nq,a,c\n"),
        ("x,id,y,domain\n1,7,a,b\n2,8,a,c\n", "x,kg,y,domain\n1,7,a,b\n2,8,a,c\n"),
        ("x,z,y,domain\n1,1,a,b\n2,2,a,c\n", "x,z,y,domain\n1,1,a,b\n2,2.0,a,c\n"),
        ("x,y,domain\n1,a,b\n2,a,c\n", 'x,y,domain\n1,a,b\n2,a,"c\n'),
    ],
)
def test_the_fuzzer_s_own_reader_tells_tables_apart(tmp_path, text, changed):
    path = write_table(tmp_path, text)
    data = read_table(path)
    check_table(independent(lambda: Table(path, None, None), "a table"), data)
    path.write_text(changed)
    with pytest.raises(FindingError):
        check_table(independent(lambda: Table(path, None, None), "a table"), data)


@pytest.mark.slow
def test_the_fuzzer_goes_on_where_it_was_and_tells_what_it_found(tmp_path):
    command = [sys.executable, "-m", "benchmarks.fuzz", "--seed", "7", "--work", tmp_path / "work",
               "--output", tmp_path / "out", "--target", "npz", "--target", "image"]  # fmt: skip
    environment = python_environment()
    for inputs in ("100", "300"):
        subprocess.run([*command, "--inputs", inputs], env=environment, check=True, timeout=400)
    (found,) = json.loads((tmp_path / "out" / "fuzz.json").read_text())["runs"]
    assert sum(map(sum, (each.values() for each in found["targets"].values()))) == 300
    assert found["findings"] == []
    subprocess.run([*command, "--inputs", "20", "--seed", "8"], env=environment, check=True)
    runs = json.loads((tmp_path / "out" / "fuzz.json").read_text())["runs"]
    assert [run["seed"] for run in runs] == [7, 8]
    assert runs[0] == found
    assert "320 inputs:" in (tmp_path / "out" / "fuzz.md").read_text()


@pytest.mark.slow
def test_the_soak_compares_what_it_killed(tmp_path):
    command = [sys.executable, "-m", "benchmarks.soak", "--kills", "6", "--work", tmp_path / "work",
               "--output", tmp_path / "out"]  # fmt: skip
    subprocess.run(command, env=python_environment(), check=True, timeout=400)
    rounds = json.loads((tmp_path / "out" / "soak.json").read_text())["rounds"]
    assert sum(each["kills"] for each in rounds) >= 6
