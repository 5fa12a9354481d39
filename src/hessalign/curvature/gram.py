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

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, final

import torch
from torch import Tensor

from hessalign._shapes import Float
from hessalign.curvature.domains import accumulation_dtype
from hessalign.curvature.fused import Context, Fused, call, is_traced, pulled_back

_FEW_CLASSES = 12
"""Up to this many classes the curvatures of single samples are written out."""

_CANCELLATION = 256
"""Sums that are smaller than their terms by more than this have float64 slopes."""

_MANY_FEATURES = 256
"""Rows from this length on are multiplied by slopes in their own precision."""


def _slope_precision(z: Tensor) -> torch.dtype:
    """What slopes are multiplied in, unless one sees sums cancel: float64 for few features."""
    wide = torch.promote_types(z.dtype, accumulation_dtype(z.device))
    return wide if z.shape[1] < _MANY_FEATURES else z.dtype


def _may_look(z: Tensor) -> bool:
    """Whether a look at values costs nothing."""
    return z.device.type == "cpu" and not is_traced(z)


@final
class _Gram(Fused):
    """z zᵀ + b as float64; the symmetry makes backward one product instead of two."""

    @staticmethod
    def plain(z: Float[Tensor, "n d"], bias: bool) -> Float[Tensor, "n n"]:
        wide = z.to(accumulation_dtype(z.device))
        return wide @ wide.mT + 1 if bias else wide @ wide.mT

    @staticmethod
    def forward(ctx: Context, z: Float[Tensor, "n d"], bias: bool) -> Float[Tensor, "n n"]:
        wide = accumulation_dtype(z.device)
        products = _products(z, bias, wide, wide)
        ctx.save_for_backward(z, products)
        ctx.others = (bias,)
        return products

    @staticmethod
    def backward(ctx: Context, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        return pulled_back(_Gram, ctx, slopes)

    @staticmethod
    def pull_back(ctx: Context, *slopes: Tensor) -> tuple[Tensor]:
        z, products = ctx.saved_tensors
        weights = slopes[0] + slopes[0].mT

        precision = _slope_precision(z)
        if precision != weights.dtype and _may_look(z):
            # The Gram matrix knows the size of the sums w z before they are formed.
            sums = ((weights @ products) * weights).sum()
            terms = (weights.abs() @ products.diagonal().sqrt()).square().sum()
            if not bool(terms <= _CANCELLATION**2 * sums):
                precision = weights.dtype
        return ((weights.to(precision) @ z.to(precision)).to(z.dtype),)


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


def softmax_inner(probs: Float[Tensor, "n c"], block: slice) -> Float[Tensor, "b n"]:
    r"""Inner products of softmax curvatures S = diag(p) − p pᵀ, of a block of samples with all.

    ⟨S, S'⟩ = h·h' + (p·q)² − p²·q² with h = p(1 − p). Where predictions are confident the last two
    are differences of numbers near 1. With p' = p without its largest entry p_t they are
    A (2 p·q − A) − p'²·q², A = p'·q, in which all is small where the result is; and
    h_t = p_t Σ p' likewise.

    Returns:
        The inner products.
    """
    top = probs.argmax(1, keepdim=True)
    lead, rest = probs.gather(1, top), probs.scatter(1, top, 0)
    squares = probs * probs
    diagonal = (probs - squares).scatter(1, top, lead * rest.sum(1, keepdim=True))
    others = rest[block] @ probs.mT
    pairs = others * (2 * (probs[block] @ probs.mT) - others)
    own = (rest * rest)[block]
    return diagonal[block] @ diagonal.mT + (pairs - own @ squares.mT)


def _softmax_forward(probs: Float[Tensor, "n c"]) -> tuple[Float[Tensor, "n n"], list[Tensor]]:
    """Inner products of the curvatures of all pairs, and what `_softmax_slope` needs."""
    if probs.shape[1] <= _FEW_CLASSES:
        # The matrices themselves: off the diagonal −p pᵀ, and on it what makes rows sum to 0.
        matrices = probs.unsqueeze(2) * probs.unsqueeze(1)
        diagonal = matrices.diagonal(dim1=1, dim2=2).zero_()
        diagonal.sub_(matrices.sum(2))
        flat = matrices.flatten(1)
        return flat @ flat.mT, [matrices]
    lead, top = probs.max(1, keepdim=True)
    rest = probs.scatter(1, top, 0)
    tail = rest.sum(1, keepdim=True)
    squares = probs.square()
    diagonal = (probs - squares).scatter_(1, top, lead * tail)
    picked = probs.mT.index_select(0, top.squeeze(1))  # q_t of each pair
    others = rest @ probs.mT
    products = torch.addcmul(others, lead, picked)
    result = diagonal @ diagonal.mT
    result.addmm_(squares.scatter(1, top, 0), squares.mT, alpha=-1)
    result.addcmul_(others, products, value=2).addcmul_(others, others, value=-1)
    return result, [top, lead, rest, tail, squares, diagonal, picked, others, products]


def _softmax_slope(
    probs: Float[Tensor, "n c"], saved: list[Tensor], weights: Float[Tensor, "n n"]
) -> Float[Tensor, "n c"]:
    """The slope in probabilities, given that in the inner products plus its mirror image."""
    if probs.shape[1] <= _FEW_CLASSES:
        matrices = saved[0].to(weights.dtype)
        slope = (weights @ matrices.flatten(1)).view(matrices.shape)
        slope = slope - slope.diagonal(dim1=1, dim2=2).unsqueeze(2)  # 0 on the diagonal
        return ((slope + slope.mT) @ probs.to(weights.dtype).unsqueeze(2)).squeeze(2)
    # The matrix is symmetric, so the slope in a sample's p is that in the first of the two
    # arguments.
    top, *wide = saved
    probs = probs.to(weights.dtype)
    lead, rest, tail, squares, diagonal, picked, others, products = (
        x.to(weights.dtype) for x in wide
    )
    # 2 (p·q) q − 2 p' q² but for the largest entry, for that one 2 A q_t.
    d_probs = ((weights * products) @ probs).addcmul_(rest, weights @ squares, value=-1)
    at_top = ((weights * others) * picked).sum(1, keepdim=True)
    d_probs = d_probs.scatter_(1, top, at_top).mul_(2)
    # h = p (1 − p), and h_t = p_t Σ p'.
    d_diagonal = weights @ diagonal
    at_top = d_diagonal.gather(1, top)
    d_others = torch.addcmul(d_diagonal, d_diagonal, probs, value=-2).addcmul_(at_top, lead)
    return d_probs.add_(d_others.scatter_(1, top, at_top * tail))


@final
class _SoftmaxGram(Fused):
    """The inner products of `softmax_inner` for all pairs."""

    @staticmethod
    def plain(probs: Float[Tensor, "n c"]) -> Float[Tensor, "n n"]:
        return softmax_inner(probs, slice(None))

    @staticmethod
    def forward(ctx: Context, probs: Float[Tensor, "n c"]) -> Float[Tensor, "n n"]:
        result, saved = _softmax_forward(probs)
        ctx.save_for_backward(probs, *saved)
        ctx.others = ()
        return result

    @staticmethod
    def backward(ctx: Context, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        return pulled_back(_SoftmaxGram, ctx, slopes)

    @staticmethod
    def pull_back(ctx: Context, *slopes: Tensor) -> tuple[Tensor]:
        probs, *saved = ctx.saved_tensors
        return (_softmax_slope(probs, saved, slopes[0] + slopes[0].mT),)


def softmax_gram(probs: Float[Tensor, "n c"]) -> Float[Tensor, "n n"]:
    """Inner products between the softmax curvatures of all pairs of samples; see `softmax_inner`.

    Returns:
        The inner products.
    """
    products: Tensor = call(_SoftmaxGram, probs)
    return products


class PairTerm(NamedTuple):
    """One of the sums over pairs of w L Kᵖ.

    Attributes:
        left: What L is made of: rows, probabilities, or L itself.
        kind: "rows" for the rows' inner products, "softmax" for those of curvatures, "gram" for L.
        power: p, 1 or 2.
    """

    left: Tensor
    kind: Literal["rows", "softmax", "gram"]
    power: Literal[1, 2]


@final
class _PairSums(Fused):
    """Sums over pairs of w L Kᵖ, several at once: one node instead of many small ones.

    The last argument has kind and power of each term, and whether the features have a bias; None if
    inner products are given instead of features.
    """

    @staticmethod
    def plain(base: Tensor, *rest: Any) -> tuple[Float[Tensor, ""], ...]:  # noqa: ANN401
        *lefts, weights, (kinds, bias) = rest
        products = base if bias is None else _Gram.plain(base, bias)
        total = []
        for left, (kind, power) in zip(lefts, kinds, strict=True):
            pairs = left
            if kind == "softmax":
                pairs = softmax_inner(left, slice(None))
            elif kind == "rows":
                pairs = _Gram.plain(left, False)
            total.append((weights * pairs * products**power).sum())
        return tuple(total)

    @staticmethod
    def forward(ctx: Context, base: Tensor, *rest: Any) -> tuple[Tensor, ...]:  # noqa: ANN401
        *lefts, weights, (kinds, bias) = rest
        pairs, saved = [], []
        for left, (kind, _) in zip(lefts, kinds, strict=True):
            more: list[Tensor] = []
            if kind == "softmax":
                own, more = _softmax_forward(left)
            else:
                own = left @ left.mT if kind == "rows" else left
            pairs.append(own)
            saved.append(more)
        # What flows back is small already, and needs no more precision than the features have.
        # So do the products, where a look shows that nothing cancels.
        narrow, products = weights.dtype, base
        if bias is not None:
            narrow = _slope_precision(base)
            looks = narrow != weights.dtype and _may_look(base)
            products = _products(base, bias, narrow if looks else weights.dtype, weights.dtype)
        sums, slopes, weighted = _weigh(products, weights, pairs, kinds)
        if bias is not None and looks and _any_cancels(sums, slopes, products):
            narrow = weights.dtype
            products = _products(base, bias, narrow, narrow)
            sums, slopes, weighted = _weigh(products, weights, pairs, kinds)
        kept = [x.to(narrow) for x in (products, weighted, *slopes)]
        ctx.save_for_backward(base, *lefts, *kept, *(x for more in saved for x in more))
        ctx.others = (weights, (kinds, bias))
        ctx.counts = [len(more) for more in saved]
        return tuple(sums)

    @staticmethod
    def backward(ctx: Context, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        return pulled_back(_PairSums, ctx, slopes)

    @staticmethod
    def pull_back(ctx: Context, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        _, (kinds, bias) = ctx.others
        count, saved = len(kinds), list(ctx.saved_tensors)
        base, lefts, (products, weighted) = saved[0], saved[1 : 1 + count], saved[1 + count :][:2]
        parts, more = saved[3 + count : 3 + 2 * count], iter(saved[3 + 2 * count :])
        narrow = products.dtype
        slopes = tuple(slope.to(narrow) for slope in slopes)
        d_lefts: list[Tensor | None] = []
        d_products: Tensor | None = None
        for index, (kind, power) in enumerate(kinds):
            own = [next(more) for _ in range(ctx.counts[index])]
            if ctx.needs_input_grad[1 + index]:
                pairs = weighted * products if power == 2 else weighted
                d_lefts.append(_left_slope(kind, lefts[index], own, pairs * slopes[index]))
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


def _products(z: Tensor, bias: bool, multiplied: torch.dtype, dtype: torch.dtype) -> Tensor:
    """Inner products of features, multiplied in one precision and given in another."""
    wide = z.to(multiplied)
    products = (wide @ wide.mT).to(dtype)
    return products.add_(1) if bias else products


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


def _any_cancels(sums: list[Tensor], slopes: list[Tensor], products: Tensor) -> bool:
    """Whether a sum over pairs is far smaller than what pairs of one sample with itself add."""
    own = products.diagonal()
    return any(
        not float(total) * _CANCELLATION > len(products) * abs(float(slope.diagonal().dot(own)))
        for total, slope in zip(sums, slopes, strict=True)
    )


def _left_slope(kind: str, left: Tensor, saved: list[Tensor], weights: Tensor) -> Tensor:
    """The slope in what a term is made of, given the symmetric one in its inner products."""
    if kind == "gram":
        return weights.to(left.dtype)
    if kind == "softmax":
        return _softmax_slope(left, saved, weights.mul_(2)).to(left.dtype)
    return (weights @ left.to(weights.dtype)).to(left.dtype).mul_(2)


def pair_sums(
    weights: Float[Tensor, "n n"],
    terms: Sequence[PairTerm],
    *,
    features: Float[Tensor, "n d"] | None = None,
    bias: bool = False,
    products: Float[Tensor, "n n"] | None = None,
) -> tuple[Float[Tensor, ""], ...]:
    """Sums over all pairs of samples of $w_{nm} L_{nm} K_{nm}^p$.

    Args:
        weights: Weights w, constants and symmetric.
        terms: What is summed.
        features: What K are the inner products of.
        bias: Of [z, 1] instead of z.
        products: K itself, symmetric, where it is there already.

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
