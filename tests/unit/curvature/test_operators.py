"""Operators agree with the dense matrices they stand for."""

import pytest
import torch
from tests import oracles
from tests.cases import ONE_PER_LOSS, name

from hessalign.curvature import linear_head, operators
from hessalign.curvature.operators import SymmetricOperator, hessian_difference, hessian_operator

CPU = torch.device("cpu")


def by_products(matrix):
    return SymmetricOperator(lambda v: v @ matrix, len(matrix), CPU)


def symmetric(size):
    matrix = torch.randn(size, size, dtype=torch.float64)
    return matrix + matrix.T


@pytest.mark.parametrize("size", [5, 100])
def test_both_ends_of_the_spectrum(size):
    matrix = symmetric(size)
    values, vectors = by_products(matrix).extremes()
    assert torch.allclose(values, torch.linalg.eigvalsh(matrix)[[0, -1]], rtol=1e-6)
    assert torch.allclose(vectors @ matrix, values.unsqueeze(1) * vectors, atol=1e-2)
    assert torch.allclose(vectors.norm(dim=1), torch.ones(2, dtype=torch.float64))


@pytest.mark.parametrize("size", [5, 100])
@pytest.mark.parametrize("sign", [1, -1])
def test_spectral_norm_is_the_largest_eigenvalue_of_either_sign(size, sign):
    matrix = sign * (symmetric(size) + 3 * torch.eye(size))
    expected = torch.linalg.matrix_norm(matrix, 2).item()
    assert by_products(matrix).spectral_norm() == pytest.approx(expected, rel=1e-10)


def test_eigenpairs_of_zero():
    zero = SymmetricOperator(torch.zeros_like, 200, CPU)
    values, vectors = zero.extremes()
    assert values.tolist() == [0, 0]
    assert vectors.norm(dim=1).tolist() == [1, 1]
    assert zero.spectral_norm() == 0


def test_sums_differences_and_other_coordinates():
    first, second, basis = symmetric(6), symmetric(6), torch.randn(6, 6, dtype=torch.float64)
    rows = torch.randn(3, 6, dtype=torch.float64)
    difference = by_products(first) - by_products(second)
    assert torch.allclose(difference(rows), rows @ (first - second))
    shifted = rows @ (first + 0.3 * torch.eye(6))
    assert torch.allclose(by_products(first).shifted(0.3)(rows), shifted)
    moved = by_products(first).between(lambda x: x @ basis.T, lambda v: v @ basis)
    assert torch.allclose(moved(rows), rows @ (basis.T @ first @ basis))


def test_linear_equations():
    root = torch.randn(30, 30, dtype=torch.float64)
    matrix, right = root @ root.T, torch.randn(30, dtype=torch.float64)
    found = by_products(matrix + torch.eye(30)).solve(right, 1e-12)
    expected = torch.linalg.solve(matrix + torch.eye(30), right)
    assert torch.allclose(found, expected, rtol=1e-8)


def test_a_singular_matrix_has_the_solution_of_least_norm():
    root = torch.randn(8, 3, dtype=torch.float64)
    matrix = root @ root.T
    right = matrix @ torch.randn(8, dtype=torch.float64)
    found = by_products(matrix).solve(right, 1e-12)
    assert torch.allclose(found, torch.linalg.pinv(matrix) @ right, atol=1e-8)


def test_conjugate_gradients_end_on_a_matrix_that_is_not_definite(monkeypatch):
    monkeypatch.setattr(operators, "_MAX_PRODUCTS", 5)
    minus = by_products(-torch.eye(4, dtype=torch.float64))
    assert minus.solve(torch.ones(4, dtype=torch.float64), 1e-6).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("case", ONE_PER_LOSS, ids=name)
def test_hessians_of_two_domains(case):
    batch = case.build(requires_grad=False)
    head = linear_head(*batch, **case.options)
    dense = oracles.dense_hessian(batch, **case.options)
    rows = torch.randn(4, head.num_parameters, dtype=torch.float64)
    one, two = head.domain(0), head.domain(1)
    assert torch.allclose(hessian_operator(one)(rows), rows @ dense[0])
    assert torch.allclose(hessian_difference(one, two)(rows), rows @ (dense[0] - dense[1]))
