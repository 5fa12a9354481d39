"""A network cut where alignment looks at it, and the one place that makes one from a description.

Indices: n sample, d feature, k output of the head.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hessalign._errors import InputError, UnknownNameError
from hessalign._numbers import check_count, is_whole
from hessalign._plugins import call_plugin, entry_point_names, find_plugin
from hessalign._shapes import Float
from hessalign.bench.models.backbones import feature_width, make_backbone
from hessalign.bench.models.sharded import RowLayers

_ENTRY_POINTS: Final = "hessalign.heads"
LARGEST_SIZE: Final = 2**24
"""Inputs, units and outputs of a network are no more: what asks for them is damaged."""


@final
class Network(nn.Module):
    """Featurizer and head.

    Args:
        featurizer: Maps inputs to features `[n, d]`.
        head: Maps features to logits `[n, k]`.

    Attributes:
        compute: What is called with the featurizer and its inputs in place of the featurizer, while
            a run trains in another precision or layout; None elsewhere.
    """

    compute: Callable[..., Tensor] | None = None

    def __init__(self, featurizer: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.featurizer = featurizer
        self.head = head

    def features(self, x: Tensor, *more: object) -> Float[Tensor, "n d"]:
        """The features that enter the head, one row per input; some featurizers take more."""
        if self.compute is not None:
            return self.compute(self.featurizer, x, *more)
        z: Tensor = self.featurizer(x, *more)
        return z

    def forward(self, x: Tensor) -> Float[Tensor, "n k"]:
        """The logits, one row per input."""
        logits: Tensor = self.head(self.features(x))
        return logits


@final
class FrozenBatchNorm(nn.Module):
    """A backbone whose batch normalisation keeps its statistics in training, as DomainBed's does.

    All its batch normalisation stays in evaluation mode; the factors and shifts behind it are
    trained like other parameters.

    Example:
        >>> layer = FrozenBatchNorm(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))).train()
        >>> [module.training for module in layer.inner]
        [True, False]
        >>> all(parameter.requires_grad for parameter in layer.parameters())
        True
    """

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        """What the backbone makes of its inputs."""
        features: Tensor = self.inner(x)
        return features

    def train(self, mode: bool = True) -> FrozenBatchNorm:
        """Enter or leave training mode, all but the batch normalisation."""
        super().train(mode)
        for module in self.inner.modules():
            if isinstance(module, _BatchNorm):
                module.eval()
        return self


@final
@dataclass(frozen=True)
class NetworkSpec:
    """A description of a network.

    Attributes:
        input_shape: The length of a vector, or channels, height and width of an image.
        outputs: Outputs of the head: classes.
        hidden: Units of a ReLU layer between the backbone's features and the head, part of the
            featurizer; 0 for none.
        dropout: Share of the features that is dropped before the head in training.
        backbone: What turns images into features: a name (see `make_backbone`) or a module, which
            every network gets a copy of. None takes vectors, or the pixels of images, as they are.
        weights: Of the backbone: "imagenet", a file, or None for its initial ones.
        freeze_batch_norm: Keep the statistics of the backbone's batch normalisation as they are;
            what follows them is still trained. Not for a backbone that is trained from scratch.
        nonlinear_head: Two ReLU layers, of a half and a quarter of the features, in the head.
        head: A head of one's own: "package.module:name" of a function, or a class, that is given
            the numbers of features and of outputs and returns a module; or the name of an entry
            point of the group `hessalign.heads`. None for a linear one.

    Raises:
        InputError: If a number is out of its range.
    """

    input_shape: tuple[int, ...]
    outputs: int
    hidden: int = 0
    dropout: float = 0.0
    backbone: str | nn.Module | None = None
    weights: str | None = None
    freeze_batch_norm: bool = True
    nonlinear_head: bool = False
    head: str | None = None

    def __post_init__(self) -> None:
        check_sizes(self.input_shape, self.outputs)
        check_count(self.hidden, "hidden", 0, LARGEST_SIZE)
        if not 0 <= self.dropout < 1:
            raise InputError(f"Expected dropout from 0 to below 1, got {self.dropout}.")
        if self.backbone is not None and len(self.input_shape) != 3:
            raise InputError(
                "Expected channels, height and width of images for a backbone, got inputs of "
                f"{self.input_shape}. Vectors, such as those of a feature bank, need no backbone."
            )
        if self.backbone is None and self.weights is not None:
            raise InputError(f"Expected a backbone for the weights {self.weights!r}, got none.")
        if self.head is not None and self.nonlinear_head:
            raise InputError(f"Expected one head, got {self.head!r} and a nonlinear classifier.")


def check_sizes(input_shape: tuple[int, ...], outputs: int) -> None:
    """Refuse inputs and outputs of a network that are not whole numbers of 1 to 2²⁴."""
    sizes = (*input_shape, outputs)
    if not input_shape or not all(is_whole(each) and 1 <= each <= LARGEST_SIZE for each in sizes):
        raise InputError(
            f"Expected sizes of 1 to {LARGEST_SIZE:,}, got inputs of {input_shape} and {outputs} "
            "outputs."
        )


def make_network(spec: NetworkSpec, *, extra_channels: int = 0, head_factor: int = 1) -> Network:
    """Build a network; its weights come from torch's global generator.

    An algorithm may add channels to the inputs, and have a head for several times the features.

    Returns:
        Featurizer and head.

    Example:
        >>> network = make_network(NetworkSpec((1280,), outputs=7, hidden=256))
        >>> network.head
        Linear(in_features=256, out_features=7, bias=True)
        >>> digits = NetworkSpec((2, 28, 28), outputs=2, backbone="mnist_cnn", nonlinear_head=True)
        >>> [layer.out_features for layer in make_network(digits).head[::2]]
        [64, 32, 2]
    """
    first, *rest = spec.input_shape
    shape = (first + extra_channels, *rest)
    layers: list[nn.Module] = [nn.Flatten()] if rest else []
    width = math.prod(shape)
    if spec.backbone is not None:
        module = make_backbone(spec.backbone, shape[0], spec.weights)
        width = feature_width(module, shape, spec.backbone)
        layers = [(FrozenBatchNorm(module) if spec.freeze_batch_norm else module).train()]
    if spec.hidden:
        layers += [nn.Linear(width, spec.hidden), nn.ReLU()]
        width = spec.hidden
    if spec.dropout:
        layers.append(nn.Dropout(spec.dropout))
    featurizer = RowLayers(*layers) if layers else nn.Identity()
    return Network(featurizer, _head(head_factor * width, spec))


def _head(width: int, spec: NetworkSpec) -> nn.Module:
    if spec.head is not None:
        return _own_head(spec.head, width, spec.outputs)
    if spec.nonlinear_head:
        return make_nonlinear(width, spec.outputs)
    return nn.Linear(width, spec.outputs)


def make_nonlinear(width: int, outputs: int) -> nn.Sequential:
    """A head with two ReLU layers, of a half and a quarter of the features."""
    sides = pairwise((width, max(1, width // 2), max(1, width // 4), outputs))
    layers = [layer for side in sides for layer in (nn.Linear(*side), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def _own_head(name: str, features: int, outputs: int) -> nn.Module:
    """The head that a user's function returns, tried on two rows of features."""
    make = find_plugin(_ENTRY_POINTS, name, "head")
    if make is None:
        offered = entry_point_names(_ENTRY_POINTS)
        raise UnknownNameError("head", name, offered, "'package.module:name' of a function")
    head = call_plugin(name, "head", make, features, outputs)
    if not isinstance(head, nn.Module):
        raise InputError(f"Expected {name!r} to return a torch.nn.Module, got {_kind(head)}.")
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        made = call_plugin(name, "head", head.eval(), torch.zeros(2, features))
    if not isinstance(made, Tensor) or made.shape != (2, outputs):
        raise InputError(
            f"Expected {outputs} outputs for each of 2 rows of {features} features from the head "
            f"{name!r}, got {_kind(made)}."
        )
    return head.train()


def _kind(made: object) -> str:
    return str(list(made.shape)) if isinstance(made, Tensor) else type(made).__name__
