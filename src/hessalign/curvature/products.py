r"""Means over domains: of outer products of rows, and of second moments of features.

Domains are compared by subtracting such products, and near alignment the difference is far
smaller than the terms. Means are therefore float64 throughout, with one exception: second moments
over many samples, whose cost matters next to a network's own, are multiplied chunk by chunk in the
features' precision, where the rounding errors of single samples average out, and accumulated in
float64. With float32 features a dispersion of 1e-8 of the squared norm is then still right to 1e-3.

Indices: e domain, n and m sample, l left component, d right component (feature).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn import functional

from hessalign._shapes import Float
from hessalign.curvature.domains import Domains, accumulation_dtype
from hessalign.curvature.fused import Context, Fused, call, is_traced, pulled_back

_CHUNK_ELEMENTS = 1 << 19
"""Elements of the intermediate product of one chunk of samples: about the L2 cache in float32."""


_FEW_SAMPLES = 8192
"""Second moments of domains up to this size are float64 outright."""


def chunk_rows(width: int, at_least: int = 32) -> int:
    """How many rows with so many elements to multiply at once, up to 1024."""
    return max(at_least, min(1024, _CHUNK_ELEMENTS // max(1, width)))


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


def _by_domain(domains: Domains, left: Tensor, right: Tensor) -> Float[Tensor, "e l d"]:
    """Means of left ⊗ right by domain, in operations that autograd knows."""
    shares = domains.weights.averaging.to(left.dtype)
    return torch.stack([(left * share.unsqueeze(1)).mT @ right for share in shares])


@final
@dataclass(frozen=True)
class _OuterMeans:
    """Means of left_n ⊗ right_n: how they are formed, and how slopes in them are pulled back.

    Attributes:
        domains: The grouping of the samples.
        bias: Whether a 1 is appended to the right rows.
        squared: Whether their squares are taken.
    """

    domains: Domains
    bias: bool
    squared: bool

    def plain(self, left: Tensor, right: Tensor) -> Tensor:
        """The means [e, l, d + bias], by autograd."""
        wide = right.to(left.dtype)
        wide = wide * wide if self.squared else wide
        return _by_domain(
            self.domains, left, functional.pad(wide, (0, 1), value=1.0) if self.bias else wide
        )

    def form(self, left: Tensor, right: Tensor) -> Tensor:
        """The means in float64, without a graph, chunk by chunk."""
        width, sizes = right.shape[1], self.domains.sizes
        means = left.new_zeros((len(sizes), left.shape[1], width + self.bias))
        for domains, (a, b) in _domain_batches(sizes, left, right):
            shares = a / a.shape[1]
            total = means[domains, :, :width]
            rows = chunk_rows(len(b) * width)
            for share, x in zip(shares.split(rows, 1), b.split(rows, 1), strict=True):
                wide = x.to(left.dtype)
                total.baddbmm_(share.mT, wide.square() if self.squared else wide)
            if self.bias:
                means[domains, :, width] = shares.sum(1)
        return means

    def pull_back(self, grad: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """Slopes in left and right rows, given those in the means."""
        # In the features' own precision: what flows back is already the small difference between
        # domains, so nothing cancels here.
        slopes = grad[..., : right.shape[1]].to(right.dtype)
        d_left, d_right = [], []
        for domains, (a, b) in _domain_batches(self.domains.sizes, left, right):
            slope, size = slopes[domains], a.shape[1]
            pulled = torch.bmm(slope, (b.square() if self.squared else b).mT).mT.to(left.dtype)
            d_left.append((pulled + grad[domains, None, :, -1] if self.bias else pulled) / size)
            pulled = torch.bmm((a * ((2 if self.squared else 1) / size)).to(right.dtype), slope)
            d_right.append(pulled.mul_(b) if self.squared else pulled)
        return _joined(d_left), _joined(d_right)


@final
@dataclass(frozen=True)
class _SecondMoments:
    """Means of s_n z_n z_nᵀ; the symmetry in z makes pulling back one product instead of two.

    Attributes:
        domains: The grouping of the samples.
    """

    domains: Domains

    def plain(self, weights: Tensor, z: Tensor) -> Tensor:
        """The moments [e, l, d, d], by autograd."""
        wide = z.to(weights.dtype)
        weighted = (weights.unsqueeze(2) * wide.unsqueeze(1)).flatten(1)
        means = _by_domain(self.domains, weighted, wide)
        return means.view(len(means), weights.shape[1], -1, wide.shape[1])

    def form(self, weights: Tensor, z: Tensor) -> Tensor:
        """The moments in float64, without a graph, chunk by chunk."""
        (components, width), dtype = (weights.shape[1], z.shape[1]), weights.dtype
        sizes = self.domains.sizes
        total = z.new_zeros((len(sizes), components * width, width), dtype=dtype)
        for domains, (shares, features) in _domain_batches(sizes, weights, z):
            count, size = shares.shape[:2]
            # Short chunks: the fewer float32 products are added before they reach float64, the
            # better.
            rows = min(256, chunk_rows(count * components * width))
            multiplied = dtype if size <= _FEW_SAMPLES else z.dtype
            part = total[domains]
            for s, x in zip(shares.split(rows, 1), features.split(rows, 1), strict=True):
                wide = x.to(multiplied)
                weighted = (s / size).to(multiplied).unsqueeze(3) * wide.unsqueeze(2)
                if multiplied == dtype:
                    part.baddbmm_(weighted.flatten(2).mT, wide)
                else:
                    part += weighted.flatten(2).mT @ wide
        return total.view(len(sizes), components, width, width)

    def pull_back(self, grad: Tensor, weights: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """Slopes in weights and features, given those in the moments."""
        symmetric = (grad + grad.mT).to(z.dtype)
        components, width = symmetric.shape[1:3]
        flat = symmetric.transpose(1, 2).flatten(2)
        d_weights, d_z = [], []
        for domains, (shares, features) in _domain_batches(self.domains.sizes, weights, z):
            count, size = shares.shape[:2]
            rows = chunk_rows(count * components * width)
            narrow = (shares / size).to(z.dtype)
            slopes: tuple[list[Tensor], list[Tensor]] = ([], [])
            for s, x in zip(narrow.split(rows, 1), features.split(rows, 1), strict=True):
                product = torch.bmm(x, flat[domains]).unflatten(2, (components, width))
                slopes[0].append(torch.linalg.vecdot(product, x.unsqueeze(2)))
                slopes[1].append((product * s.unsqueeze(3)).sum(2))
            d_weights.append(_whole(slopes[0]).to(weights.dtype) / (2 * size))
            d_z.append(_whole(slopes[1]))
        return _joined(d_weights), _joined(d_z)


def _whole(chunks: list[Tensor]) -> Float[Tensor, "e n k"]:
    """The rows of all chunks of samples."""
    return chunks[0] if len(chunks) == 1 else torch.cat(chunks, dim=1)


_Form = _OuterMeans | _SecondMoments


@final
class _Means(Fused):
    """Means over domains, never with all the samples' products at once."""

    @staticmethod
    def plain(left: Tensor, right: Tensor, form: _Form) -> Float[Tensor, "e l *d"]:
        return form.plain(left, right)

    @staticmethod
    def forward(ctx: Context, left: Tensor, right: Tensor, form: _Form) -> Float[Tensor, "e l *d"]:
        ctx.save_for_backward(left, right)
        ctx.others = (form,)
        return form.form(left, right)

    @staticmethod
    def backward(ctx: Context, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        return pulled_back(_Means, ctx, slopes)

    @staticmethod
    def pull_back(ctx: Context, *slopes: Tensor) -> tuple[Tensor, Tensor]:
        (form,) = ctx.others
        pulled: tuple[Tensor, Tensor] = form.pull_back(slopes[0], *ctx.saved_tensors)
        return pulled


def _means(left: Tensor, right: Tensor, form: _Form) -> Tensor:
    wide = left.to(accumulation_dtype(right.device))
    means: Tensor = form.plain(wide, right) if is_traced() else call(_Means, wide, right, form)
    return means


@final
class _MeansGram(Fused):
    """Inner products between the domains' means, M Mᵀ; the symmetry saves a product backward."""

    @staticmethod
    def plain(left: Tensor, right: Tensor, form: _Form, centred: bool) -> Float[Tensor, "e e"]:
        means = form.plain(left, right).flatten(1)
        means = means - means.mean(0) if centred else means
        return means @ means.mT

    @staticmethod
    def forward(
        ctx: Context, left: Tensor, right: Tensor, form: _Form, centred: bool
    ) -> Float[Tensor, "e e"]:
        means = form.form(left, right).flatten(1)
        if centred:
            means -= means.mean(0)
        ctx.save_for_backward(left, right, means)
        ctx.others = (form, centred)
        return means @ means.mT

    @staticmethod
    def backward(ctx: Context, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        return pulled_back(_MeansGram, ctx, slopes)

    @staticmethod
    def pull_back(ctx: Context, *slopes: Tensor) -> tuple[Tensor, Tensor]:
        left, right, means = ctx.saved_tensors
        form, centred = ctx.others
        weights = slopes[0] + slopes[0].mT
        if centred:
            weights = weights - weights.mean(0)
        slope = (weights @ means).unflatten(1, (left.shape[1], -1))
        if isinstance(form, _SecondMoments):
            slope = slope.unflatten(2, (right.shape[1], right.shape[1]))
        pulled: tuple[Tensor, Tensor] = form.pull_back(slope, left, right)
        return pulled


def _means_gram(left: Tensor, right: Tensor, form: _Form, centred: bool) -> Float[Tensor, "e e"]:
    wide = left.to(accumulation_dtype(right.device))
    chosen = _MeansGram.plain if is_traced() else _MeansGram.apply
    products: Tensor = chosen(wide, right, form, centred)
    return products


def mean_outer(
    left: Float[Tensor, "n l"],
    right: Float[Tensor, "n d"],
    domains: Domains,
    *,
    bias: bool = False,
    squared: bool = False,
) -> Float[Tensor, "e l d_bias"]:
    r"""Mean over each domain of the outer product of two rows.

    $$M_e = \frac1{n_e} \sum_{n \in e} \text{left}_n \otimes \text{right}_n$$

    Args:
        left: One row per sample, domains contiguous.
        right: One row per sample.
        domains: The grouping of the samples.
        bias: Append a 1 to the right rows.
        squared: Take the squares of the right rows.

    Returns:
        The means, in the accumulation precision.

    Example:
        >>> from hessalign.curvature.domains import domain_layout
        >>> right = torch.tensor([[1.0], [3.0], [5.0]])
        >>> mean_outer(torch.ones(3, 1), right, domain_layout((2, 1)), bias=True).squeeze()
        tensor([[2., 1.],
                [5., 1.]], dtype=torch.float64)
    """
    return _means(left, right, _OuterMeans(domains, bias, squared))


def mean_outer_gram(
    left: Float[Tensor, "n l"],
    right: Float[Tensor, "n d"],
    domains: Domains,
    *,
    bias: bool = False,
    squared: bool = False,
    centred: bool = False,
) -> Float[Tensor, "e e"]:
    r"""Inner products $\langle M_e, M_f\rangle$ between the means of `mean_outer`.

    Returns:
        The Gram matrix of the means.

    Example:
        >>> from hessalign.curvature.domains import domain_layout
        >>> right = torch.tensor([[1.0], [3.0], [5.0]])
        >>> domains = domain_layout((2, 1))
        >>> mean_outer_gram(torch.ones(3, 1), right, domains)
        tensor([[ 4., 10.],
                [10., 25.]], dtype=torch.float64)
        >>> mean_outer_gram(torch.ones(3, 1), right, domains, centred=True)
        tensor([[ 2.2500, -2.2500],
                [-2.2500,  2.2500]], dtype=torch.float64)
    """
    return _means_gram(left, right, _OuterMeans(domains, bias, squared), centred)


def second_moments_gram(
    weights: Float[Tensor, "n l"],
    z: Float[Tensor, "n d"],
    domains: Domains,
    *,
    centred: bool = False,
) -> Float[Tensor, "e e"]:
    """Inner products between the moments of `mean_second_moments`."""
    return _means_gram(weights, z, _SecondMoments(domains), centred)


@final
class _DomainProducts(Fused):
    """Each domain's rows times a matrix of its own, without a graph of splits and their joins."""

    @staticmethod
    def plain(
        z: Float[Tensor, "n d"], matrices: Float[Tensor, "e k d"], domains: Domains
    ) -> Float[Tensor, "n k"]:
        wide = z.to(matrices.dtype)
        own = domains.weights.membership.to(wide.dtype).mT.unsqueeze(2)
        return ((wide @ matrices.mT) * own).sum(0)

    @staticmethod
    def forward(
        ctx: Context,
        z: Float[Tensor, "n d"],
        matrices: Float[Tensor, "e k d"],
        domains: Domains,
    ) -> Float[Tensor, "n k"]:
        ctx.save_for_backward(z, matrices)
        ctx.others = (domains,)
        rows = chunk_rows(z.shape[1])
        # Their small differences between domains are what counts: in the matrices' precision.
        return torch.cat(
            [
                chunk.to(matrices.dtype) @ matrix.mT
                for part, matrix in zip(z.split(domains.sizes), matrices, strict=True)
                for chunk in part.split(rows)
            ]
        )

    @staticmethod
    def backward(ctx: Context, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        return pulled_back(_DomainProducts, ctx, slopes)

    @staticmethod
    def pull_back(ctx: Context, *slopes: Tensor) -> tuple[Tensor, Tensor]:
        z, matrices = ctx.saved_tensors
        sizes = ctx.others[0].sizes
        parts, slope_parts = z.split(sizes), slopes[0].to(z.dtype).split(sizes)
        narrow = matrices.to(z.dtype)
        d_matrices = [slope.mT @ part for slope, part in zip(slope_parts, parts, strict=True)]
        d_z = [slope @ matrix for slope, matrix in zip(slope_parts, narrow, strict=True)]
        return torch.cat(d_z), torch.stack(d_matrices).to(matrices.dtype)


def domain_products(
    z: Float[Tensor, "n d"], matrices: Float[Tensor, "e k d"], domains: Domains
) -> Float[Tensor, "n k"]:
    """The rows of each domain times a matrix of its own, $M_e z_n$ for n in e.

    Returns:
        The products, in the precision of the matrices.

    Example:
        >>> from hessalign.curvature.domains import domain_layout
        >>> matrices = torch.tensor([[[1.0]], [[2.0]]])
        >>> domain_products(torch.ones(3, 1), matrices, domain_layout((2, 1))).flatten()
        tensor([1., 1., 2.])
    """
    chosen = _DomainProducts.plain if is_traced() else _DomainProducts.apply
    products: Tensor = chosen(z, matrices, domains)
    return products


def mean_second_moments(
    weights: Float[Tensor, "n l"], z: Float[Tensor, "n d"], domains: Domains
) -> Float[Tensor, "e l d d"]:
    r"""Weighted second moments of the features of each domain.

    $$M_{el} = \frac1{n_e} \sum_{n \in e} s_{nl}\, z_n z_n^\top$$

    Returns:
        The moments, in the accumulation precision.

    Example:
        >>> from hessalign.curvature.domains import domain_layout
        >>> z = torch.tensor([[1.0, 2.0]])
        >>> mean_second_moments(torch.tensor([[3.0]]), z, domain_layout((1,))).squeeze()
        tensor([[ 3.,  6.],
                [ 6., 12.]], dtype=torch.float64)
    """
    return _means(weights, z, _SecondMoments(domains))
