"""Models of timm as backbones."""

from __future__ import annotations

from typing import Any

from torch import nn

from hessalign._imagenet import IMAGENET_MEAN, IMAGENET_STD
from hessalign._names import UnknownNameError
from hessalign.bench.models.normalisation import Renormalised
from hessalign.bench.models.torchvision_import import import_timm
from hessalign.bench.models.weights import (
    IMAGENET,
    SUFFIXES,
    WeightsError,
    find_file,
    load_state,
    missing_message,
    named_file,
    read_state,
)


def make_timm_model(name: str, weights: str | None) -> nn.Module:
    """Build a model of timm without its classifier.

    timm keeps weights on the Hugging Face hub, under names without checksums; a file called as the
    model, for example `resnet18.a1_in1k.safetensors`, is taken instead where there is one.

    Args:
        name: What timm calls it, with or without the name of its weights after a dot.
        weights: "imagenet", a file, or None.

    Returns:
        A module that gives features of images with ImageNet's statistics.

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
