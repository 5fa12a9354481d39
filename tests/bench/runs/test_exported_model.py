"""Exported networks: each form read by what reads it elsewhere, and compared with the network."""

import io
import json
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from hessalign._errors import MissingPackageError, UnknownNameError
from hessalign.bench.algorithms import Setting, make_algorithm
from hessalign.bench.models import NetworkSpec, make_coloured_mlp, make_network
from hessalign.bench.runs import trained
from hessalign.bench.runs.model_description import (
    ColouredMlp,
    ModelDescription,
    TrainedModelError,
)
from hessalign.bench.runs.trained import CONTENT, FORMATS, TrainedModel, export_model

SHAPE = (2, 14, 14)
CLASSES = ("cat", "dog, small", "Käuzchen")


def model_of(name):
    torch.manual_seed(0)
    if name == "features":
        spec = NetworkSpec((6,), 3, hidden=5, dropout=0.5)
        return TrainedModel(make_network(spec), ModelDescription(spec, CLASSES))
    if name == "coloured":
        network = make_coloured_mlp(2, 196, 7, torch.Generator().manual_seed(0))
        about = ModelDescription(ColouredMlp(SHAPE, 7), ("no", "yes"), loss="binary")
        return TrainedModel(network, about)
    spec = NetworkSpec(SHAPE, 3, backbone="mnist_cnn")
    setting = Setting(
        lambda **kinds: make_network(spec, **kinds), 3, 2, "cross_entropy", 9,
        torch.Generator().manual_seed(0), input_shape=SHAPE, batch_size=4,
    )  # fmt: skip
    algorithm, _, fidelity = name.partition("/")
    options = {"fidelity": fidelity} if fidelity else {}
    network = make_algorithm(algorithm, options, setting).network
    adapted = algorithm in {"arm", "mtl"}
    about = ModelDescription(spec, CLASSES, algorithm=algorithm, batch_size=4, adapted=adapted)
    return TrainedModel(network, about)


def cases():
    for form in FORMATS:
        for name in ("features", "coloured", "erm", "arm", "mtl"):
            slow = form == "onnx" and name not in {"features", "coloured"}
            yield pytest.param(name, form, marks=[pytest.mark.slow] if slow else [])


def read_back(form, path, network):
    """The description in the file, and its logits of arrays, without anything of ours."""
    if form == "safetensors":
        from safetensors import safe_open

        with safe_open(path, "pt") as file:
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            text = file.metadata()[CONTENT]
        for value in network.parameters():
            nn.init.constant_(value, 7.0)
        network.load_state_dict(state)
        return text, lambda x: network(torch.from_numpy(x)).detach().numpy()
    if form == "onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(path)
        text = session.get_modelmeta().custom_metadata_map[CONTENT]
        return text, lambda x: session.run(["logits"], {"x": x})[0]
    files = {CONTENT: ""}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if form == "torchscript":
            loaded = torch.jit.load(path, _extra_files=files)
        else:
            loaded = torch.export.load(io.BytesIO(path.read_bytes()), extra_files=files).module()
    text = files[CONTENT]
    text = text.decode() if isinstance(text, bytes) else text
    return text, lambda x: loaded(torch.from_numpy(x)).detach().numpy()


@pytest.mark.parametrize(("name", "form"), list(cases()))
def test_every_form_gives_the_same_logits_and_names_the_classes(name, form, tmp_path):
    model = model_of(name)
    rng = np.random.RandomState(0)
    shape = model.description.input_shape
    inputs = [rng.randn(count, *shape).astype(np.float32) for count in (1, 2, 7)]
    with torch.no_grad():
        expected = [model.network(torch.from_numpy(x)).numpy() for x in inputs]
    path = tmp_path / "out" / "model.bin"
    export_model(model, path, form)
    assert [each.name for each in path.parent.iterdir()] == ["model.bin"]
    text, predict = read_back(form, path, model.network)
    for x, logits in zip(inputs, expected, strict=True):
        assert np.allclose(predict(x), logits, rtol=1e-4, atol=1e-5)
    about = json.loads(text)
    assert about["classes"] == list(model.description.classes)
    assert about["input"] == {"name": "x", "shape": ["n", *shape], "dtype": "float32"}
    assert about["output"]["probabilities"] == ("sigmoid" if name == "coloured" else "softmax")


@pytest.mark.parametrize("form", ["torchscript", "pt2"])
def test_a_network_that_counts_its_batch_is_refused(form, tmp_path):
    with pytest.raises(
        TrainedModelError, match=r"arm cannot be exported as .* of any size: .*load"
    ):
        export_model(model_of("arm/domainbed"), tmp_path / "model", form)
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_the_network_is_not_left_there(tmp_path, monkeypatch):
    wrong = {**FORMATS, "pt2": lambda network, x, text, path: path.touch() or (lambda x: 2 * x)}
    monkeypatch.setattr(trained, "FORMATS", wrong)
    with pytest.raises(TrainedModelError, match="it gives other logits for 3 samples"):
        export_model(model_of("features"), tmp_path / "model", "pt2")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'hessalign\[export\]'"):
        export_model(model_of("features"), tmp_path / "model.onnx", "onnx")


def test_unknown_formats(tmp_path):
    with pytest.raises(UnknownNameError, match="Did you mean 'onnx'"):
        export_model(model_of("features"), tmp_path / "model", "onx")


def test_the_model_stays_as_it_is(tmp_path):
    model = model_of("features").to("meta")
    with pytest.raises(NotImplementedError):
        export_model(model, tmp_path / "model", "safetensors")
    assert next(model.network.parameters()).device.type == "meta"
