r"""Means over domains: of outer products of rows, and of second moments of features.

Domains are compared by subtracting such products, and near alignment the difference is far
smaller than the terms. Means are therefore float64 throughout, with one exception: second moments
over many samples, whose cost matters next to a network's own, are multiplied chunk by chunk in the
features' precision, where the rounding errors of single samples average out, and accumulated in
float64. With float32 features a dispersion of 1e-8 of the squared norm is then still right to 1e-3.

Indices: e domain, n and m sample, l left component, d right component (feature).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from hessalign._shapes import Float

CHUNK_ELEMENTS = 1 << 19
"""Elements of the intermediate product of one chunk of samples: about the L2 cache in float32."""


FEW_SAMPLES = 8192
"""Second moments of domains up to this size are float64 outright."""


def accumulation_dtype(device: torch.device) -> torch.dtype:
    """The precision in which sums over samples are kept.

    Args:
        device: Where the tensors live.

    Returns:
        float64, or float32 on devices that have no float64 (Apple's MPS).
    """
    return torch.float32 if device.type == "mps" else torch.float64


def chunk_rows(width: int, at_least: int = 32) -> int:
    """How many rows (samples, mostly) to multiply at once.

    Args:
        width: Elements the product holds per row.
        at_least: The fewest rows worth a product of their own.

    Returns:
        A number of rows up to 1024.
    """
    return max(at_least, min(1024, CHUNK_ELEMENTS // max(1, width)))


def _domain_batches(sizes: tuple[int, ...], *rows: Tensor) -> Iterator[tuple[slice, list[Tensor]]]:
    """The rows as [e, n, ·]: all domains at once if they have the same size, else one by one."""
    if len(set(sizes)) == 1:
        yield slice(None), [x.reshape(len(sizes), sizes[0], x.shape[1]) for x in rows]
        return
    for index, parts in enumerate(zip(*(x.split(sizes) for x in rows), strict=True)):
        yield slice(index, index + 1), [part.unsqueeze(0) for part in parts]


def _joined(parts: list[Tensor]) -> Float[Tensor, "n k"]:
    """The rows of all batches."""
    return parts[0].flatten(0, 1) if len(parts) == 1 else torch.cat(parts, dim=1)[0]


class _MeanOptions(NamedTuple):
    """The grouping, whether a 1 is appended to the right rows, and whether they are squared."""

    sizes: tuple[int, ...]
    bias: bool
    squared: bool


def _form_means(left: Tensor, right: Tensor, options: _MeanOptions) -> Tensor:
    """The means [e, l, d + bias] in float64, without a graph."""
    sizes, bias, squared = options
    width = right.shape[1]
    means = left.new_zeros((len(sizes), left.shape[1], width + bias))
    for domains, (a, b) in _domain_batches(sizes, left, right):
        shares = a / a.shape[1]
        total = means[domains, :, :width]
        rows = chunk_rows(len(b) * width)
        for share, x in zip(shares.split(rows, 1), b.split(rows, 1), strict=True):
            wide = x.to(left.dtype)
            total.baddbmm_(share.mT, wide.square() if squared else wide)
        if bias:
            means[domains, :, width] = shares.sum(1)
    return means


def _pull_back(
    grad: Tensor, left: Tensor, right: Tensor, options: _MeanOptions
) -> tuple[Tensor, Tensor]:
    """Slopes in left and right rows, given those in the means."""
    # In the features' own precision: what flows back is already the small difference between
    # domains, so nothing cancels here.
    sizes, bias, squared = options
    slopes = grad[..., : right.shape[1]].to(right.dtype)
    d_left, d_right = [], []
    for domains, (a, b) in _domain_batches(sizes, left, right):
        slope, size = slopes[domains], a.shape[1]
        pulled = torch.bmm(slope, (b.square() if squared else b).mT).mT.to(left.dtype)
        d_left.append((pulled + grad[domains, None, :, -1] if bias else pulled) / size)
        pulled = torch.bmm((a * ((2 if squared else 1) / size)).to(right.dtype), slope)
        d_right.append(pulled.mul_(b) if squared else pulled)
    return _joined(d_left), _joined(d_right)


class _MeanOuter(Function):
    """Means of left_n ⊗ right_n."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's context has no public type
        left: Float[Tensor, "n l"],
        right: Float[Tensor, "n d"],
        options: _MeanOptions,
    ) -> Float[Tensor, "e l d_bias"]:
        ctx.save_for_backward(left, right)
        ctx.options = options
        return _form_means(left, right, options)

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        *grad_outputs: Tensor,
    ) -> tuple[Tensor, Tensor, None]:
        left, right = ctx.saved_tensors
        return *_pull_back(grad_outputs[0], left, right, ctx.options), None


_mean_outer: Callable[[Tensor, Tensor, _MeanOptions], Tensor] = _MeanOuter.apply


class _MeanOuterGram(Function):
    """Inner products between the domains' means, M Mᵀ; the symmetry saves a product backward."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        left: Float[Tensor, "n l"],
        right: Float[Tensor, "n d"],
        options: _MeanOptions,
    ) -> Float[Tensor, "e e"]:
        means = _form_means(left, right, options)
        ctx.save_for_backward(left, right, means)
        ctx.options = options
        return means.flatten(1) @ means.flatten(1).T

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        *grad_outputs: Tensor,
    ) -> tuple[Tensor, Tensor, None]:
        left, right, means = ctx.saved_tensors
        if torch.is_grad_enabled():  # a graph of the gradient is wanted
            means = _mean_outer(left, right, ctx.options)
        (grad,) = grad_outputs
        slope = ((grad + grad.T) @ means.flatten(1)).view(means.shape)
        return *_pull_back(slope, left, right, ctx.options), None


_mean_outer_gram: Callable[[Tensor, Tensor, _MeanOptions], Tensor] = _MeanOuterGram.apply


def mean_outer(
    left: Float[Tensor, "n l"],
    right: Float[Tensor, "n d"],
    sizes: tuple[int, ...],
    *,
    bias: bool = False,
    squared: bool = False,
) -> Float[Tensor, "e l d_bias"]:
    r"""Mean over each domain of the outer product of two rows.

    $$M_e = \frac1{n_e} \sum_{n \in e} \text{left}_n \otimes \text{right}_n$$

    Args:
        left: One row per sample, domains contiguous.
        right: One row per sample.
        sizes: Samples per domain.
        bias: Append a 1 to the right rows.
        squared: Take the squares of the right rows.

    Returns:
        The means, in the accumulation precision.

    Example:
        >>> right = torch.tensor([[1.0], [3.0], [5.0]])
        >>> mean_outer(torch.ones(3, 1), right, (2, 1), bias=True).squeeze()
        tensor([[2., 1.],
                [5., 1.]], dtype=torch.float64)
    """
    options = _MeanOptions(sizes, bias, squared)
    return _mean_outer(left.to(accumulation_dtype(right.device)), right, options)


def mean_outer_gram(
    left: Float[Tensor, "n l"],
    right: Float[Tensor, "n d"],
    sizes: tuple[int, ...],
    *,
    bias: bool = False,
    squared: bool = False,
) -> Float[Tensor, "e e"]:
    r"""Inner products $\langle M_e, M_f\rangle$ between the means of `mean_outer`.

    Args:
        left: One row per sample, domains contiguous.
        right: One row per sample.
        sizes: Samples per domain.
        bias: Append a 1 to the right rows.
        squared: Take the squares of the right rows.

    Returns:
        The Gram matrix of the means.

    Example:
        >>> right = torch.tensor([[1.0], [3.0], [5.0]])
        >>> mean_outer_gram(torch.ones(3, 1), right, (2, 1))
        tensor([[ 4., 10.],
                [10., 25.]], dtype=torch.float64)
    """
    options = _MeanOptions(sizes, bias, squared)
    return _mean_outer_gram(left.to(accumulation_dtype(right.device)), right, options)


class _DomainProducts(Function):
    """Each domain's rows times a matrix of its own, without a graph of splits and their joins."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        z: Float[Tensor, "n d"],
        matrices: Float[Tensor, "e k d"],
        sizes: tuple[int, ...],
    ) -> Float[Tensor, "n k"]:
        ctx.save_for_backward(z, matrices)
        ctx.sizes = sizes
        parts = zip(z.split(sizes), matrices, strict=True)
        return torch.cat([part @ matrix.T for part, matrix in parts])

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        *grad_outputs: Tensor,
    ) -> tuple[Tensor, Tensor, None]:
        z, matrices = ctx.saved_tensors
        slopes = grad_outputs[0].split(ctx.sizes)
        d_matrices = [
            slope.T @ part for slope, part in zip(slopes, z.split(ctx.sizes), strict=True)
        ]
        d_z = [slope @ matrix for slope, matrix in zip(slopes, matrices, strict=True)]
        return torch.cat(d_z), torch.stack(d_matrices), None


_domain_products: Callable[[Tensor, Tensor, tuple[int, ...]], Tensor] = _DomainProducts.apply


def domain_products(
    z: Float[Tensor, "n d"], matrices: Float[Tensor, "e k d"], sizes: tuple[int, ...]
) -> Float[Tensor, "n k"]:
    """The rows of each domain times a matrix of its own, $M_e z_n$ for n in e.

    Args:
        z: Rows, domains contiguous.
        matrices: One matrix per domain.
        sizes: Samples per domain.

    Returns:
        The products, in the precision of the rows.

    Example:
        >>> matrices = torch.tensor([[[1.0]], [[2.0]]])
        >>> domain_products(torch.ones(3, 1), matrices, (2, 1)).flatten()
        tensor([1., 1., 2.])
    """
    return _domain_products(z, matrices.to(z.dtype), sizes)


class _SecondMoments(Function):
    """Sums of s_n z_n z_nᵀ; the symmetry in z makes backward one product instead of two."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        weights: Float[Tensor, "n l"],
        z: Float[Tensor, "n d"],
    ) -> Float[Tensor, "l d d"]:
        ctx.save_for_backward(weights, z)
        (components, width), dtype = (weights.shape[1], z.shape[1]), accumulation_dtype(z.device)
        total = z.new_zeros((components * width, width), dtype=dtype)
        # Short chunks: the fewer float32 products are added before they reach float64, the better.
        rows = min(256, chunk_rows(components * width))
        multiplied = dtype if len(z) <= FEW_SAMPLES else z.dtype
        for s, x in zip(weights.split(rows), z.split(rows), strict=True):
            wide = x.to(multiplied)
            weighted = (s.to(multiplied).unsqueeze(2) * wide.unsqueeze(1)).flatten(1)
            total += weighted.T @ wide
        return total.view(components, width, width)

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        *grad_outputs: Tensor,
    ) -> tuple[Tensor, Tensor]:
        weights, z = ctx.saved_tensors
        (grad,) = grad_outputs
        symmetric = (grad + grad.mT).to(z.dtype)
        d_weights, d_z = torch.empty_like(weights), torch.empty_like(z)
        rows = chunk_rows(weights.shape[1] * z.shape[1])
        flat = symmetric.permute(1, 0, 2).flatten(1)
        narrow = weights.to(z.dtype)
        for start in range(0, len(z), rows):
            block = slice(start, start + rows)
            x, s = z[block], narrow[block].unsqueeze(2)
            product = (x @ flat).unflatten(1, symmetric.shape[:2])
            d_weights[block] = torch.linalg.vecdot(product, x.unsqueeze(1)) / 2
            d_z[block] = (product * s).sum(1)
        return d_weights, d_z


_second_moments: Callable[[Tensor, Tensor], Tensor] = _SecondMoments.apply


def mean_second_moments(
    weights: Float[Tensor, "n l"], z: Float[Tensor, "n d"], sizes: tuple[int, ...]
) -> Float[Tensor, "e l d d"]:
    r"""Weighted second moments of the features of each domain.

    $$M_{el} = \frac1{n_e} \sum_{n \in e} s_{nl}\, z_n z_n^\top$$

    Args:
        weights: The weights s, one row per sample, domains contiguous.
        z: Features.
        sizes: Samples per domain.

    Returns:
        The moments, in the accumulation precision.

    Example:
        >>> z = torch.tensor([[1.0, 2.0]])
        >>> mean_second_moments(torch.tensor([[3.0]]), z, (1,)).squeeze()
        tensor([[ 3.,  6.],
                [ 6., 12.]], dtype=torch.float64)
    """
    parts = zip(weights.split(sizes), z.split(sizes), sizes, strict=True)
    return torch.stack([_second_moments(s, x) / size for s, x, size in parts])
