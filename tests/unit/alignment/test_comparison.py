"""Dispersion and distances from inner products."""

import pytest
import torch
from tests import oracles
from tests.comparison import assert_agrees, assert_same_slopes

from hessalign.alignment import dispersion, distances, squared_distances


@pytest.fixture
def vectors():
    return torch.randn(4, 6, dtype=torch.float64, requires_grad=True)


def test_dispersion(vectors):
    actual, expected = dispersion(vectors @ vectors.T), oracles.dispersion(vectors)
    assert_agrees(actual, expected, 1e-14)
    assert_same_slopes(actual, expected, (vectors,), 1e-13)


def test_dispersion_is_half_the_mean_squared_distance(vectors):
    inner = vectors @ vectors.T
    assert_agrees(dispersion(inner), squared_distances(inner).mean() / 2, 1e-14)


def test_distances(vectors):
    inner = vectors @ vectors.T
    expected = oracles.distances(vectors)
    assert_agrees(distances(inner), expected, 1e-14)
    assert_agrees(squared_distances(inner), expected.square(), 1e-14)
    rows, columns = torch.triu_indices(4, 4, 1)
    assert_same_slopes(distances(inner)[rows, columns], expected[rows, columns], (vectors,), 1e-12)


def test_distances_are_symmetric_with_a_zero_diagonal(vectors):
    for result in (distances(vectors @ vectors.T), squared_distances(vectors @ vectors.T)):
        assert torch.equal(result, result.T)
        assert torch.equal(result.diagonal(), torch.zeros(4, dtype=torch.float64))


def test_distances_are_symmetric_even_if_rounding_made_inner_products_differ():
    inner = torch.tensor([[0.8, 0.4], [0.4000000000000001, 0.8]], dtype=torch.float64)
    for result in (distances(inner), squared_distances(inner)):
        assert torch.equal(result, result.T)


def test_slopes_are_finite_where_the_distance_is_zero():
    vectors = torch.ones(3, 2, dtype=torch.float64, requires_grad=True)
    result = distances(vectors @ vectors.T)
    assert torch.equal(result, torch.zeros_like(result))
    (slope,) = torch.autograd.grad(result.sum(), vectors)
    assert torch.equal(slope, torch.zeros_like(slope))


def test_rounding_never_makes_a_squared_distance_negative():
    inner = torch.tensor([[1.0, 1 + 1e-12], [1 + 1e-12, 1.0]], dtype=torch.float64)
    assert squared_distances(inner).min() == 0
    assert torch.equal(distances(inner), torch.zeros_like(inner))


def test_one_domain_has_no_dispersion():
    inner = torch.tensor([[3.0]], dtype=torch.float64)
    assert dispersion(inner) == 0
    assert distances(inner).tolist() == [[0.0]]
