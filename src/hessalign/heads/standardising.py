"""Mean and spread of features, and which of them are constant.

Indices: n sample, d feature.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hessalign._shapes import Bool, Float


def feature_scales(
    z: Float[Tensor, "n d"],
) -> tuple[Float[Tensor, " d"], Float[Tensor, " d"], Bool[Tensor, " d"]]:
    """Mean and standard deviation of every feature, both from differences to the first sample.

    These differences are exactly 0 for a constant, and keep the digits of a feature that varies
    little for its size, such as a time stamp; sums of the features themselves would do neither.

    Args:
        z: Features, one row per sample.

    Returns:
        The means; the standard deviations, 1 for constants; and which features are constant, that
        is, spread by no more than the rounding of a single value.

    Example:
        >>> z = torch.tensor([[0.1, 1.7e9 + 1000], [0.1, 1.7e9 - 1000]], dtype=torch.float64)
        >>> mean, spread, constant = feature_scales(z)
        >>> spread.tolist(), constant.tolist()
        ([1.0, 1000.0], [True, False])
    """
    moved = z - z[:1]
    spread = moved.std(0, correction=0)
    constant = spread <= torch.finfo(z.dtype).eps * z.abs().amax(0)
    return z[0] + moved.mean(0), torch.where(constant, 1.0, spread), constant
