"""Backbones: networks that turn images into features, by name or brought by the user.

A backbone is named as torchvision or timm name it ("resnet50", "vit_b_16", "timm:NAME" where both
have one of that name), as "package.module:name" for a function that returns a module, as an
installed package offers it (entry points of the group `hessalign.backbones`), or is "mnist_cnn",
DomainBed's network for digits. Its classifier is taken off, so that it gives one row of features
for each image.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn

from hessalign._errors import InputError, UnknownNameError
from hessalign._plugins import call_plugin, entry_point_names, find_plugin
from hessalign.bench.models import published
from hessalign.bench.models.weights import IMAGENET, WeightsError, load_file, named_file

MNIST_CNN: Final = "mnist_cnn"
_ENTRY_POINTS: Final = "hessalign.backbones"

_LIBRARIES: Final = {
    "torchvision": published.make_torchvision_model,
    "timm": published.make_timm_model,
}
"""Whose models have ImageNet weights, and how they are made."""

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
    names = published.torchvision_names()
    if backbone in names:
        return f"torchvision:{backbone}"
    timm = published.import_library("timm")
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
