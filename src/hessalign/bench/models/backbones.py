"""Backbones: networks that turn images into features, by name or brought by the user.

A backbone is named as torchvision or timm name it ("resnet50", "vit_b_16", "timm:NAME" where both
have one of that name), as "package.module:name" for a function that returns a module, as an
installed package offers it (entry points of the group `hessalign.backbones`), or is "mnist_cnn",
DomainBed's network for digits. Its classifier is taken off, so that it gives one row of features
for each image.

torchvision and timm both import torchvision, which describes its operators to torch. They come from
a compiled extension, which cannot be loaded where torch was built without CUDA but torchvision with
it, as the wheels of PyPI are. Then the import itself fails ("operator torchvision::nms does not
exist"), although no model or transform needs these operators: they are for the detection of
objects. The cure is to declare the two that the import looks for; they still cannot be called, and
say so.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final, final

import torch
from torch import Tensor, nn

from hessalign._errors import InputError, MissingPackageError, UnknownNameError, check_name
from hessalign._plugins import call_plugin, entry_point_names, find_plugin
from hessalign._protocol import IMAGENET_MEAN, IMAGENET_STD
from hessalign._shapes import Float
from hessalign.bench.models.weights import (
    IMAGENET,
    SUFFIXES,
    WeightsError,
    fetch_file,
    find_file,
    load_file,
    missing_message,
    named_file,
)

MNIST_CNN: Final = "mnist_cnn"
_ENTRY_POINTS: Final = "hessalign.backbones"

_EXPECTED: Final = (
    f"a model of torchvision or timm, {MNIST_CNN!r}, or 'package.module:name' for your own"
)


def make_backbone(
    backbone: str | nn.Module, channels: int = 3, weights: str | None = None
) -> nn.Module:
    """Build a backbone.

    Args:
        backbone: Its name, or a module of the user, which is copied.
        channels: Channels of the images. If the first convolution has others, it is re-made:
            channel i copies what it has for channel i mod 3.
        weights: "imagenet", another name that torchvision has for weights of this model, a file of
            weights, or None for the initial ones, which come from torch's global generator.

    Returns:
        A module that maps images with ImageNet's statistics to features, in evaluation mode.

    Raises:
        WeightsError: If the weights cannot be had, or do not fit.

    Example:
        >>> make_backbone("mnist_cnn", channels=1)(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 128])
    """
    if isinstance(backbone, str) and is_published(backbone):
        library, _, name = (backbone if ":" in backbone else _located(backbone)).partition(":")
        module = _LIBRARIES[library](name, weights)
    else:
        module = _unpublished(backbone, channels)
        if weights == IMAGENET:
            own = backbone if isinstance(backbone, str) else type(backbone).__name__
            raise WeightsError(
                f"There are no ImageNet weights for {own}: give a file, or none if it brings its "
                "own."
            )
        if weights is not None:
            load_file(module, named_file(weights, ()))
    _adapt_channels(module, channels)
    return module.eval()


def is_published(backbone: str) -> bool:
    """Whether there are ImageNet weights for a backbone: it is a model of torchvision or timm."""
    library, colon, _ = backbone.partition(":")
    if colon:
        return library in _LIBRARIES
    return backbone != MNIST_CNN and backbone not in entry_point_names(_ENTRY_POINTS)


def describe_random_weights(backbone: str, weights: str | None = None) -> str | None:
    """What users should know of a backbone whose weights are random; None if they are not."""
    if weights is not None:
        return None
    if backbone == MNIST_CNN or is_published(backbone):
        named = f"{IMAGENET} or a file" if is_published(backbone) else "a file of weights"
        return (
            f"The weights of the backbone {backbone} are random: it was trained on nothing. "
            f"Name {named} (--weights; `train` and `sweep`: weights=…)."
        )
    # Whether those of one's own are, is seen by making it twice, from different random numbers.
    made = []
    for seed in (1, 2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            made.append(dict(_unpublished(backbone, channels=3).named_parameters()))
    first, second = made
    random = [each for each in first if not torch.equal(first[each], second[each])]
    if not random:
        return None
    return (
        f"{len(random)} of {len(first)} parameters of the backbone {backbone} are random, such as "
        f"{random[0]}. Let it load its weights itself, or name a file of them (--weights; `train` "
        "and `sweep`: weights=…)."
    )


def feature_width(backbone: nn.Module, input_shape: Sequence[int], name: object) -> int:
    """How many features a backbone in evaluation mode gives, by trying it on two images."""
    shape = "×".join(map(str, input_shape))
    try:
        with torch.no_grad():
            features = backbone(torch.zeros(2, *input_shape))
    except Exception as error:  # torch, timm and the user's own code may raise anything
        raise InputError(
            f"The backbone {name} does not take images of {shape} (channels, height, width): "
            f"{str(error).splitlines()[0] if str(error) else type(error).__name__}"
        ) from error
    if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != 2:
        got = list(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise InputError(
            f"Expected one row of features for each of 2 images from the backbone {name}, got "
            f"{got}. Let it end in a mean over the pixels, nn.AdaptiveAvgPool2d(1), and "
            "nn.Flatten()."
        )
    return features.shape[1]


def _located(backbone: str) -> str:
    """A model with the library before its name."""
    names = _torchvision_names()
    if backbone in names:
        return f"torchvision:{backbone}"
    timm = import_library("timm")
    if timm.is_model(backbone):
        return f"timm:{backbone}"
    valid = [*names, *timm.list_models(), *entry_point_names(_ENTRY_POINTS)]
    raise UnknownNameError("backbone", backbone, valid, _EXPECTED)


def _unpublished(backbone: str | nn.Module, channels: int) -> nn.Module:
    """A copy of the user's module, or what their function or an installed package's returns."""
    if isinstance(backbone, nn.Module):
        return copy.deepcopy(backbone)
    if backbone == MNIST_CNN:
        return _make_mnist_cnn(channels)
    make = find_plugin(_ENTRY_POINTS, backbone, "backbone")
    if make is None:
        raise InputError(f"Expected {_EXPECTED} as backbone, got {backbone!r}.")
    made = call_plugin(backbone, "backbone", make)
    if not isinstance(made, nn.Module):
        raise InputError(
            f"Expected {backbone!r} to return a torch.nn.Module, got {type(made).__name__}."
        )
    return made


def _adapt_channels(module: nn.Module, channels: int) -> None:
    first = next((each for each in module.modules() if isinstance(each, nn.Conv2d)), None)
    if first is None or first.in_channels == channels:
        return
    if first.groups != 1:
        raise InputError(
            f"Expected images of {first.in_channels} channels, got {channels}: the first "
            "convolution treats channels apart, so it cannot be re-made for others."
        )
    copied = torch.arange(channels) % first.in_channels
    first.weight = nn.Parameter(first.weight.detach()[:, copied].clone())
    first.in_channels = channels


def _make_mnist_cnn(channels: int) -> nn.Module:
    """DomainBed's network for 28×28 digits; the second of its four convolutions has stride 2."""
    layers: list[nn.Module] = []
    for number, width in enumerate((64, 128, 128, 128)):
        layers += [
            nn.Conv2d(channels, width, 3, stride=2 if number == 1 else 1, padding=1),
            nn.ReLU(),
            nn.GroupNorm(8, width),
        ]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


# --- models of torchvision and timm ---------------------------------------------------------------

_SCHEMAS: Final = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

_declared: list[torch.library.Library] = []  # declarations last as long as what made them


def import_library(name: str) -> Any:  # noqa: ANN401
    """The module torchvision or timm, untyped; without it an error says how to install it."""
    if importlib.util.find_spec(name) is None:
        raise MissingPackageError(f"Backbones of {name} need it: pip install 'hessalign[vision]'.")
    make_importable()
    return importlib.import_module(name)


@cache
def make_importable() -> None:
    """Make torchvision importable; for processes, too, that read a pickled model made of it."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or hasattr(torch.ops.torchvision, "nms"):
        return
    extensions = sorted(Path(spec.origin).parent.glob("_C.*")) if spec.origin else []
    for extension in extensions[:1]:
        with suppress(ImportError, OSError):
            torch.ops.load_library(extension)
            return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in _SCHEMAS:
        library.define(schema)
    _declared.append(library)


_FIRST_VERSION: Final = "IMAGENET1K_V1"  # what "imagenet" means: of DomainBed's published tables
_AUXILIARY: Final = ("googlenet", "inception_v3")  # models that give several outputs in training


def _torchvision_names() -> list[str]:
    """Names of the models with which torchvision classifies images."""
    models = import_library("torchvision").models
    names: list[str] = models.list_models(module=models)
    return names


def _make_torchvision_model(name: str, weights: str | None) -> nn.Module:
    """A model of torchvision without its classifier, which must be one linear layer."""
    check_name("model of torchvision", name, _torchvision_names())
    models = import_library("torchvision").models
    model: nn.Module | None = None if name in _AUXILIARY else models.get_model(name, weights=None)
    named = [] if model is None else model.named_modules()
    heads = [each for each, module in named if isinstance(module, nn.Linear)]
    if model is None or not heads:
        raise InputError(
            f"The model {name} of torchvision does not end in a linear classifier alone, so it "
            f"cannot be a backbone. timm may have it: 'timm:{name}'."
        )
    _take_off(model, heads[-1])
    if weights is not None:
        available = models.get_model_weights(name).__members__
        chosen = _FIRST_VERSION if weights == IMAGENET else weights
        known = chosen in available
        path = fetch_file(available[chosen].url) if known else named_file(weights, available)
        load_file(model, path, ignored=heads[-1:])
    return model


@final
class Renormalised(nn.Module):
    """A backbone that expects other statistics of its images than ImageNet's.

    Example:
        >>> layer = Renormalised(nn.Identity(), mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
        >>> white = (1 - torch.tensor(IMAGENET_MEAN)) / torch.tensor(IMAGENET_STD)
        >>> layer(white.reshape(1, 3, 1, 1)).flatten().round(decimals=5).tolist()
        [1.0, 1.0, 1.0]
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, inner: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.inner = inner
        theirs, ours = torch.tensor(std), torch.tensor(IMAGENET_STD)
        self.register_buffer("scale", ours / theirs, persistent=False)
        shift = (torch.tensor(IMAGENET_MEAN) - torch.tensor(mean)) / theirs
        self.register_buffer("shift", shift, persistent=False)

    def forward(self, images: Float[Tensor, "n c h w"]) -> Tensor:
        """What the backbone makes of the images."""
        channel = torch.arange(images.shape[1], device=images.device) % len(self.scale)
        scale, shift = (each[channel].reshape(-1, 1, 1) for each in (self.scale, self.shift))
        features: Tensor = self.inner(images * scale + shift)
        return features


def _make_timm_model(name: str, weights: str | None) -> nn.Module:
    """A model of timm without its classifier, for images with ImageNet's statistics."""
    timm = import_library("timm")
    if not timm.is_model(name):
        raise UnknownNameError("model of timm", name, timm.list_models(), "one that timm has")
    model: nn.Module = timm.create_model(name, pretrained=False, num_classes=0)
    config: Any = model.pretrained_cfg
    if weights is not None:
        # timm keeps weights on the Hugging Face hub, under names without checksums; a file called
        # as the model, such as resnet18.a1_in1k.safetensors, is taken instead where there is one.
        stem = ".".join(filter(None, (config["architecture"], config.get("tag"))))
        names = [stem + suffix for suffix in SUFFIXES]
        path = find_file(names) if weights == IMAGENET else named_file(weights, [IMAGENET])
        if path is None:
            model = _downloaded_timm(timm, name, stem, config)
        else:
            head = config.get("classifier") or ()
            ignored = [head] if isinstance(head, str) else list(head)
            load_file(model, path, ignored)
    mean, std = config.get("mean", IMAGENET_MEAN), config.get("std", IMAGENET_STD)
    if (tuple(mean), tuple(std)) == (IMAGENET_MEAN, IMAGENET_STD):
        return model
    return Renormalised(model, mean, std)


def _take_off(model: nn.Module, head: str) -> None:
    """Remove the classifier, and the dropout before it: a network has a setting for that."""
    parent, _, leaf = head.rpartition(".")
    container = model.get_submodule(parent)
    setattr(container, leaf, nn.Identity())
    for module in container.children():
        if isinstance(module, nn.Dropout):
            module.p = 0.0


def _downloaded_timm(timm: Any, name: str, stem: str, config: dict[str, Any]) -> nn.Module:  # noqa: ANN401
    repository = config.get("hf_hub_id") or f"timm/{stem}"
    url = f"https://huggingface.co/{repository}/resolve/main/model.safetensors"
    if not (config.get("hf_hub_id") or config.get("url")):
        raise WeightsError(
            f"timm has no trained weights for {name}. Name a variant that has, for example "
            f"{', '.join(timm.list_models(f'{name}.*', pretrained=True)[:3]) or 'another model'}."
        )
    try:
        model: nn.Module = timm.create_model(name, pretrained=True, num_classes=0)
    except Exception as error:  # the libraries below raise errors of many kinds
        raise WeightsError(missing_message(f"{stem}.safetensors", url, error)) from error
    return model


_LIBRARIES: Final = {"torchvision": _make_torchvision_model, "timm": _make_timm_model}
"""Whose models have ImageNet weights, and how they are made."""
