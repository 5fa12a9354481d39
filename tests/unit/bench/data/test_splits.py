"""The split of a domain, as DomainBed draws it."""

import random

import numpy as np
import pytest

from hessalign._protocol import seed_hash
from hessalign.bench.data import split_domain
from hessalign.bench.data.samples import least_size


@pytest.mark.parametrize(
    ("domain", "order"),
    [(0, [2, 3, 8, 1, 4, 5, 0, 9, 6, 7]), (1, [5, 0, 3, 7, 8, 6, 1, 2, 9, 4])],
)
def test_the_first_fifth_of_the_published_order_is_held_out(domain, order):
    split = split_domain(10, trial_seed=0, domain=domain)
    assert split.outer.tolist() == order[:2]
    assert split.inner.tolist() == order[2:]


@pytest.mark.parametrize("size", [1, 4, 5, 1415, 3929])
def test_order_is_that_of_a_shuffled_list(size):
    keys = list(range(size))
    np.random.RandomState(seed_hash(2, 3)).shuffle(keys)
    split = split_domain(size, trial_seed=2, domain=3)
    assert len(split.outer) == size // 5
    assert [*split.outer, *split.inner] == keys


def test_held_out_samples_are_counted_rounding_down():
    assert len(split_domain(7, 0, 0, holdout_fraction=0.5).outer) == 3
    assert len(split_domain(7, 0, 0, holdout_fraction=0.0).outer) == 0
    assert len(split_domain(7, 0, 0, holdout_fraction=1.0).inner) == 0


def test_global_random_state_is_left_alone():
    random.seed(0)
    np.random.seed(0)
    expected = np.random.rand()
    np.random.seed(0)
    split_domain(100, 1, 1)
    assert np.random.rand() == expected


def test_mistakes_are_explained():
    with pytest.raises(ValueError, match="Expected a size of 0 or more samples, got -1"):
        split_domain(-1, 0, 0)
    with pytest.raises(ValueError, match=r"Expected a holdout_fraction from 0 to 1, got 1\.5"):
        split_domain(10, 0, 0, 1.5)


@pytest.mark.parametrize("fraction", [0.2, 1 / 3, 1 / 49, 0.5, 0.99])
def test_the_least_size_is_the_smallest_whose_parts_both_have_samples(fraction):
    least = least_size(fraction)
    for size, both in ((least - 1, False), (least, True)):
        split = split_domain(size, 0, 0, fraction)
        assert bool(len(split.inner) and len(split.outer)) is both


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.2])
def test_a_fraction_that_always_leaves_a_part_empty_is_refused(fraction):
    with pytest.raises(ValueError, match="Expected a holdout_fraction above 0 and below 1, got"):
        least_size(fraction)
