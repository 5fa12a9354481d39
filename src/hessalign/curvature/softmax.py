r"""Inner products of softmax curvatures, and dispersions that are sums over pairs of samples.

Indices: n and m sample, d feature, c class.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, final

import torch
from torch import Tensor
from torch.nn import functional

from hessalign._shapes import Float, Int
from hessalign.curvature.domains import Weights
from hessalign.curvature.fused import Context, Fused, call
from hessalign.curvature.gram import (
    gram_plain,
    is_large,
    may_look,
    multiply,
    slope_precision,
)

_FEW_CLASSES = 12
"""Up to this many classes the curvatures of single samples are written out."""

_SMALL_ERROR = 1e-6
"""Errors p − y with a mean square below this are differences of numbers near 1."""


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
    def pull_back(ctx: Context, *slopes: Tensor) -> tuple[Tensor]:
        probs, *saved = ctx.saved_tensors
        return (_softmax_slope(probs, saved, slopes[0] + slopes[0].mT),)


def softmax_gram(probs: Float[Tensor, "n c"]) -> Float[Tensor, "n n"]:
    """Inner products between softmax curvatures of all pairs of samples; see `softmax_inner`."""
    products: Tensor = call(_SoftmaxGram, probs)
    return products


Compared = Literal["full", "product"]
"""What is compared beside gradients: Hessians, or their products with the gradients."""


class _Sums(NamedTuple):
    """Sums over pairs of samples, and what their slopes are made of."""

    # Σ w ⟨S, S'⟩ K², or Σ w (u·u') K with u = S G z̃, if asked for; then Σ w (r·r') K.
    values: list[Tensor]
    small: list[Tensor]  # w, p, r, and what inner products of curvatures are made of
    large: list[Tensor]  # what the features enter: K, w K r, and what the first sum needs


@final
class _SoftmaxSums(Fused):
    """Dispersions of a softmax head from features and logits: one node instead of dozens.

    The further arguments are class indices, the weights of pairs, those of means over a sample's
    own domain (for "product"), both in float32 if they are there already, what is compared beside
    gradients, and whether there is a bias.
    """

    @staticmethod
    def plain(z: Tensor, logits: Tensor, *rest: Any) -> tuple[Tensor, ...]:  # noqa: ANN401
        y, dispersing, within, _, compared, bias = rest
        dtype = dispersing.dtype
        products = gram_plain(z, bias)
        probs = logits.to(dtype).softmax(1)
        error = probs - functional.one_hot(y, probs.shape[1]).to(dtype)
        sums = [(dispersing * (error @ error.mT) * products).sum()]
        if compared == "full":
            curvature = softmax_inner(probs, slice(None))
            sums.insert(0, (dispersing * curvature * products.square()).sum())
        if compared == "product":
            vectors = (within * products) @ error
            below = vectors - vectors.gather(1, probs.argmax(1, keepdim=True))
            bent = probs * (below - (probs * below).sum(1, keepdim=True))
            sums.insert(0, (dispersing * (bent @ bent.mT) * products).sum())
        return tuple(sums)

    @staticmethod
    def forward(ctx: Context, z: Tensor, logits: Tensor, *rest: Any) -> tuple[Tensor, ...]:  # noqa: ANN401
        dispersing, compared = rest[1], rest[4]
        wide = dispersing.dtype
        narrow = slope_precision(torch.promote_types(z.dtype, logits.dtype), z)
        make = partial(_sums, z, logits, *rest)
        branches = torch.compiler.is_compiling() and z.device.type == "cpu"
        if narrow == wide or not (branches or may_look(z)):
            found = make(dtype=wide)
        elif branches:
            found = _sums_in_graph(make, dispersing, compared, narrow)
        else:
            found = make(dtype=narrow)
            if not _suffices(found, compared, float):
                narrow = wide
                found = make(dtype=wide)
        kept = [*found.small, *found.large]
        if any(x.dtype != narrow for x in kept):
            kept = [x.to(narrow) if x.is_floating_point() else x for x in kept]
        ctx.save_for_backward(z, logits, *kept)
        ctx.small = len(found.small)
        ctx.others = rest
        return tuple(value.to(wide) for value in found.values)

    @staticmethod
    def pull_back(ctx: Context, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        z, logits, *kept = ctx.saved_tensors
        (w, p, r, *saved), (k, v, *more) = kept[: ctx.small], kept[ctx.small :]
        compared = ctx.others[4]
        *first, last = (2 * slope.to(p.dtype) for slope in slopes)
        d_probs, pairs = v * last, (r * last) @ r.mT  # so far of r
        if compared == "full":
            (slope,) = more
            d_probs += _softmax_slope(p, saved, w * k * k * first[0])
            pairs = torch.addcmul(slope * (2 * first[0]), pairs, w)
        elif compared == "product":
            near, below, bent, q = more
            # Slopes in p count up to a number for each sample, which the slope of softmax drops.
            d_bent = q * first[0]
            d_bent -= (p * d_bent).sum(1, keepdim=True)
            d_vectors = p * d_bent
            d_probs.addmm_(near, d_vectors).addcmul_(d_bent, below)
            own = saved[0] * (d_vectors @ r.mT)
            pairs.addmm_(bent * first[0], bent.mT).mul_(w).add_(own).add_(own.mT)
        else:
            pairs *= w
        d_logits = torch.ops.aten._softmax_backward_data(d_probs, p, 1, p.dtype)
        return (pairs @ z.to(p.dtype)).to(z.dtype), d_logits.to(logits.dtype)


def _sums(
    z: Float[Tensor, "n d"],
    logits: Float[Tensor, "n c"],
    y: Int[Tensor, " n"],
    dispersing: Float[Tensor, "n n"],
    within: Float[Tensor, "n n"] | None,
    narrow: tuple[Tensor, Tensor] | None,
    compared: Compared | None,
    bias: bool,
    *,
    dtype: torch.dtype,
) -> _Sums:
    """The sums in one precision."""
    if narrow is not None and dtype == torch.float32:
        dispersing, within = narrow
    w, k, p = dispersing.to(dtype), multiply(z, bias, dtype), logits.softmax(1, dtype=dtype)
    r = p.scatter(1, y.unsqueeze(1), -1, reduce="add")
    wk = w * k
    v = wk @ r
    values = [_dot(v, r)]
    if compared == "full":
        curvature, saved = _softmax_forward(p)
        slope = wk * curvature
        return _Sums([_dot(slope, k), *values], [w, p, r, *saved], [k, v, slope])
    if compared == "product" and within is not None:
        own = within.to(dtype)
        near = own * k
        vectors = near @ r
        # S a = S (a − a_t), t the most probable class: small terms where predictions are confident.
        below = vectors - vectors.gather(1, p.argmax(1, keepdim=True))
        below = below - (p * below).sum(1, keepdim=True)
        bent = p * below
        q = wk @ bent
        return _Sums([_dot(q, bent), *values], [w, p, r, own], [k, v, near, below, bent, q])
    return _Sums(values, [w, p, r], [k, v])


def _sums_in_graph(
    make: Callable[..., _Sums], dispersing: Tensor, compared: Compared | None, narrow: torch.dtype
) -> _Sums:
    """The sums in the precision that suffices, by a branch of the graph."""
    rough, wide = make(dtype=narrow), dispersing.dtype

    def again() -> tuple[Tensor, ...]:
        fine = make(dtype=wide)
        return *fine.values, *(x.to(narrow) for x in fine.large)

    def keep() -> tuple[Tensor, ...]:
        return *(x.to(wide) for x in rough.values), *(x.clone() for x in rough.large)

    found = torch.cond(_suffices(rough, compared, torch.Tensor.double), keep, again)
    count = len(rough.values)
    return _Sums(list(found[:count]), rough.small, list(found[count:]))


def _suffices(
    found: _Sums,
    compared: Compared | None,
    number: Callable[[Tensor], Any],
) -> Any:  # noqa: ANN401
    """Whether no sum is so small beside its terms that rounding errors matter."""
    (w, _, r, *_), (k, _, *more) = found.small, found.large
    squares = r.square().sum(1)
    # Beside each sum, what pairs of one sample with itself add to it.
    own = w.diagonal() * k.diagonal()
    enough: Any = number(squares.sum()) > _SMALL_ERROR * len(r)
    enough = enough & is_large(number(found.values[-1]), number(own.dot(squares)), len(r))
    if compared is not None:
        part = (
            own.dot(more[2].square().sum(1))
            if compared == "product"
            else more[0].diagonal().dot(k.diagonal())
        )
        enough = enough & is_large(number(found.values[0]), number(part), len(r))
    return enough


def _dot(a: Tensor, b: Tensor) -> Float[Tensor, ""]:
    """The sum of products of all elements."""
    return torch.dot(a.view(-1), b.view(-1))


def softmax_sums(
    z: Float[Tensor, "n d"],
    logits: Float[Tensor, "n c"],
    y: Int[Tensor, " n"],  # class indices
    weights: Weights,  # of pairs of samples, domains contiguous
    compared: Compared | None,  # "full" for the first sum, "product" for the second
    *,
    bias: bool,
) -> tuple[Float[Tensor, ""], ...]:
    r"""Dispersions over domains of the derivatives of softmax cross-entropy of a linear head.

    $$\sum_{nm} w_{nm} \langle S_n, S_m\rangle K_{nm}^2, \quad
    \sum_{nm} w_{nm}\, u_n \cdot u_m\, K_{nm}, \quad \sum_{nm} w_{nm}\, r_n \cdot r_m\, K_{nm}$$

    with K the inner products of the features, r = p − y, S = diag(p) − p pᵀ and u = S G_e z̃: of the
    Hessians, of their products with the gradients, of the gradients.

    Returns:
        The sum asked for, if any, and that of the gradients, in float64.
    """
    within = weights.within if compared == "product" else None
    narrow = weights.narrow if may_look(z) else None
    pairs = weights.dispersing, within, narrow
    sums: tuple[Tensor, ...] = call(_SoftmaxSums, z, logits, y.long(), *pairs, compared, bias)
    return sums
