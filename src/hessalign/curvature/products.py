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
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, final

import torch
from torch import Tensor
from torch.nn import functional

from hessalign._shapes import Float
from hessalign.curvature.domains import Domains, accumulation_dtype
from hessalign.curvature.fused import Context, Fused, call, is_traced

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
    """Means of left_n ⊗ right_n."""

    domains: Domains
    bias: float = 0.0  # what is appended to the right rows; nothing if 0
    squared: bool = False  # whether their squares are taken
    # Which of the means made with them are second moments with the same left rows: their diagonals
    # are the means of squares.
    moments: int | None = None

    def plain(self, left: Tensor, right: Tensor) -> Tensor:
        """The means [e, l, d + bias], by autograd."""
        wide = right.to(left.dtype)
        wide = wide * wide if self.squared else wide
        wide = functional.pad(wide, (0, 1), value=self.bias) if self.bias else wide
        return _by_domain(self.domains, left, wide)

    def zeros(self, left: Tensor, width: int) -> Tensor:
        """What means of rows of a width are added up in."""
        return left.new_zeros((len(self.domains), left.shape[1], width + bool(self.bias)))


@final
@dataclass(frozen=True)
class SecondMoments:
    """Means of s_n z_n z_nᵀ."""

    domains: Domains

    bias = 0.0
    squared = False
    moments = None

    def plain(self, weights: Tensor, z: Tensor) -> Tensor:
        """The moments [e, l, d, d], by autograd."""
        wide = z.to(weights.dtype)
        weighted = (weights.unsqueeze(2) * wide.unsqueeze(1)).flatten(1)
        means = _by_domain(self.domains, weighted, wide)
        return means.view(len(means), weights.shape[1], -1, wide.shape[1])

    def zeros(self, weights: Tensor, width: int) -> Tensor:
        """What moments of rows of a width are added up in."""
        return weights.new_zeros((len(self.domains), weights.shape[1], width, width))


_MeanForm = OuterMeans | SecondMoments


@final
@dataclass(frozen=True)
class _Pass:
    """Means that the same products of right rows give: second moments first, then outer ones."""

    members: list[int]  # which of the means
    seconds: int  # how many of their left components have second moments
    squared: bool  # whether the squares of the right rows are taken

    def together(self, lefts: Sequence[Tensor], dtype: torch.dtype) -> Float[Tensor, "e n l"]:
        """The left rows of the members, side by side."""
        rows = [lefts[index] for index in self.members]
        return (rows[0] if len(rows) == 1 else torch.cat(rows, 2)).to(dtype)

    def add(self, totals: Sequence[Tensor], left: Tensor, right: Tensor) -> None:
        """Add the products of some rows, [e, n, ·], to sums for each member."""
        right = right * right if self.squared else right
        width, split = right.shape[2], self.seconds * right.shape[2]
        sums = [totals[index][..., :width] for index in self.members]
        if not self.seconds:
            _add_product(sums, left.mT, right)
            return
        # Rows that begin at multiples of 64 bytes are read and written faster, also below.
        count = split + left.shape[2] - self.seconds
        padded = right.new_empty((*right.shape[:2], count + -count % _ALIGNED))
        weighted = padded[..., :split].unflatten(2, (self.seconds, width))
        torch.mul(left[..., : self.seconds, None], right.unsqueeze(2), out=weighted)
        padded[..., split:count] = left[..., self.seconds :]
        rows, (moments, *others) = padded[..., :count].mT, sums
        if self.seconds > 1:
            _add_product([moments.flatten(1, 2), *others], rows, right)
            return
        for begin, end in _blocks(width):  # whose mirror image is the upper right
            block, last = moments[:, 0, begin:end, :end], end == width
            part = rows[:, begin : None if last else end]
            _add_product([block, *others] if last else [block], part, right[..., :end])

    def puller(self, slopes: Sequence[Tensor], right: Tensor) -> _Puller:
        """Slopes in rows like `right`, [e, n, ·], of sums over them, given those in the sums."""
        dtype, width = right.dtype, right.shape[2]
        split, squared = self.seconds * width, self.squared
        own = [slopes[index] for index in self.members]
        outer = [slope[..., :width] for slope in own[bool(self.seconds) :]]
        rows = torch.cat(outer, 1).to(dtype) if outer else right.new_empty((len(right), 0, width))
        flat = rows.mT
        if self.seconds:  # the symmetry makes this one product instead of two
            symmetric = (own[0] + own[0].mT).to(dtype).transpose(1, 2).flatten(2)
            flat = torch.cat([symmetric, flat], 2)
            flat = functional.pad(flat, (0, -flat.shape[2] % _ALIGNED))

        def pull(left: Tensor, right: Tensor, d_right: Tensor, add: bool) -> Tensor:
            product = torch.bmm(right * right if squared else right, flat)
            weights, others = left[..., : self.seconds], left[..., self.seconds :]
            d_others = product[..., split : split + others.shape[2]]
            if squared:
                doubled = torch.bmm(others, 2 * rows)
                d_right.addcmul_(doubled, right) if add else torch.mul(doubled, right, out=d_right)
            elif add:
                d_right.baddbmm_(others, rows)
            else:
                torch.bmm(others, rows, out=d_right)
            if not self.seconds:
                return d_others
            moved = product[..., :split].unflatten(2, (self.seconds, width))
            if self.seconds == 1:
                d_right.addcmul_(moved.squeeze(2), weights)
            else:
                d_right += (moved * weights.unsqueeze(3)).sum(2)
            d_weights = torch.linalg.vecdot(moved, right.unsqueeze(2)) / 2
            return torch.cat([d_weights, d_others], 2)

        return pull


def _passes(lefts: Sequence[Tensor], forms: Sequence[_MeanForm]) -> list[_Pass]:
    """Which means are made together: second moments with all that are of the rows, and squares."""
    seconds = [i for i, form in enumerate(forms) if isinstance(form, SecondMoments)]
    outers = [i for i, form in enumerate(forms) if i not in seconds and not form.squared]
    groups = [seconds[:1] + outers, *([i] for i in seconds[1:])]
    groups.append([i for i, form in enumerate(forms) if form.squared and form.moments is None])
    found = []
    for first, *others in filter(None, groups):
        components = lefts[first].shape[1] if first in seconds else 0
        found.append(_Pass([first, *others], components, forms[first].squared))
    return found


def _blocks(width: int) -> list[tuple[int, int]]:
    """Ranges of some 64 features, but for the last from one line of cache to another."""
    count = max(1, width // 64)
    size = -(-width // (count * _ALIGNED)) * _ALIGNED
    return [(begin, min(begin + size, width)) for begin in range(0, width, size)]


def _multiplied_in(wide: torch.dtype, right: Tensor, size: int) -> torch.dtype:
    """The precision of products over a domain of a size; sums of them are wide."""
    return wide if size <= _FEW_SAMPLES else right.dtype


def _add_product(totals: Sequence[Tensor], left: Tensor, right: Tensor) -> None:
    """Add left @ right, multiplied in the precision of `right`, to sums for some rows each."""
    sizes = [total.shape[1] for total in totals]
    if totals[0].dtype == right.dtype:
        for total, part in zip(totals, left.split(sizes, 1), strict=True):
            total.baddbmm_(part, right)
    else:
        for total, part in zip(totals, torch.bmm(left, right).split(sizes, 1), strict=True):
            total += part


def _form(
    right: Tensor, lefts: Sequence[Tensor], forms: Sequence[_MeanForm]
) -> list[Float[Tensor, "e l *d"]]:
    """The means in float64, without a graph, in one pass over the rows, chunk by chunk."""
    width, sizes, passes = right.shape[1], forms[0].domains.sizes, _passes(lefts, forms)
    found = [form.zeros(left, width) for left, form in zip(lefts, forms, strict=True)]
    seconds = max(each.seconds for each in passes)
    for domains, (x, *rows) in _domain_batches(sizes, right, *lefts):
        count, size = x.shape[:2]
        shares, own = [left / size for left in rows], [means[domains] for means in found]
        for share, means, form in zip(shares, own, forms, strict=True):
            if form.bias:
                means[..., width] = form.bias * share.sum(1)
        dtype = _multiplied_in(lefts[0].dtype, right, size)
        columns = [each.together(shares, dtype) for each in passes]
        # The fewer float32 products are added before they reach float64, the better.
        chunk = min(512 if seconds else 1024, chunk_rows(count * max(1, seconds) * width))
        for start in range(0, size, chunk):
            part = (slice(None), slice(start, start + chunk))
            wide = x[part].to(dtype)
            for each, left in zip(passes, columns, strict=True):
                each.add(own, left[part], wide)
    _complete(found, forms, width)
    return found


def _complete(found: Sequence[Tensor], forms: Sequence[_MeanForm], width: int) -> None:
    """Write what follows from other means: the upper right of second moments, and squares."""
    for means, form in zip(found, forms, strict=True):
        if isinstance(form, SecondMoments) and means.shape[1] == 1:
            for begin, end in _blocks(width):
                means[..., :begin, begin:end] = means[..., begin:end, :begin].mT
    for means, form in zip(found, forms, strict=True):
        if form.moments is not None:
            means[..., :width] = found[form.moments].diagonal(dim1=2, dim2=3)


def _pull_back(
    right: Tensor,
    lefts: Sequence[Tensor],
    forms: Sequence[_MeanForm],
    slopes: Sequence[Tensor],
    given: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Slopes in right rows, with those given, and in left ones, from those in the means."""
    # In the features' own precision: what flows back is already the small difference between
    # domains, so nothing cancels here.
    d_right = right.new_empty(right.shape) if given is None else given
    d_lefts = [left.new_empty(left.shape) for left in lefts]
    width, sizes, passes = right.shape[1], forms[0].domains.sizes, _passes(lefts, forms)
    widest = max(1, *(each.seconds for each in passes))
    for domains, (x, out, *rows) in _domain_batches(sizes, right, d_right, *lefts, *d_lefts):
        size, d_rows = x.shape[1], rows[len(lefts) :]
        own = [slope[domains] / size for slope in slopes]
        for slope, form in zip(own, forms, strict=True):
            if form.moments is not None:
                own[form.moments].diagonal(dim1=2, dim2=3).add_(slope[..., :width])
        pullers = [each.puller(own, x) for each in passes]
        columns = [each.together(rows, x.dtype) for each in passes]
        chunk = chunk_rows(len(x) * width * widest)
        for start in range(0, size, chunk):
            part = (slice(None), slice(start, start + chunk))
            for each, pull, left in zip(passes, pullers, columns, strict=True):
                add = given is not None or each is not passes[0]
                pulled = pull(left[part], x[part], out[part], add)
                widths = [lefts[index].shape[1] for index in each.members]
                for index, piece in zip(each.members, pulled.split(widths, 2), strict=True):
                    d_rows[index][part] = piece
        for d_left, slope, form in zip(d_rows, own, forms, strict=True):
            if form.moments is not None:
                d_left.zero_()
            if form.bias:
                d_left += form.bias * slope[:, None, :, -1]
    return d_right, *d_lefts


@final
class _Means(Fused):
    """Means over domains, never with all the samples' products at once."""

    @staticmethod
    def plain(right: Tensor, left: Tensor, form: _MeanForm) -> Float[Tensor, "e l *d"]:
        return form.plain(left, right)

    @staticmethod
    def forward(ctx: Context, right: Tensor, left: Tensor, form: _MeanForm) -> Tensor:
        ctx.save_for_backward(right, left)
        ctx.others = (form,)
        return _form(right, [left], (form,))[0]

    @staticmethod
    def pull_back(ctx: Context, *slopes: Tensor) -> tuple[Tensor, ...]:
        right, left = ctx.saved_tensors
        return _pull_back(right, [left], ctx.others, slopes)


def _means(left: Tensor, right: Tensor, form: _MeanForm) -> Tensor:
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
        means = _form(right, lefts, forms)
        for each, deviations in zip(means, centred, strict=True):
            if deviations:
                each -= each.mean(0)
        ctx.save_for_backward(right, *lefts, *means)
        ctx.others = (forms, centred)
        return tuple(each.flatten(1) @ each.flatten(1).mT for each in means)

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
    """A mean that takes part in an inner product."""

    left: Tensor
    form: _MeanForm  # what the mean is of
    weight: float = 1.0  # what its inner products are multiplied by
    centred: bool = False  # whether these are of its deviations from the mean over domains


def _sharing(term: MeanTerm, terms: Sequence[MeanTerm]) -> _MeanForm:
    """The form of a term, which knows if others have second moments of the same left rows."""
    if not (isinstance(term.form, OuterMeans) and term.form.squared):
        return term.form
    moments = [
        index
        for index, other in enumerate(terms)
        if isinstance(other.form, SecondMoments) and other.left is term.left
    ]
    return replace(term.form, moments=moments[0]) if moments else term.form


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
    forms = tuple(_sharing(term, terms) for term in terms)
    found = chosen(right.contiguous(), *wide, forms, tuple(term.centred for term in terms))
    return [
        each if term.weight == 1 else term.weight * each
        for each, term in zip(found, terms, strict=True)
    ]


def mean_outer(
    left: Float[Tensor, "n l"],  # one row per sample, domains contiguous
    right: Float[Tensor, "n d"],
    domains: Domains,
    *,
    bias: bool = False,  # append a 1 to the right rows
    squared: bool = False,  # take the squares of the right rows
) -> Float[Tensor, "e l d_bias"]:
    r"""Mean over each domain of the outer product of two rows.

    $$M_e = \frac1{n_e} \sum_{n \in e} \text{left}_n \otimes \text{right}_n$$

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
    """Each domain's mean of left ⊗ [right, 1] times its rows, and the rows to go on with.

    What is made of the rows that are given back has its slopes in them added to, in place.
    """

    @staticmethod
    def plain(right: Tensor, left: Tensor, form: OuterMeans) -> tuple[Tensor, Tensor]:
        wide = right.to(left.dtype)
        wide = functional.pad(wide, (0, 1), value=form.bias) if form.bias else wide
        own = form.domains.weights.membership.to(wide.dtype).mT.unsqueeze(2)
        return ((wide @ form.plain(left, right).mT) * own).sum(0), right.view_as(right)

    @staticmethod
    def forward(
        ctx: Context, right: Tensor, left: Tensor, form: OuterMeans
    ) -> tuple[Tensor, Tensor]:
        (means,), result = _form(right, [left], (form,)), torch.empty_like(left)
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
        return result, right.view_as(right)

    @staticmethod
    def pull_back(ctx: Context, *slopes: Tensor) -> tuple[Tensor, ...]:
        # With a = M z, M the mean of r ⊗ z: the slope in M is Σ da ⊗ z, n times the mean of it, and
        # the rows' slopes are those of both means, M as a constant of the second.
        right, left, means = ctx.saved_tensors
        (form,) = ctx.others
        slope, d_right = (each.contiguous() for each in slopes)
        sizes = form.domains.weights.counts.view(-1, 1, 1)
        (d_means,) = _form(right, [slope], (form,))
        pulled = [d_means * sizes, means * sizes]
        return _pull_back(right, [left, slope], (form, form), pulled, d_right)[:2]


def mean_products(
    left: Float[Tensor, "n l"], right: Float[Tensor, "n d"], domains: Domains, *, bias: bool
) -> tuple[Float[Tensor, "n l"], Float[Tensor, "n d"]]:
    r"""The means of `mean_outer` times the rows of their own domain, $M_e \tilde z_n$ for n in e.

    Returns:
        The products, in the accumulation precision; and the right rows, to go on with: slopes in
        them and those of the products are then summed in one place.

    Example:
        >>> from hessalign.curvature.domains import domain_layout
        >>> right, layout = torch.tensor([[1.0], [3.0]]), domain_layout((2,))
        >>> products, rows = mean_products(torch.ones(2, 1), right, layout, bias=True)
        >>> products.flatten()
        tensor([3., 7.], dtype=torch.float64)
    """
    wide, form = left.to(accumulation_dtype(right.device)), OuterMeans(domains, float(bias))
    chosen = _MeanProducts.plain if is_traced() else _MeanProducts.apply
    products, rows = chosen(right.contiguous(), wide.contiguous(), form)
    return products, rows
