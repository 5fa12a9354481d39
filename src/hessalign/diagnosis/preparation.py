"""How features are made ready for a model, from its training samples alone.

Indices: n sample, d feature, m feature with missing values, w column a model sees.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor

from hessalign._shapes import Float, Int
from hessalign.heads.samples import feature_scales

_QUANTILE: Final = 1 << 23  # numbers that are sorted at a time: torch takes no more than 2^24


@final
@dataclass(frozen=True, eq=False)
class Preparation:
    """Missing values filled and marked, then every feature brought to mean 0 and variance 1.

    Attributes:
        fill: What stands for a missing value, the median of each feature.
        marked: The features some of whose values were missing; each gets a column that says where.
        mean: Of every column.
        scale: Its standard deviation, 1 where it is constant.
    """

    fill: Float[Tensor, " d"]
    marked: Int[Tensor, " m"]
    mean: Float[Tensor, " w"]
    scale: Float[Tensor, " w"]

    def apply(self, z: Float[Tensor, "n d"]) -> Float[Tensor, "n w"]:
        """The columns a model sees.

        Args:
            z: Features as they came, NaN where missing.

        Returns:
            Features without gaps, then the marks, all scaled.
        """
        return (_complete(z, self.fill, self.marked) - self.mean) / self.scale


def fit_preparation(
    z: Float[Tensor, "n d"], *, scale: bool = True, marks: bool = True, complete: bool = False
) -> Preparation:
    """Learn the preparation from training samples.

    Args:
        z: Their features, NaN where missing.
        scale: Whether to standardise.
        marks: Whether columns say where values were missing.
        complete: Whether no value is missing, neither here nor where it will be applied: saves
            the medians.

    Returns:
        The preparation.

    Example:
        >>> found = fit_preparation(torch.tensor([[1.0, 5.0], [3.0, float("nan")], [5.0, 7.0]]))
        >>> found.apply(torch.tensor([[3.0, float("nan")]]))
        tensor([[0.0000, 0.0000, 1.4142]])
    """
    fill = z.new_zeros(z.shape[1]) if complete else _medians(z)
    gaps = z.isnan().any(0) if marks and not complete else torch.zeros_like(fill, dtype=torch.bool)
    marked = gaps.nonzero().squeeze(1)
    columns = _complete(z, fill, marked)
    mean, spread, _ = feature_scales(columns)
    if not scale:
        mean, spread = torch.zeros_like(mean), torch.ones_like(spread)
    return Preparation(fill, marked, mean, spread)


def _complete(z: Tensor, fill: Tensor, marked: Tensor) -> Tensor:
    missing = z.isnan()
    return torch.cat([torch.where(missing, fill, z), missing[:, marked].to(z.dtype)], dim=1)


def _medians(z: Tensor) -> Tensor:
    """The middle of the values there are, between the two middle ones of an even number; else 0."""
    columns = max(1, _QUANTILE // len(z))
    found = [part.nanquantile(0.5, dim=0) for part in z.split(columns, dim=1)]
    return torch.cat(found).nan_to_num(0.0)
