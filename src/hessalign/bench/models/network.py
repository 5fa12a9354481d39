"""A network cut where alignment looks at it: features below, classifier head above.

Indices: n sample, d feature, k output of the head.
"""

from __future__ import annotations

from typing import final

from torch import Tensor, nn

from hessalign._shapes import Float


@final
class Network(nn.Module):
    """Featurizer and head.

    Args:
        featurizer: Maps inputs to features `[n, d]`.
        head: Maps features to logits `[n, k]`.
    """

    def __init__(self, featurizer: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.featurizer = featurizer
        self.head = head

    def features(self, x: Tensor) -> Float[Tensor, "n d"]:
        """The features that enter the head.

        Args:
            x: Inputs.

        Returns:
            One row per input.
        """
        z: Tensor = self.featurizer(x)
        return z

    def forward(self, x: Tensor) -> Float[Tensor, "n k"]:
        """The logits.

        Args:
            x: Inputs.

        Returns:
            One row per input.
        """
        logits: Tensor = self.head(self.features(x))
        return logits
