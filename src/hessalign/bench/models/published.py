"""Models of torchvision and timm as backbones, without their classifiers.

Both packages import torchvision, which describes its operators to torch. They come from a compiled
extension, which cannot be loaded where torch was built without CUDA but torchvision with it, as the
wheels of PyPI are. Then the import itself fails ("operator torchvision::nms does not exist"),
although no model or transform needs these operators: they are for the detection of objects. The
cure is to declare the two that the import looks for; they still cannot be called, and say so.
"""

from __future__ import annotations

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


def torchvision_names() -> list[str]:
    """Names of the models with which torchvision classifies images."""
    models = import_library("torchvision").models
    names: list[str] = models.list_models(module=models)
    return names


def make_torchvision_model(name: str, weights: str | None) -> nn.Module:
    """A model of torchvision without its classifier, which must be one linear layer."""
    check_name("model of torchvision", name, torchvision_names())
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


def make_timm_model(name: str, weights: str | None) -> nn.Module:
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
