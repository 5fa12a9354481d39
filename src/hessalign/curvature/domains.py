"""Which samples belong to which domain.

Indices: e domain, n and m sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import final

import numpy as np
import torch
from torch import Tensor
from torch._guards import detect_fake_mode

from hessalign._errors import InputError, InputTypeError
from hessalign._numbers import is_whole
from hessalign._shapes import Float, Int
from hessalign.curvature.fused import is_traced
from hessalign.curvature.lazy import lazy

PAIR_ELEMENTS = 1 << 19
"""Pairs of samples whose inner products are held at once: 4 MiB for each matrix over pairs."""


def accumulation_dtype(device: torch.device) -> torch.dtype:
    """The precision of sums over samples: float64, or float32 where a device has none (MPS)."""
    return torch.float32 if device.type == "mps" else torch.float64


ONE_ALONE = 1e-12
"""How far Σ u² of weights u that add up to 1 is from 1 at most if one sample has all the weight."""


def check_several(sizes: Sequence[int]) -> None:
    """Raise an InputError if a domain has too few samples for an unbiased dispersion."""
    if min(sizes) < 2:
        raise InputError(
            "Expected at least two samples of each domain for an unbiased dispersion, found "
            f"domains of {', '.join(map(str, sizes))} samples. Use larger batches."
        )


def check_several_counted(shares: Float[Tensor, " e"]) -> None:
    """The same where samples may count differently, given Σ u² of the weights u of each mean."""
    if bool((1 - shares <= ONE_ALONE).any()):
        raise InputError(
            "Expected at least two samples that count in each domain for an unbiased dispersion, "
            "found a domain with one. Use larger batches."
        )


@final
@dataclass(frozen=True, eq=False)
class Weights:
    """Constant matrices that follow from the sizes of contiguous domains, made when asked for."""

    sizes: tuple[int, ...]  # samples in each domain
    device: torch.device  # where they are
    dtype: torch.dtype  # their precision

    @lazy
    def counts(self) -> Float[Tensor, " e"]:
        """The sizes, where the samples are."""
        return torch.tensor(self.sizes, dtype=self.dtype, device=self.device)

    @lazy
    def averaging(self) -> Float[Tensor, "e n"]:
        """The matrix whose product with per-sample rows is their mean over each domain.

        Row e holds 1/n_e on the samples of domain e, else 0.
        """
        shares = torch.eye(len(self.sizes), dtype=self.dtype, device=self.device)
        return self._spread(shares / self.counts)

    def _spread(self, values: Float[Tensor, "*k e"]) -> Float[Tensor, "*k n"]:
        """Give each sample what its domain has."""
        sizes = torch.tensor(self.sizes, device=self.device)
        return values.repeat_interleave(sizes, dim=-1, output_size=sum(self.sizes))

    @lazy
    def centring(self) -> Float[Tensor, "e n"]:
        """The matrix whose product with per-sample rows is the deviation of the domains' means.

        That is from the mean of the means.
        """
        return self.averaging - self.averaging.mean(0)

    @lazy
    def dispersing(self) -> Float[Tensor, "n n"]:
        r"""The weights of pairs whose sum is a dispersion, $\frac1E \sum_e c_{en} c_{em}$."""
        return self.centring.mT @ self.centring / len(self.sizes)

    @lazy
    def dispersing_unbiased(self) -> Float[Tensor, "n n"]:
        r"""The same with $\langle M_e, M_e\rangle$ as a mean over pairs of different samples."""
        check_several(self.sizes)
        same, count = self.averaging.mT @ self.averaging, len(self.sizes)
        pairs = (same * self._spread(self.counts / (self.counts - 1))).fill_diagonal_(0)
        mean = self.averaging.mean(0)
        return (1 / count - 1 / count**2) * pairs - (torch.outer(mean, mean) - same / count**2)

    @lazy
    def membership(self) -> Float[Tensor, "n e"]:
        """1 where a sample is of a domain, else 0."""
        return (self.averaging > 0).to(self.dtype).mT

    @lazy
    def within(self) -> Float[Tensor, "n n"]:
        """The matrix whose product with per-sample rows is the mean over their own domain."""
        return self.membership @ self.averaging

    @lazy
    def narrow(self) -> tuple[Float[Tensor, "n n"], Float[Tensor, "n n"]]:
        """`dispersing` and `within` in float32."""
        return self.dispersing.float(), self.within.float()

    def prepared(self) -> Weights:
        """The same with what graphs would otherwise have to make of the sizes."""
        _ = self.centring, self.membership
        if sum(self.sizes) ** 2 <= PAIR_ELEMENTS:
            _ = self.dispersing, self.within
        return self


@lru_cache(maxsize=8)
def _weights(sizes: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Weights:
    """The same matrices for all batches of one shape, made at once where they are small."""
    with torch.inference_mode(False):  # the next batch may be one to train on
        weights = Weights(sizes, device, dtype).prepared()
        if sum(sizes) ** 2 <= PAIR_ELEMENTS:
            _ = weights.narrow
    return weights


@final
@dataclass(frozen=True, eq=False)
class Domains:
    """A grouping of samples, stored so that each domain is a contiguous run.

    Attributes:
        ids: The integer ids the caller used, ascending.
        sizes: Samples in each domain, in the order of `ids`; every one is at least 1.
        order: The permutation that makes domains contiguous, or None if they already are.
    """

    ids: Int[Tensor, " e"]
    sizes: tuple[int, ...]
    order: Int[Tensor, " n"] | None

    def __len__(self) -> int:
        return self.ids.shape[0]

    @lazy
    def weights(self) -> Weights:
        """What sums over samples and pairs are weighed with."""
        device = self.ids.device
        dtype = accumulation_dtype(device)
        if is_traced(self.ids) or detect_fake_mode() is not None:  # not for others to find
            return Weights(self.sizes, device, dtype)
        return _weights(self.sizes, device, dtype)

    def arrange(self, samples: Tensor) -> Tensor:
        """Reorder samples (first axis), if need be, so that domains are contiguous."""
        return samples if self.order is None else samples.index_select(0, self.order)

    def to(self, device: torch.device) -> Domains:
        """The same grouping for samples on another device; this one if it is there already."""
        if self.ids.device == device:
            return self
        order = None if self.order is None else self.order.to(device)
        return Domains(self.ids.to(device), self.sizes, order)


def sample_weights(
    weight: Float[Tensor, " n"] | None, share: Float[Tensor, " n"] | None, domains: Domains
) -> Float[Tensor, "n 1"] | None:
    """What each sample counts in its domain's mean, ω_n n_e / Σ ω c with its share c of the sum.

    The plain mean over a domain of what is scaled by it is Σ ω_n x_n / Σ ω_n c_n.

    Args:
        weight: The weights ω of the samples, domains contiguous; None if they are all 1.
        share: What each counts in the sum that is divided by, the class weight of its label; None
            if that is 1 for all.
        domains: The grouping of the samples.

    Returns:
        The numbers; None if they are all 1.

    Example:
        >>> domains = make_domains(torch.tensor([0, 0, 1]))
        >>> sample_weights(torch.tensor([3.0, 1.0, 5.0]), None, domains).flatten()
        tensor([1.5000, 0.5000, 1.0000], dtype=torch.float64)
    """
    if weight is None and share is None:
        return None
    weights = domains.weights
    own = torch.ones_like(weights.membership[:, 0]) if weight is None else weight.to(weights.dtype)
    counted = own if share is None else own * share.to(weights.dtype)
    return (own / (weights.membership @ (weights.averaging @ counted))).unsqueeze(1)


DomainLike = Domains | Int[Tensor, " n"] | tuple[int, ...]
"""What says which domain each sample is from; see `domain_layout`."""


_IDS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
"""Types that ids of domains may have."""


def domain_layout(domain: DomainLike, device: torch.device | str | None = None) -> Domains:
    """Prepare the grouping of a batch once, for all steps with batches of this shape.

    Accepted wherever `domain` is. A call that is given ids must look at them, which makes it wait
    for the device and cannot be part of a graph; one that is given a layout need not.

    Args:
        domain: The domain of each sample, any integers; or the sizes of contiguous domains.
        device: Where the samples will be; that of the ids if None.

    Returns:
        The layout.

    Raises:
        InputError: If there is a size below 1.
        InputTypeError: If ids are not integers.

    Example:
        >>> layout = domain_layout((32, 32, 16))  # the first 32 samples, the next, and 16 more
        >>> len(layout), layout.sizes
        (3, (32, 32, 16))
        >>> domain_layout(torch.tensor([7, -1, 7])).order
        tensor([1, 0, 2])
    """
    if isinstance(domain, Tensor):
        if domain.ndim != 1 or domain.dtype not in _IDS or domain.device.type == "meta":
            raise InputTypeError(
                f"Expected domain as integers, one per sample, got {domain.dtype} of shape "
                f"{list(domain.shape)}."
            )
        layout = make_domains(domain if device is None else domain.to(device))
    elif isinstance(domain, Domains):
        layout = domain if device is None else domain.to(torch.device(device))
    else:
        sizes = tuple(domain) if isinstance(domain, tuple | list) else ()
        if not sizes or not all(is_whole(size) and size >= 1 for size in sizes):
            raise InputError(f"Expected sizes of domains of 1 or more, got {domain!r}.")
        layout = Domains(torch.arange(len(sizes), device=device), sizes, None)
    layout.weights.prepared()
    return layout


def make_domains(domain: Int[Tensor, " n"]) -> Domains:
    """Group samples by integer domain ids; any integers do.

    Returns:
        The grouping, domains ordered by id.

    Example:
        >>> domains = make_domains(torch.tensor([7, -1, 7]))
        >>> domains.ids.tolist(), domains.sizes, domains.order.tolist()
        ([-1, 7], (1, 2), [1, 0, 2])
    """
    if domain.device.type == "cpu":
        return _grouped_here(domain)
    contiguous = bool((domain[1:] >= domain[:-1]).all())
    order = None if contiguous else torch.argsort(domain, stable=True)
    grouped = domain if order is None else domain[order]
    ids, counts = torch.unique_consecutive(grouped, return_counts=True)
    return Domains(ids, tuple(counts.tolist()), order)


def _grouped_here(domain: Int[Tensor, " n"]) -> Domains:
    """The same by numpy, which takes a fraction of the time for a batch."""
    values = domain.numpy()
    fake = torch._C._len_torch_dispatch_stack() and detect_fake_mode()
    if fake or not 0 < len(values) <= _SHORT:
        return _grouping(values)
    return _known_domains(values.tobytes(), values.dtype.str)


_SHORT = 4096
"""Ids of up to so many samples are looked up before they are grouped."""


@lru_cache(maxsize=8)
def _known_domains(values: bytes, dtype: str) -> Domains:
    """The grouping of ids given as bytes: every batch of a loop is likely to be grouped alike."""
    with torch.inference_mode(False):
        domains = _grouping(np.frombuffer(values, dtype))
    _ = domains.weights  # while it is known that they are real
    return domains


def _grouping(values: np.ndarray) -> Domains:
    """Group ids."""
    changes = values[1:] != values[:-1]
    order = None
    if (values[1:] < values[:-1]).any():
        order = np.argsort(values, kind="stable")
        values = values[order]
        changes = values[1:] != values[:-1]
    starts = np.flatnonzero(np.concatenate([[True], changes])[: len(values)])
    sizes = np.diff(starts, append=len(values)).tolist()
    ids = torch.from_numpy(values[starts])
    return Domains(ids, tuple(sizes), None if order is None else torch.from_numpy(order))
