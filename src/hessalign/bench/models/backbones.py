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

from hessalign._errors import InputError
from hessalign._names import UnknownNameError
from hessalign._plugins import call_plugin, entry_point_names, find_plugin
from hessalign.bench.models.published import (
    import_timm,
    make_timm_model,
    make_torchvision_model,
    torchvision_names,
)
from hessalign.bench.models.weights import (
    IMAGENET,
    WeightsError,
    load_state,
    named_file,
    read_state,
)

MNIST_CNN: Final = "mnist_cnn"
_ENTRY_POINTS: Final = "hessalign.backbones"

_LIBRARIES: Final = {"torchvision": make_torchvision_model, "timm": make_timm_model}
"""Whose models have ImageNet weights, and how they are made."""

_EXPECTED: Final = (
    f"a model of torchvision or timm, {MNIST_CNN!r}, or 'package.module:name' for your own"
)
_WIDTHS: Final = (64, 128, 128, 128)
_GROUPS: Final = 8


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
        A module that maps images with ImageNet's statistics to features, in evaluation mode. An
        unknown name and weights that cannot be had or do not fit raise errors that say what would.

    Example:
        >>> make_backbone("mnist_cnn", channels=1)(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 128])
    """
    if isinstance(backbone, nn.Module):
        module = _with_weights(copy.deepcopy(backbone), type(backbone).__name__, weights)
    elif backbone == MNIST_CNN:
        module = _with_weights(_make_mnist_cnn(channels), MNIST_CNN, weights)
    elif is_published(backbone):
        library, name = _located(backbone)
        module = _LIBRARIES[library](name, weights)
    else:
        module = _with_weights(_from_user(backbone), backbone, weights)
    _adapt_channels(module, channels)
    return module.eval()


def is_published(backbone: str) -> bool:
    """Whether there are ImageNet weights for a backbone.

    Returns:
        Whether it is a model of torchvision or timm.

    Example:
        >>> [is_published(name) for name in ("resnet50", "timm:vit_b", "mnist_cnn", "mine:make")]
        [True, True, False, False]
    """
    library, colon, _ = backbone.partition(":")
    if colon:
        return library in _LIBRARIES
    return backbone != MNIST_CNN and backbone not in entry_point_names(_ENTRY_POINTS)


def describe_random_weights(backbone: str, weights: str | None = None) -> str | None:
    """What users should know of a backbone whose weights are random.

    Whether those of one's own are, is seen by making it twice, from different random numbers.

    Returns:
        A sentence that says how to give it others; None if they are not random.

    Example:
        >>> print(describe_random_weights("mnist_cnn"))
        The weights of the backbone mnist_cnn are random: it was trained on nothing. Name ...
        >>> describe_random_weights("mnist_cnn", "digits.pt")
    """
    if weights is not None:
        return None
    named = f"{IMAGENET} or a file" if is_published(backbone) else "a file of weights"
    option = f"Name {named} (--weights; `train` and `sweep`: weights=…)."
    if backbone == MNIST_CNN or is_published(backbone):
        return (
            f"The weights of the backbone {backbone} are random: it was trained on nothing. "
            f"{option}"
        )
    first, second = (_from_seed(backbone, seed) for seed in (1, 2))
    random = [each for each in first if not torch.equal(first[each], second[each])]
    if not random:
        return None
    return (
        f"{len(random)} of {len(first)} parameters of the backbone {backbone} are random, such as "
        f"{random[0]}. Let it load its weights itself, or name a file of them (--weights; `train` "
        "and `sweep`: weights=…)."
    )


def _from_seed(backbone: str, seed: int) -> dict[str, Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = _from_user(backbone)
    return {name: value.detach() for name, value in made.named_parameters()}


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


def _located(backbone: str) -> tuple[str, str]:
    """The library, and the name there."""
    if ":" in backbone:
        library, name = backbone.split(":", 1)
        return library, name
    names = torchvision_names()
    if backbone in names:
        return "torchvision", backbone
    timm = import_timm()
    if timm.is_model(backbone):
        return "timm", backbone
    valid = [*names, *timm.list_models(), *entry_point_names(_ENTRY_POINTS)]
    raise UnknownNameError("backbone", backbone, valid, _EXPECTED)


def _from_user(backbone: str) -> nn.Module:
    """What the user's function, or that of an installed package, returns."""
    make = find_plugin(_ENTRY_POINTS, backbone, "backbone")
    if make is None:
        raise InputError(f"Expected {_EXPECTED} as backbone, got {backbone!r}.")
    made = call_plugin(backbone, "backbone", make)
    if not isinstance(made, nn.Module):
        raise InputError(
            f"Expected {backbone!r} to return a torch.nn.Module, got {type(made).__name__}."
        )
    return made


def _with_weights(module: nn.Module, name: str, weights: str | None) -> nn.Module:
    if weights == IMAGENET:
        raise WeightsError(
            f"There are no ImageNet weights for {name}: give a file, or none if it brings its own."
        )
    if weights is not None:
        path = named_file(weights, ())
        load_state(module, read_state(path), path)
    return module


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
    for number, width in enumerate(_WIDTHS):
        layers += [
            nn.Conv2d(channels, width, 3, stride=2 if number == 1 else 1, padding=1),
            nn.ReLU(),
            nn.GroupNorm(_GROUPS, width),
        ]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
