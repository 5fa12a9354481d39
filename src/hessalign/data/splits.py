"""The split of a domain into a part to train on and a part held out, as DomainBed draws it.

It depends on the trial and on the domain's index alone, so all algorithms and hyper-parameters of a
trial see the same split.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from hessalign._seeds import seed_hash


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


def split_domain(size: int, trial_seed: int, domain: int, holdout_fraction: float = 0.2) -> Split:
    """Split the samples of a domain.

    Args:
        size: Number of samples of the domain.
        trial_seed: Which trial.
        domain: Index of the domain in its data set.
        holdout_fraction: How much is held out; the number of samples is rounded down.

    Returns:
        The split.

    Raises:
        ValueError: If the size is negative or the fraction is not from 0 to 1.

    Example:
        >>> split = split_domain(10, trial_seed=0, domain=0)
        >>> split.outer.tolist(), split.inner.tolist()
        ([2, 3], [8, 1, 4, 5, 0, 9, 6, 7])
    """
    if size < 0:
        raise ValueError(f"Expected a size of 0 or more samples, got {size}.")
    if not 0 <= holdout_fraction <= 1:
        raise ValueError(f"Expected a holdout_fraction from 0 to 1, got {holdout_fraction}.")
    order = np.arange(size)
    np.random.RandomState(seed_hash(trial_seed, domain)).shuffle(order)
    held_out = int(size * holdout_fraction)
    return Split(inner=order[held_out:], outer=order[:held_out])
