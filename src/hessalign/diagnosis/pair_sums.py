r"""One pass over all pairs of samples, from which every distance of a diagnosis follows.

Each attribute of Table 1 is a mean of left_n ⊗ right_n, so inner products between means of any two
sets of samples are sums over pairs of ⟨left_n, left_m⟩ ⟨right_n, right_m⟩. With K = z·z',
L = ⟨S, S'⟩ and R = r·r' these are

| feature | covariance | error | error_feature | logit | logit_feature | logit_covariance |
|---|---|---|---|---|---|---|
| K | K² | R | R K | L | L K | L K² |

and hessian = L (K + 1)², gradient = R (K + 1) for a head with a bias. The matrices K, L and R are
formed once, block by block, and summed into groups and cells (a cell is a class of a domain).

Indices: n and m sample, e domain, g group, c cell.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final, final

import numpy as np
import torch
from torch import Tensor

from hessalign._shapes import Float, Int
from hessalign.curvature import LinearHead
from hessalign.diagnosis.draw import Draw

_BLOCK: Final = 256
"""Samples whose inner products with all others are held at once."""

_PRECISE: Final = 2048
"""Up to this many samples everything is multiplied in float64."""

_WRITTEN_OUT: Final = 1024
"""Up to this many components curvatures are written out to be multiplied."""

_BASIC: Final = (
    "feature",
    "covariance",
    "error",
    "error_feature",
    "logit",
    "logit_feature",
    "logit_covariance",
)
DERIVATIVES: Final = ("hessian", "gradient")


@final
@dataclass(frozen=True, eq=False)
class PairSums:
    """Inner products between means of groups and of cells, and of samples with domains' means.

    Attributes:
        groups: Inner products between groups' means, by attribute, float64.
        cells: The same between cells, for the Hessian and the gradient.
        reach: Inner products of each sample's own Hessian or gradient with each domain's mean.
        own: Squared norms of each sample's own attributes, Hessian and gradient.
        cell_domain: The domain of each cell.
        cell_class: The class of each cell.
        cell_size: Samples in each cell.
    """

    groups: dict[str, Float[Tensor, "g g"]]
    cells: dict[str, Float[Tensor, "c c"]]
    reach: dict[str, Float[Tensor, "n e"]]
    own: dict[str, Float[Tensor, " n"]]
    cell_domain: Int[Tensor, " c"]
    cell_class: Int[Tensor, " c"]
    cell_size: Int[Tensor, " c"]


def pair_sums(draw: Draw, head: LinearHead) -> PairSums:
    """Go over all pairs of samples once, with a head's statistics on them in the same order."""
    kernels = _Kernels(draw, head)
    classes = int(draw.y.max()) + 1
    cell_ids, cell = torch.unique(draw.domain * classes + draw.y, return_inverse=True)
    sorter = _Sorter(draw, cell)
    groups = {name: torch.zeros(2 * (sorter.num_groups,)).double() for name in _BASIC}
    cells = {name: torch.zeros(2 * (len(cell_ids),)).double() for name in DERIVATIVES}
    domains = torch.nn.functional.one_hot(draw.domain, len(draw.domain_names)).to(kernels.dtype)
    reach = {
        name: torch.zeros(len(draw.z), domains.shape[1], dtype=torch.float64)
        for name in DERIVATIVES
    }
    for rows, columns in sorter.blocks():
        found = kernels.block(rows, columns)
        inside = rows.stop - rows.start
        combined = combine(found, bias=head.bias)
        for name in _BASIC:
            _add(groups[name], sorter.bits(found[name], rows, columns), sorter.bit_group)
        for name, values in combined.items():
            _add(cells[name], sorter.bits(values, rows, columns), sorter.bit_cell)
            reach[name][rows] += (values @ domains[columns]).double()
            rest = slice(rows.stop, columns.stop)
            reach[name][rest] += (values[:, inside:].T @ domains[rows]).double()
    size = draw.group.bincount().double()
    counts = cell.bincount().double()
    totals = domains.sum(0).double()
    return PairSums(
        {name: value / (size.unsqueeze(1) * size) for name, value in groups.items()},
        {name: value / (counts.unsqueeze(1) * counts) for name, value in cells.items()},
        {name: value / totals for name, value in reach.items()},
        kernels.own(),
        cell_ids // classes,
        cell_ids % classes,
        cell.bincount(),
    )


def combine(attributes: dict[str, Tensor], *, bias: bool) -> dict[str, Tensor]:
    """Inner products of "hessian" and "gradient" from those of their attributes."""
    if not bias:
        return {
            "hessian": attributes["logit_covariance"],
            "gradient": attributes["error_feature"],
        }
    bent = attributes["logit_covariance"] + 2 * attributes["logit_feature"] + attributes["logit"]
    return {"hessian": bent, "gradient": attributes["error_feature"] + attributes["error"]}


@final
@dataclass(frozen=True, eq=False)
class _Bits:
    """A block's sums over bits: those of its rows, by those from its first row on."""

    values: Tensor
    rows: slice
    columns: slice


def _add(total: Tensor, bits: _Bits, label: Tensor) -> None:
    """Add sums over bits to the sums over what bits belong to, mirrored beyond the diagonal."""
    rows, columns = label[bits.rows], label[bits.columns]
    inside = len(rows)
    for values, labels, mirrored in (
        (bits.values, columns, False),
        (bits.values[:, inside:], columns[inside:], True),
    ):
        wide = total.new_zeros(inside, len(total)).index_add_(1, labels, values)
        found, place = torch.unique(rows, return_inverse=True)
        sums = total.new_zeros(len(found), len(total)).index_add_(0, place, wide)
        if mirrored:
            total[:, found] += sums.T
        else:
            total[found] += sums


@final
class _Sorter:
    """Where groups, and the bits of one class within a group, begin and end."""

    def __init__(self, draw: Draw, cell: Tensor) -> None:
        samples = len(draw.z)
        code = draw.group * (int(cell.max()) + 1) + cell
        starts = torch.cat([torch.zeros(1).long(), (code[1:] != code[:-1]).nonzero()[:, 0] + 1])
        self.starts = starts.numpy()
        self.samples = samples
        self.bit_group, self.bit_cell = draw.group[starts], cell[starts]
        self.num_groups = int(draw.group.max()) + 1
        self.borders = [*torch.searchsorted(draw.group, torch.arange(self.num_groups)).tolist()]

    def blocks(self) -> list[tuple[slice, slice]]:
        """Blocks of whole groups, each with the columns from its first row on."""
        edges = [0]
        for border in [*self.borders[1:], self.samples]:
            if border - edges[-1] >= _BLOCK or border == self.samples:
                edges.append(border)
        return [(slice(first, last), slice(first, self.samples)) for first, last in pairwise(edges)]

    def bits(self, values: Tensor, rows: slice, columns: slice) -> _Bits:
        """Sums of a block over the bits of its columns and of its rows."""
        first, last = np.searchsorted(self.starts, [rows.start, rows.stop])
        across = np.add.reduceat(values.numpy(), self.starts[first:] - columns.start, axis=1)
        down = np.add.reduceat(across.astype(np.float64), self.starts[first:last] - rows.start)
        return _Bits(
            torch.from_numpy(down),
            slice(int(first), int(last)),
            slice(int(first), len(self.starts)),
        )


@final
class _Kernels:
    """Inner products of blocks of samples, by attribute."""

    def __init__(self, draw: Draw, head: LinearHead) -> None:
        self.dtype = torch.float64 if len(draw.z) <= _PRECISE else torch.float32
        self.head = head
        self.z = draw.z.to(self.dtype)
        self.error = head.error.to(self.dtype)
        small = head.curvature.size <= _WRITTEN_OUT
        self.curvature = head.curvature.rows().to(self.dtype) if small else None

    def block(self, rows: slice, columns: slice) -> dict[str, Tensor]:
        """The inner products of some samples with some others, by attribute."""
        K = self.z[rows] @ self.z[columns].T
        R = self.error[rows] @ self.error[columns].T
        if self.curvature is None:
            L = self.head.curvature.inner(rows)[:, columns].to(self.dtype)
        else:
            L = self.curvature[rows] @ self.curvature[columns].T
        LK = L * K
        values = (K, K * K, R, R * K, L, LK, LK * K)
        return dict(zip(_BASIC, values, strict=True))

    def own(self) -> dict[str, Tensor]:
        """The squared norms of each sample's own attributes, Hessian and gradient."""
        K = self.z.double().square().sum(1)
        R = self.error.double().square().sum(1)
        if self.curvature is None:
            p = self.head.prediction.double()
            q = p.square().sum(1)
            L = q - 2 * p.pow(3).sum(1) + q.square()
        else:
            L = self.curvature.double().square().sum(1)
        values = (K, K * K, R, R * K, L, L * K, L * K * K)
        attributes = dict(zip(_BASIC, values, strict=True))
        return {**attributes, **combine(attributes, bias=self.head.bias)}
