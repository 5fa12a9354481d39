"""The cache of decoded images: the same pixels, made once, trusted only if it is intact."""

import errno
import fcntl
import json
import os
import pickle
import re
import resource
import signal
import subprocess
import sys
import warnings
from collections import Counter
from inspect import unwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.pictures import PACS, make_folder, needs_pacs, picture, save

import hessalign
from hessalign.bench.data import (
    DomainDataset,
    ImageCacheError,
    ImageError,
    cache_folder,
    open_images,
    prepare_images,
    read_arrays,
    read_image,
    read_image_folder,
)
from hessalign.bench.data.images import find_damage

SIZE = 8
MANY = 150  # more than fit into one part


@pytest.fixture
def data(tmp_path):
    return read_image_folder(make_folder(tmp_path / "pets", each=2))


@pytest.fixture
def large(tmp_path):
    """Two domains of two parts each."""
    return read_image_folder(make_folder(tmp_path / "pets", classes=("cat",), each=MANY))


@pytest.fixture
def reads(monkeypatch):
    """How often each image is decoded in this process."""
    counter = Counter()
    functions = unwrap(prepare_images).__globals__["_make"]
    scope = unwrap(functions).__globals__
    original = scope["read_image"]

    def count(path, size, *, allow_truncated=False):
        counter[path] += 1
        return original(path, size, allow_truncated=allow_truncated)

    monkeypatch.setitem(scope, "read_image", count)
    return counter


def expected(data, size=SIZE):
    """All pixels, read with Pillow as torchvision's Resize reads them."""
    return [
        [np.asarray(Image.open(p).convert("RGB").resize((size, size), Image.BILINEAR))
         for p in domain.paths]
        for domain in data.domains
    ]  # fmt: skip


def assert_same(reader, data):
    for number, images in enumerate(expected(data, reader.size)):
        order = np.random.RandomState(0).permutation(len(images))
        batch = reader.read(number, order)
        wanted = torch.tensor(np.stack(images)[order]).permute(0, 3, 1, 2)
        assert batch.pixels.dtype == torch.uint8
        assert torch.equal(batch.pixels, wanted)
        assert set(map(tuple, batch.original_sizes.tolist())) == {(12, 10)}


# --- the same pixels ----------------------------------------------------------------------------


def test_cache_and_files_give_the_pixels_of_pillow(large, tmp_path):
    folder = tmp_path / "cache"
    files = open_images(large, folder, SIZE)
    assert not files.cached
    assert not folder.exists()
    assert_same(files, large)
    made = prepare_images(large, folder, SIZE)
    assert made.cached
    assert_same(made, large)
    again = open_images(large, folder, SIZE)
    assert again.cached
    assert_same(again, large)
    assert again.read(1, []).pixels.shape == (0, 3, SIZE, SIZE)
    assert len(list(folder.glob("*.bin"))) == 4


def test_several_processes_make_the_same_files(large, tmp_path):
    prepare_images(large, tmp_path / "one", SIZE)
    seen = []
    prepare_images(large, tmp_path / "two", SIZE, workers=2, report=lambda *n: seen.append(n))
    for file in (tmp_path / "one").glob("*.*"):
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes()
    assert seen[0] == (0, 2 * MANY)
    assert seen[-1] == (2 * MANY, 2 * MANY)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


@pytest.mark.parametrize(
    ("mode", "colour"),
    [
        ("L", (88, 88, 88)),  # 0.299 · 200 + 0.587 · 30 + 0.114 · 90
        ("LA", (88, 88, 88)),
        ("P", (204, 51, 102)),  # the nearest of the web palette
        ("RGBA", (200, 30, 90)),
        ("CMYK", (200, 30, 90)),
        ("1", (0, 0, 0)),
    ],
)
def test_images_of_other_kinds_become_rgb(tmp_path, mode, colour):
    path = tmp_path / ("image.tif" if mode == "CMYK" else "image.png")
    made = Image.new("RGB", (5, 4), (200, 30, 90))
    (made.convert(mode, dither=Image.Dither.NONE)).save(path)
    image = read_image(path, 3)
    assert image.pixels.shape == (3, 3, 3)
    assert (image.pixels == np.array(colour)).all()
    assert (image.width, image.height) == (5, 4)


@pytest.mark.parametrize("kind", ["<u2", ">u2"])
@pytest.mark.parametrize("suffix", ["png", "tif", "pgm"])
def test_the_upper_byte_of_16_bits_is_read(tmp_path, kind, suffix):
    deep = np.linspace(0, 65535, 100).reshape(10, 10).astype(kind)
    path = tmp_path / f"deep.{suffix}"
    if suffix == "pgm":  # which Pillow reads, but writes with 8 bits
        path.write_bytes(b"P5 10 10 65535\n" + deep.astype(">u2").tobytes())
    else:
        Image.fromarray(deep).save(path)
    pixels = read_image(path, 10).pixels
    assert pixels.dtype == np.uint8
    assert (pixels == (deep // 256)[..., None]).all()
    assert find_damage(path) is None
    Image.fromarray((deep // 256).astype(np.uint8)).save(tmp_path / "shallow.png")
    assert (read_image(path, 3).pixels == read_image(tmp_path / "shallow.png", 3).pixels).all()


def test_images_of_16_bits_are_kept_as_others(tmp_path):
    """In the cache and without it; a black one too, and a truncated one is truncated."""
    deep = np.linspace(0, 65535, 64 * 64).reshape(64, 64).astype(np.uint16)
    folder = tmp_path / "scans" / "north" / "well"
    folder.mkdir(parents=True)
    for name, pixels in (("a", deep), ("b", np.zeros_like(deep)), ("c", deep[::-1].copy())):
        Image.fromarray(pixels).save(folder / f"{name}.png")
    scans = read_image_folder(tmp_path / "scans")
    kept = prepare_images(scans, tmp_path / "cache", SIZE)
    opened = open_images(scans, tmp_path / "other", SIZE)
    for images in (kept, opened):
        pixels = images.read(0, [0, 1, 2]).pixels
        assert int(pixels[0].max()) == int(pixels[2].max()) > 200
        assert int(pixels[1].max()) == 0
    assert (kept.read(0, [0, 1, 2]).pixels == opened.read(0, [0, 1, 2]).pixels).all()
    cut = folder / "cut.tif"
    Image.fromarray(deep).save(cut)
    cut.write_bytes(cut.read_bytes()[:-4000])
    found = find_damage(cut)
    assert found is not None
    assert found.damage == "truncated"


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            "uint16",
            r"its brightest, 4095, uses 12 or fewer, .* all but black; scale it to the full",
        ),
        (
            "int32",
            r"more than 16 bits .* \(mode I\), whose range is not known; scale it to 8 or 16",
        ),
        ("float32", r"more than 16 bits .* \(mode F\), whose range is not known; scale it"),
    ],
)
def test_greys_of_an_unknown_range_are_refused(tmp_path, kind, message):
    path = tmp_path / "deep.tif"
    Image.fromarray(np.linspace(0, 4095, 100).reshape(10, 10).astype(kind)).save(path)
    with pytest.raises(ImageError, match=message):
        read_image(path, 4)
    found = find_damage(path)
    assert found is not None
    assert found.damage == "unreadable"


def test_the_default_place_is_beside_the_data(tmp_path, monkeypatch):
    assert cache_folder(tmp_path / "PACS") == tmp_path / "PACS.hessalign-224"
    monkeypatch.chdir(tmp_path)
    assert cache_folder(Path("PACS/"), 64) == Path("PACS.hessalign-64")


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("wrong", [-1, 4])
def test_samples_that_are_not_there(data, tmp_path, cached, wrong):
    reader = (prepare_images if cached else open_images)(data, tmp_path / "cache", SIZE)
    with pytest.raises(
        IndexError, match=f"samples from 0 to 3 of the domain 'sketch', got {wrong}"
    ):
        reader.read(1, [0, wrong])


# --- work that is interrupted -------------------------------------------------------------------


def test_what_is_there_is_not_made_again(large, tmp_path, reads):
    prepare_images(large, tmp_path / "cache", SIZE)
    assert set(reads.values()) == {1}
    messages, verified = [], []
    prepare_images(
        large, tmp_path / "cache", SIZE, warn=messages.append,
        report_verified=lambda *numbers: verified.append(numbers),
    )  # fmt: skip
    assert set(reads.values()) == {1}
    assert messages == []
    assert verified == [(128, 300), (150, 300), (278, 300), (300, 300)]


KILL = """
import os, signal, sys
from pathlib import Path
from hessalign.bench.data import prepare_images, read_image_folder

def report(done, total):
    if done > 200:
        os.kill(os.getpid(), signal.SIGKILL)

prepare_images(read_image_folder(Path(sys.argv[1])), Path(sys.argv[2]), 8, report=report)
"""


def test_work_continues_after_a_kill(large, tmp_path, reads):
    root, folder = large.domains[0].paths[0].parents[2], tmp_path / "cache"
    source = str(Path(hessalign.__file__).parents[1])
    killed = subprocess.run(
        [sys.executable, "-c", KILL, root, folder],
        env={**os.environ, "PYTHONPATH": source}, check=False, timeout=100,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL
    (folder / "01-00001.bin.123.partial").write_bytes(b"half")
    (folder / "01-00001.bin").write_bytes(b"pixels without a description")
    reader = open_images(large, folder, SIZE)  # finishes it
    left = 2 * MANY - MANY - 128
    assert len(reads) == left
    assert_same(reader, large)
    assert not list(folder.glob("*.partial"))


# --- caches that are not to be trusted ----------------------------------------------------------


def test_a_changed_image_is_made_again_and_it_is_said(large, tmp_path, reads):
    prepare_images(large, tmp_path / "cache", SIZE)
    changed = large.domains[1].paths[140]
    save(changed, 9999)
    os.utime(changed, ns=(1, 1))
    reads.clear()
    messages = []
    reader = open_images(large, tmp_path / "cache", SIZE, warn=messages.append)
    assert messages == [
        f"The cache {tmp_path / 'cache'} was made from other files than those of now: 1 of 4 "
        "parts, in sketch. They are made again."
    ]
    assert set(reads) == set(large.domains[1].paths[128:])
    assert_same(reader, large)


def test_a_cache_of_another_version_is_made_again_and_it_is_said(data, tmp_path):
    folder = tmp_path / "cache"
    prepare_images(data, folder, SIZE)
    for file in folder.glob("*.json"):
        file.write_text(json.dumps({**json.loads(file.read_text()), "format": 1}))
    messages = []
    assert_same(open_images(data, folder, SIZE, warn=messages.append), data)
    assert [message.split(":")[0] for message in messages] == [
        f"The cache {folder} was made by another version of hessalign"
    ]


def test_a_removed_image_and_another_size(large, tmp_path):
    folder = tmp_path / "cache"
    prepare_images(large, folder, SIZE)
    for path in large.domains[0].paths[20:]:
        path.unlink()
    fewer = read_image_folder(tmp_path / "pets")
    messages = []
    assert_same(prepare_images(fewer, folder, SIZE, warn=messages.append), fewer)
    assert "1 of 3 parts, in photo" in messages[0]
    assert sorted(file.name for file in folder.glob("*.bin")) == [
        "00-00000.bin", "01-00000.bin", "01-00001.bin",
    ]  # fmt: skip
    assert_same(prepare_images(fewer, folder, 6, warn=messages.append), fewer)
    assert "made from other files" in messages[1]


@pytest.mark.parametrize("damage", ["pixels", "short", "description", "keys"])
def test_damage_is_found_said_and_mended(data, tmp_path, damage):
    folder = tmp_path / "cache"
    prepare_images(data, folder, SIZE)
    pixels, description = folder / "00-00000.bin", folder / "00-00000.json"
    content = bytearray(pixels.read_bytes())
    if damage == "pixels":
        content[100] ^= 1
        pixels.write_bytes(content)
    elif damage == "short":
        pixels.write_bytes(content[:-1])
    else:
        description.write_text("{" if damage == "description" else json.dumps({"size": SIZE}))
    messages = []
    assert_same(prepare_images(data, folder, SIZE, warn=messages.append), data)
    assert messages == [f"The cache {folder} is damaged: 1 of 2 parts, in photo. They are made "
                        "again."]  # fmt: skip


def test_a_short_file_is_found_without_reading_all_of_it(data, tmp_path):
    folder = tmp_path / "cache"
    prepare_images(data, folder, SIZE)
    pixels = folder / "01-00000.bin"
    pixels.write_bytes(pixels.read_bytes()[:-1])
    messages = []
    assert_same(open_images(data, folder, SIZE, warn=messages.append), data)
    assert "is damaged: 1 of 2 parts, in sketch" in messages[0]


# --- what can go wrong --------------------------------------------------------------------------


def truncate(path):
    image = Image.fromarray(np.random.RandomState(0).randint(0, 256, (40, 40, 3), dtype=np.uint8))
    path = path.with_suffix(".jpg")
    image.save(path)
    path.write_bytes(path.read_bytes()[:-600])
    return path


def test_an_image_beyond_pillows_limit_is_named(tmp_path, monkeypatch):
    save(tmp_path / "large.png", 0, (40, 40))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 700)
    found = find_damage(tmp_path / "large.png")
    assert found is not None
    assert re.search(r"large\.png is unreadable: Image size \(1600 pixels\)", str(found))


@pytest.mark.parametrize("kind", ["TIFF", "BMP", "GIF"])
def test_damaged_headers_are_found_whatever_pillow_raises(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100_000)  # they may claim any size
    path = tmp_path / f"image.{kind.lower()}"
    picture(0).save(path, kind)
    whole, random = path.read_bytes(), np.random.RandomState(0)
    for _ in range(300):
        damaged = bytearray(whole)
        for place in random.randint(min(len(whole), 200), size=3):
            damaged[place] = random.randint(256)
        path.write_bytes(damaged)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            find_damage(path)  # raises nothing


def test_names_of_images_need_not_be_in_utf_8(tmp_path):
    root = make_folder(tmp_path / "pets", each=1)
    first = root / "photo" / "cat" / "0.png"
    first.rename(os.fsdecode(os.fsencode(first.parent) + b"/caf\xe9.png"))
    data = read_image_folder(root)
    assert_same(prepare_images(data, tmp_path / "cache", SIZE), data)


def test_a_broken_link_is_named(data, tmp_path):
    broken = data.domains[0].paths[0]
    broken.unlink()
    broken.symlink_to(tmp_path / "nowhere")
    with pytest.raises(ImageError, match=f"{broken} is unreadable: No such file"):
        prepare_images(data, tmp_path / "cache", SIZE)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_corrupt_image_is_named(data, tmp_path, workers):
    bad = data.domains[0].paths[3]
    bad.write_text("no image")
    with pytest.raises(ImageError) as caught:
        prepare_images(data, tmp_path / "cache", SIZE, workers=workers)
    assert str(caught.value) == (
        f"The image {bad} is unreadable: not an image of any known kind. Replace it, or leave it "
        "out: name it in exclude.txt in the folder of the domains, or take it off the manifest."
    )


def test_a_truncated_image_is_refused_or_filled_with_grey(tmp_path):
    make_folder(tmp_path / "pets", each=1)
    bad = truncate(tmp_path / "pets" / "photo" / "cat" / "bad")
    data = read_image_folder(tmp_path / "pets")
    with pytest.raises(
        ImageError, match=r"bad\.jpg is truncated: .*prepare --allow-truncated` fill"
    ):
        prepare_images(data, tmp_path / "cache", SIZE)
    reader = prepare_images(data, tmp_path / "cache", SIZE, allow_truncated=True)
    index = data.domains[0].paths.index(bad)
    pixels = reader.read(0, [index]).pixels[0]
    assert pixels[:, 0].float().std() > 0
    assert (pixels[:, -1].int() - 128).abs().max() <= 1
    assert open_images(data, tmp_path / "cache", SIZE).cached


def test_arrays_need_no_cache(tmp_path):
    np.savez(tmp_path / "f.npz", x=np.eye(2), y=[0, 1], domain=[0, 1])
    with pytest.raises(ValueError, match="'0' holds arrays, which need no preparation"):
        prepare_images(read_arrays(tmp_path / "f.npz"), tmp_path / "cache")
    with pytest.raises(ValueError, match="Expected a size of 1 or more pixels, got 0"):
        prepare_images(DomainDataset("d", ("a",), read_arrays(tmp_path / "f.npz").domains[:1]),
                       tmp_path / "cache", 0)  # fmt: skip


@pytest.mark.parametrize("workers", [0, -1])
def test_at_least_one_worker(data, tmp_path, workers):
    with pytest.raises(ValueError, match=f"Expected 1 or more workers, got {workers}"):
        prepare_images(data, tmp_path / "cache", SIZE, workers=workers)


def test_a_folder_that_cannot_be_made(data, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(
        ImageCacheError, match=r"Cannot write the cache .*: Not a directory.*choose another place w"
    ):
        prepare_images(data, tmp_path / "file" / "cache", SIZE)


def test_a_read_only_folder(data, tmp_path, monkeypatch):
    """Root may write to folders that are read-only, so the refusal is the operating system's."""

    def refuse(self, *args, **options):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(
        ImageCacheError, match=r"Cannot write the cache .*: Read-only file system\."
    ):
        prepare_images(data, tmp_path / "cache", SIZE)


def test_a_disk_that_fills_up_keeps_what_was_made(large, tmp_path, monkeypatch, reads):
    scope = unwrap(unwrap(prepare_images).__globals__["_make"]).__globals__
    original, written = scope["write_atomically"], []

    def write(path, content):
        if len(written) == 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(path)
        original(path, content)

    with monkeypatch.context() as patch:
        patch.setitem(scope, "write_atomically", write)
        with pytest.raises(
            ImageCacheError, match=r"No space left on device\. What was made is kept"
        ):
            prepare_images(large, tmp_path / "cache", SIZE)
    reads.clear()
    assert_same(prepare_images(large, tmp_path / "cache", SIZE), large)
    assert set(reads) == set(large.domains[1].paths)


def test_a_disk_that_is_too_small_is_known_beforehand(data, tmp_path, reads):
    with pytest.raises(ImageCacheError, match=r"needs \d+\.\d GB in .*, where .* GB are free"):
        prepare_images(data, tmp_path / "cache", 10_000_000)
    assert not reads


@pytest.mark.parametrize("use", [prepare_images, open_images])
def test_only_one_process_writes_and_others_wait_for_it(data, tmp_path, reads, use):
    folder = tmp_path / "cache"
    folder.mkdir()
    said = []
    lock = (folder / "lock").open("a")
    fcntl.flock(lock, fcntl.LOCK_EX)

    def make_it_meanwhile(message):
        said.append(message)
        prepare_images(data, tmp_path / "other", SIZE)
        for file in (tmp_path / "other").glob("*-*"):
            file.rename(folder / file.name)
        lock.close()

    reader = use(data, folder, SIZE, warn=make_it_meanwhile)
    holder = "which another process is using"
    assert said == [f"Waiting for {folder}, {holder}, for 6 hours at most."]
    assert reader.cached
    assert max(reads.values()) == 1  # what the other process made is not made again


def test_a_cache_that_others_use_all_the_time_is_an_error(data, tmp_path, monkeypatch):
    monkeypatch.setitem(unwrap(prepare_images).__globals__, "_WAIT_SECONDS", 0.2)
    (tmp_path / "cache").mkdir()
    with (tmp_path / "cache" / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(
            ImageCacheError, match=r"Waited 0\.2 seconds for .*cache, which another"
        ):
            prepare_images(data, tmp_path / "cache", SIZE)


def test_a_cache_of_many_parts_needs_few_open_files(tmp_path, monkeypatch):
    monkeypatch.setitem(unwrap(prepare_images).__globals__, "_PER_PART", 1)
    data = read_image_folder(make_folder(tmp_path / "pets", each=20))
    reader = prepare_images(data, tmp_path / "cache", SIZE)
    expected = reader.read(0, range(40)).pixels
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_now = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_now + 8, before[1]))
    try:
        again = open_images(data, tmp_path / "cache", SIZE).read(0, range(40)).pixels
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert torch.equal(again, expected)


def test_a_cache_that_is_made_again_is_not_read_as_if_it_were_the_old_one(data, tmp_path):
    reader = prepare_images(data, tmp_path / "cache", SIZE)
    copied = pickle.dumps(reader)
    data.domains[0].paths[0].unlink()
    changed = read_image_folder(tmp_path / "pets")
    prepare_images(changed, tmp_path / "cache", SIZE)
    with pytest.raises(ImageCacheError, match=r"00-00000\.bin was changed while it was in use"):
        reader.read(0, [0])
    with pytest.raises(ImageCacheError, match="was changed while it was in use"):
        pickle.loads(copied)


def test_a_missing_pillow_says_what_to_install(data, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"pip install 'hessalign\[images\]'"):
        read_image(data.domains[0].paths[0], SIZE)


@needs_pacs
def test_one_domain_of_the_real_pacs(tmp_path):
    pacs = read_image_folder(PACS, "PACS")
    photo = DomainDataset("PACS", pacs.classes, pacs.domains[2:3])
    reader = prepare_images(photo, tmp_path / "cache", 32)
    chosen = [0, 700, 1669]
    batch = reader.read(0, chosen)
    assert batch.original_sizes.tolist() == [[227, 227]] * 3
    for index, pixels in zip(chosen, batch.pixels, strict=True):
        image = Image.open(photo.domains[0].paths[index]).convert("RGB")
        wanted = np.asarray(image.resize((32, 32), Image.BILINEAR))
        assert np.array_equal(pixels.permute(1, 2, 0).numpy(), wanted)
