"""Noise floors and intervals where the truth is known."""

import pytest
import torch

from hessalign.diagnosis.distances import distance_matrix, make_groups


def drawn(means, samples, *, groups=32, features=5, seed=0):
    """Inner products between group means of domains with these means, unit variance."""
    generator = torch.Generator().manual_seed(seed)
    size = samples // groups
    parts = [
        mean + torch.randn(groups, size, features, generator=generator, dtype=torch.float64)
        for mean in means
    ]
    values = torch.cat([part.mean(1) for part in parts])
    domain = torch.arange(len(means)).repeat_interleave(groups)
    return values @ values.T, make_groups(domain, torch.full((len(domain),), size), seed), values


def test_measured_distances_are_those_of_the_means():
    inner, groups, values = drawn([0.0, 1.0, 3.0], 320)
    means = values.view(3, 32, 5).mean(1)
    wanted = torch.cdist(means, means)
    torch.testing.assert_close(distance_matrix(inner, groups).measured, wanted)


def test_the_noise_floor_is_what_equal_domains_show():
    squares, floors, halves = [], [], []
    for seed in range(200):
        inner, groups, _ = drawn([0.0, 0.0], 64, seed=seed)
        found = distance_matrix(inner, groups)
        squares.append(float(found.measured[0, 1]) ** 2)
        floors.append(float(found.noise[0, 1]) ** 2)
        halves.append(float(found.halves[0]) ** 2)
    # Variance 5 over 64 samples each: 5/64 + 5/64; between halves of 32, 5/32 + 5/32.
    truth = 5 / 64 * 2
    assert sum(squares) / 200 == pytest.approx(truth, rel=0.1)
    assert sum(floors) / 200 == pytest.approx(truth, rel=0.03)
    assert sum(halves) / 200 == pytest.approx(2 * truth, rel=0.03)


@pytest.mark.parametrize("apart", [0.3, 1.0])
def test_intervals_cover_the_distance_without_noise(apart):
    truth = apart * 5**0.5
    hits = centre = 0.0
    for seed in range(150):
        inner, groups, _ = drawn([0.0, apart], 64, seed=seed)
        found = distance_matrix(inner, groups)
        hits += float(found.low[0, 1]) <= truth <= float(found.high[0, 1])
        centre += float(found.measured[0, 1] ** 2 - found.noise[0, 1] ** 2) / 150
    assert 0.88 <= hits / 150 <= 0.99
    assert centre == pytest.approx(truth**2, rel=0.1)


def test_replicates_are_averages_with_their_weights():
    inner, groups, _ = drawn([0.0, 1.0, 3.0], 64, groups=8)
    found = groups.replicates(inner)
    for b in (0, 17):
        torch.testing.assert_close(found[b], groups.averaged(inner, groups.weights[b]))
    sums = groups.weights.view(-1, 3, 8).sum(2)
    torch.testing.assert_close(sums, torch.ones_like(sums))


def test_equal_domains_are_rarely_told_apart():
    told = 0
    for seed in range(150):
        inner, groups, _ = drawn([0.0, 0.0], 64, seed=seed)
        told += float(distance_matrix(inner, groups).low[0, 1]) > 0
    assert told / 150 <= 0.1


def test_groups_of_unequal_size_weigh_by_size():
    size = torch.tensor([1, 3, 2, 2])
    domain = torch.tensor([0, 0, 1, 1])
    values = torch.tensor([[4.0], [0.0], [0.0], [0.0]]).double()
    found = distance_matrix(values @ values.T, make_groups(domain, size, 0))
    assert float(found.measured[0, 1]) == pytest.approx(1.0)
    assert float(found.halves[0]) == pytest.approx(4.0)
    # Halves of 1 and 3 samples: 16 / (1/1 + 1/3) is the variance of one sample, by 4 the mean's.
    assert float(found.noise[0, 1]) ** 2 == pytest.approx(16 / (4 / 3) / 4)
