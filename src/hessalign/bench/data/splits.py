"""The split of a domain into a part to train on and a part held out.

As DomainBed draws it, it depends on the trial and on the domain's index alone, so all algorithms
and hyper-parameters of a trial see the same split. A data set may bring its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Final, final

import numpy as np

from hessalign._errors import InputError
from hessalign._protocol import seed_hash
from hessalign.bench.data.samples import DomainDataset

HOLDOUT_FRACTION: Final = 0.2
"""How much of each domain is held out, as in DomainBed."""


@final
@dataclass(frozen=True)
class Split:
    """Indices of the samples of one domain, in two parts.

    Attributes:
        inner: The larger part ("in"): trained on in a training domain, tested on in a test domain.
        outer: The part held out ("out"): validates a training domain, or the oracle's test domain.
    """

    inner: np.ndarray
    outer: np.ndarray


def split_domain(
    size: int, trial_seed: int, domain: int, holdout_fraction: float = HOLDOUT_FRACTION
) -> Split:
    """Split the samples of a domain.

    Args:
        size: Number of samples of the domain.
        trial_seed: Which trial.
        domain: Index of the domain in its data set.
        holdout_fraction: How much is held out; the number of samples is rounded down.

    Returns:
        The split.

    Raises:
        InputError: If the size is negative or the fraction is not from 0 to 1.

    Example:
        >>> split = split_domain(10, trial_seed=0, domain=0)
        >>> split.outer.tolist(), split.inner.tolist()
        ([2, 3], [8, 1, 4, 5, 0, 9, 6, 7])
    """
    if size < 0:
        raise InputError(f"Expected a size of 0 or more samples, got {size}.")
    if not 0 <= holdout_fraction <= 1:
        raise InputError(f"Expected a holdout_fraction from 0 to 1, got {holdout_fraction}.")
    order = np.arange(size)
    np.random.RandomState(seed_hash(trial_seed, domain)).shuffle(order)
    held_out = _held_out(size, holdout_fraction)
    return Split(inner=order[held_out:], outer=order[:held_out])


def split_dataset(
    data: DomainDataset, trial_seed: int, holdout_fraction: float = HOLDOUT_FRACTION
) -> tuple[Split, ...]:
    """Split all domains: as the data set says, else as DomainBed does.

    Args:
        data: The data set.
        trial_seed: Which trial; it does not matter to domains with a split of their own.
        holdout_fraction: How much of the other domains is held out.

    Returns:
        One split for each domain.

    Raises:
        InputError: If a domain is too small to be split.

    Example:
        >>> import torch
        >>> from hessalign.bench.data.samples import DomainSamples
        >>> x, y = torch.zeros(4, 1), torch.zeros(4, dtype=torch.int64)
        >>> official = DomainSamples("photo", x, y, held_out=torch.tensor([3, 0]))
        >>> (split,) = split_dataset(DomainDataset("pets", ("cat",), (official,)), trial_seed=0)
        >>> split.inner.tolist(), split.outer.tolist()
        ([1, 2], [3, 0])
    """
    least = least_size(holdout_fraction)
    small = [
        f"{domain.name!r} has {len(domain)}"
        for domain in data.domains
        if domain.held_out is None and len(domain) < least
    ]
    if small:
        raise InputError(
            f"Expected {least} or more samples in each domain of {data.name}, of which "
            f"{holdout_fraction:.0%} are held out; {', '.join(small)}. Merge small domains with "
            "others, or leave them out."
        )
    return tuple(
        split_domain(len(domain), trial_seed, number, holdout_fraction)
        if domain.held_out is None
        else _own_split(len(domain), domain.held_out.numpy())
        for number, domain in enumerate(data.domains)
    )


def _own_split(size: int, held_out: np.ndarray) -> Split:
    return Split(inner=np.setdiff1d(np.arange(size), held_out), outer=held_out.astype(np.int64))


def least_size(holdout_fraction: float = HOLDOUT_FRACTION) -> int:
    """How many samples a domain needs for both of its parts to have some.

    Returns:
        The number.

    Raises:
        InputError: If one of the parts is empty whatever the size.

    Example:
        >>> least_size(), least_size(0.5), least_size(0.9)
        (5, 2, 2)
    """
    if not 0 < holdout_fraction < 1:
        raise InputError(
            f"Expected a holdout_fraction above 0 and below 1, got {holdout_fraction}: both parts "
            "of a domain need samples."
        )
    return next(size for size in count(2) if _held_out(size, holdout_fraction) >= 1)


def _held_out(size: int, fraction: float) -> int:
    return int(size * fraction)
