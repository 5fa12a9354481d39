"""The jobs of a sweep, in DomainBed's order."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import product

from hessalign._errors import InputError
from hessalign.bench.data.splits import HOLDOUT_FRACTION
from hessalign.bench.runs.job import Job


def held_out_sets(
    domains: int, *, pairs: bool = True, test_domains: Collection[int] | None = None
) -> list[tuple[int, ...]]:
    """Which domains to leave out of training: each alone, and every pair.

    Args:
        domains: Number of domains of the data set.
        pairs: Whether to include pairs, which only leave-one-out selection needs.
        test_domains: The domains to test on; all of them if None. Pairs of these with others stay.

    Returns:
        Sets of indices, in DomainBed's order.

    Raises:
        InputError: If no training domain would remain.

    Example:
        >>> held_out_sets(3)
        [(0,), (0, 1), (0, 2), (1,), (1, 2), (2,)]
        >>> held_out_sets(3, pairs=False)
        [(0,), (1,), (2,)]
        >>> held_out_sets(3, test_domains=[2])
        [(0, 2), (1, 2), (2,)]
    """
    least = 3 if pairs else 2
    if domains < least:
        remedy = " Leave out the pairs." if domains == 2 else ""
        raise InputError(
            f"Expected {least} or more domains so that one remains to train on, got {domains}."
            f"{remedy}"
        )
    sets: list[tuple[int, ...]] = []
    for first in range(domains):
        sets.append((first,))
        if pairs:
            sets.extend((first, second) for second in range(first + 1, domains))
    if test_domains is not None:
        sets = [each for each in sets if any(domain in test_domains for domain in each)]
    return sets


def list_jobs(
    domains: Mapping[str, int],
    algorithms: Sequence[str],
    *,
    data_dir: str,
    n_hparams: int = 20,
    n_trials: int = 3,
    pairs: bool = True,
    test_domains: Mapping[str, Collection[int]] | None = None,
    first_hparams_seed: int = 0,
    holdout_fraction: float = HOLDOUT_FRACTION,
    task: str = "domain_generalization",
    steps: int | None = None,
    hparams: str | None = None,
) -> list[Job]:
    """All jobs of a sweep, in DomainBed's order.

    Args:
        domains: Number of domains by name of the data set.
        algorithms: Names of the algorithms.
        data_dir: Where the data sets are.
        n_hparams: Hyper-parameter seeds run up to this, without it.
        n_trials: Number of trials.
        pairs: Whether to leave out pairs of domains too, for leave-one-out selection.
        test_domains: The domains to test on, by data set; all where it is not named.
        first_hparams_seed: Where hyper-parameter seeds start.
        holdout_fraction: How much of each domain is held out.
        task: What is learned.
        steps: Steps of training; None for the data set's own.
        hparams: Hyper-parameters to override, as JSON; None for none.

    Returns:
        The jobs.

    Raises:
        InputError: If there would be none.

    Example:
        >>> len(list_jobs({"PACS": 4}, ["ERM"], data_dir="data"))
        600
    """
    if not domains or not algorithms or n_trials < 1 or n_hparams <= first_hparams_seed:
        raise InputError(
            "Expected one or more data sets, algorithms, trials and hyper-parameter seeds, got "
            f"data sets {list(domains)}, algorithms {list(algorithms)}, {n_trials} trials, seeds "
            f"from {first_hparams_seed} to below {n_hparams}."
        )
    return [
        Job(
            dataset=dataset,
            algorithm=algorithm,
            test_domains=held_out,
            hparams_seed=hparams_seed,
            trial_seed=trial_seed,
            data_dir=data_dir,
            holdout_fraction=holdout_fraction,
            task=task,
            steps=steps,
            hparams=hparams,
        )
        for trial_seed, (dataset, count), algorithm in product(
            range(n_trials), domains.items(), algorithms
        )
        for held_out, hparams_seed in product(
            held_out_sets(count, pairs=pairs, test_domains=(test_domains or {}).get(dataset)),
            range(first_hparams_seed, n_hparams),
        )
    ]
