r"""What one sample contributes: the left and right factors of a moment.

Every statistic this library aligns is a mean over a domain of left_n ⊗ right_n. A *left factor*
is small (errors, curvature of the loss in the logits) and can be written out as rows. A *right
factor* is built from the features (1, z, z², z zᵀ), and knows how to average itself against left
rows without being written out. Both know the inner products between samples, which is all the
dual evaluation needs. `size` counts the components of one sample's factor, `dual_size` the
multiplications of one inner product, and `mean_cost` tells what forming the domains' means and
going back through them costs.

A head with a bias sees the features z̃ = [z, 1]. The constant is never stored: it adds 1 to an
inner product, and splits z̃ z̃ᵀ into z zᵀ, twice z, and 1.

Indices: n and m sample, k and c class (output of the head), d feature, e domain, l left component.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, final

import torch
from torch import Tensor

from hessalign._shapes import Float
from hessalign.curvature.gram import CANCELLATION, gram, inner, pair_sum
from hessalign.curvature.products import (
    accumulation_dtype,
    mean_outer_gram,
    second_moments_gram,
)
from hessalign.curvature.softmax_gram import softmax_gram, softmax_inner

_WRITTEN_OUT = 64
"""Up to this many components a factor is written out, even for inner products."""

_SEVERAL = 8
"""From so many left components on, products of features are written out if there is room."""

_MOMENT_ELEMENTS = 1 << 22
"""Entries of second moments, or products of features, that are held at once: 32 MiB."""


OVERHEAD = 5e5
"""Nanoseconds of an evaluation of nothing, forward and backward.

This price and those below were fitted to times on one core (`python -m benchmarks.evaluation` shows
how well `auto` does by them);
the choice of an evaluation needs only their ratios.
"""


class Cost(NamedTuple):
    """What an evaluation takes, forward and backward.

    Attributes:
        time: Nanoseconds on one core.
        memory: Bytes that are held between forward and backward.
    """

    time: float
    memory: float


def _outer_cost(components: int, width: int, samples: int, domains: int) -> Cost:
    """The cost of means of outer products: their products, the means, both sorts of rows."""
    means = domains * components * width
    time = 0.11 * samples * components * width + 4 * means
    return Cost(OVERHEAD + time + 2 * samples * width + 15 * samples * components, 8 * means)


@final
@dataclass(frozen=True, eq=False)
class Rows:
    """A left factor given by its rows, such as the error p − y.

    Attributes:
        values: One row per sample.
    """

    values: Float[Tensor, "n l"]

    @property
    def size(self) -> int:
        """Components of one row."""
        return self.values.shape[1]

    dual_size = size

    def rows(self) -> Float[Tensor, "n l"]:
        """The rows as given."""
        return self.values

    def inner(self, block: slice) -> Float[Tensor, "b n"]:
        """Euclidean inner products."""
        return inner(self.values, block)


@final
@dataclass(frozen=True, eq=False)
class SoftmaxCurvature:
    r"""Second derivative of softmax cross-entropy in the logits, S = diag(p) − p pᵀ (eq. 14).

    Attributes:
        probs: The probabilities p.

    Example:
        >>> p = torch.tensor([[0.5, 0.5], [0.2, 0.8]], dtype=torch.float64)
        >>> curvature = SoftmaxCurvature(p)
        >>> dense = curvature.matrix().flatten(1)
        >>> torch.allclose(curvature.inner(slice(None)), dense @ dense.T)
        True
    """

    probs: Float[Tensor, "n c"]

    @property
    def size(self) -> int:
        """Components of one row: the upper triangle."""
        classes = self.probs.shape[1]
        return classes * (classes + 1) // 2

    @property
    def dual_size(self) -> int:
        """Multiplications per inner product: a written-out row, or three sums over classes."""
        return self.size if self.size <= _WRITTEN_OUT else 3 * self.probs.shape[1]

    def matrix(self) -> Float[Tensor, "n c c"]:
        """The matrices S themselves."""
        products = self.probs.unsqueeze(2) * self.probs.unsqueeze(1)
        on_diagonal = torch.eye(products.shape[1], dtype=torch.bool, device=products.device)
        return torch.where(on_diagonal, torch.diag_embed(self.diagonal()), -products)

    def _leader(self) -> tuple[Tensor, Tensor]:
        """The most probable class, and all probabilities with 0 in its place."""
        # Where a prediction is confident, S is tiny but 1 − p and p·q − … are differences of
        # numbers near 1. Sums over the other classes say the same without cancellation.
        top = self.probs.argmax(1, keepdim=True)
        return top, self.probs.scatter(1, top, 0)

    def diagonal(self) -> Float[Tensor, "n c"]:
        """The diagonal p(1 − p)."""
        top = self.probs.argmax(1, keepdim=True)
        leading = torch.zeros_like(self.probs, dtype=torch.bool).scatter_(1, top, True)
        others = self.probs.masked_fill(leading, 0).sum(1, keepdim=True)
        return self.probs * torch.where(leading, others, 1 - self.probs)

    def apply(self, vectors: Float[Tensor, "n *m c"], samples: slice) -> Float[Tensor, "n *m c"]:
        """S a = p ∘ a − p (p · a) for one or several vectors per sample.

        With u = a_t − a, t the most probable class, it is p ∘ (p · u − u): the differences are
        small where the result is.

        Returns:
            The products.
        """
        top, rest = (part[samples] for part in self._leader())
        axes = (len(top), *[1] * (vectors.ndim - 2), -1)
        index = top.view(axes).expand(*vectors.shape[:-1], 1)
        below = vectors.gather(-1, index) - vectors
        mean = (rest.to(vectors.dtype).view(axes) * below).sum(-1, keepdim=True)
        return self.probs[samples].to(vectors.dtype).view(axes) * (mean - below)

    def rows(self) -> Float[Tensor, "n l"]:
        """The upper triangle, off-diagonal entries times √2 so that inner products are kept."""
        above, right = torch.triu_indices(
            self.probs.shape[1], self.probs.shape[1], 1, device=self.probs.device
        )
        pairs = self.probs.index_select(1, above) * self.probs.index_select(1, right)
        return torch.cat([self.diagonal(), -math.sqrt(2) * pairs], dim=1)

    def inner(self, block: slice) -> Float[Tensor, "b n"]:
        r"""$\langle S_n, S_m\rangle = p·q − p²·q − p·q² + (p·q)²$ with p of n and q of m.

        For few classes the rows are written out.

        Returns:
            The inner products with all samples m.
        """
        if self.size <= _WRITTEN_OUT:
            return inner(self.rows(), block)
        if block == slice(None):
            return softmax_gram(self.probs)
        return softmax_inner(self.probs, block)


@final
@dataclass(frozen=True, eq=False)
class DiagonalCurvature:
    r"""Second derivative of a loss that treats each output on its own, S = diag(s).

    Binary cross-entropy has s = p(1 − p); squared error has s = σ'² + (ŷ − y)σ'' (eq. 36).

    Attributes:
        values: The diagonals s.
    """

    values: Float[Tensor, "n k"]

    @property
    def size(self) -> int:
        """Components of one row: the diagonal."""
        return self.values.shape[1]

    dual_size = size

    def matrix(self) -> Float[Tensor, "n k k"]:
        """The matrices S themselves."""
        return torch.diag_embed(self.values)

    def diagonal(self) -> Float[Tensor, "n k"]:
        """The diagonal s."""
        return self.values

    def apply(self, vectors: Float[Tensor, "n *m k"], samples: slice) -> Float[Tensor, "n *m k"]:
        """S a = s ∘ a for one or several vectors per sample."""
        values = self.values[samples].to(vectors.dtype)
        return values.view(len(values), *[1] * (vectors.ndim - 2), -1) * vectors

    def rows(self) -> Float[Tensor, "n k"]:
        """The diagonals; the zeros around them do not change an inner product."""
        return self.values

    def inner(self, block: slice) -> Float[Tensor, "b n"]:
        """Euclidean inner products of the diagonals."""
        return inner(self.values, block)


LogitCurvature = SoftmaxCurvature | DiagonalCurvature
LeftFactor = Rows | SoftmaxCurvature | DiagonalCurvature


@final
@dataclass(frozen=True, eq=False)
class Features:
    """The features of all samples, with the Gram matrix that several factors share.

    Attributes:
        z: The features, domains contiguous, float32 or float64.
    """

    z: Float[Tensor, "n d"]

    @cached_property
    def gram(self) -> Float[Tensor, "n n"]:
        """All inner products, computed once."""
        return gram(self.z)

    @cached_property
    def gram_with_bias(self) -> Float[Tensor, "n n"]:
        """All inner products of z̃ = [z, 1], computed once."""
        return self.gram + 1

    @cached_property
    def rough(self) -> Float[Tensor, "n n"]:
        """All inner products, multiplied in the features' own precision, computed once."""
        return gram(self.z, exact=False)

    def pair_sum(
        self,
        left: Float[Tensor, "n n"],
        weights: Float[Tensor, "n n"],
        *,
        bias: bool,
        power: int,
    ) -> Float[Tensor, ""]:
        r"""Sum over all pairs of samples of $w L (\tilde z \cdot \tilde z')^p$.

        float32 features are multiplied in float32 first. Where the sum turns out far smaller than
        its terms, as it does near alignment, they are multiplied again in float64.

        Returns:
            The sum.
        """
        if self.z.dtype != left.dtype and "gram" not in self.__dict__:
            total = pair_sum(left, self.rough, weights, bias=bias, power=power)
            if not _is_small(total, left, weights, self.rough, bias=bias, power=power):
                return total
        return pair_sum(left, self.gram, weights, bias=bias, power=power)

    @property
    def dual_size(self) -> int:
        """Multiplications per inner product: none once they are there."""
        return 0 if {"gram", "rough"} & self.__dict__.keys() else self.z.shape[1]

    def inner(self, block: slice, *, bias: bool = False) -> Float[Tensor, "b n"]:
        """Inner products, of z or of [z, 1], of the samples in `block` with all, in float64."""
        if block == slice(None):
            return self.gram_with_bias if bias else self.gram
        products = self.gram[block] if "gram" in self.__dict__ else inner(self.z, block)
        return products + bias


@torch.no_grad()
def _is_small(
    total: Tensor, left: Tensor, weights: Tensor, products: Tensor, *, bias: bool, power: int
) -> bool:
    """Whether a sum over pairs is far smaller than the terms of single samples in it."""
    terms = (weights.diagonal() * left.diagonal() * (products.diagonal() + bias) ** power).sum()
    return not bool(terms * len(left) <= CANCELLATION * total)


@final
@dataclass(frozen=True, eq=False)
class Constant:
    """The right factor 1: the moment is the mean of the left factor alone.

    Attributes:
        like: Any tensor with one row per sample, on the right device.
    """

    like: Tensor

    size = 1
    dual_size = 0

    def mean_cost(self, components: int, domains: int) -> Cost:
        """The cost of the means of left rows."""
        return _outer_cost(components, 1, len(self.like), domains)

    def mean_inner(
        self, left: Float[Tensor, "n l"], sizes: tuple[int, ...], *, centred: bool = False
    ) -> Float[Tensor, "e e"]:
        """Inner products between the domains' means of left ⊗ 1."""
        return mean_outer_gram(left, left.new_ones((len(left), 1)), sizes, centred=centred)

    def inner(self, block: slice) -> Float[Tensor, "b n"]:
        """All ones."""
        pairs = len(self.like[block]), len(self.like)
        return self.like.new_ones(pairs, dtype=accumulation_dtype(self.like.device))


@final
@dataclass(frozen=True, eq=False)
class Linear:
    """The right factor z̃: features, and a constant for the bias.

    Attributes:
        features: The features.
        bias: Whether z̃ = [z, 1] or just z.
    """

    features: Features
    bias: bool

    @property
    def size(self) -> int:
        """Components of z̃."""
        return self.features.z.shape[1] + self.bias

    @property
    def dual_size(self) -> int:
        """Multiplications per inner product: those of z·z'."""
        return self.features.dual_size

    def mean_cost(self, components: int, domains: int) -> Cost:
        """The cost of the means of left ⊗ z̃."""
        return _outer_cost(components, self.size, len(self.features.z), domains)

    def mean_inner(
        self, left: Float[Tensor, "n l"], sizes: tuple[int, ...], *, centred: bool = False
    ) -> Float[Tensor, "e e"]:
        """Inner products between the domains' means of left ⊗ z̃."""
        return mean_outer_gram(left, self.features.z, sizes, bias=self.bias, centred=centred)

    def inner(self, block: slice) -> Float[Tensor, "b n"]:
        """z̃·z̃' = z·z' + 1."""
        return self.features.inner(block, bias=self.bias)

    def pair_sum(
        self, left: Float[Tensor, "n n"], weights: Float[Tensor, "n n"]
    ) -> Float[Tensor, ""]:
        """Sum over all pairs of w L z̃·z̃'."""
        return self.features.pair_sum(left, weights, bias=self.bias, power=1)


@final
@dataclass(frozen=True, eq=False)
class Squares:
    """The right factor z̃ ∘ z̃ of a Hessian diagonal; the square of the constant is the constant.

    Attributes:
        features: The features.
        bias: Whether z̃ = [z, 1] or just z.
    """

    features: Features
    bias: bool

    @property
    def size(self) -> int:
        """Components of z̃ ∘ z̃."""
        return self.features.z.shape[1] + self.bias

    @property
    def dual_size(self) -> int:
        """Multiplications per inner product."""
        return self.features.z.shape[1]

    def mean_cost(self, components: int, domains: int) -> Cost:
        """The cost of the means of left ⊗ z̃²."""
        return _outer_cost(components, self.size, len(self.features.z), domains)

    def mean_inner(
        self, left: Float[Tensor, "n l"], sizes: tuple[int, ...], *, centred: bool = False
    ) -> Float[Tensor, "e e"]:
        """Inner products between the domains' means of left ⊗ z̃²."""
        return mean_outer_gram(
            left, self.features.z, sizes, bias=self.bias, squared=True, centred=centred
        )

    def inner(self, block: slice) -> Float[Tensor, "b n"]:
        """z̃²·z̃'² = z²·z'² + 1."""
        return inner(self.features.z.square(), block) + self.bias


@final
@dataclass(frozen=True, eq=False)
class Outer:
    """The right factor z̃ z̃ᵀ: all products of two features.

    Attributes:
        features: The features.
        bias: Whether z̃ = [z, 1] or just z.
    """

    features: Features
    bias: bool

    @property
    def size(self) -> int:
        """Components of z̃ z̃ᵀ."""
        return int(self.features.z.shape[1] + self.bias) ** 2

    @property
    def dual_size(self) -> int:
        """Multiplications per inner product: those of z·z'."""
        return self.features.dual_size

    def mean_inner(
        self, left: Float[Tensor, "n l"], sizes: tuple[int, ...], *, centred: bool = False
    ) -> Float[Tensor, "e e"]:
        """Inner products between the domains' means of left ⊗ z̃ z̃ᵀ."""
        z = self.features.z
        if self._packs(left.shape[1]):
            return mean_outer_gram(left, self._packed(), sizes, centred=centred)
        products = [
            second_moments_gram(components, z, sizes, centred=centred)
            for components in left.split(self._at_once(len(sizes)), dim=1)
        ]
        if self.bias:  # twice z, once 1
            products.append(2 * mean_outer_gram(left, z, sizes, centred=centred))
            products.append(Constant(left).mean_inner(left, sizes, centred=centred))
        return torch.stack(products).sum(0)

    def mean_cost(self, components: int, domains: int) -> Cost:
        """The cost of the means of left ⊗ z̃ z̃ᵀ."""
        samples, width = self.features.z.shape
        means = domains * components * width**2
        if self._packs(components):
            products = samples * width**2 // 2
            time = OVERHEAD + 0.2 * products * components + 3.5 * means + 11 * products
            return Cost(time + 34 * samples * components, 4 * means + 16 * products)
        rounds = math.ceil(components / self._at_once(domains))
        rows = samples * components * width
        time = OVERHEAD * (1 + 2 * rounds) + 0.1 * rows * width + 10 * means + 8 * rows
        return Cost(time, 8 * means)

    def _at_once(self, domains: int) -> int:
        """Of how many components the means can be held."""
        return max(1, _MOMENT_ELEMENTS // (domains * self.features.z.shape[1] ** 2))

    def _packs(self, components: int) -> bool:
        """Whether to write out the products of features, which several components share."""
        samples, width = self.features.z.shape
        return components >= _SEVERAL and samples * width**2 <= 2 * _MOMENT_ELEMENTS

    def _packed(self) -> Float[Tensor, "n p"]:
        """The upper triangle of z̃ z̃ᵀ, off-diagonal entries times √2 to keep inner products."""
        z = self.features.z.to(accumulation_dtype(self.features.z.device))
        if self.bias:
            z = torch.cat([z, torch.ones_like(z[:, :1])], dim=1)
        above, right = torch.triu_indices(z.shape[1], z.shape[1], 1, device=z.device)
        pairs = z.index_select(1, above) * z.index_select(1, right)
        return torch.cat([z.square(), math.sqrt(2) * pairs], dim=1)

    def inner(self, block: slice) -> Float[Tensor, "b n"]:
        """⟨z̃z̃ᵀ, z̃'z̃'ᵀ⟩ = (z̃·z̃')²."""
        products = self.features.inner(block, bias=self.bias)
        return products * products  # its slope is cheaper than that of a power

    def pair_sum(
        self, left: Float[Tensor, "n n"], weights: Float[Tensor, "n n"]
    ) -> Float[Tensor, ""]:
        """Sum over all pairs of w L (z̃·z̃')²."""
        return self.features.pair_sum(left, weights, bias=self.bias, power=2)


RightFactor = Constant | Linear | Squares | Outer
