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
from hessalign.alignment import TABLE_1
from hessalign.curvature import LinearHead
from hessalign.diagnosis.draw import Draw

_BLOCK: Final = 256  # samples whose inner products with all others are held at once
_PRECISE: Final = 2048  # up to this many samples everything is multiplied in float64
_WRITTEN_OUT: Final = 1024  # up to this many components curvatures are written out to be multiplied
_BASIC: Final = TABLE_1[1:]  # all but the loss
DERIVATIVES: Final = ("hessian", "gradient")


@final
@dataclass(frozen=True, eq=False)
class PairSums:
    """Inner products between means of groups and of cells, and of samples with domains' means."""

    groups: dict[str, Float[Tensor, "g g"]]  # between groups' means, by attribute
    cells: dict[str, Float[Tensor, "c c"]]  # between cells' means, of Hessian and gradient
    reach: dict[str, Float[Tensor, "n e"]]  # of each sample's own ones with each domain's mean
    own: dict[str, Float[Tensor, " n"]]  # squared norms of each sample's own, and of attributes
    cell_domain: Int[Tensor, " c"]
    cell_class: Int[Tensor, " c"]


def pair_sums(draw: Draw, head: LinearHead) -> PairSums:
    """Go over all pairs of samples once, with a head's statistics on them in the same order."""
    kernels = _Kernels(draw, head)
    classes = int(draw.y.max()) + 1
    cell_ids, cell = torch.unique(draw.domain * classes + draw.y, return_inverse=True)
    size, counts = draw.group.bincount().double(), cell.bincount().double()
    domains = torch.nn.functional.one_hot(draw.domain, len(draw.domain_names)).to(kernels.dtype)
    groups = {name: torch.zeros(len(size), len(size)).double() for name in _BASIC}
    cells = {name: torch.zeros(len(counts), len(counts)).double() for name in DERIVATIVES}
    reach = {name: torch.zeros(domains.shape).double() for name in DERIVATIVES}
    bits = _Bits(draw, cell)
    for rows, columns in _blocks(draw):
        found = kernels.block(rows, columns)
        for name in _BASIC:
            bits.add(groups[name], bits.group, found[name], rows)
        for name, values in combine(found, bias=head.bias).items():
            bits.add(cells[name], bits.cell, values, rows)
            reach[name][rows] += (values @ domains[columns]).double()
            beyond = values[:, rows.stop - rows.start :]
            reach[name][rows.stop :] += (beyond.T @ domains[rows]).double()
    totals = domains.sum(0).double()
    return PairSums(
        {name: value / (size.unsqueeze(1) * size) for name, value in groups.items()},
        {name: value / (counts.unsqueeze(1) * counts) for name, value in cells.items()},
        {name: value / totals for name, value in reach.items()},
        kernels.own(),
        cell_ids // classes,
        cell_ids % classes,
    )


def combine(attributes: dict[str, Tensor], *, bias: bool) -> dict[str, Tensor]:
    """Inner products of "hessian" and "gradient" from those of their attributes."""
    if not bias:
        return {"hessian": attributes["logit_covariance"], "gradient": attributes["error_feature"]}
    bent = attributes["logit_covariance"] + 2 * attributes["logit_feature"] + attributes["logit"]
    return {"hessian": bent, "gradient": attributes["error_feature"] + attributes["error"]}


def _blocks(draw: Draw) -> list[tuple[slice, slice]]:
    """Blocks of whole groups, each with the columns from its first row on."""
    samples, edges = len(draw.z), [0]
    for end in draw.group.bincount().cumsum(0).tolist():
        if end - edges[-1] >= _BLOCK or end == samples:
            edges.append(end)
    return [(slice(first, last), slice(first, samples)) for first, last in pairwise(edges)]


@final
class _Bits:
    """Bits of one class within a group, each with its group and its cell; samples are so sorted."""

    def __init__(self, draw: Draw, cell: Tensor) -> None:
        code = draw.group * (int(cell.max()) + 1) + cell
        starts = torch.cat([torch.zeros(1).long(), (code[1:] != code[:-1]).nonzero()[:, 0] + 1])
        self.starts = starts.numpy()
        self.group, self.cell = draw.group[starts], cell[starts]

    def add(self, total: Tensor, label: Tensor, block: Tensor, rows: slice) -> None:
        """Add a block to the sums over what bits belong to, mirrored beyond the diagonal."""
        first, last = np.searchsorted(self.starts, [rows.start, rows.stop]).tolist()
        across = np.add.reduceat(block.numpy(), self.starts[first:] - rows.start, axis=1)
        down = np.add.reduceat(across.astype(np.float64), self.starts[first:last] - rows.start)
        values = torch.from_numpy(down)
        found, place = torch.unique(label[first:last], return_inverse=True)

        def sums(part: Tensor, columns: Tensor) -> Tensor:
            wide = total.new_zeros(len(part), len(total)).index_add_(1, columns, part)
            return total.new_zeros(len(found), len(total)).index_add_(0, place, wide)

        total[found] += sums(values, label[first:])
        total[:, found] += sums(values[:, last - first :], label[last:]).T


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
        return _attributes(K, R, L)

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
        found = _attributes(K, R, L)
        return {**found, **combine(found, bias=self.head.bias)}


def _attributes(K: Tensor, R: Tensor, L: Tensor) -> dict[str, Tensor]:
    LK = L * K
    return dict(zip(_BASIC, (K, K * K, R, R * K, L, LK, LK * K), strict=True))
