"""Which network to build: the one place that turns a description into featurizer and head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import nn

from hessalign.models.network import Network


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

    Raises:
        ValueError: If a number is out of its range.
    """

    input_shape: tuple[int, ...]
    outputs: int
    hidden: int = 0
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if not self.input_shape or min(self.input_shape) < 1 or self.outputs < 1:
            raise ValueError(
                "Expected sizes of 1 or more, got inputs of "
                f"{self.input_shape} and {self.outputs} outputs."
            )
        if self.hidden < 0:
            raise ValueError(f"Expected hidden of 0 or more units, got {self.hidden}.")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"Expected dropout from 0 to below 1, got {self.dropout}.")


def make_network(spec: NetworkSpec, *, extra_channels: int = 0, head_factor: int = 1) -> Network:
    """Build a network; its weights come from torch's global generator.

    Args:
        spec: The description.
        extra_channels: Channels an algorithm adds to the inputs.
        head_factor: How many times the features the head receives.

    Returns:
        Featurizer and head.

    Raises:
        ValueError: If there is no network for inputs of this shape.

    Example:
        >>> network = make_network(NetworkSpec((1280,), outputs=7, hidden=256))
        >>> network.head
        Linear(in_features=256, out_features=7, bias=True)
    """
    if len(spec.input_shape) != 1:
        raise ValueError(f"Expected vectors, got inputs of shape {spec.input_shape}.")
    width = spec.input_shape[0] + extra_channels
    layers: list[nn.Module] = []
    if spec.hidden:
        layers += [nn.Linear(width, spec.hidden), nn.ReLU()]
        width = spec.hidden
    if spec.dropout:
        layers.append(nn.Dropout(spec.dropout))
    featurizer = nn.Sequential(*layers) if layers else nn.Identity()
    return Network(featurizer, nn.Linear(head_factor * width, spec.outputs))
