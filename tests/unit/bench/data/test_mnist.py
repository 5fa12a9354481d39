"""MNIST from its four files, and DomainBed's domains made from it."""

import gzip
import shutil
import sys
from inspect import unwrap

import numpy as np
import pytest
import torch
from PIL import Image
from tests.pictures import MNIST, needs_mnist

from hessalign._errors import UnknownNameError
from hessalign.bench.data import (
    Mnist,
    load_mnist,
    load_mnist14,
    make_domainbed_colored_mnist,
    make_rotated_mnist,
)
from hessalign.bench.data.mnist import _FILES, _read_idx

LABELS = "t10k-labels-idx1-ubyte"


def read_labels(folder):
    return _read_idx(folder, LABELS, (10_000,), _FILES[LABELS])


@pytest.fixture
def tiny(monkeypatch):
    """MNIST of 120 random images in place of the real one, for both makers."""
    source = torch.Generator().manual_seed(0)
    images = torch.randint(256, (120, 28, 28), dtype=torch.uint8, generator=source)
    mnist = Mnist(images, torch.randint(10, (120,), generator=source))
    scope = unwrap(make_rotated_mnist).__globals__
    monkeypatch.setitem(scope, "load_mnist", lambda folder: mnist)
    return mnist


# --- files --------------------------------------------------------------------------------------


@needs_mnist
def test_the_real_files_hold_what_the_package_ships_at_half_the_size():
    mnist, shipped = load_mnist(MNIST), load_mnist14()
    assert mnist.images.shape == (70_000, 28, 28)
    assert torch.equal(mnist.images[:60_000, ::2, ::2], shipped.images)
    assert torch.equal(mnist.digits[:60_000], shipped.digits)
    assert torch.bincount(mnist.digits).tolist() == [
        6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958,
    ]  # fmt: skip


@needs_mnist
def test_the_folder_of_torchvision_and_plain_files(tmp_path):
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    (raw / LABELS).write_bytes(gzip.decompress((MNIST / f"{LABELS}.gz").read_bytes()))
    assert np.array_equal(read_labels(tmp_path), read_labels(MNIST))


@needs_mnist
def test_damaged_files_are_refused(tmp_path):
    path = tmp_path / f"{LABELS}.gz"
    original = (MNIST / path.name).read_bytes()
    path.write_bytes(original[:-20])
    with pytest.raises(ValueError, match=r"is not a complete gzip file: .*Obtain MNIST again"):
        read_labels(tmp_path)
    content = bytearray(gzip.decompress(original))
    content[100] ^= 1
    path.write_bytes(gzip.compress(content))
    with pytest.raises(ValueError, match=r"expected content of SHA-256 ff7bcfd4.*, found "):
        read_labels(tmp_path)
    shutil.copy(MNIST / "train-labels-idx1-ubyte.gz", path)
    with pytest.raises(ValueError, match=r"expected the idx header 0000080100002710 .*found 0000"):
        read_labels(tmp_path)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"Expected train-images-idx3-ubyte\.gz in "):
        load_mnist(tmp_path)


def test_an_idx_file_of_any_shape(tmp_path):
    import hashlib

    content = bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, *range(6)])
    (tmp_path / "small").write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    assert _read_idx(tmp_path, "small", (2, 3), digest).tolist() == [[0, 1, 2], [3, 4, 5]]


# --- domains ------------------------------------------------------------------------------------


def test_colours_are_those_that_domainbed_draws(tiny, tmp_path):
    """DomainBed's procedure written out, with the global generator it uses."""
    data = make_domainbed_colored_mnist(tmp_path, seed=5)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        order = torch.randperm(120)
        for number, noise in enumerate((0.1, 0.2, 0.9)):
            chosen = order[number::3]
            labels = (tiny.digits[chosen] < 5).float()
            labels = (labels - (torch.rand(40) < 0.25).float()).abs()
            colours = (labels - (torch.rand(40) < noise).float()).abs()
            images = torch.stack([tiny.images[chosen]] * 2, dim=1)
            images[torch.arange(40), (1 - colours).long()] *= 0
            assert torch.equal(data.domains[number].labels, labels.long())
            assert torch.equal(data.domains[number].inputs, images.float().div(255))
    assert data.domain_names == ("+90%", "+80%", "-90%")


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_rotations_are_dealt_out_and_turned_anticlockwise(tiny, tmp_path, interpolation):
    data = make_rotated_mnist(tmp_path, 5, interpolation)
    assert data.domain_names == ("0", "15", "30", "45", "60", "75")
    order = torch.randperm(120, generator=torch.Generator().manual_seed(5))
    method = Image.Resampling[interpolation.upper()]
    for number, domain in enumerate(data.domains):
        chosen = order[number::6]
        assert domain.inputs.shape == (20, 1, 28, 28)
        assert torch.equal(domain.labels, tiny.digits[chosen])
        image = Image.fromarray(tiny.images[chosen[7]].numpy()).rotate(15 * number, method)
        assert torch.equal(domain.inputs[7, 0], torch.tensor(np.asarray(image)) / 255)
    assert torch.equal(data.domains[0].inputs[:, 0] * 255, tiny.images[order[::6]].float())


def test_a_line_turns_anticlockwise(monkeypatch, tmp_path):
    images = torch.zeros(60, 28, 28, dtype=torch.uint8)
    images[:, 13:15, 14:] = 255  # from the centre to the right
    mnist = Mnist(images, torch.zeros(60, dtype=torch.int64))
    monkeypatch.setitem(unwrap(make_rotated_mnist).__globals__, "load_mnist", lambda folder: mnist)
    turned = make_rotated_mnist(tmp_path, 0).domains[5].inputs[0, 0]
    assert turned[:14, 14:].sum() > 5 * turned[14:].sum()  # now it points up


def test_seeds_and_options(tiny, tmp_path):
    first, again, other = (make_domainbed_colored_mnist(tmp_path, seed) for seed in (1, 1, 2))
    assert torch.equal(first.domains[0].inputs, again.domains[0].inputs)
    assert not torch.equal(first.domains[0].inputs, other.domains[0].inputs)
    with pytest.raises(UnknownNameError, match=r"Unknown interpolation 'cubic'.*mean 'bicubic'"):
        unwrap(make_rotated_mnist)(tmp_path, 0, "cubic")


def test_a_missing_pillow_says_what_to_install(tiny, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"pip install 'hessalign\[images\]'"):
        make_rotated_mnist(tmp_path, 0)


@needs_mnist
def test_noise_rates_of_the_real_colored_mnist():
    data = make_domainbed_colored_mnist(MNIST, seed=0)
    assert [len(domain) for domain in data.domains] == [23_334, 23_333, 23_333]
    for domain, noise in zip(data.domains, (0.1, 0.2, 0.9), strict=True):
        colour = (domain.inputs[:, 1].sum((1, 2)) > 0).long()
        differs = (colour != domain.labels).double().mean()
        assert abs(differs - noise) < 4.5 * (noise * (1 - noise) / len(domain)) ** 0.5
