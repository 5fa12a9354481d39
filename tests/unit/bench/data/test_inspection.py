"""What `inspect_dataset` finds."""

import shutil

import numpy as np
import pytest
from PIL import Image
from tests.pictures import PACS, make_folder, needs_pacs, save

from hessalign.bench.data import PRESETS, inspect_dataset, read_image_folder

PACS_CLASSES = PRESETS["PACS"].classes


def found(data, preset=None, **options):
    return [(finding.kind, finding.text) for finding in inspect_dataset(data, preset, **options)]


@pytest.mark.parametrize("workers", [1, 2])
def test_damaged_and_repeated_images_are_named(tmp_path, workers):
    root = make_folder(tmp_path / "pets", each=40)
    (root / "photo" / "cat" / "3.png").write_text("no image")
    noise = np.random.RandomState(0).randint(0, 256, (40, 40, 3), dtype=np.uint8)
    cut = root / "photo" / "dog" / "cut.jpg"
    Image.fromarray(noise).save(cut)
    cut.write_bytes(cut.read_bytes()[:-500])
    shutil.copy(root / "photo" / "cat" / "1.png", root / "sketch" / "dog" / "copy.png")
    empty = root / "sketch" / "cat" / "empty.png"
    empty.touch()
    link = root / "sketch" / "dog" / "link.png"
    link.symlink_to(tmp_path / "nowhere")
    seen = []
    findings = found(read_image_folder(root), workers=workers, report=lambda *n: seen.append(n))
    assert findings == [
        ("unreadable", f"{root}/photo/cat/3.png: not an image of any known kind."),
        findings[1],
        ("unreadable", f"{root}/sketch/cat/empty.png: not an image of any known kind."),
        ("unreadable", f"{link}: No such file or directory."),
        ("duplicate", f"The same bytes: {root}/photo/cat/1.png, {root}/sketch/dog/copy.png."),
    ]
    assert findings[1][0] == "truncated"
    assert findings[1][1].startswith(f"{cut}: image file is truncated")
    assert seen[-1] == (164, 164)


def test_a_domain_that_cannot_be_trained_on_is_a_note(tmp_path):
    root = make_folder(tmp_path / "pets")
    save(root / "photo" / "cat" / "fifth.png", 77)
    text = (
        "The domain sketch has 4 of the 5 samples or more that `train` and `sweep` need in each "
        "domain."
    )
    assert found(read_image_folder(root)) == [("note", text)]


def test_a_missing_class_is_a_note(tmp_path):
    root = make_folder(tmp_path / "pets", each=3)
    save(root / "photo" / "ape" / "1.png", 77)
    save(root / "photo" / "yak" / "1.png", 78)
    assert found(read_image_folder(root)) == [
        ("note", "The domain sketch has no sample of the classes ape, yak.")
    ]


def test_numbers_are_compared_with_those_of_a_benchmark(tmp_path):
    root = make_folder(tmp_path, PRESETS["PACS"].domains, PACS_CLASSES, each=1)
    shutil.rmtree(root / "photo" / "dog")
    save(root / "photo" / "zebra" / "1.png", 500)
    findings = found(read_image_folder(root, "PACS"), PRESETS["PACS"])
    assert ("class", "photo lacks the classes dog.") in findings
    assert ("class", "photo has unknown classes zebra.") in findings
    assert ("count", "photo: expected 1670 images, found 7.") in findings
    assert ("count", "sketch/house: expected 80 images, found 1.") in findings
    assert len(findings) == 2 + 4 + 4 * 7 - 1  # dog of photo is missing, which is said once


def test_a_benchmark_without_known_numbers(tmp_path):
    terra = PRESETS["TerraIncognita"]
    root = make_folder(tmp_path, terra.domains, terra.classes, each=1)
    assert found(read_image_folder(root, "TerraIncognita"), terra) == []


@needs_pacs
def test_the_real_pacs_is_fine():
    assert found(read_image_folder(PACS, "PACS"), PRESETS["PACS"]) == []
