"""Who can mend an error: the user, who is told what to do, or we, who need the traceback."""

import errno
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from tests.sweep_jobs import write_bank

from hessalign.bench.runs.job import Job
from hessalign.cli import main
from hessalign.report.progress import warn

TINY = ["train", "--algorithm", "erm", "train_images=200", "test_images=60", "steps=2"]


def test_names_in_errors_and_warnings_move_no_cursor(capsys, tmp_path):
    assert main(["diagnose", str(tmp_path / "a\x1b[2J.npz")]) == 2
    warn("the site b\x1b[2J\nis small")
    shown = capsys.readouterr().err
    assert "a�[2J.npz" in shown
    assert shown.endswith("the site b�[2J\nis small\n")


@pytest.mark.parametrize("words", [["reproduce", "list"], ["algorithms"]])
def test_output_that_nobody_reads_any_more_is_no_error(words):
    command = [sys.executable, "-m", "hessalign", *words]
    reader, writer = os.pipe()
    os.close(reader)
    found = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (found.returncode, found.stderr) == (141, b"")


# --- bugs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [TypeError, ValueError, KeyError, RuntimeError, ImportError])
def test_a_bug_is_never_taken_for_a_mistake_of_the_user(kind, monkeypatch, capsys, tmp_path):
    def buggy(options):
        raise kind("deliberately")

    monkeypatch.setattr("hessalign.cli.algorithms.run", buggy)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert main(["algorithms"]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith(f"hessalign: error: unexpected {kind.__name__}: ")
    assert shown.count("\n") == 1
    (kept,) = tmp_path.iterdir()
    assert str(kept) in shown
    assert 'raise kind("deliberately")' in kept.read_text()


def test_the_traceback_of_a_bug_is_shown_where_it_can_be_kept_nowhere(
    monkeypatch, capsys, tmp_path
):
    def buggy(options):
        raise TypeError("deliberately")

    monkeypatch.setattr("hessalign.cli.algorithms.run", buggy)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    assert main(["algorithms"]) == 1
    assert 'raise TypeError("deliberately")' in capsys.readouterr().err


BUGGY = """
import sys
import hessalign.cli.{verb} as verb
def buggy(*arguments, **options):
    raise {kind}("deliberately")
verb.{name} = buggy
from hessalign.cli import main
from hessalign.report.progress import warn
from hessalign.bench.runs.job import Job
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("kind", ["TypeError", "ValueError"])
def test_the_traceback_of_a_bug_is_shown_on_request(kind, tmp_path):
    code = BUGGY.format(verb="train", name="train_job", kind=kind)
    environment = {**os.environ, "HESSALIGN_TRACEBACK": "1"}
    found = subprocess.run(
        [sys.executable, "-c", code, *TINY],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert found.returncode == 1
    assert "Traceback" in found.stderr
    assert f"{kind}: deliberately" in found.stderr


def fail_in(monkeypatch, error):
    """Let every run of a sweep in this process fail."""

    def buggy(*arguments, **options):
        raise error

    monkeypatch.setattr("hessalign.bench.runs.domainbed.DomainBed.start", buggy)


@pytest.mark.parametrize(
    ("error", "bug"),
    [
        (TypeError("deliberately"), True),
        (ValueError("deliberately"), True),
        (OSError(errno.ENOSPC, "No space left on device", "model.pt"), False),
    ],
)
def test_a_sweep_tells_runs_that_failed_by_a_bug(tmp_path, capsys, monkeypatch, error, bug):
    write_bank(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    command = ["sweep", "run", "--datasets", "bank", "--data-dir", "data", "--output", "out",
               "--algorithms", "erm", "--trials", "1", "--draws", "1", "--steps", "3",
               "--test-domains", "0", "--launcher", "serial"]  # fmt: skip
    fail_in(monkeypatch, error)
    for again in (command, ["sweep", "status", "out"]):
        assert main(again) == 1
        out = capsys.readouterr().out
        assert ("1 failed by a bug in hessalign: please report it" in out) == bug
        assert ("failed by a bug: ERM on bank" in out) == bug
        assert bug or "model.pt: No space left on device. Make room" in out
    (kept,) = (tmp_path / "out").glob("*/err.txt")
    assert "Traceback" in kept.read_text()
    assert "raise error" in kept.read_text()


# --- what users can mend --------------------------------------------------------------------------


def test_a_mistake_is_told_without_a_traceback_unless_it_is_asked_for(monkeypatch, capsys):
    assert main(["collect", "nowhere"]) == 2
    shown = capsys.readouterr().err
    assert re.fullmatch(r"hessalign: error: Expected the folder of a sweep.*\n", shown)
    monkeypatch.setenv("HESSALIGN_TRACEBACK", "1")
    assert main(["collect", "nowhere"]) == 2
    asked = capsys.readouterr().err
    assert asked.startswith("Traceback")
    assert asked.endswith(shown)


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EROFS, "Choose another place"),
        (errno.ENOSPC, "Make room"),
        (errno.EACCES, "choose another place"),
        (errno.ENOTDIR, "a part of it is a file"),
    ],
)
def test_a_folder_that_cannot_be_made_is_named_with_what_to_do(
    tmp_path, monkeypatch, capsys, number, remedy
):
    folder = tmp_path / "runs"
    make = os.mkdir

    def refused(path, *rest):
        if str(path).startswith(str(folder)):
            raise OSError(number, os.strerror(number), str(path))
        make(path, *rest)

    monkeypatch.setattr("os.mkdir", refused)
    assert main([*TINY, "--output", str(folder)]) == 2
    shown = capsys.readouterr().err
    assert "Errno" not in shown
    assert str(folder) in shown
    assert os.strerror(number) in shown
    assert remedy in shown


def test_a_disk_that_is_full_names_the_file_that_was_written(tmp_path, monkeypatch, capsys):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # names no file

    monkeypatch.setattr("os.fsync", full)
    assert main([*TINY, "--output", str(tmp_path / "runs")]) == 2
    shown = capsys.readouterr().err
    name = tmp_path / "runs" / "erm-seed0" / "config.json"
    assert f"{name}: No space left on device. Make room" in shown
    monkeypatch.setenv("HESSALIGN_TRACEBACK", "1")
    assert main([*TINY, "--output", str(tmp_path / "others")]) == 2
    assert capsys.readouterr().err.count("Traceback") == 1


@pytest.mark.parametrize("seed", ["-1", "99999999999999999999", "1.5"])
@pytest.mark.parametrize("verb", [["attack", "RUN"], ["diagnose", "RUN"], ["demo"], ["train"]])
def test_seeds_that_no_source_of_randomness_takes(verb, seed, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([*verb, "--seed", seed])
    assert stopped.value.code == 2
    assert f"from 0 to 4294967295, got '{seed}'" in capsys.readouterr().err


def test_a_seed_among_the_words_is_checked_too(capsys):
    assert main([*TINY, "seed=99999999999999999999"]) == 2
    assert "Expected a seed up to 4294967295" in capsys.readouterr().err


# --- files that are not what they should be -------------------------------------------------------


GARBAGE = {
    "empty": b"",
    "zeros": bytes(64),
    "latin-1": "größe: ä\n".encode("latin-1"),
    "a list": b"[1, 2]\n",
    "a number": b"7\n",
    "other keys": b'{"a": {"b": 1}}\n',
    "an open brace": b'{"step": 1, ',
    "a deep one": b'{"step": [], "seconds": {}, "terms": 1, "metrics": null, "args": 3}\n',
}
"""What may be in a file instead of what should be."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A complete run of each experiment, as the verbs find them."""
    folder = tmp_path_factory.mktemp("runs")
    write_bank(folder / "data")
    assert main([*TINY, "--output", str(folder / "colored")]) == 0
    command = [
        "train", "--dataset", "bank", "--data-dir", str(folder / "data"), "--algorithm", "erm",
        "--test-domains", "0", "--steps", "3", "--output", str(folder / "bank"),
    ]  # fmt: skip
    assert main(command) == 0
    return folder


def copy_of(runs, name, target):
    import shutil

    shutil.copytree(runs / name, target)
    (run,) = target.iterdir()
    return run


def refused(command, file, capsys):
    """Whether a command tells the user about a file; never that it is a bug."""
    code = main(command)
    shown = capsys.readouterr().err
    assert "This is a bug" not in shown, shown
    assert code in (0, 2), shown
    assert code == 0 or file.name in shown or file.stem in shown or str(file.parent) in shown, shown
    return code == 2


RUN_FILES = ["config.json", "results.jsonl", "done", "model.json", "model.safetensors"]


@pytest.mark.parametrize("content", GARBAGE)
@pytest.mark.parametrize("file", RUN_FILES)
def test_damaged_runs_of_colored_mnist(runs, tmp_path, capsys, file, content):
    run = copy_of(runs, "colored", tmp_path / "copy")
    (run / file).write_bytes(GARBAGE[content])
    found = refused(["attack", str(run), "--samples", "20"], run / file, capsys)
    again = refused([*TINY, "--output", str(tmp_path / "copy")], run / file, capsys)
    assert found == again == (file != "done")


@pytest.mark.parametrize("content", GARBAGE)
@pytest.mark.parametrize("file", RUN_FILES)
def test_damaged_runs_of_the_domainbed_protocol(runs, tmp_path, capsys, file, content):
    run = copy_of(runs, "bank", tmp_path / "copy")
    (run / file).write_bytes(GARBAGE[content])
    found = refused(["attack", str(run), "--samples", "20"], run / file, capsys)
    assert found == (file != "done")
    if file == "results.jsonl":
        assert refused(["collect", str(tmp_path / "copy")], run / file, capsys)


@pytest.mark.parametrize("content", GARBAGE)
@pytest.mark.parametrize(
    "suffix", [".npz", ".npy", ".safetensors", ".csv", ".jsonl", ".txt", ".yaml"]
)
def test_damaged_data_sets(tmp_path, capsys, suffix, content):
    file = tmp_path / f"bank{suffix}"
    file.write_bytes(GARBAGE[content])
    for command in (
        ["diagnose", str(file)],
        ["datasets", "check", str(file), "--workers", "1"],
        ["train", "--dataset", "bank", "--data-dir", str(tmp_path), "--test-domains", "0",
         "--output", str(tmp_path / "out")],
        ["features", "show", str(file)],
    ):  # fmt: skip
        assert refused(command, file, capsys)


@pytest.mark.parametrize("content", GARBAGE)
def test_damaged_configurations(tmp_path, capsys, content):
    file = tmp_path / "sweep.yaml"
    file.write_bytes(GARBAGE[content])
    for command in (
        ["train", "--config", str(file)],
        ["sweep", "status", str(file)],
        ["sweep", "run", str(tmp_path)],
    ):
        code = main(command)
        shown = capsys.readouterr().err
        assert code == 2
        assert "This is a bug" not in shown


ARRAYS = {
    "objects": {"x": np.array([[1, {}]], dtype=object), "y": [0], "domain": [0]},
    "complex": {"x": np.ones((4, 2), complex), "y": [0, 1, 0, 1], "domain": [0, 0, 1, 1]},
    "text": {"x": np.array([["a"]]), "y": [0], "domain": [0]},
    "scalars": {"x": np.float32(1), "y": 0, "domain": 0},
    "lengths": {"x": np.eye(3), "y": [0], "domain": [0, 1]},
    "dates": {"x": np.eye(2), "y": np.array(["2020", "2021"], "datetime64[Y]"), "domain": [0, 1]},
    "records": {"x": np.zeros(3, [("a", "f4")]), "y": [0, 1, 1], "domain": [0, 0, 1]},
    "void": {"x": np.zeros((3, 0)), "y": [0, 1, 1], "domain": [0, 0, 1]},
    "names": {"x": np.eye(2), "y": [0, 1], "domain": [0, 1], "classes": [[1], [2]]},
    "infinite": {"x": np.full((2, 2), np.inf), "y": [0, 1], "domain": [0, 1]},
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays_of_other_kinds(tmp_path, capsys, kind):
    file = tmp_path / "bank.npz"
    np.savez(file, **ARRAYS[kind])
    assert refused(["diagnose", str(file)], file, capsys)


@pytest.mark.parametrize("kind", [">f4", ">f8", "u2", "u8", "g", "?"])
def test_numbers_of_every_kind_can_be_read(tmp_path, capsys, kind):
    rng = np.random.default_rng(0)
    x = (10 * rng.random((40, 3))).astype(kind)
    np.savez(tmp_path / "bank.npz", x=x, y=[0, 1] * 20, domain=[0] * 20 + [1] * 20)
    assert main(["datasets", "check", str(tmp_path / "bank.npz")]) == 0
    assert "40" in capsys.readouterr().out


def test_safetensors_that_numpy_has_no_type_for(tmp_path, capsys):
    import torch
    from safetensors.torch import save_file

    file = tmp_path / "bank.safetensors"
    y = torch.arange(8) % 2
    save_file({"x": torch.ones(8, 2, dtype=torch.bfloat16), "y": y, "domain": y.clone()}, file)
    refused(["diagnose", str(file)], file, capsys)


OWN = {
    "raises.py": "raise KeyError('lost')",
    "syntax.py": "def make(:",
    "imports.py": "import a_package_that_nobody_has",
    "makes.py": "def make():\n    return {}['lost']",
    "none.py": "def make():\n    return None",
    "arguments.py": "def make(width):\n    return None",
    "forward.py": (
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return {}['lost']\n"
        "make = Net\n"
    ),
}


@pytest.mark.parametrize("file", OWN)
def test_backbones_of_ones_own_that_do_not_work(tmp_path, monkeypatch, capsys, file):
    (tmp_path / file).write_text(OWN[file])
    images = np.random.default_rng(0).integers(0, 255, (8, 3, 32, 32)).astype(np.uint8)
    np.savez(tmp_path / "small.npz", x=images, y=[0, 1] * 4, domain=[0] * 4 + [1] * 4)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"{file[:-3]}:make"
    command = ["features", "extract", "small.npz", "--backbone", name, "--jobs", "1"]
    assert main(command) == 2
    shown = capsys.readouterr().err
    assert file[:-3] in shown
    assert "This is a bug" not in shown
    sys.modules.pop(file[:-3], None)


@pytest.mark.parametrize("verb", ["demo", "attack", "reproduce"])
def test_where_results_go_is_tried_before_the_work(runs, tmp_path, monkeypatch, capsys, verb):
    monkeypatch.setattr("os.access", lambda path, mode: not str(path).startswith(str(tmp_path)))
    commands = {
        "demo": ["demo"],
        "attack": ["attack", str(runs / "colored" / "erm-seed0"), "--samples", "10"],
        "reproduce": ["reproduce", "table2", "--cache", str(runs / "cache")],
    }
    assert main([*commands[verb], "--output", str(tmp_path / "x")]) == 2
    shown = capsys.readouterr()
    assert f"{tmp_path / 'x'}: Permission denied" in shown.err
    assert shown.out == ""


# --- runs whose data are elsewhere ----------------------------------------------------------------


ATTACK = ["attack", "--samples", "20", "--delta", "0.1"]


@pytest.fixture
def relative_run(tmp_path, monkeypatch):
    """A run whose data were named by a relative path; the working folder is another one now."""
    write_bank(tmp_path / "work" / "data")
    monkeypatch.chdir(tmp_path / "work")
    command = [
        "train", "--dataset", "bank", "--data-dir", "data", "--algorithm", "erm",
        "--test-domains", "0", "--steps", "3", "--output", "out",
    ]  # fmt: skip
    assert main(command) == 0
    (run,) = (tmp_path / "work" / "out").iterdir()
    assert run.name == Job("bank", "ERM", (0,), 0, 0, "data", steps=3).folder  # as ever
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return run


@pytest.mark.parametrize("verb", [ATTACK, ["diagnose", "--samples", "20"]])
def test_a_run_knows_where_its_data_were(relative_run, verb, capsys):
    assert main([verb[0], str(relative_run), *verb[1:]]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("verb", [ATTACK, ["diagnose", "--samples", "20"]])
def test_data_that_were_moved_can_be_named(relative_run, verb, capsys, tmp_path):
    before = relative_run.parents[1] / "data"
    before.rename(tmp_path / "moved")
    command = [verb[0], str(relative_run), *verb[1:]]
    assert main(command) == 2
    shown = capsys.readouterr().err
    assert str(before) in shown
    assert str(tmp_path / "elsewhere" / "data") in shown
    assert "--data-dir" in shown
    assert main([*command, "--data-dir", str(tmp_path / "moved")]) == 0, capsys.readouterr().err


def test_a_run_that_does_not_tell_where_its_data_were_is_read_as_before(relative_run, monkeypatch):
    config = json.loads((relative_run / "config.json").read_text())
    del config["data_folder"]
    (relative_run / "config.json").write_text(json.dumps(config))
    assert main([ATTACK[0], str(relative_run), *ATTACK[1:]]) == 2
    monkeypatch.chdir(relative_run.parents[1])
    assert main([ATTACK[0], str(relative_run), *ATTACK[1:]]) == 0


def test_a_sweep_knows_where_its_data_were(tmp_path, monkeypatch, capsys):
    write_bank(tmp_path / "work" / "data")
    monkeypatch.chdir(tmp_path / "work")
    command = ["sweep", "run", "--launcher", "serial"]
    flags = [
        "--datasets", "bank", "--data-dir", "data", "--algorithms", "erm", "--test-domains", "0",
        "--trials", "1", "--draws", "1", "--steps", "2", "--output", "out",
    ]  # fmt: skip
    assert main([*command, *flags]) == 0
    job = Job("bank", "ERM", (0,), 0, 0, "data", steps=2)
    assert (tmp_path / "work" / "out" / job.folder / "done").exists()  # called as ever
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main([*command, str(tmp_path / "work" / "out"), "--trials", "2"]) == 0
    assert "2 done" in capsys.readouterr().out
    (tmp_path / "work" / "data").rename(tmp_path / "elsewhere" / "data")
    assert main([*command, str(tmp_path / "work" / "out"), "--trials", "3"]) == 0
    assert "3 done" in capsys.readouterr().out


def test_a_folder_of_data_is_refused_where_it_means_nothing(runs, capsys):
    for command in (
        ["attack", str(runs / "colored" / "erm-seed0"), "--data-dir", "data"],
        ["diagnose", str(runs / "data" / "bank.npz"), "--data-dir", "data"],
    ):
        assert main(command) == 2
        assert "--data-dir" in capsys.readouterr().err
