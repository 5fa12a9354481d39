"""Models of torchvision and timm as backbones, without their classifiers.

Both packages import torchvision, which describes its operators to torch when it is imported. The
operators come from a compiled extension, which cannot be loaded where torch was built without CUDA
but torchvision with it, as the wheels of PyPI are. Then the import itself fails ("operator
torchvision::nms does not exist"), although no model or transform needs these operators: they are
for the detection of objects.

The cure is to declare the two operators that the import looks for. They still cannot be called,
and say so if they are. Where the extension can be loaded nothing is declared.
"""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch
from torch import nn

from hessalign._errors import InputError, MissingPackageError
from hessalign._names import UnknownNameError, check_name
from hessalign._protocol import IMAGENET_MEAN, IMAGENET_STD
from hessalign.bench.models.normalisation import Renormalised
from hessalign.bench.models.weights import (
    IMAGENET,
    SUFFIXES,
    WeightsError,
    fetch_file,
    find_file,
    load_state,
    missing_message,
    named_file,
    read_state,
)

_SCHEMAS: Final = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

_declared: list[torch.library.Library] = []
"""Declarations last as long as the object that made them."""


def import_torchvision() -> Any:  # noqa: ANN401
    """The module torchvision, untyped; without it an error says how to install it."""
    return _imported("torchvision")


def import_timm() -> Any:  # noqa: ANN401
    """The module timm, untyped; without it an error says how to install it."""
    return _imported("timm")


def _imported(name: str) -> ModuleType:
    if importlib.util.find_spec(name) is None:
        raise MissingPackageError(f"Backbones of {name} need it: pip install 'hessalign[vision]'.")
    make_importable()
    return importlib.import_module(name)


@cache
def make_importable() -> None:
    """Make torchvision importable where its extension cannot be loaded.

    A process that reads a pickled model imports what the model is made of, so it calls this before.
    """
    if importlib.util.find_spec("torchvision") is None or _has_operator("nms") or _load_extension():
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in _SCHEMAS:
        library.define(schema)
    _declared.append(library)


def _has_operator(name: str) -> bool:
    return hasattr(torch.ops.torchvision, name)


def _load_extension() -> bool:
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return False
    for library in sorted(Path(spec.origin).parent.glob("_C.*")):
        try:
            torch.ops.load_library(library)
        except (ImportError, OSError):
            return False
        return True
    return False


_FIRST_VERSION: Final = "IMAGENET1K_V1"
"""The weights that "imagenet" means: those of DomainBed's published tables."""

_AUXILIARY: Final = ("googlenet", "inception_v3")
"""Models that give several outputs in training."""


def torchvision_names() -> list[str]:
    """Names of the models with which torchvision classifies images."""
    models = import_torchvision().models
    names: list[str] = models.list_models(module=models)
    return names


def make_torchvision_model(name: str, weights: str | None) -> nn.Module:
    """A model of torchvision without its classifier, which must be one linear layer."""
    check_name("model of torchvision", name, torchvision_names())
    models = import_torchvision().models
    model: nn.Module | None = None if name in _AUXILIARY else models.get_model(name, weights=None)
    head = None if model is None else _last_linear(model)
    if model is None or head is None:
        raise InputError(
            f"The model {name} of torchvision does not end in a linear classifier alone, so it "
            f"cannot be a backbone. timm may have it: 'timm:{name}'."
        )
    _take_off(model, head)
    if weights is not None:
        available = models.get_model_weights(name).__members__
        chosen = _FIRST_VERSION if weights == IMAGENET else weights
        path = (
            fetch_file(available[chosen].url)
            if chosen in available
            else named_file(weights, available)
        )
        load_state(model, read_state(path), path, ignored=[head])
    return model


def make_timm_model(name: str, weights: str | None) -> nn.Module:
    """A model of timm without its classifier, for images with ImageNet's statistics.

    timm keeps weights on the Hugging Face hub, under names without checksums; a file called as the
    model, for example `resnet18.a1_in1k.safetensors`, is taken instead where there is one.

    Returns:
        The module.

    Raises:
        UnknownNameError: If timm has no such model.
    """
    timm = import_timm()
    if not timm.is_model(name):
        raise UnknownNameError("model of timm", name, timm.list_models(), "one that timm has")
    model: nn.Module = timm.create_model(name, pretrained=False, num_classes=0)
    config: Any = model.pretrained_cfg
    if weights is not None:
        stem = ".".join(filter(None, (config["architecture"], config.get("tag"))))
        names = [stem + suffix for suffix in SUFFIXES]
        path = find_file(names) if weights == IMAGENET else named_file(weights, [IMAGENET])
        if path is None:
            model = _downloaded_timm(timm, name, stem, config)
        else:
            head = config.get("classifier") or ()
            ignored = [head] if isinstance(head, str) else list(head)
            load_state(model, read_state(path), path, ignored)
    mean, std = config.get("mean", IMAGENET_MEAN), config.get("std", IMAGENET_STD)
    if (tuple(mean), tuple(std)) == (IMAGENET_MEAN, IMAGENET_STD):
        return model
    return Renormalised(model, mean, std)


def _last_linear(model: nn.Module) -> str | None:
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    return names[-1] if names else None


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
