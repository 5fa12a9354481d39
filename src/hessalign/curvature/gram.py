r"""Inner products of all pairs of samples, and sums over pairs.

Near alignment a sum over pairs is far smaller than its terms. Inner products are therefore float64,
whatever the precision of the features: a product of float32 numbers is exact there. Splitting the
features into pieces whose float32 products are exact gives the same, at two to three times the
price of float64 on a processor. What flows back is small already and stays in the features' own
precision, where rounding errors are some 1e-7 of its terms, 2e-3 of a slope where the dispersion is
1e-8 of the squared norm. On a processor, where a look at values costs nothing, a sum over pairs is
first made of products in the features' precision; if it turns out small, products and slopes are
float64. For few features they are everywhere.

Indices: n and m sample, d feature, c class.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, final

import torch
from torch import Tensor

from hessalign._shapes import Float
from hessalign.curvature.domains import accumulation_dtype
from hessalign.curvature.fused import Context, Fused, call, is_traced

_Number = float | Tensor

_CANCELLATION = 256
"""Sums that are smaller than their terms by more than this have float64 slopes."""

_SUFFICIENT = 128
"""How many times smaller than √n times the part of pairs of one sample with itself a sum may be."""

MANY_FEATURES = 256
"""Rows from this length on are multiplied by slopes in their own precision."""


def slope_precision(dtype: torch.dtype, z: Tensor) -> torch.dtype:
    """What slopes are multiplied in, unless one sees sums cancel: float64 for few features."""
    wide = torch.promote_types(dtype, accumulation_dtype(z.device))
    return wide if z.shape[1] < MANY_FEATURES else dtype


def may_look(z: Tensor) -> bool:
    """Whether a look at values costs nothing."""
    return z.device.type == "cpu" and not is_traced(z)


@final
class _Gram(Fused):
    """z zᵀ + b as float64; the symmetry makes backward one product instead of two."""

    @staticmethod
    def plain(z: Float[Tensor, "n d"], bias: bool) -> Float[Tensor, "n n"]:
        return gram_plain(z, bias)

    @staticmethod
    def forward(ctx: Context, z: Float[Tensor, "n d"], bias: bool) -> Float[Tensor, "n n"]:
        wide = accumulation_dtype(z.device)
        products = multiply(z, bias, wide)
        ctx.save_for_backward(z, products)
        ctx.others = (bias,)
        return products

    @staticmethod
    def pull_back(ctx: Context, *slopes: Tensor) -> tuple[Tensor]:
        z, products = ctx.saved_tensors
        weights = slopes[0] + slopes[0].mT

        precision = slope_precision(z.dtype, z)
        if precision != weights.dtype and may_look(z):
            # The Gram matrix knows the size of the sums w z before they are formed.
            sums = ((weights @ products) * weights).sum()
            terms = (weights.abs() @ products.diagonal().sqrt()).square().sum()
            if not bool(terms <= _CANCELLATION**2 * sums):
                precision = weights.dtype
        return ((weights.to(precision) @ z.to(precision)).to(z.dtype),)


def gram_plain(z: Float[Tensor, "n d"], bias: bool) -> Float[Tensor, "n n"]:
    """The same as `gram` in operations that autograd knows."""
    wide = z.to(accumulation_dtype(z.device))
    return wide @ wide.mT + 1 if bias else wide @ wide.mT


def multiply(z: Float[Tensor, "n d"], bias: bool, dtype: torch.dtype) -> Float[Tensor, "n n"]:
    """Inner products in some precision, without a graph."""
    wide = z.to(dtype)
    products = wide @ wide.mT
    return products.add_(1) if bias else products


def gram(z: Float[Tensor, "n d"], *, bias: bool = False) -> Float[Tensor, "n n"]:
    r"""Inner products of all pairs of rows, $z_n \cdot z_m$, or of [z, 1], as float64.

    Returns:
        The Gram matrix.

    Example:
        >>> gram(torch.tensor([[1.0, 1.0], [0.0, 2.0]]))
        tensor([[2., 2.],
                [2., 4.]], dtype=torch.float64)
    """
    products: Tensor = call(_Gram, z, bias)
    return products


def inner(rows: Float[Tensor, "n d"], block: slice) -> Float[Tensor, "b n"]:
    """Rows of the Gram matrix, in float64: all, or a block where all pairs are too many."""
    if block == slice(None):
        return gram(rows)
    wide = rows.to(accumulation_dtype(rows.device))
    return wide[block] @ wide.mT


class PairTerm(NamedTuple):
    """One of the sums over pairs of w L Kᵖ."""

    left: Tensor  # what L is made of: rows, or L itself
    kind: Literal["rows", "gram"]  # "rows" for the rows' inner products, "gram" for L
    power: Literal[1, 2]  # p, 1 or 2


@final
class _PairSums(Fused):
    """Sums over pairs of w L Kᵖ, several at once: one node instead of many small ones.

    The last argument has kind and power of each term, and whether the features have a bias; None if
    inner products are given instead of features.
    """

    @staticmethod
    def plain(base: Tensor, *rest: Any) -> tuple[Float[Tensor, ""], ...]:  # noqa: ANN401
        *lefts, weights, (kinds, bias) = rest
        products = base if bias is None else gram_plain(base, bias)
        total = []
        for left, (kind, power) in zip(lefts, kinds, strict=True):
            pairs = left if kind == "gram" else gram_plain(left, False)
            total.append((weights * pairs * products**power).sum())
        return tuple(total)

    @staticmethod
    def forward(ctx: Context, base: Tensor, *rest: Any) -> tuple[Tensor, ...]:  # noqa: ANN401
        *lefts, weights, (kinds, bias) = rest
        pairs = [
            left if kind == "gram" else left @ left.mT
            for left, (kind, _) in zip(lefts, kinds, strict=True)
        ]
        # What flows back is small already, and needs no more precision than the features have.
        # So do the products, where a look shows that nothing cancels.
        narrow, products = weights.dtype, base
        if bias is not None:
            narrow = slope_precision(base.dtype, base)
            looks = narrow != weights.dtype and may_look(base)
            products = multiply(base, bias, narrow if looks else weights.dtype).to(weights.dtype)
        sums, slopes, weighted = _weigh(products, weights, pairs, kinds)
        if bias is not None and looks and _any_cancels(sums, slopes, products):
            narrow = weights.dtype
            products = multiply(base, bias, narrow)
            sums, slopes, weighted = _weigh(products, weights, pairs, kinds)
        kept = [x.to(narrow) for x in (products, weighted, *slopes)]
        ctx.save_for_backward(base, *lefts, *kept)
        ctx.others = (weights, (kinds, bias))
        return tuple(sums)

    @staticmethod
    def pull_back(ctx: Context, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        _, (kinds, bias) = ctx.others
        count, saved = len(kinds), list(ctx.saved_tensors)
        base, lefts, (products, weighted) = saved[0], saved[1 : 1 + count], saved[1 + count :][:2]
        parts = saved[3 + count :]
        narrow = products.dtype
        slopes = tuple(slope.to(narrow) for slope in slopes)
        d_lefts: list[Tensor | None] = []
        d_products: Tensor | None = None
        for index, (kind, power) in enumerate(kinds):
            if ctx.needs_input_grad[1 + index]:
                pairs = weighted * products if power == 2 else weighted
                d_lefts.append(_left_slope(kind, lefts[index], pairs * slopes[index]))
            else:
                d_lefts.append(None)
            part = parts[index] * slopes[index]
            if d_products is None:
                d_products = part.mul_(power) if power == 2 else part
            else:
                d_products.add_(part, alpha=power)
        if not ctx.needs_input_grad[0] or d_products is None:
            return None, *d_lefts
        if bias is None:
            return d_products, *d_lefts
        return (2 * (d_products @ base.to(narrow))).to(base.dtype), *d_lefts


def _weigh(
    products: Tensor, weights: Tensor, pairs: list[Tensor], kinds: Sequence[tuple[str, int]]
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """The sums of w L Kᵖ, w L Kᵖ⁻¹ of each, and w K."""
    weighted = weights * products
    slopes = [
        (weighted if power == 2 else weights) * own
        for own, (_, power) in zip(pairs, kinds, strict=True)
    ]
    sums = [torch.dot(slope.view(-1), products.reshape(-1)) for slope in slopes]
    return sums, slopes, weighted


def is_large(total: _Number, own: _Number, samples: int) -> _Number | bool:
    """Whether a sum over pairs is large beside its terms, so that their rounding errors are small.

    The errors of n² terms of a size are independent: their sum is of the order of the error of what
    the n pairs of one sample with itself add, `own`. The factor √n is for caution.

    Returns:
        Whether it is, as a number or a tensor, as they are given.
    """
    return total * _SUFFICIENT > math.sqrt(samples) * own


def _any_cancels(sums: list[Tensor], slopes: list[Tensor], products: Tensor) -> bool:
    """Whether a sum over pairs is far smaller than its terms."""
    own = products.diagonal()
    return not all(
        is_large(float(total), abs(float(slope.diagonal().dot(own))), len(products))
        for total, slope in zip(sums, slopes, strict=True)
    )


def _left_slope(kind: str, left: Tensor, weights: Tensor) -> Tensor:
    """The slope in what a term is made of, given the symmetric one in its inner products."""
    if kind == "gram":
        return weights.to(left.dtype)
    return (weights @ left.to(weights.dtype)).to(left.dtype).mul_(2)


def pair_sums(
    weights: Float[Tensor, "n n"],  # w, constants and symmetric
    terms: Sequence[PairTerm],
    *,
    features: Float[Tensor, "n d"] | None = None,  # what K are the inner products of
    bias: bool = False,  # of [z, 1] instead of z
    products: Float[Tensor, "n n"] | None = None,  # K itself, symmetric, where it is there already
) -> tuple[Float[Tensor, ""], ...]:
    """Sums over all pairs of samples of $w_{nm} L_{nm} K_{nm}^p$.

    Returns:
        The sums, one for each term.

    Example:
        >>> ones = torch.ones(2, 2, dtype=torch.float64)
        >>> z = torch.tensor([[1.0], [2.0]])
        >>> pair_sums(ones, [PairTerm(ones, "gram", 1), PairTerm(ones, "gram", 2)], features=z)
        (tensor(9., dtype=torch.float64), tensor(25., dtype=torch.float64))
    """
    base = features if products is None else products
    spec = tuple((term.kind, term.power) for term in terms), bias if products is None else None
    sums: tuple[Tensor, ...] = call(_PairSums, base, *(term.left for term in terms), weights, spec)
    return sums
