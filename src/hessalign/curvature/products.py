r"""Means over domains: of outer products of rows, and of second moments of features.

Domains are compared by subtracting such products, and near alignment the difference is far
smaller than the terms. Means are therefore float64 throughout, with one exception: those over many
samples, whose cost matters next to a network's own, are multiplied chunk by chunk in the features'
precision, where the rounding errors of single samples average out, and accumulated in float64. With
float32 features a dispersion of 1e-8 of the squared norm is then still right to 1e-3.

Indices: e domain, n and m sample, l left component, d right component (feature).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
from torch import Tensor
from torch.nn import functional

from hessalign._shapes import Float
from hessalign.curvature.domains import Domains, accumulation_dtype
from hessalign.curvature.fused import Context, Fused, call, is_traced, pulled_back

_CHUNK_ELEMENTS = 1 << 19
"""Elements of the intermediate product of one chunk of samples: about the L2 cache in float32."""


_FEW_SAMPLES = 8192
"""Means over domains up to this size are float64 outright."""


_ALIGNED = 16
"""Elements of float32 in a line of cache."""


_Puller = Callable[[Tensor, Tensor, Tensor, bool], Tensor]
"""Given left and right rows, writes slopes in the right ones to a tensor, or adds them to it if the
last argument says so; gives slopes in the left ones."""


def chunk_rows(width: int, at_least: int = 32) -> int:
    """How many rows with so many elements to multiply at once, up to 1024."""
    return max(at_least, min(1024, _CHUNK_ELEMENTS // max(1, width)))


def _domain_batches(sizes: tuple[int, ...], *rows: Tensor) -> Iterator[tuple[slice, list[Tensor]]]:
    """Views of rows as [e, n, ·]: all domains at once if they have the same size, else each."""
    if len(set(sizes)) == 1:
        yield slice(None), [x.view(len(sizes), sizes[0], x.shape[1]) for x in rows]
        return
    for index, parts in enumerate(zip(*(x.split(sizes) for x in rows), strict=True)):
        yield slice(index, index + 1), [part.unsqueeze(0) for part in parts]


def _by_domain(domains: Domains, left: Tensor, right: Tensor) -> Float[Tensor, "e l d"]:
    """Means of left ⊗ right by domain, in operations that autograd knows."""
    shares = domains.weights.averaging.to(left.dtype)
    return torch.stack([(left * share.unsqueeze(1)).mT @ right for share in shares])


@final
@dataclass(frozen=True)
class OuterMeans:
    """Means of left_n ⊗ right_n: how they are formed, and how slopes in them are pulled back.

    Attributes:
        domains: The grouping of the samples.
        bias: What is appended to the right rows; nothing if 0.
        squared: Whether their squares are taken.
    """

    domains: Domains
    bias: float = 0.0
    squared: bool = False

    def plain(self, left: Tensor, right: Tensor) -> Tensor:
        """The means [e, l, d + bias], by autograd."""
        wide = right.to(left.dtype)
        wide = wide * wide if self.squared else wide
        wide = functional.pad(wide, (0, 1), value=self.bias) if self.bias else wide
        return _by_domain(self.domains, left, wide)

    def form(self, left: Tensor, right: Tensor) -> Tensor:
        """The means in float64, without a graph, chunk by chunk."""
        width, sizes = right.shape[1], self.domains.sizes
        means = left.new_zeros((len(sizes), left.shape[1], width + bool(self.bias)))
        for domains, (a, b) in _domain_batches(sizes, left, right):
            shares = a / a.shape[1]
            multiplied = _multiplied_in(left.dtype, right, a.shape[1])
            total = means[domains, :, :width]
            rows = chunk_rows(len(b) * width)
            for share, x in zip(shares.split(rows, 1), b.split(rows, 1), strict=True):
                wide = x.to(multiplied)
                _add_product(total, share.mT, wide * wide if self.squared else wide)
            if self.bias:
                means[domains, :, width] = self.bias * shares.sum(1)
        return means

    def puller(self, slope: Tensor, dtype: torch.dtype) -> _Puller:
        """Slopes in rows [e, n, ·], which are of a type, of sums over them, given those in them."""
        width = slope.shape[2] - bool(self.bias)
        narrow = slope[..., :width].to(dtype)

        def pull(left: Tensor, right: Tensor, d_right: Tensor, add: bool) -> Tensor:
            d_left = torch.bmm(right * right if self.squared else right, narrow.mT).to(left.dtype)
            if self.bias:
                d_left += self.bias * slope[:, None, :, -1]
            if self.squared:
                _accumulate(d_right, torch.bmm(left.to(dtype), 2 * narrow), right, add=add)
            elif add:
                d_right.baddbmm_(left.to(dtype), narrow)
            else:
                torch.bmm(left.to(dtype), narrow, out=d_right)
            return d_left

        return pull


@final
@dataclass(frozen=True)
class SecondMoments:
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
        components, width = weights.shape[1], z.shape[1]
        sizes, blocks = self.domains.sizes, _blocks(width)
        total = weights.new_zeros((len(sizes), components, width, width))
        for domains, (shares, features) in _domain_batches(sizes, weights, z):
            count, size = shares.shape[:2]
            # Short chunks: the fewer float32 products are added before they reach float64, the
            # better.
            rows = min(256, chunk_rows(count * components * width))
            multiplied = _multiplied_in(weights.dtype, z, size)
            for s, x in zip(shares.split(rows, 1), features.split(rows, 1), strict=True):
                wide = x.to(multiplied)
                weighted = (s / size).to(multiplied).unsqueeze(3) * wide.unsqueeze(2)
                rows_of = weighted.flatten(2).mT
                if components > 1:
                    _add_product(total[domains].flatten(1, 2), rows_of, wide)
                    continue
                own = total[domains, 0]  # of which the lower left will be the upper right
                for begin, end in blocks:
                    _add_product(
                        own[:, begin:end, begin:], rows_of[:, begin:end], wide[..., begin:]
                    )
        if components == 1:
            for begin, end in blocks:
                total[..., end:, begin:end] = total[..., begin:end, end:].mT
        return total

    def puller(self, slope: Tensor, dtype: torch.dtype) -> _Puller:
        """Slopes in rows [e, n, ·], which are of a type, of sums over them, given those in them."""
        components, width = slope.shape[1:3]
        # Rows of a product that begin at multiples of 64 bytes are written faster.
        symmetric = functional.pad((slope + slope.mT).to(dtype), (0, -width % _ALIGNED))
        flat = symmetric.transpose(1, 2).flatten(2)

        def pull(weights: Tensor, z: Tensor, d_z: Tensor, add: bool) -> Tensor:
            product = torch.bmm(z, flat).unflatten(2, (components, -1))[..., :width]
            own = weights.to(dtype).unsqueeze(3)
            if components == 1:
                _accumulate(d_z, product.squeeze(2), own.squeeze(2), add=add)
            else:
                _accumulate(d_z, (product * own).sum(2), None, add=add)
            d_weights: Tensor = torch.linalg.vecdot(product, z.unsqueeze(2)).to(weights.dtype)
            return d_weights / 2

        return pull


MeanForm = OuterMeans | SecondMoments


def _blocks(width: int) -> list[tuple[int, int]]:
    """Ranges of some 128 features, but for the last from one line of cache to another."""
    count = max(1, width // 128)
    size = -(-width // (count * _ALIGNED)) * _ALIGNED
    return [(begin, min(begin + size, width)) for begin in range(0, width, size)]


def _accumulate(total: Tensor, value: Tensor, factor: Tensor | None, *, add: bool) -> None:
    """Set a tensor to a value, times a factor if there is one, or add that to it."""
    if factor is None:
        total.add_(value) if add else total.copy_(value)
    elif add:
        total.addcmul_(value, factor)
    else:
        torch.mul(value, factor, out=total)


def _multiplied_in(wide: torch.dtype, right: Tensor, size: int) -> torch.dtype:
    """The precision of products over a domain of a size; sums of them are wide."""
    return wide if size <= _FEW_SAMPLES else right.dtype


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left @ right, multiplied in the precision of `right`, to a sum."""
    if total.dtype == right.dtype:
        total.baddbmm_(left, right)
    else:
        total += torch.bmm(left.to(right.dtype), right)


def _pull_back(
    right: Tensor, lefts: Sequence[Tensor], forms: Sequence[MeanForm], slopes: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Slopes in right rows and in all left ones, given those in the means, in one pass."""
    # In the features' own precision: what flows back is already the small difference between
    # domains, so nothing cancels here.
    d_right = torch.empty_like(right, memory_format=torch.contiguous_format)
    d_lefts = [torch.empty_like(left, memory_format=torch.contiguous_format) for left in lefts]
    widest, count = max(left.shape[1] for left in lefts), len(lefts)
    outer = any(isinstance(form, SecondMoments) for form in forms)
    sizes = forms[0].domains.sizes
    for domains, (x, out, *rows) in _domain_batches(sizes, right, d_right, *lefts, *d_lefts):
        pullers = [
            form.puller(slope[domains] / x.shape[1], x.dtype)
            for form, slope in zip(forms, slopes, strict=True)
        ]
        chunk = chunk_rows(len(x) * x.shape[2] * (widest if outer else 1))
        for start in range(0, x.shape[1], chunk):
            part = (slice(None), slice(start, start + chunk))
            pulled = zip(pullers, rows[:count], rows[count:], strict=True)
            for index, (pull, left, d_left) in enumerate(pulled):
                d_left[part] = pull(left[part], x[part], out[part], index > 0)
    return d_right, *d_lefts


@final
class _Means(Fused):
    """Means over domains, never with all the samples' products at once."""

    @staticmethod
    def plain(right: Tensor, left: Tensor, form: MeanForm) -> Float[Tensor, "e l *d"]:
        return form.plain(left, right)

    @staticmethod
    def forward(ctx: Context, right: Tensor, left: Tensor, form: MeanForm) -> Tensor:
        ctx.save_for_backward(right, left)
        ctx.others = (form,)
        return form.form(left, right)

    @staticmethod
    def backward(ctx: Context, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        return pulled_back(_Means, ctx, slopes)

    @staticmethod
    def pull_back(ctx: Context, *slopes: Tensor) -> tuple[Tensor, ...]:
        right, left = ctx.saved_tensors
        return _pull_back(right, [left], ctx.others, slopes)


def _means(left: Tensor, right: Tensor, form: MeanForm) -> Tensor:
    wide = left.to(accumulation_dtype(right.device)).contiguous()
    right = right.contiguous()
    means: Tensor = form.plain(wide, right) if is_traced() else call(_Means, right, wide, form)
    return means


@final
class _MeansGrams(Fused):
    """Inner products between the domains' means, M Mᵀ, of several means of the same right rows."""

    @staticmethod
    def plain(right: Tensor, *rest: Any) -> tuple[Float[Tensor, "e e"], ...]:  # noqa: ANN401
        *lefts, forms, centred = rest
        found = []
        for left, form, deviations in zip(lefts, forms, centred, strict=True):
            means = form.plain(left, right).flatten(1)
            means = means - means.mean(0) if deviations else means
            found.append(means @ means.mT)
        return tuple(found)

    @staticmethod
    def forward(ctx: Context, right: Tensor, *rest: Any) -> tuple[Tensor, ...]:  # noqa: ANN401
        *lefts, forms, centred = rest
        means = [form.form(left, right) for left, form in zip(lefts, forms, strict=True)]
        for each, deviations in zip(means, centred, strict=True):
            if deviations:
                each -= each.mean(0)
        ctx.save_for_backward(right, *lefts, *means)
        ctx.others = (forms, centred)
        return tuple(each.flatten(1) @ each.flatten(1).mT for each in means)

    @staticmethod
    def backward(ctx: Context, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        return pulled_back(_MeansGrams, ctx, slopes)

    @staticmethod
    def pull_back(ctx: Context, *slopes: Tensor) -> tuple[Tensor, ...]:
        forms, centred = ctx.others
        right, *saved = ctx.saved_tensors
        lefts, means = saved[: len(forms)], saved[len(forms) :]
        pulled = []
        for slope, each, deviations in zip(slopes, means, centred, strict=True):
            weights = slope + slope.mT
            weights = weights - weights.mean(0) if deviations else weights
            pulled.append((weights @ each.flatten(1)).view(each.shape))
        return _pull_back(right, lefts, forms, pulled)


class MeanTerm(NamedTuple):
    """A mean that takes part in an inner product.

    Attributes:
        left: The left rows.
        form: What the mean is of.
        weight: What its inner products are multiplied by.
        centred: Whether these are of its deviations from the mean over domains.
    """

    left: Tensor
    form: MeanForm
    weight: float = 1.0
    centred: bool = False


def mean_grams(
    right: Float[Tensor, "n d"], terms: Sequence[MeanTerm]
) -> list[Float[Tensor, "e e"]]:
    r"""Inner products $\langle M_e, M_f\rangle$ between the domains' means, for several means.

    Args:
        right: The right rows of all, domains contiguous.
        terms: The means.

    Returns:
        For each term the Gram matrix of its means, times its weight.

    Example:
        >>> from hessalign.curvature.domains import domain_layout
        >>> right, domains = torch.tensor([[1.0], [3.0], [5.0]]), domain_layout((2, 1))
        >>> term = MeanTerm(torch.ones(3, 1), OuterMeans(domains))
        >>> mean_grams(right, [term])
        [tensor([[ 4., 10.],
                [10., 25.]], dtype=torch.float64)]
        >>> mean_grams(right, [term._replace(centred=True)])
        [tensor([[ 2.2500, -2.2500],
                [-2.2500,  2.2500]], dtype=torch.float64)]
    """
    wide = [term.left.to(accumulation_dtype(right.device)).contiguous() for term in terms]
    chosen = _MeansGrams.plain if is_traced() else _MeansGrams.apply
    forms = tuple(term.form for term in terms)
    found = chosen(right.contiguous(), *wide, forms, tuple(term.centred for term in terms))
    return [
        each if term.weight == 1 else term.weight * each
        for each, term in zip(found, terms, strict=True)
    ]


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
    return _means(left, right, OuterMeans(domains, float(bias), squared))


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
    return _means(weights, z, SecondMoments(domains))


@final
class _MeanProducts(Fused):
    """Each domain's mean of left ⊗ [right, 1] times its rows: one slope in the rows, not two."""

    @staticmethod
    def plain(right: Tensor, left: Tensor, form: OuterMeans) -> Float[Tensor, "n l"]:
        wide = right.to(left.dtype)
        wide = functional.pad(wide, (0, 1), value=form.bias) if form.bias else wide
        own = form.domains.weights.membership.to(wide.dtype).mT.unsqueeze(2)
        return ((wide @ form.plain(left, right).mT) * own).sum(0)

    @staticmethod
    def forward(ctx: Context, right: Tensor, left: Tensor, form: OuterMeans) -> Tensor:
        means, result = form.form(left, right), torch.empty_like(left)
        width, sizes = right.shape[1], form.domains.sizes
        for domains, (x, out) in _domain_batches(sizes, right, result):
            own = means[domains]
            multiplied = _multiplied_in(left.dtype, right, x.shape[1])
            narrow = own[..., :width].mT.to(multiplied)
            rows = chunk_rows(len(x) * width)
            for chunk, part in zip(x.split(rows, 1), out.split(rows, 1), strict=True):
                part.copy_(torch.bmm(chunk.to(multiplied), narrow))
            if form.bias:
                out += form.bias * own[:, None, :, -1]
        ctx.save_for_backward(right, left, means)
        ctx.others = (form,)
        return result

    @staticmethod
    def backward(ctx: Context, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        return pulled_back(_MeanProducts, ctx, slopes)

    @staticmethod
    def pull_back(ctx: Context, *slopes: Tensor) -> tuple[Tensor, ...]:
        # With a = M z, M the mean of r ⊗ z: the slope in M is Σ da ⊗ z, n times the mean of it, and
        # the rows' slopes are those of both means, M as a constant of the second.
        right, left, means = ctx.saved_tensors
        (form,) = ctx.others
        slope = slopes[0].contiguous()
        sizes = torch.tensor(form.domains.sizes, dtype=means.dtype, device=means.device)
        sizes = sizes.view(-1, 1, 1)
        d_means = form.form(slope, right) * sizes
        rows, slopes_in = torch.cat([left, slope], 1), torch.cat([d_means, means * sizes], 1)
        d_right, d_rows = _pull_back(right, [rows], (form,), [slopes_in])
        d_left = d_rows[:, : left.shape[1]]
        return d_right, d_left


def mean_products(
    left: Float[Tensor, "n l"], right: Float[Tensor, "n d"], domains: Domains, *, bias: bool
) -> Float[Tensor, "n l"]:
    r"""The means of `mean_outer` times the rows of their own domain, $M_e \tilde z_n$ for n in e.

    Returns:
        The products, in the accumulation precision.

    Example:
        >>> from hessalign.curvature.domains import domain_layout
        >>> right, layout = torch.tensor([[1.0], [3.0]]), domain_layout((2,))
        >>> mean_products(torch.ones(2, 1), right, layout, bias=True).flatten()
        tensor([3., 7.], dtype=torch.float64)
    """
    wide, form = left.to(accumulation_dtype(right.device)), OuterMeans(domains, float(bias))
    chosen = _MeanProducts.plain if is_traced() else _MeanProducts.apply
    products: Tensor = chosen(right.contiguous(), wide.contiguous(), form)
    return products
