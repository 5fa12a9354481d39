"""The shipped MNIST file, its loader, and the script that builds it."""

import gzip
import hashlib
import lzma
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from scripts import build_mnist14
from scripts.build_mnist14 import IMAGES, LABELS, IdxFile

from hessalign._errors import MissingPackageError
from hessalign.bench.data import load_mnist14, mnist

ROOT = Path(__file__).parents[4]


@pytest.fixture
def originals():
    """Folder of the gzipped MNIST files, where there is one."""
    folder = Path(os.environ.get("HESSALIGN_MNIST", ROOT.parent / "shared" / "data" / "mnist"))
    if not (folder / IMAGES.name).is_file():
        pytest.skip(f"{IMAGES.name} is not at hand; HESSALIGN_MNIST may name its folder")
    return folder


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A folder that stands in for the installed package; the loader's cache is empty around it."""
    monkeypatch.setattr(mnist, "files", lambda _: tmp_path)
    load_mnist14.cache_clear()
    yield tmp_path
    load_mnist14.cache_clear()


def idx(array):
    header = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return header + array.tobytes()


def write_gzip(folder, name, content):
    (folder / name).write_bytes(gzip.compress(content))


# --- loader -----------------------------------------------------------------------------------


def test_shapes_and_types():
    mnist = load_mnist14()
    assert mnist.images.shape == (60_000, 14, 14)
    assert mnist.images.dtype == torch.uint8
    assert mnist.digits.shape == (60_000,)
    assert mnist.digits.dtype == torch.int64


def test_digit_counts_are_those_of_mnist():
    counts = torch.bincount(load_mnist14().digits, minlength=10).tolist()
    assert counts == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


def test_images_belong_to_their_digits():
    """The mean image of a digit tells it from the others better than chance; a shift would not."""
    mnist = load_mnist14()
    images = mnist.images.flatten(1).double()
    means = torch.stack([images[mnist.digits == k].mean(0) for k in range(10)])
    nearest = torch.cdist(images[:5000], means).argmin(1)
    assert (nearest == mnist.digits[:5000]).double().mean() > 0.7


def test_ones_stand_upright():
    """Rows come before columns: the ink of a 1 fills more rows than columns."""
    mnist = load_mnist14()
    one = mnist.images[mnist.digits == 1].double().mean(0)
    assert (one.sum(1) > 100).sum() > (one.sum(0) > 100).sum()


def test_second_load_costs_nothing():
    assert load_mnist14() is load_mnist14()


def test_shipped_file_is_small():
    assert 2_000_000 < (Path(mnist.__file__).parent / mnist._SHIPPED).stat().st_size < 3_000_000


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b[:1000] + b"\0" + b[1001:]])
def test_damaged_file(package, damage):
    shipped = (Path(mnist.__file__).parent / mnist._SHIPPED).read_bytes()
    content = damage(shipped)
    (package / mnist._SHIPPED).write_bytes(content)
    found = hashlib.sha256(content).hexdigest()
    with pytest.raises(
        MissingPackageError,
        match=rf"is damaged: expected SHA-256 {mnist._SHIPPED_SHA256}, found {found}\. Reinstall",
    ):
        load_mnist14()


def test_missing_file(package):
    with pytest.raises(
        MissingPackageError, match=rf"Expected the MNIST file .*{mnist._SHIPPED}, found none"
    ):
        load_mnist14()


# --- script -----------------------------------------------------------------------------------


def test_shipped_file_equals_a_rebuild(originals, tmp_path, capsys):
    rebuilt = tmp_path / "rebuilt.xz"
    assert build_mnist14.main([str(originals), "--output", str(rebuilt)]) == 0
    assert mnist._SHIPPED_SHA256 in capsys.readouterr().out
    shipped = build_mnist14.OUTPUT.read_bytes()
    assert lzma.decompress(rebuilt.read_bytes()) == lzma.decompress(shipped)
    assert rebuilt.read_bytes() == shipped, "same content: has the version of liblzma changed?"
    assert list(tmp_path.iterdir()) == [rebuilt]


def test_loader_agrees_with_the_original_files(originals):
    """Read the originals by hand, without the script."""
    images = np.frombuffer(gzip.decompress((originals / IMAGES.name).read_bytes())[16:], np.uint8)
    digits = np.frombuffer(gzip.decompress((originals / LABELS.name).read_bytes())[8:], np.uint8)
    mnist = load_mnist14()
    assert np.array_equal(mnist.images.numpy(), images.reshape(60_000, 28, 28)[:, ::2, ::2])
    assert np.array_equal(mnist.digits.numpy(), digits)


def test_read_idx_returns_what_was_written(tmp_path):
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    write_gzip(tmp_path, "x.gz", idx(array))
    expected = IdxFile("x.gz", (2, 3, 4), hashlib.sha256(idx(array)).hexdigest())
    assert np.array_equal(build_mnist14.read_idx(tmp_path, expected), array)


def test_packed_keeps_even_rows_and_columns_then_digits():
    images = np.random.default_rng(0).integers(0, 256, (3, 28, 28), dtype=np.uint8)
    content = lzma.decompress(build_mnist14.packed(images, np.array([3, 1, 4], np.uint8)))
    assert content[-3:] == bytes([3, 1, 4])
    assert content[:-3] == bytes(
        images[n, 2 * row, 2 * column]
        for n in range(3)
        for row in range(14)
        for column in range(14)
    )


def test_script_refuses_other_content(tmp_path, capsys):
    write_gzip(tmp_path, IMAGES.name, idx(np.zeros((60_000, 28, 28), np.uint8)))
    output = tmp_path / "out.xz"
    assert build_mnist14.main([str(tmp_path), "--output", str(output)]) == 1
    message = capsys.readouterr().err
    found = hashlib.sha256(idx(np.zeros((60_000, 28, 28), np.uint8))).hexdigest()
    assert f"{IMAGES.name}: expected content of SHA-256 {IMAGES.sha256}, found {found}" in message
    assert "Download the MNIST training set again" in message
    assert not output.exists()


def test_script_refuses_another_shape(tmp_path):
    write_gzip(tmp_path, LABELS.name, idx(np.zeros(10_000, np.uint8)))
    with pytest.raises(
        ValueError,
        match=rf"{LABELS.name}: expected the idx header 000008010000ea60 \(unsigned bytes of shape "
        r"\(60000,\)\), found 0000080100002710\. Download",
    ):
        build_mnist14.read_idx(tmp_path, LABELS)


def test_script_refuses_a_cut_download(tmp_path):
    content = gzip.compress(idx(np.zeros(60_000, np.uint8)))
    (tmp_path / LABELS.name).write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=rf"{LABELS.name} is not a complete gzip file .* Download"):
        build_mnist14.read_idx(tmp_path, LABELS)


def test_script_names_a_missing_file(tmp_path, capsys):
    assert build_mnist14.main([str(tmp_path), "--output", str(tmp_path / "out.xz")]) == 1
    assert f"{IMAGES.name}, found no such file. Download" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("owner", "step"), [(build_mnist14.os, "fsync"), (build_mnist14.Path, "replace")]
)
def test_failed_write_leaves_the_old_file(tmp_path, monkeypatch, owner, step):
    target = tmp_path / "data.xz"
    build_mnist14.write_atomically(target, b"old")

    def full_disk(*_arguments):
        raise OSError("disk full")

    monkeypatch.setattr(owner, step, full_disk)
    with pytest.raises(OSError, match="disk full"):
        build_mnist14.write_atomically(target, b"new")
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def test_write_replaces_the_old_file(tmp_path):
    target = tmp_path / "data.xz"
    for content in (b"old", b"new"):
        build_mnist14.write_atomically(target, content)
        assert target.read_bytes() == content
    assert list(tmp_path.iterdir()) == [target]
