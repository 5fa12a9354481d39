r"""What one sample contributes: the left and right factors of a moment.

Every statistic this library aligns is a mean over a domain of left_n ⊗ right_n. A *left factor*
is small (errors, curvature of the loss in the logits) and can be written out as rows. A *right
factor* is built from the features (1, z, z², z zᵀ), and knows how to average itself against left
rows without being written out. Both know the inner products between samples, which is all the
dual evaluation needs. `size` counts the components of one sample's factor, `dual_size` the
multiplications of one inner product, `power` says which power of z̃·z̃' that is, 0 if none, and
`mean_cost` what forming the domains' means and going back through them costs.

A head with a bias sees the features z̃ = [z, 1]. The constant is never stored: it adds 1 to an
inner product, and splits z̃ z̃ᵀ into z zᵀ, twice z, and 1.

Indices: n and m sample, k and c class (output of the head), d feature, e domain, l left component.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor

from hessalign._shapes import Float
from hessalign.curvature.domains import Domains, accumulation_dtype
from hessalign.curvature.gram import PairTerm, gram, inner
from hessalign.curvature.lazy import lazy
from hessalign.curvature.products import MeanTerm, OuterMeans, SecondMoments, mean_grams
from hessalign.curvature.softmax import softmax_gram, softmax_inner

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
    """What an evaluation takes, forward and backward."""

    time: float  # nanoseconds on one core
    memory: float  # bytes that are held between forward and backward


def _outer_cost(components: int, width: int, samples: int, domains: int) -> Cost:
    """The cost of means of outer products: their products, the means, both sorts of rows."""
    means = domains * components * width
    time = 0.11 * samples * components * width + 4 * means
    return Cost(OVERHEAD + time + 2 * samples * width + 15 * samples * components, 8 * means)


@final
@dataclass(frozen=True, eq=False)
class Rows:
    """A left factor given by its rows, such as the error p − y."""

    values: Float[Tensor, "n l"]  # one row per sample

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

    Example:
        >>> p = torch.tensor([[0.5, 0.5], [0.2, 0.8]], dtype=torch.float64)
        >>> curvature = SoftmaxCurvature(p)
        >>> dense = curvature.matrix().flatten(1)
        >>> torch.allclose(curvature.inner(slice(None)), dense @ dense.T)
        True
    """

    probs: Float[Tensor, "n c"]  # the probabilities p

    @property
    def size(self) -> int:
        """Components of one row: the upper triangle."""
        classes = self.probs.shape[1]
        return classes * (classes + 1) // 2

    @property
    def dual_size(self) -> int:
        """Multiplications per inner product: four sums over classes."""
        return 4 * self.probs.shape[1]

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
        leading = torch.zeros_like(self.probs, dtype=torch.bool).scatter(1, top, True)
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
        r"""$\langle S_n, S_m\rangle = p·q − p²·q − p·q² + (p·q)²$ with p of n and q of m."""
        if block == slice(None):
            return softmax_gram(self.probs)
        return softmax_inner(self.probs, block)


@final
@dataclass(frozen=True, eq=False)
class DiagonalCurvature:
    r"""Second derivative of a loss that treats each output on its own, S = diag(s).

    Binary cross-entropy has s = p(1 − p); squared error has s = σ'² + (ŷ − y)σ'' (eq. 36).
    """

    values: Float[Tensor, "n k"]  # the diagonals s

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


@final
@dataclass(frozen=True, eq=False)
class DenseCurvature:
    """Second derivative of a loss without special structure."""

    values: Float[Tensor, "n k k"]  # the symmetric matrices S

    @property
    def size(self) -> int:
        """Components of one row: the upper triangle."""
        outputs = self.values.shape[1]
        return outputs * (outputs + 1) // 2

    dual_size = size

    def matrix(self) -> Float[Tensor, "n k k"]:
        """The matrices S themselves."""
        return self.values

    def diagonal(self) -> Float[Tensor, "n k"]:
        """Their diagonals."""
        return self.values.diagonal(dim1=1, dim2=2)

    def apply(self, vectors: Float[Tensor, "n *m k"], samples: slice) -> Float[Tensor, "n *m k"]:
        """S a for one or several vectors per sample."""
        matrices = self.values[samples].to(vectors.dtype)
        return torch.einsum("nkc,n...c->n...k", matrices, vectors)

    def rows(self) -> Float[Tensor, "n l"]:
        """The upper triangle, off-diagonal entries times √2 so that inner products are kept."""
        outputs = self.values.shape[1]
        above, right = torch.triu_indices(outputs, outputs, 1, device=self.values.device)
        return torch.cat([self.diagonal(), math.sqrt(2) * self.values[:, above, right]], dim=1)

    def inner(self, block: slice) -> Float[Tensor, "b n"]:
        """Frobenius inner products."""
        return inner(self.rows(), block)


@final
@dataclass(frozen=True, eq=False)
class ScaledCurvature:
    """A curvature times a number for each sample: its weight."""

    curvature: SoftmaxCurvature | DiagonalCurvature | DenseCurvature | ScaledCurvature
    scale: Float[Tensor, "n 1"]

    @property
    def size(self) -> int:
        """Components of one row."""
        return self.curvature.size

    @property
    def dual_size(self) -> int:
        """Multiplications per inner product."""
        return self.curvature.dual_size

    def matrix(self) -> Float[Tensor, "n k k"]:
        """The matrices S themselves."""
        return self.scale.unsqueeze(2) * self.curvature.matrix()

    def diagonal(self) -> Float[Tensor, "n k"]:
        """Their diagonals."""
        return self.scale * self.curvature.diagonal()

    def apply(self, vectors: Float[Tensor, "n *m k"], samples: slice) -> Float[Tensor, "n *m k"]:
        """S a for one or several vectors per sample."""
        scale = self.scale[samples].to(vectors.dtype).view(-1, *[1] * (vectors.ndim - 1))
        return scale * self.curvature.apply(vectors, samples)

    def rows(self) -> Float[Tensor, "n l"]:
        """Rows that keep inner products."""
        return self.scale * self.curvature.rows()

    def inner(self, block: slice) -> Float[Tensor, "b n"]:
        """Frobenius inner products."""
        return self.scale[block] * self.curvature.inner(block) * self.scale.mT


LogitCurvature = SoftmaxCurvature | DiagonalCurvature | DenseCurvature | ScaledCurvature
LeftFactor = Rows | LogitCurvature


def pair_term(left: LeftFactor, power: Literal[1, 2]) -> PairTerm:
    """The sum over pairs in which a left factor's inner products stand beside a power of K."""
    if isinstance(left, Rows | DiagonalCurvature):
        return PairTerm(left.rows(), "rows", power)
    return PairTerm(left.inner(slice(None)), "gram", power)


@final
@dataclass(frozen=True, eq=False)
class Features:
    """The features of all samples, with the Gram matrix that several factors share."""

    z: Float[Tensor, "n d"]  # the features, domains contiguous, float32 or float64

    @lazy
    def gram(self) -> Float[Tensor, "n n"]:
        """All inner products, computed once."""
        return gram(self.z)

    @lazy
    def _gram_with_bias(self) -> Float[Tensor, "n n"]:
        """All inner products of z̃ = [z, 1], computed once."""
        return self.gram + 1 if "gram" in self.__dict__ else gram(self.z, bias=True)

    def known(self, *, bias: bool) -> Float[Tensor, "n n"] | None:
        """All inner products, if they are there already."""
        found: Tensor | None = self.__dict__.get("_gram_with_bias" if bias else "gram")
        return found

    def powers(self, power: int) -> Float[Tensor, " n"]:
        """The sum of a power of each sample's features, in float64."""
        return self.z.to(accumulation_dtype(self.z.device)).pow(power).sum(1)

    @property
    def dual_size(self) -> int:
        """Multiplications per inner product: none once they are there."""
        return 0 if {"gram", "_gram_with_bias"} & self.__dict__.keys() else self.z.shape[1]

    def inner(self, block: slice, *, bias: bool = False) -> Float[Tensor, "b n"]:
        """Inner products, of z or of [z, 1], of the samples in `block` with all, in float64."""
        if block == slice(None):
            return self._gram_with_bias if bias else self.gram
        if "_gram_with_bias" in self.__dict__:
            return self._gram_with_bias[block] + (bias - 1)
        return inner(self.z, block) + bias


@final
@dataclass(frozen=True, eq=False)
class Constant:
    """The right factor 1: the moment is the mean of the left factor alone."""

    like: Tensor  # any tensor with one row per sample, on the right device

    power = 0
    size = 1
    dual_size = 0

    def mean_cost(self, components: int, domains: int) -> Cost:
        """The cost of the means of left rows."""
        return _outer_cost(components, 1, len(self.like), domains)

    def mean_terms(
        self, left: Float[Tensor, "n l"], domains: Domains
    ) -> tuple[Tensor, list[MeanTerm]]:
        """The means of left ⊗ 1."""
        return left.new_ones((len(left), 1)), [MeanTerm(left, OuterMeans(domains))]

    def squared_norms(self) -> Float[Tensor, " n"]:
        """The squared norm of 1, for each sample."""
        return self.like.new_ones(len(self.like), dtype=accumulation_dtype(self.like.device))

    def inner(self, block: slice) -> Float[Tensor, "b n"]:
        """All ones."""
        pairs = len(self.like[block]), len(self.like)
        return self.like.new_ones(pairs, dtype=accumulation_dtype(self.like.device))


@final
@dataclass(frozen=True, eq=False)
class Linear:
    """The right factor z̃: features and a constant for the bias; or z̃ ∘ z̃, of a Hessian diagonal."""

    features: Features
    bias: bool  # whether z̃ = [z, 1] or just z
    squared: bool = False  # whether it is z̃ ∘ z̃, in which the constant is 1 as well

    @property
    def power(self) -> int:
        """The power of z̃·z̃' that inner products are."""
        return 0 if self.squared else 1

    @property
    def size(self) -> int:
        """Components of z̃."""
        return self.features.z.shape[1] + self.bias

    @property
    def dual_size(self) -> int:
        """Multiplications per inner product: those of z·z', which others may have made."""
        return self.features.z.shape[1] if self.squared else self.features.dual_size

    def mean_cost(self, components: int, domains: int) -> Cost:
        """The cost of the means of left ⊗ z̃."""
        return _outer_cost(components, self.size, len(self.features.z), domains)

    def mean_terms(
        self, left: Float[Tensor, "n l"], domains: Domains
    ) -> tuple[Tensor, list[MeanTerm]]:
        """The means of left ⊗ z̃, or of left ⊗ z̃²."""
        form = OuterMeans(domains, float(self.bias), self.squared)
        return self.features.z, [MeanTerm(left, form)]

    def squared_norms(self) -> Float[Tensor, " n"]:
        """‖z̃‖², or ‖z̃ ∘ z̃‖² = Σ z⁴ + 1."""
        return self.features.powers(4 if self.squared else 2) + self.bias

    def inner(self, block: slice) -> Float[Tensor, "b n"]:
        """z̃·z̃' = z·z' + 1, or z̃²·z̃'² = z²·z'² + 1."""
        if not self.squared:
            return self.features.inner(block, bias=self.bias)
        wide = self.features.z.to(accumulation_dtype(self.features.z.device))
        return inner(wide.square(), block) + self.bias


@final
@dataclass(frozen=True, eq=False)
class Outer:
    """The right factor z̃ z̃ᵀ: all products of two features."""

    features: Features
    bias: bool  # whether z̃ = [z, 1] or just z

    power = 2

    @property
    def size(self) -> int:
        """Components of z̃ z̃ᵀ."""
        return int(self.features.z.shape[1] + self.bias) ** 2

    @property
    def dual_size(self) -> int:
        """Multiplications per inner product: those of z·z'."""
        return self.features.dual_size

    def mean_terms(
        self, left: Float[Tensor, "n l"], domains: Domains
    ) -> tuple[Tensor, list[MeanTerm]]:
        """The means of left ⊗ z̃ z̃ᵀ."""
        if self._packs(left.shape[1]):
            return self._packed(), [MeanTerm(left, OuterMeans(domains))]
        most = self._at_once(len(domains))
        parts = [left] if left.shape[1] <= most else left.split(most, dim=1)
        terms = [MeanTerm(part, SecondMoments(domains)) for part in parts]
        if self.bias:  # twice z, once 1
            terms.append(MeanTerm(left, OuterMeans(domains, math.sqrt(0.5)), 2.0))
        return self.features.z, terms

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

    def squared_norms(self) -> Float[Tensor, " n"]:
        """‖z̃z̃ᵀ‖² = ‖z̃‖⁴."""
        return (self.features.powers(2) + self.bias).square()

    def inner(self, block: slice) -> Float[Tensor, "b n"]:
        """⟨z̃z̃ᵀ, z̃'z̃'ᵀ⟩ = (z̃·z̃')²."""
        products = self.features.inner(block, bias=self.bias)
        return products * products  # its slope is cheaper than that of a power


RightFactor = Constant | Linear | Outer


def mean_inners(
    factors: Sequence[tuple[LeftFactor, RightFactor]], domains: Domains, centred: Sequence[bool]
) -> list[Float[Tensor, "e e"]]:
    """Inner products between the domains' means of left ⊗ right, for several pairs of factors.

    Means of the same features are formed together.

    Args:
        factors: The pairs.
        domains: The grouping of the samples.
        centred: For each pair, whether the products are of deviations from the mean over domains.

    Returns:
        A Gram matrix of the domains for each pair.
    """
    groups: list[tuple[Tensor, list[tuple[int, MeanTerm]]]] = []
    for index, ((left, right), deviations) in enumerate(zip(factors, centred, strict=True)):
        rows, terms = right.mean_terms(left.rows(), domains)
        members = next((members for other, members in groups if other is rows), None)
        if members is None:
            members = []
            groups.append((rows, members))
        members += [(index, term._replace(centred=deviations)) for term in terms]
    found: dict[int, list[Tensor]] = {index: [] for index in range(len(factors))}
    for rows, members in groups:
        grams = mean_grams(rows, [term for _, term in members])
        for (index, _), each in zip(members, grams, strict=True):
            found[index].append(each)
    return [grams[0] if len(grams) == 1 else torch.stack(grams).sum(0) for grams in found.values()]
