"""Which samples belong to which domain.

Indices: e domain, n sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from hessalign._shapes import Float, Int
from hessalign.curvature.products import accumulation_dtype


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
        return len(self.sizes)

    def arrange(self, samples: Tensor) -> Tensor:
        """Reorder samples (first axis), if need be, so that domains are contiguous."""
        return samples if self.order is None else samples.index_select(0, self.order)

    @cached_property
    def averaging(self) -> Float[Tensor, "e n"]:
        """The matrix whose product with per-sample rows is their mean over each domain.

        Row e holds 1/n_e on the samples of domain e, else 0, in the accumulation precision.
        """
        return self._of_means(self._identity())

    @cached_property
    def centring(self) -> Float[Tensor, "e n"]:
        """The matrix whose product with per-sample rows is the deviation of the domains' means.

        That is from the mean of the means.
        """
        return self._of_means(self._identity() - 1 / len(self))

    def _identity(self) -> Float[Tensor, "e e"]:
        device = self.ids.device
        return torch.eye(len(self), dtype=accumulation_dtype(device), device=device)

    def _of_means(self, matrix: Float[Tensor, "k e"]) -> Float[Tensor, "k n"]:
        """The matrix that does to samples what the one given does to the domains' means."""
        sizes = torch.tensor(self.sizes, device=matrix.device)
        return (matrix / sizes).repeat_interleave(sizes, dim=1, output_size=sum(self.sizes))


def make_domains(domain: Int[Tensor, " n"]) -> Domains:
    """Group samples by integer domain ids; any integers do.

    Returns:
        The grouping, domains ordered by id.

    Example:
        >>> domains = make_domains(torch.tensor([7, -1, 7]))
        >>> domains.ids.tolist(), domains.sizes, domains.order.tolist()
        ([-1, 7], (1, 2), [1, 0, 2])
    """
    contiguous = bool((domain[1:] >= domain[:-1]).all())
    order = None if contiguous else torch.argsort(domain, stable=True)
    grouped = domain if order is None else domain[order]
    ids, counts = torch.unique_consecutive(grouped, return_counts=True)
    return Domains(ids, tuple(counts.tolist()), order)
