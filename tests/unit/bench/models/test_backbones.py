"""Backbones: their features, channels, batch normalisation and heads, against plain references."""

import copy
import sys

import pytest
import torch
from torch import nn
from torch.nn.functional import conv2d, group_norm, linear

from hessalign.bench.models import (
    FrozenBatchNorm,
    NetworkSpec,
    Renormalised,
    make_backbone,
    make_network,
)
from hessalign.bench.models.backbones import feature_width, import_library, is_published

SIZE = 32


@pytest.fixture(scope="module")
def images():
    return torch.randn(3, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))


def own_backbone():
    """What `tests…:own_backbone` names."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )


def no_module():
    return 3


def own_name(function):
    sys.modules["own_models"] = sys.modules[__name__]
    return f"own_models:{function.__name__}"


@pytest.mark.parametrize(
    ("name", "head"),
    [("resnet18", "fc"), ("mobilenet_v3_small", "classifier.3"), ("shufflenet_v2_x0_5", "fc")],
)
def test_a_model_of_torchvision_gives_what_enters_its_classifier(images, name, head):
    torch.manual_seed(5)
    backbone = make_backbone(name)
    torch.manual_seed(5)
    whole = import_library("torchvision").models.get_model(name).eval()
    seen = []
    whole.get_submodule(head).register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    whole(images)
    torch.testing.assert_close(backbone(images), seen[0])


def test_a_model_of_timm_gives_what_enters_its_classifier(images):
    torch.manual_seed(5)
    backbone = make_backbone("timm:resnet18")
    whole = import_library("timm").create_model("resnet18").eval()
    whole.load_state_dict(backbone.state_dict(), strict=False)
    torch.testing.assert_close(
        linear(backbone(images), whole.fc.weight, whole.fc.bias), whole(images)
    )


def test_timm_has_what_torchvision_has_not(images):
    assert make_backbone("resnet10t")(images).shape == (3, 512)


def test_a_vision_transformer_takes_the_images_it_was_made_for():
    spec = NetworkSpec((3, 224, 224), 7, backbone="vit_b_16")
    assert make_network(spec).head.in_features == 768
    with pytest.raises(ValueError, match=r"vit_b_16 does not take images of 3×96×96 .*Wrong image"):
        make_network(NetworkSpec((3, 96, 96), 7, backbone="vit_b_16"))


def test_other_statistics_are_converted(images):
    inner = nn.Flatten()
    layer = Renormalised(inner, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    pixels = images * std.reshape(3, 1, 1) + mean.reshape(3, 1, 1)
    wanted = (pixels - torch.tensor([0.1, 0.2, 0.3]).reshape(3, 1, 1)) / torch.tensor(
        [0.5, 0.6, 0.7]
    ).reshape(3, 1, 1)
    torch.testing.assert_close(layer(images), wanted.flatten(1))


def test_timm_models_with_other_statistics_are_wrapped():
    backbone = make_backbone("vit_tiny_patch16_224")
    assert isinstance(backbone, Renormalised)
    torch.testing.assert_close(backbone.scale, torch.tensor([0.229, 0.224, 0.225]) / 0.5)
    assert not isinstance(make_backbone("timm:resnet18"), Renormalised)


def test_the_mnist_cnn_is_the_protocols():
    backbone = make_backbone("mnist_cnn", channels=2)
    x = torch.randn(3, 2, 28, 28)
    convolutions = [each for each in backbone.modules() if isinstance(each, nn.Conv2d)]
    norms = [each for each in backbone.modules() if isinstance(each, nn.GroupNorm)]
    expected = x
    for conv, norm, width, stride in zip(
        convolutions, norms, (64, 128, 128, 128), (1, 2, 1, 1), strict=True
    ):
        assert conv.weight.shape[0] == width
        expected = conv2d(expected, conv.weight, conv.bias, stride, padding=1).relu()
        expected = group_norm(expected, 8, norm.weight, norm.bias)
    torch.testing.assert_close(backbone(x), expected.mean((2, 3)))


@pytest.mark.parametrize("channels", [1, 2, 5])
def test_other_channels_copy_those_of_the_first_convolution(channels):
    torch.manual_seed(5)
    usual = make_backbone("resnet18").conv1.weight
    torch.manual_seed(5)
    weight = make_backbone("resnet18", channels).conv1.weight
    assert weight.shape[1] == channels
    for channel in range(channels):
        assert torch.equal(weight[:, channel], usual[:, channel % 3])
    assert weight.requires_grad


def test_an_algorithm_may_add_channels_and_features(images):
    spec = NetworkSpec((3, SIZE, SIZE), 7, backbone="resnet18")
    network = make_network(spec, extra_channels=1, head_factor=2)
    assert network.features(torch.zeros(2, 4, SIZE, SIZE)).shape == (2, 512)
    assert network.head.in_features == 1024


def test_frozen_batch_norm_keeps_statistics_and_trains_the_rest(images):
    network = make_network(NetworkSpec((3, SIZE, SIZE), 2, backbone="resnet18")).train()
    before = copy.deepcopy(network.state_dict())
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    network(images).square().sum().backward()
    optimizer.step()
    after = network.state_dict()
    statistics = [name for name in after if name.endswith(("running_mean", "running_var"))]
    assert len(statistics) == 40
    assert all(torch.equal(after[name], before[name]) for name in statistics)
    assert all(not torch.equal(after[name], before[name]) for name, _ in network.named_parameters())


def test_batch_norm_moves_if_it_is_not_frozen(images):
    spec = NetworkSpec((3, SIZE, SIZE), 2, backbone="resnet18", freeze_batch_norm=False)
    network = make_network(spec).train()
    before = network.featurizer[0].bn1.running_mean.clone()
    network(images)
    assert not torch.equal(network.featurizer[0].bn1.running_mean, before)


def test_a_copy_of_frozen_batch_norm_stays_frozen():
    layer = copy.deepcopy(FrozenBatchNorm(nn.Sequential(nn.BatchNorm2d(2)))).eval().train()
    assert layer.training
    assert not layer.inner[0].training


def test_dropout_comes_before_the_head_and_only_in_training(images):
    network = make_network(NetworkSpec((3, SIZE, SIZE), 2, dropout=0.5, backbone="resnet18"))
    dropped = (network.train().features(images) == 0).float().mean()
    assert 0.3 < dropped < 0.7
    assert torch.equal(network.eval().features(images), network.features(images))


def test_the_classifiers_own_dropout_gives_way(images):
    network = make_network(NetworkSpec((3, SIZE, SIZE), 2, backbone="mobilenet_v3_small")).train()
    assert torch.equal(network.features(images), network.features(images))


def test_the_nonlinear_head_is_domainbeds():
    head = make_network(NetworkSpec((64,), 5, nonlinear_head=True)).head
    assert [type(layer) for layer in head] == [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]
    assert [tuple(layer.weight.shape) for layer in head[::2]] == [(32, 64), (16, 32), (5, 16)]


def test_pixels_enter_an_mlp_without_a_backbone():
    network = make_network(NetworkSpec((2, 4, 4), 3, hidden=10))
    assert network(torch.zeros(5, 2, 4, 4)).shape == (5, 3)
    assert network.featurizer[1].weight.shape == (10, 32)


def test_a_module_of_the_user_is_copied(images):
    module = own_backbone()
    network = make_network(NetworkSpec((3, SIZE, SIZE), 2, backbone=module))
    torch.testing.assert_close(network.eval().features(images), module.eval()(images))
    network.featurizer[0].inner[0].weight.data.zero_()
    assert module[0].weight.abs().sum() > 0


def test_a_function_of_the_user_is_found_by_name(images):
    network = make_network(NetworkSpec((3, SIZE, SIZE), 2, backbone=own_name(own_backbone)))
    assert network.features(images).shape == (3, 4)


@pytest.mark.parametrize(
    ("backbone", "message"),
    [
        ("resnet19", r"Unknown backbone 'resnet19'. Expected a model of .*Did you mean 'resnet18'"),
        ("timm:resnet999", r"Unknown model of timm 'resnet999'.*Did you mean"),
        ("torchvision:resnet19", r"Unknown model of torchvision 'resnet19'.*'resnet18'\?"),
        ("squeezenet1_0", r"squeezenet1_0 of torchvision does not end in a linear classifier"),
        ("googlenet", r"googlenet of torchvision does not end .*'timm:googlenet'"),
        ("no_such_module:f", r"Cannot find the backbone 'no_such_module:f': No module named"),
        ("math:nothing", r"Unknown backbone in math 'nothing'. Expected a name that the"),
    ],
)
def test_unknown_backbones(backbone, message):
    with pytest.raises(ValueError, match=message):
        make_backbone(backbone)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("def make(:\n", "loaded; it raised SyntaxError: "),
        (
            "def make():\n    raise RuntimeError('no disk')\n",
            "made; it raised RuntimeError: no disk",
        ),
        ("def make():\n    return {}['a']\n", "made; it raised KeyError: 'a'"),
    ],
)
def test_errors_in_the_users_code_name_the_backbone(tmp_path, monkeypatch, code, reason):
    (tmp_path / "faulty_models.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "faulty_models", raising=False)
    message = rf"The backbone 'faulty_models:make' cannot be {reason}.*faulty_models.py, line"
    with pytest.raises(ValueError, match=message):
        make_backbone("faulty_models:make")


def test_a_function_of_the_user_returns_a_module():
    with pytest.raises(
        ValueError, match=r"'own_models:no_module' to return a torch.nn.Module, got"
    ):
        make_backbone(own_name(no_module))


def own_head(features, outputs):
    return nn.Sequential(nn.Linear(features, 3), nn.BatchNorm1d(3), nn.Linear(3, outputs))


def wrong_head(features, outputs):
    return nn.Linear(features, outputs + 1)


def failing_head(features, outputs):
    return nn.Linear(features + 1, outputs)


def test_a_head_of_the_user_is_found_by_name():
    network = make_network(NetworkSpec((5,), 2, hidden=4, head=own_name(own_head)), head_factor=2)
    assert [tuple(layer.weight.shape) for layer in network.head] == [(3, 8), (3,), (2, 3)]
    assert network.head.training
    assert network.head[1].num_batches_tracked == 0  # trying it leaves no trace


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (no_module, r"The head 'own_models:no_module' cannot be made; it raised TypeError"),
        (wrong_head, r"Expected 2 outputs for each of 2 rows of 5 features .*, got \[2, 3\]"),
        (failing_head, r"The head 'own_models:failing_head' cannot be made; it raised Runtime"),
        ("linear", r"Unknown head 'linear'. Expected 'package.module:name' of a function"),
    ],
)
def test_heads_that_do_not_work(head, message):
    name = head if isinstance(head, str) else own_name(head)
    with pytest.raises(ValueError, match=message):
        make_network(NetworkSpec((5,), 2, head=name))


def test_installed_packages_offer_backbones_and_heads(tmp_path, monkeypatch, images):
    info = tmp_path / "own_models-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-models\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        f"[hessalign.backbones]\ntiny = {own_name(own_backbone)}\n"
        f"[hessalign.heads]\ndeep = {own_name(own_head)}\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert not is_published("tiny")
    network = make_network(NetworkSpec((3, SIZE, SIZE), 2, backbone="tiny", head="deep"))
    assert network.features(images).shape == (3, 4)
    assert network(images).shape == (3, 2)


def test_a_backbone_gives_one_row_for_each_image():
    with pytest.raises(
        ValueError, match=r"one row of features .* got \[2, 4, 30, 30\]. Let it end"
    ):
        feature_width(nn.Conv2d(3, 4, 3), (3, SIZE, SIZE), "mine")


def test_channels_that_are_treated_apart_cannot_change():
    with pytest.raises(ValueError, match="Expected images of 3 channels, got 4: the first conv"):
        make_backbone(nn.Conv2d(3, 3, 3, groups=3), 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_shape": (5,), "backbone": "resnet18"}, r"got inputs of \(5,\). Vectors, such as"),
        ({"input_shape": (5,), "weights": "imagenet"}, "Expected a backbone for the weights 'ima"),
        ({"input_shape": (5,), "dropout": 1.0}, "Expected dropout from 0 to below 1, got 1.0"),
        ({"input_shape": (5,), "hidden": -1}, "Expected hidden of 0 to 16,777,216, got -1"),
        ({"input_shape": (0,)}, "Expected sizes of 1 to 16,777,216"),
        ({"input_shape": (5,), "head": "a:b", "nonlinear_head": True}, "Expected one head, got"),
    ],
)
def test_descriptions_that_make_no_sense(options, message):
    with pytest.raises(ValueError, match=message):
        NetworkSpec(outputs=2, **options)


def test_sizes_that_are_no_whole_numbers(outcomes_without_type_checks):
    outcomes = outcomes_without_type_checks(
        """
        from hessalign.bench.models import NetworkSpec
        from hessalign.bench.runs.model_description import ColouredMlp
        """,
        {
            "inputs": "NetworkSpec((5.0,), 2)",
            "outputs": "NetworkSpec((5,), 2.0)",
            "hidden": "NetworkSpec((5,), 2, hidden=8.0)",
            "coloured": "ColouredMlp((2, 14, 14.0), 8)",
            "width": "ColouredMlp((2, 14, 14), 8.0)",
        },
    )
    for name in ("inputs", "outputs", "coloured"):
        assert "Expected sizes of 1 to 16,777,216" in outcomes[name]
    assert "Expected hidden as a whole number of 0 to 16,777,216, got 8.0" in outcomes["hidden"]
    assert "Expected width as a whole number of 1 to 16,777,216, got 8.0" in outcomes["width"]
