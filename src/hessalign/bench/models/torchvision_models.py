"""Models of torchvision as backbones."""

from __future__ import annotations

from typing import Final

from torch import nn

from hessalign._errors import InputError
from hessalign._names import check_name
from hessalign.bench.models.torchvision_import import import_torchvision
from hessalign.bench.models.weights import IMAGENET, fetch_file, load_state, named_file, read_state

FIRST_VERSION: Final = "IMAGENET1K_V1"
"""The weights that "imagenet" means: those of DomainBed's published tables."""

AUXILIARY: Final = ("googlenet", "inception_v3")
"""Models that give several outputs in training."""


def torchvision_names() -> list[str]:
    """What torchvision can classify images with.

    Returns:
        Names of models.
    """
    models = import_torchvision().models
    names: list[str] = models.list_models(module=models)
    return names


def make_torchvision_model(name: str, weights: str | None) -> nn.Module:
    """Build a model of torchvision without its classifier.

    Args:
        name: What torchvision calls it.
        weights: "imagenet", another of torchvision's names for weights of this model (such as
            "IMAGENET1K_V2"), a file, or None.

    Returns:
        A module that gives features.

    Raises:
        InputError: If its classifier is not one linear layer.
    """
    check_name("model of torchvision", name, torchvision_names())
    models = import_torchvision().models
    model: nn.Module | None = None if name in AUXILIARY else models.get_model(name, weights=None)
    head = None if model is None else _last_linear(model)
    if model is None or head is None:
        raise InputError(
            f"The model {name} of torchvision does not end in a linear classifier alone, so it "
            f"cannot be a backbone. timm may have it: 'timm:{name}'."
        )
    _take_off(model, head)
    if weights is not None:
        available = models.get_model_weights(name).__members__
        chosen = FIRST_VERSION if weights == IMAGENET else weights
        path = (
            fetch_file(available[chosen].url)
            if chosen in available
            else named_file(weights, available)
        )
        load_state(model, read_state(path), path, ignored=[head])
    return model


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
