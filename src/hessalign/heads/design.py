r"""The features of a classifier where they are: standardised without being copied.

With the mean m and the deviation s of each feature, z̃ = [(x − m)/s, 1]. Sums over samples of
c ⊗ z̃ and c ⊗ z̃² follow from those of c ⊗ x², c ⊗ x and c, so that nothing but blocks of rows that
fit into a cache is ever written, and sparse features stay sparse.

Indices: e domain, n sample, k output, d feature (without the constant), b sample of a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, final

import numpy as np

Matrix = Any  # an array, or sparse rows of scipy, which is imported only where it is used

_BLOCK: Final = 1 << 18  # numbers of a block of rows, which stays in the cache between products
# Means of so many deviations are subtracted from a copy: squares would lose their digits.
_FAR: Final = {np.dtype(np.float64): 1e3, np.dtype(np.float32): 10.0}
# Features with deviations beyond this, or below its inverse, are scaled in a copy: squares would
# leave the range of float32.
_ODD: Final = 1e9


@final
@dataclass(frozen=True, eq=False)
class Design:
    """Rows of features by domain, and how they are standardised; build it with `make_design`."""

    x: Matrix  # features as they came, one row per sample: an array, or sparse rows (CSR)
    groups: tuple[slice | np.ndarray, ...]  # the rows of each domain
    mean: np.ndarray  # what is subtracted from each feature
    scale: np.ndarray  # what it is divided by
    moved: np.ndarray | float = 0.0  # what was subtracted from the features that came to make x
    unit: np.ndarray | float = 1.0  # what they were divided by then

    @property
    def width(self) -> int:
        """Features, and the constant."""
        return len(self.mean) + 1

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Samples of each domain."""
        return tuple(_count(rows) for rows in self.groups)

    @cached_property
    def sparse(self) -> bool:
        """Whether the features are sparse."""
        return not isinstance(self.x, np.ndarray)

    @cached_property
    def _parts(self) -> tuple[Matrix, ...]:
        """Sparse rows of each domain."""
        return tuple(self.x[rows] for rows in self.groups)

    def blocks(self) -> Iterator[tuple[int, slice, Matrix]]:
        """Blocks of rows, each of one domain: its position, which samples of it, their features."""
        step = max(1, _BLOCK // max(1, len(self.mean)))
        for e, (rows, size) in enumerate(zip(self.groups, self.sizes, strict=True)):
            if self.sparse:
                yield e, slice(0, size), self._parts[e]
                continue
            for start in range(0, size, step):
                part = slice(start, min(start + step, size))
                if isinstance(rows, slice):
                    yield e, part, self.x[rows.start + part.start : rows.start + part.stop]
                else:
                    yield e, part, self.x[rows[part]]

    def squares(self, block: Matrix) -> Matrix:
        """The squared features of a block; the next block's take their place."""
        if self.sparse:
            return block.multiply(block).tocsr()
        size = block.size
        if len(self._buffer) < size:
            self.__dict__["_buffer"] = np.empty(size, dtype=block.dtype)
        return np.multiply(block, block, out=self._buffer[:size].reshape(block.shape))

    @cached_property
    def _buffer(self) -> np.ndarray:
        return np.empty(0, dtype=self.x.dtype)

    def linear(self, head: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Weights and constants [k d], [k] with which x gives ⟨head, z̃⟩."""
        weights = head[:, :-1] / self.scale
        return weights.astype(self.x.dtype), head[:, -1] - weights @ self.mean

    def as_they_came(self, head: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Weights and constants with which features as they came give ⟨head, z̃⟩."""
        weights = head[:, :-1] / (self.scale * self.unit)
        return weights, head[:, -1] - weights @ (self.mean * self.unit + self.moved)

    def quadratic(self, head: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Weights of x² and x, and constants, with which they give ⟨head, z̃²⟩."""
        squares = head[:, :-1] / self.scale**2
        dtype = self.x.dtype
        return (
            squares.astype(dtype),
            (-2 * squares * self.mean).astype(dtype),
            head[:, -1] + squares @ self.mean**2,
        )

    def first(self, x: np.ndarray, one: np.ndarray) -> np.ndarray:
        """The sum of c ⊗ z̃, given those of c ⊗ x and of c."""
        moved = (x - one[..., None] * self.mean) / self.scale
        return np.concatenate([moved, one[..., None]], axis=-1)

    def second(self, square: np.ndarray, x: np.ndarray, one: np.ndarray) -> np.ndarray:
        """The sum of c ⊗ z̃², given those of c ⊗ x², c ⊗ x and c."""
        moved = (square - 2 * self.mean * x + one[..., None] * self.mean**2) / self.scale**2
        return np.concatenate([moved, one[..., None]], axis=-1)

    def part(self, e: int) -> Matrix:
        """The features of one domain, as they came."""
        return self._parts[e] if self.sparse else self.x[self.groups[e]]

    def dense(self, e: int, dtype: type[np.floating[Any]] = np.float32) -> np.ndarray:
        """All of z̃ of one domain, written out."""
        x = self.part(e)
        z = np.ones((x.shape[0], self.width), dtype=dtype)
        rest = z[:, :-1]
        np.subtract(x.toarray() if self.sparse else x, self.mean, out=rest, casting="same_kind")
        rest /= self.scale.astype(dtype)
        return z

    def only(self, chosen: list[np.ndarray]) -> Design:
        """Some samples of each domain, given by their positions in it, standardised as before."""
        rows = [row_numbers(rows)[own] for rows, own in zip(self.groups, chosen, strict=True)]
        ends = np.cumsum([0, *map(len, rows)])
        groups = tuple(slice(int(a), int(b)) for a, b in pairwise(ends))
        return replace(self, x=self.x[np.concatenate(rows)], groups=groups)


def make_design(
    x: Matrix, groups: list[np.ndarray], weight: np.ndarray | None = None, *, standardize: bool
) -> Design:
    """Features of some domains, to be standardised over all their samples if so."""
    # The rows of each domain are rising; those in none do not count, others as the weights say.
    ranges = tuple(_as_slice(rows) for rows in groups)
    plain = Design(x, ranges, np.zeros(x.shape[1]), np.ones(x.shape[1]))
    if not standardize:
        return plain
    counts = [None if weight is None else weight[rows] for rows in groups]
    mean, spread = _moments(plain, counts)
    moved = np.zeros_like(mean)
    if plain.sparse:
        # Such columns have hardly a zero to lose.
        near = np.where(_far(x, mean, spread), mean, 0).astype(x.dtype)
        if near.any():
            x = x - type(x)(np.ones((x.shape[0], 1), dtype=x.dtype)) @ type(x)(near[None])
            moved += near
            mean, spread = _moments(replace(plain, x=x), counts)
    digits = np.finfo(x.dtype).eps * (1e3 if plain.sparse else 1)
    scale = np.where(spread <= digits * np.abs(mean + moved), 1.0, spread)
    odd = bool((np.abs(np.log(scale)) > np.log(_ODD)).any())
    ones = np.ones_like(scale)
    if plain.sparse:
        if odd:
            x = x.multiply(1 / scale).tocsr().astype(x.dtype)
            return Design(x, ranges, mean / scale, ones, moved, scale)
    elif odd or bool(_far(x, mean, scale).any()):
        x = ((x - mean) / scale).astype(x.dtype)
        return Design(x, ranges, np.zeros_like(mean), ones, mean, scale)
    return Design(x, ranges, mean, scale, moved)


def _far(x: Matrix, mean: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Which features are many deviations away from 0."""
    return np.asarray(np.abs(mean) > _FAR[x.dtype] * spread)


def _moments(design: Design, weights: list[np.ndarray | None]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each feature."""
    # Differences to the first sample are exactly 0 for a constant, and keep the digits of a feature
    # that varies little for its size, such as a time stamp.
    origin = np.zeros(design.width - 1)
    if not design.sparse:
        origin = next(design.blocks())[2][0].astype(np.float64)
    total, sums, squares = 0.0, 0 * origin, 0 * origin
    for e, part, block in design.blocks():
        count = None if weights[e] is None else weights[e][part]  # type: ignore[index]
        own = np.ones(block.shape[0]) if count is None else count
        moved = block.astype(np.float64) if design.sparse else block - origin
        total += own.sum()
        sums += own @ moved
        squares += own @ design.squares(moved)
    offset = sums / total
    return origin + offset, np.sqrt(np.maximum(squares / total - offset**2, 0))


def _as_slice(rows: np.ndarray) -> slice | np.ndarray:
    """Rows that follow one another as a slice, which needs no copy."""
    if len(rows) and int(rows[-1] - rows[0]) == len(rows) - 1:
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows


def row_numbers(rows: slice | np.ndarray) -> np.ndarray:
    """Rows one by one."""
    return np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows


def _count(rows: slice | np.ndarray) -> int:
    return rows.stop - rows.start if isinstance(rows, slice) else len(rows)
