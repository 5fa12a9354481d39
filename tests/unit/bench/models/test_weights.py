"""Weights: found, verified, loaded, or an error that says what to do. No test uses the network."""

import io
import re
import warnings
from contextlib import suppress
from functools import cache
from hashlib import sha256
from zipfile import ZipFile

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from hessalign.bench.models import WeightsError, make_backbone, state_digest
from hessalign.bench.models.backbones import import_library
from hessalign.bench.models.weights import read_state

URL = "https://download.pytorch.org/models/resnet18-f37072fd.pth"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HESSALIGN_WEIGHTS", str(tmp_path / "weights"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    (tmp_path / "weights").mkdir()
    return tmp_path / "weights"


@pytest.fixture
def offline(monkeypatch):
    """Every download fails, and is noted."""
    asked = []

    def fail(url, *_, **__):
        asked.append(url)
        raise OSError("no network here")

    monkeypatch.setattr(torch.hub, "download_url_to_file", fail)
    return asked


@cache
def whole(name="resnet18", seed=1):
    torch.manual_seed(seed)
    return import_library("torchvision").models.get_model(name)


def publish(folder, monkeypatch, state, name="resnet18"):
    """Let a file stand for the official one: torchvision's address ends in its checksum."""
    file = folder / "unnamed"
    torch.save(state, file)
    digest = sha256(file.read_bytes()).hexdigest()[:8]
    models = import_library("torchvision").models
    member = models.get_model_weights(name).IMAGENET1K_V1
    url = f"https://download.pytorch.org/models/{name}-{digest}.pth"
    monkeypatch.setattr(type(member), "url", property(lambda _: url))
    return file.rename(folder / f"{name}-{digest}.pth")


def assert_loaded(backbone, model):
    own = backbone.state_dict()
    assert len(own) == len(model.state_dict()) - 2  # without weight and bias of the classifier
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in own.items())


def test_imagenet_weights_are_taken_from_the_folder(folder, monkeypatch, offline):
    publish(folder, monkeypatch, whole().state_dict())
    assert_loaded(make_backbone("resnet18", weights="imagenet"), whole())
    assert offline == []


def test_imagenet_weights_are_taken_from_torchs_folder(folder, monkeypatch, offline, tmp_path):
    file = publish(folder, monkeypatch, whole().state_dict())
    checkpoints = tmp_path / "torch" / "hub" / "checkpoints"
    checkpoints.mkdir(parents=True)
    file.rename(checkpoints / file.name)
    assert_loaded(make_backbone("resnet18", weights="imagenet"), whole())


def test_a_damaged_file_is_refused(folder, monkeypatch, offline):
    file = publish(folder, monkeypatch, whole().state_dict())
    content = bytearray(file.read_bytes())
    content[5000] ^= 1
    file.write_bytes(content)
    message = rf"begins with {file.stem[-8:]} for the weights {file}, got .*damaged. Replace it by"
    with pytest.raises(WeightsError, match=message):
        make_backbone("resnet18", weights="imagenet")


def test_what_cannot_be_fetched_is_named_with_its_place(folder, offline):
    message = (
        "Cannot fetch the weights resnet18-f37072fd.pth: no network here. "
        f"Download {URL} on a machine that can, and put it here as {folder}/resnet18-f37072fd.pth"
    )
    with pytest.raises(WeightsError, match=re.escape(message)):
        make_backbone("resnet18", weights="imagenet")
    assert offline == [URL]


@pytest.mark.parametrize(
    ("weights", "file"),
    [("imagenet", "resnet50-0676ba61.pth"), ("IMAGENET1K_V2", "resnet50-11ad3fa6.pth")],
)
def test_names_of_weights(folder, offline, weights, file):
    with pytest.raises(WeightsError, match=file):
        make_backbone("resnet50", weights=weights)


def test_timm_weights_are_taken_from_the_folder(folder):
    model = import_library("timm").create_model("resnet18")
    save_file(model.state_dict(), folder / "resnet18.a1_in1k.safetensors")
    assert_loaded(make_backbone("timm:resnet18", weights="imagenet"), model)


def test_timm_weights_that_cannot_be_fetched(folder, monkeypatch):
    timm = import_library("timm")
    create = timm.create_model

    def fail(name, pretrained, **options):
        if pretrained:
            raise OSError("no network here.")
        return create(name, pretrained=False, **options)

    monkeypatch.setattr(timm, "create_model", fail)
    message = (
        r"resnet18.a1_in1k.safetensors: no network here. Download https://huggingface.co/timm/"
        rf"resnet18.a1_in1k/resolve/main/model.safetensors .* as {folder}/resnet18.a1_in1k"
    )
    with pytest.raises(WeightsError, match=message):
        make_backbone("timm:resnet18", weights="imagenet")


def test_timm_models_that_nobody_trained(folder, monkeypatch):
    timm = import_library("timm")
    model = timm.create_model("resnet18", num_classes=0)
    model.pretrained_cfg.update(hf_hub_id=None, url="")
    monkeypatch.setattr(timm, "create_model", lambda *_, **__: model)
    with pytest.raises(WeightsError, match=r"timm has no trained weights for resnet18. Name a var"):
        make_backbone("timm:resnet18", weights="imagenet")


@pytest.mark.parametrize("wrapping", [None, "state_dict", "model", "module."])
@pytest.mark.parametrize("suffix", [".pth", ".pt"])
def test_weights_from_a_file(tmp_path, wrapping, suffix):
    state = whole().state_dict()
    if wrapping == "module.":
        state = {f"module.{name}": value for name, value in state.items()}
    elif wrapping is not None:
        state = {wrapping: state, "epoch": 3}
    torch.save(state, tmp_path / f"mine{suffix}")
    assert_loaded(make_backbone("resnet18", weights=str(tmp_path / f"mine{suffix}")), whole())


def test_weights_from_safetensors_without_the_classifier(tmp_path):
    state = {name: v for name, v in whole().state_dict().items() if not name.startswith("fc.")}
    save_file(state, tmp_path / "mine.safetensors")
    assert_loaded(make_backbone("resnet18", weights=str(tmp_path / "mine.safetensors")), whole())


def test_weights_of_a_users_module(tmp_path):
    torch.save(nn.Conv2d(3, 4, 3).state_dict(), tmp_path / "mine.pt")
    module = nn.Conv2d(3, 4, 3)
    loaded = make_backbone(module, weights=str(tmp_path / "mine.pt"))
    assert torch.equal(loaded.weight, torch.load(tmp_path / "mine.pt")["weight"])
    with pytest.raises(WeightsError, match="There are no ImageNet weights for Conv2d: give a file"):
        make_backbone(module, weights="imagenet")


def test_other_channels_start_from_the_files_weights(tmp_path):
    torch.save(whole().state_dict(), tmp_path / "mine.pth")
    backbone = make_backbone("resnet18", 4, str(tmp_path / "mine.pth"))
    assert torch.equal(backbone.conv1.weight, whole().conv1.weight[:, [0, 1, 2, 0]])


def test_weights_of_another_architecture(tmp_path):
    torch.save(whole("resnet18").state_dict(), tmp_path / "small.pth")
    message = (
        r"small.pth are of another architecture. Of 318 entries \d+ missing: "
        r"layer1.0.conv3.weight, layer1.0.bn3.weight, layer1.0.bn3.bias, …; \d+ of another shape: "
        r"layer1.0.conv1.weight \(64×64×3×3 instead of 64×64×1×1\).*Choose the backbone"
    )
    with pytest.raises(WeightsError, match=message):
        make_backbone("resnet50", weights=str(tmp_path / "small.pth"))
    with pytest.raises(WeightsError, match=r"\d+ unexpected: conv1.weight, bn1.weight"):
        make_backbone("mobilenet_v3_small", weights=str(tmp_path / "small.pth"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not weights", r"Cannot read the weights .*bad.pth: .*Expected what torch.save makes"),
        (b"", r"Cannot read the weights .*bad.pth: .*Expected what torch.save makes"),
    ],
)
def test_files_that_are_no_weights(tmp_path, content, message):
    (tmp_path / "bad.pth").write_bytes(content)
    with pytest.raises(WeightsError, match=message):
        make_backbone("resnet18", weights=str(tmp_path / "bad.pth"))


@pytest.mark.parametrize("zipped", [True, False])
def test_damaged_files_are_named_whatever_torch_raises(tmp_path, zipped):
    path = tmp_path / "bad.pth"
    torch.save({"a": torch.zeros(3)}, path, _use_new_zipfile_serialization=zipped)
    whole, random = path.read_bytes(), np.random.RandomState(0)
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[random.randint(len(whole))] = random.randint(256)
        path.write_bytes(damaged)
        with suppress(WeightsError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read_state(path)


@pytest.mark.parametrize("zipped", [True, False])
def test_long_names_of_types_are_refused_at_once(tmp_path, zipped, monkeypatch):
    """Torch itself takes minutes for a name of 200,000 characters."""
    content = io.BytesIO()
    torch.save({"a": {1}}, content, _use_new_zipfile_serialization=zipped)
    path = tmp_path / "w.pth"
    if zipped:
        with ZipFile(content) as whole, ZipFile(path, "w") as long:
            for name in whole.namelist():
                long.writestr(name, lengthened(whole.read(name)))
    else:
        path.write_bytes(lengthened(content.getvalue()))
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("given to torch"))
    with pytest.raises(WeightsError, match=r"names a type by 200,0\d\d characters"):
        read_state(path)


def lengthened(content):
    """With a long name in place of that of a set, which is a type to be imported."""
    return content.replace(b"__builtin__\nset", b"__builtin__\n" + 200_000 * b"x")


def test_files_that_hold_something_else(tmp_path):
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(
        WeightsError, match=r"tensors by name in .*list.pth, found list. Save module"
    ):
        make_backbone("resnet18", weights=str(tmp_path / "list.pth"))
    (tmp_path / "bad.safetensors").write_bytes(b"12345678")
    with pytest.raises(WeightsError, match=r"Cannot read the weights .*bad.safetensors"):
        make_backbone("resnet18", weights=str(tmp_path / "bad.safetensors"))
    torch.save(nn.Linear(1, 1), tmp_path / "module.pth")
    with pytest.raises(WeightsError, match=r"Cannot read the weights .*module.pth"):
        make_backbone("resnet18", weights=str(tmp_path / "module.pth"))


def test_names_and_files_that_are_not_there(tmp_path):
    with pytest.raises(WeightsError, match=r"Expected a file of weights, found no file .*none.pth"):
        make_backbone("resnet18", weights=str(tmp_path / "none.pth"))
    with pytest.raises(ValueError, match=r"Unknown weights 'imagenett'.*Did you mean 'imagenet'"):
        make_backbone("resnet18", weights="imagenett")


def test_the_checksum_covers_values_and_names():
    def digest(change=0.0, name="weight"):
        module = nn.Module()
        module.register_parameter(name, nn.Parameter(torch.ones(2, 3) + change))
        return state_digest(module)

    assert digest() == digest()
    assert len({digest(), digest(1e-6), digest(name="other")}) == 3


def test_torchvision_can_be_imported_in_a_fresh_process(python):
    printed = python(
        """
        from hessalign.bench.models.backbones import import_library
        timm = import_library("timm")
        import torchvision
        assert import_library("torchvision") is torchvision
        from torchvision import transforms
        print(len(torchvision.models.list_models()) > 50, timm.is_model("resnet18"))
    """.replace("\n        ", "\n")
    )
    assert printed.split() == ["True", "True"]


def test_a_missing_extra_is_named(monkeypatch):
    from importlib import util

    find = util.find_spec
    monkeypatch.setattr(util, "find_spec", lambda name: None if name == "timm" else find(name))
    with pytest.raises(
        ImportError, match=r"Backbones of timm need it: pip install 'hessalign\[vis"
    ):
        make_backbone("timm:resnet18")
