"""`hessalign datasets` as a user meets it."""

import os
import pty
import re

import numpy as np
import pytest
from tests.pictures import PACS, make_folder, needs_pacs, save

from hessalign.bench.data import PRESETS, open_images, read_image_folder
from hessalign.cli import main
from hessalign.report.progress import Progress


def test_list_names_every_benchmark_and_where_to_get_it(capsys):
    assert main(["datasets", "list"]) == 0
    out = capsys.readouterr().out
    for preset in PRESETS.values():
        assert f"| {preset.name} " in out
        assert re.search(rf"\b{preset.name}\b.*: {re.escape(preset.describe())}\.\n", out)
    assert re.search(
        r"\| PACS +\| PACS +\| art_painting, cartoon, photo, sketch +\| +7 \| +9,991 \|", out
    )
    assert "put that file beside the domains as exclude.txt" in out
    assert "ColoredMNIST, RotatedMNIST: made from the four MNIST files" in out


def test_check_of_a_good_folder(tmp_path, capsys):
    root = make_folder(tmp_path / "pets")
    save(root / "photo" / "yak" / "1.png", 50)
    assert main(["datasets", "check", str(root), "--workers", "1"]) == 0
    captured = capsys.readouterr()
    assert captured.out == (
        "| pets: 3 classes | photo | sketch |\n"
        "|:----------------|------:|-------:|\n"
        "| cat             |     2 |      2 |\n"
        "| dog             |     2 |      2 |\n"
        "| yak             |     1 |      0 |\n"
        "| all             |     5 |      4 |\n"
        "\n"
        "note: The domain sketch has no sample of the class yak.\n"
        "note: The domain sketch has 4 of the 5 samples or more that `train` and `sweep` need in "
        "each domain.\n"
        "pets is fine: 9 samples, all readable, none twice.\n"
    )
    assert "9/9 images" in captured.err


def test_check_with_findings_has_exit_code_1(tmp_path, capsys):
    root = make_folder(tmp_path / "pets", each=15)
    for path in (root / "photo" / "cat").iterdir():
        path.write_text(f"no image {path}")
    command = ["datasets", "check", str(root), "--workers", "1"]
    assert main(command) == 1
    out = capsys.readouterr().out
    assert f"unreadable: {root}/photo/cat/0.png: not an image of any known kind." in out
    assert "unreadable: 5 more; --all shows them." in out
    assert "is fine" not in out
    assert main([*command, "--all"]) == 1
    assert capsys.readouterr().out.count("unreadable: ") == 15


def test_check_knows_a_benchmark_by_its_domains(tmp_path, capsys):
    preset = PRESETS["PACS"]
    make_folder(tmp_path / "kfold", preset.domains, preset.classes, each=1)
    assert main(["datasets", "check", str(tmp_path), "--workers", "1"]) == 1
    out = capsys.readouterr().out
    assert re.search(r"\| expected +\| +2048 \| +2344 \| +1670 \| +3929 \|", out)
    assert "count: photo: expected 1670 images, found 7." in out
    assert f"PACS can be obtained from {preset.source}." in out


def test_check_of_manifests_and_arrays(tmp_path, capsys):
    root = make_folder(tmp_path / "pets")
    lines = [f"{p.relative_to(root)},{p.parent.name},{p.parts[-3]}" for p in root.rglob("*.png")]
    (root / "pets.csv").write_text("path,class,domain\n" + "\n".join(lines))
    assert main(["datasets", "check", str(root / "pets.csv"), "--workers", "1"]) == 0
    assert "pets is fine: 8 samples, all readable" in capsys.readouterr().out
    np.savez(tmp_path / "f.npz", x=np.eye(3), y=[0, 1, 1], domain=["a", "b", "a"])
    assert main(["datasets", "check", str(tmp_path / "f.npz")]) == 0
    assert "f is fine: 3 samples, arrays." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["check", "nowhere"], "Expected a data set, found nothing at nowhere.$"),
        (["prepare", "wildsfmow:domain=year"], r"nothing at wildsf\S+ Did you mean 'WILDSFMoW'\?"),
        (["check", ".", "--preset", "pacs"], "Unknown preset 'pacs'.*Did you mean 'PACS'?"),
        (["check", ".", "--preset", "PACS"], "missing: art_painting, cartoon. PACS can be obt"),
        (["prepare", ".", "--workers", "0"], "Expected 1 or more workers, got 0."),
    ],
)
def test_mistakes_are_explained(tmp_path, monkeypatch, capsys, words, message):
    make_folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["datasets", *words]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_prepare_then_use_then_bring_up_to_date(tmp_path, capsys):
    root = make_folder(tmp_path / "pets")
    command = ["datasets", "prepare", str(root), "--size", "16", "--workers", "1"]
    assert main(command) == 0
    captured = capsys.readouterr()
    folder = tmp_path / "pets.hessalign-16"
    assert captured.out == f"8 images of pets are in {folder}.\n"
    assert "preparing [####################]  8/8 images" in captured.err
    reader = open_images(read_image_folder(root), folder, 16)
    assert reader.cached
    assert reader.read(1, [0, 3]).pixels.shape == (2, 3, 16, 16)

    save(root / "photo" / "cat" / "new.png", 123)
    assert main(command) == 0
    captured = capsys.readouterr()
    assert "was made from other files than those of now: 1 of 2 parts, in photo" in captured.err
    assert "verifying [####################]  9/9 images" in captured.err
    assert captured.out.startswith("9 images")


def test_prepare_elsewhere_and_without_some_images(tmp_path, capsys):
    root = make_folder(tmp_path / "pets")
    bad = root / "photo" / "cat" / "0.png"
    bad.write_text("no image")
    command = ["datasets", "prepare", str(root), "--cache", str(tmp_path / "c"), "--workers", "1"]
    assert main(command) == 2
    assert f"The image {bad} is unreadable" in capsys.readouterr().err
    (root / "exclude.txt").write_text(f"{bad}\nphoto/cat/gone.png\n")
    assert main([*command, "--size", "8"]) == 0
    assert capsys.readouterr().out == f"7 images of pets are in {tmp_path / 'c'}.\n"
    assert main(["datasets", "check", str(root), "--workers", "1"]) == 0
    out = capsys.readouterr().out
    assert "note: exclude.txt leaves out 1 image.\n" in out
    assert "note: exclude.txt has 1 line that names no image, such as photo/cat/gone.png.\n" in out


def test_progress_on_a_terminal_is_one_line():
    primary, secondary = pty.openpty()
    with os.fdopen(secondary, "w") as stream:
        progress = Progress("checking", "images", stream, bar=True)
        for done in (0, 5, 10):
            progress(done, 10)
        shown = ""
        while "\n" not in shown:  # a terminal hands over what it has by now, not all
            shown += os.read(primary, 4096).decode()
    os.close(primary)
    assert shown.count("\n") == 1
    assert shown.endswith("\n")
    assert [part.split("]")[0] for part in shown.split("\r")[1:4]] == [
        "checking [--------------------",
        "checking [##########----------",
        "checking [####################",
    ]
    assert "left" not in shown  # three reports in no time tell nothing


@needs_pacs
def test_check_of_the_real_pacs(capsys):
    assert main(["datasets", "check", str(PACS), "--preset", "PACS", "--workers", "1"]) == 0
    captured = capsys.readouterr()
    assert re.search(r"\| all +\| +2048 \| +2344 \| +1670 \| +3929 \|", captured.out)
    assert "PACS is fine: 9,991 samples, all readable, none twice." in captured.out
    assert "9991/9991 images" in captured.err
