"""How features are made ready for a model: from its training samples alone, or site by site.

Indices: n sample, d feature, m feature with missing values, w column a model sees.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import numpy as np
import torch
from torch import Tensor

from hessalign._shapes import Float, Int
from hessalign.heads.samples import feature_scales

_QUANTILE: Final = 1 << 23  # numbers that are sorted at a time: torch takes no more than 2^24
_COPIES: Final = 0.01  # share of samples from which on copies matter
_ALIKE: Final = 0.95  # share of equal pairs within a site and class that chance does not explain


@final
@dataclass(frozen=True, eq=False)
class Preparation:
    """Missing values filled and marked, then every feature brought to mean 0 and variance 1."""

    fill: Float[Tensor, " d"]  # what stands for a missing value, the median of each feature
    marked: Int[Tensor, " m"]  # features with missing values; each gets a column that says where
    mean: Float[Tensor, " w"]  # of every column
    scale: Float[Tensor, " w"]  # its standard deviation, 1 where it is constant

    def apply(self, z: Float[Tensor, "n d"]) -> Float[Tensor, "n w"]:
        """The columns a model sees of features: these without gaps, then the marks, all scaled."""
        return (_complete(z, self.fill, self.marked) - self.mean) / self.scale


def fit_preparation(
    z: Float[Tensor, "n d"], *, scale: bool = True, marks: bool = True, complete: bool = False
) -> Preparation:
    """Learn the preparation from training samples, whose features are NaN where missing.

    If no value is missing, neither here nor where it will be applied, `complete` saves the medians.

    Returns:
        The preparation; without standardising and marks if that is asked for.

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


def standardised(z: Float[Tensor, "n d"], domain: Int[Tensor, " n"]) -> Float[Tensor, "n d"]:
    """Every feature of every site with mean 0 and variance 1, by the values that are not missing.

    Returns:
        The features.

    Example:
        >>> standardised(torch.tensor([[1.0], [3.0], [7.0], [7.0]]), torch.tensor([0, 0, 1, 1])).T
        tensor([[-1.,  1.,  0.,  0.]])
    """
    found = torch.empty_like(z)
    for e in domain.unique():
        mine = domain == e
        part = z[mine]
        gaps = part.isnan()
        mean = part.nanmean(0).nan_to_num(0.0)
        filled = torch.where(gaps, mean, part)
        _, _, still = feature_scales(filled)
        count = (~gaps).sum(0).clamp_min(1)
        spread = ((filled - mean).square().sum(0) / count).sqrt()
        found[mine] = torch.where(still, 0.0, part - mean) / torch.where(still, 1.0, spread)
        found[mine] = torch.where(gaps, torch.nan, found[mine])
    return found


def first_copies(
    z: Float[Tensor, "n d"], y: Int[Tensor, " n"], domain: Int[Tensor, " n"]
) -> Int[Tensor, " n"]:
    """Of each sample the first of its site and class with the same features, itself if it is new.

    Features of few values are equal by chance, at several sites and in several classes: then, and
    where copies are few, every sample is new.

    Returns:
        Positions.

    Example:
        >>> z = torch.tensor([[0.3], [0.7], [0.7], [0.1]])
        >>> first_copies(z, torch.tensor([0, 1, 1, 0]), torch.tensor([0, 0, 0, 1]))
        tensor([0, 1, 1, 3])
    """
    rows = np.ascontiguousarray(z.numpy())
    whole = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).ravel()
    _, number, alike = np.unique(whole, return_inverse=True, return_counts=True)
    place = np.stack([number, y.numpy(), domain.numpy()], axis=1)
    _, first, back, same = np.unique(
        place, axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    pairs, within = ((count * (count - 1)).sum() for count in (alike, same))
    if len(rows) - len(first) < _COPIES * len(rows) or within < _ALIKE * pairs:
        return torch.arange(len(rows))
    return torch.from_numpy(first[back.ravel()])
