"""Backbones: networks that turn images into features, by name or brought by the user.

A backbone is named as torchvision or timm name it ("resnet50", "vit_b_16", "timm:NAME" where both
have one of that name), as "module:callable" for a function that returns a module, or is
"mnist_cnn", DomainBed's network for digits. Its classifier is taken off, so that it gives one row
of features for each image.
"""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from hessalign._errors import InputError
from hessalign._names import UnknownNameError
from hessalign.bench.models.mnist_cnn import make_mnist_cnn
from hessalign.bench.models.timm_models import make_timm_model
from hessalign.bench.models.torchvision_import import import_timm
from hessalign.bench.models.torchvision_models import make_torchvision_model, torchvision_names
from hessalign.bench.models.weights import (
    IMAGENET,
    WeightsError,
    load_state,
    named_file,
    read_state,
)

MNIST_CNN: Final = "mnist_cnn"
LIBRARIES: Final = {"torchvision": make_torchvision_model, "timm": make_timm_model}
"""Whose models have ImageNet weights, and how they are made."""

EXPECTED: Final = (
    f"a model of torchvision or timm, {MNIST_CNN!r}, or 'module:callable' for your own"
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
        A module that maps images with ImageNet's statistics to features, in evaluation mode. An
        unknown name and weights that cannot be had or do not fit raise errors that say what would.

    Example:
        >>> make_backbone("mnist_cnn", channels=1)(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 128])
    """
    if isinstance(backbone, nn.Module):
        module = _with_weights(copy.deepcopy(backbone), type(backbone).__name__, weights)
    elif backbone == MNIST_CNN:
        module = _with_weights(make_mnist_cnn(channels), MNIST_CNN, weights)
    else:
        library, name = _located(backbone)
        make = LIBRARIES.get(library)
        module = _from_user(library, name, weights) if make is None else make(name, weights)
    _adapt_channels(module, channels)
    return module.eval()


def is_published(backbone: str) -> bool:
    """Whether there are ImageNet weights for a backbone.

    Args:
        backbone: Its name.

    Returns:
        Whether it is a model of torchvision or timm.

    Example:
        >>> [is_published(name) for name in ("resnet50", "timm:vit_b", "mnist_cnn", "mine:make")]
        [True, True, False, False]
    """
    library, colon, _ = backbone.partition(":")
    return library in LIBRARIES if colon else backbone != MNIST_CNN


def describe_random_weights(backbone: str, weights: str | None = None) -> str | None:
    """What users should know of a backbone whose weights are random.

    Whether those of one's own are, is seen by making it twice, from different random numbers.

    Args:
        backbone: Its name.
        weights: Which it is to be given, if any.

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
    module, name = backbone.split(":", 1)
    first, second = (_from_seed(module, name, seed) for seed in (1, 2))
    random = [each for each in first if not torch.equal(first[each], second[each])]
    if not random:
        return None
    return (
        f"{len(random)} of {len(first)} parameters of the backbone {backbone} are random, such as "
        f"{random[0]}. Let it load its weights itself, or name a file of them (--weights; `train` "
        "and `sweep`: weights=…)."
    )


def _from_seed(module: str, name: str, seed: int) -> dict[str, Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = _from_user(module, name, None)
    return {name: value.detach() for name, value in made.named_parameters()}


def feature_width(backbone: nn.Module, input_shape: Sequence[int], name: object) -> int:
    """How many features a backbone gives, by trying it.

    Args:
        backbone: The backbone, in evaluation mode.
        input_shape: Channels, height and width of an image.
        name: What to call it in errors.

    Returns:
        The number.

    Raises:
        InputError: If it does not take such images, or does not give one row for each.
    """
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
    """The library, or the user's module, and the name there."""
    if ":" in backbone:
        library, name = backbone.split(":", 1)
        return library, name
    names = torchvision_names()
    if backbone in names:
        return "torchvision", backbone
    timm = import_timm()
    if timm.is_model(backbone):
        return "timm", backbone
    raise UnknownNameError("backbone", backbone, [*names, *timm.list_models()], EXPECTED)


def _from_user(module: str, name: str, weights: str | None) -> nn.Module:
    """What the user's function returns."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        made = getattr(importlib.import_module(module), name)()
    except (ModuleNotFoundError, AttributeError) as error:
        raise InputError(
            f"Cannot make the backbone '{module}:{name}': {error}. Expected 'module:callable', "
            "with a module that Python finds from this folder."
        ) from error
    except Exception as error:  # the user's own code may raise anything
        raise InputError(
            f"The backbone '{module}:{name}' cannot be made; it raised {type(error).__name__}: "
            f"{error}"
        ) from error
    if not isinstance(made, nn.Module):
        raise InputError(
            f"Expected '{module}:{name}' to return a torch.nn.Module, got {type(made).__name__}."
        )
    return _with_weights(made, f"{module}:{name}", weights)


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
