"""Distances between Hessians, and Table 1 measured."""

import math

import pytest
import torch
from tests import cases, oracles
from tests.cases import BY_NAME, CASES, UNSORTED, Batch, Case
from tests.comparison import assert_agrees, assert_same_slopes
from torch import nn

from hessalign import attribute_distances, hessian_distance
from hessalign.alignment import TABLE_1, distance
from hessalign.curvature import autograd_head, linear_head, operators
from hessalign.curvature.operators import hessian_difference

SEVERAL_DOMAINS = [case for case in CASES if len(set(case.domain)) > 1]


def measure(case, batch, **options):
    return hessian_distance(
        batch.z, batch.logits, batch.domain, y=batch.y, **case.options, **options
    )


def off_diagonal(matrix):
    return matrix[~torch.eye(len(matrix), dtype=torch.bool)]


@pytest.mark.parametrize("evaluation", ["auto", "primal", "dual"])
@pytest.mark.parametrize("case", CASES, ids=cases.name)
def test_frobenius(case, evaluation):
    batch = case.build()
    expected = oracles.distances(oracles.dense_hessian(batch, **case.options))
    actual = measure(case, batch, evaluation=evaluation)
    assert_agrees(actual, expected)
    if len(actual) > 1:
        assert_same_slopes(off_diagonal(actual), off_diagonal(expected), batch.inputs, 1e-9)


@pytest.mark.parametrize("route", ["dense", "lanczos"])
@pytest.mark.parametrize("case", CASES, ids=cases.name)
def test_spectral(monkeypatch, case, route):
    monkeypatch.setattr(operators, "_DENSE_PARAMETERS", 0 if route == "lanczos" else 10**6)
    batch = case.build()
    expected = oracles.spectral_distances(oracles.dense_hessian(batch, **case.options))
    actual = measure(case, batch, norm="spectral")
    assert_agrees(actual, expected)
    assert not actual.requires_grad


def test_spectral_where_there_is_no_float64(monkeypatch):
    """As on Apple's devices: what is given moves to the processor."""
    case = SEVERAL_DOMAINS[0]
    batch = case.build()
    expected = measure(case, batch, norm="spectral")
    moved = []
    plain = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda x: moved.append(x) or plain(x))
    monkeypatch.setattr(distance, "accumulation_dtype", lambda device: torch.float32)
    assert_agrees(measure(case, batch, norm="spectral"), expected)
    given = (batch.z, batch.logits, batch.y, batch.domain)
    assert all(any(x is each for each in moved) for x in given)


def test_spectral_of_a_head_too_large_for_the_dense_route():
    case = Case("large", "cross_entropy", 5, features=30, domain=(0,) * 20 + (1,) * 15)
    assert operators._DENSE_PARAMETERS < 5 * 31
    batch = case.build(requires_grad=False)
    expected = oracles.spectral_distances(oracles.dense_hessian(batch, **case.options))
    assert_agrees(measure(case, batch, norm="spectral"), expected)


@pytest.mark.parametrize("route", ["dense", "lanczos"])
def test_spectral_finds_the_largest_eigenvalue_of_either_sign(monkeypatch, route):
    """H_0 = 2¼ and H_1 = ¼ times z zᵀ: the difference is positive one way, negative the other."""
    monkeypatch.setattr(operators, "_DENSE_PARAMETERS", 0 if route == "lanczos" else 10**6)
    z = torch.tensor([[3.0, 0.0], [0.0, 1.0]])
    logits, domain = torch.zeros(2), torch.tensor([0, 1])
    actual = hessian_distance(z, logits, domain, norm="spectral", loss="binary", bias=False)
    assert actual.tolist() == [[0, 2.25], [2.25, 0]]
    swapped = hessian_distance(
        z.flip(0), logits, domain, norm="spectral", loss="binary", bias=False
    )
    assert swapped.tolist() == [[0, 2.25], [2.25, 0]]


@pytest.mark.parametrize("route", ["dense", "lanczos"])
def test_spectral_of_identical_domains(monkeypatch, route):
    monkeypatch.setattr(operators, "_DENSE_PARAMETERS", 0 if route == "lanczos" else 10**6)
    z, logits, _, _ = CASES[1].build(requires_grad=False)
    domain = torch.arange(2).repeat_interleave(len(z))
    actual = hessian_distance(z.repeat(2, 1), logits.repeat(2, 1), domain, norm="spectral")
    assert actual.abs().max() < 1e-15


def test_spectral_norm_between_heads_with_a_hidden_layer(monkeypatch):
    monkeypatch.setattr(operators, "_DENSE_PARAMETERS", 0)
    mlp = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    parts = []
    for _ in range(2):
        z, y = torch.randn(5, 4, dtype=torch.float64), torch.randint(2, (5,))
        parts.append((z, y, torch.zeros(5, dtype=torch.long)))
    first, second = (oracles.module_hessian(mlp, *part, loss="cross_entropy")[0] for part in parts)
    with torch.no_grad():
        actual = hessian_difference(*(autograd_head(mlp, *p) for p in parts)).spectral_norm()
    expected = torch.linalg.matrix_norm(first - second, 2).item()
    assert actual == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_spectral_is_computed_in_float64_whatever_the_features(dtype):
    case = Case("low", "cross_entropy", 3)
    low = case.build(requires_grad=False, dtype=dtype)
    high = Batch(low.z.double(), low.logits.double(), low.y, low.domain)
    assert_agrees(measure(case, low, norm="spectral"), measure(case, high, norm="spectral"))


@pytest.mark.parametrize("norm", ["fro", "spectral"])
def test_symmetric_with_a_zero_diagonal(norm):
    batch = CASES[1].build()
    actual = measure(CASES[1], batch, norm=norm)
    assert actual.shape == (3, 3)
    assert actual.dtype == torch.float64
    assert torch.equal(actual, actual.T)
    assert torch.equal(actual.diagonal(), torch.zeros(3, dtype=torch.float64))
    assert off_diagonal(actual).min() > 1e-3


@pytest.mark.parametrize("evaluation", ["primal", "dual"])
def test_slopes_are_finite_between_identical_domains(evaluation):
    z, logits, _, _ = CASES[1].build(requires_grad=False)
    inputs = z.repeat(2, 1).requires_grad_(), logits.repeat(2, 1).requires_grad_()
    domain = torch.arange(2).repeat_interleave(len(z))
    actual = hessian_distance(*inputs, domain, evaluation=evaluation)
    assert actual.max() < 1e-7
    for slope in torch.autograd.grad(actual.sum(), inputs):
        assert bool(slope.isfinite().all())
        assert slope.abs().max() < 1e2


def test_targets_are_needed_only_where_the_curvature_depends_on_them():
    z, logits, _, domain = BY_NAME["squared-identity-2"].build()
    hessian_distance(z, logits, domain, loss="squared")
    for activation in ("tanh", torch.sin):
        with pytest.raises(ValueError, match="Expected targets y: the curvature of squared error"):
            hessian_distance(z, logits, domain, loss="squared", activation=activation)


# --- Table 1 --------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", SEVERAL_DOMAINS, ids=cases.name)
def test_attributes(case):
    batch = case.build()
    options = {"loss": case.loss, "activation": case.activation}
    expected = {
        name: oracles.distances(oracles.quantity(name, batch, **options)) for name in TABLE_1
    }
    for evaluation in ("auto", "primal", "dual"):
        actual = attribute_distances(*batch, **options, evaluation=evaluation)
        assert tuple(actual) == TABLE_1
        for name, value in actual.items():
            # The root of a rounding error of 1e-16 is 1e-8: compare squares where all are 0.
            assert_agrees(value.square(), expected[name].square())
            assert torch.equal(value.diagonal(), torch.zeros_like(value.diagonal()))


@pytest.mark.parametrize("evaluation", ["primal", "dual"])
def test_attributes_are_symmetric(evaluation):
    for case in SEVERAL_DOMAINS[:4]:
        options = {"loss": case.loss, "activation": case.activation}
        for value in attribute_distances(*case.build(), **options, evaluation=evaluation).values():
            assert torch.equal(value, value.T)


@pytest.mark.parametrize("case", SEVERAL_DOMAINS, ids=cases.name)
def test_attributes_add_up_to_the_hessian_and_the_gradient(case):
    batch = case.build()
    options = {"loss": case.loss, "activation": case.activation}
    part = {name: value.square() for name, value in attribute_distances(*batch, **options).items()}
    hessian = oracles.distances(oracles.dense_hessian(batch, **options)).square()
    assert_agrees(part["logit_covariance"] + 2 * part["logit_feature"] + part["logit"], hessian)
    gradient = oracles.distances(oracles.gradient(batch, **options)).square()
    assert_agrees(part["error_feature"] + part["error"], gradient)
    measured = hessian_distance(batch.z, batch.logits, batch.domain, y=batch.y, **options)
    assert_agrees(measured.square(), hessian)


@pytest.mark.parametrize("case", SEVERAL_DOMAINS[:3], ids=cases.name)
def test_slopes_of_attributes(case):
    batch = case.build()
    options = {"loss": case.loss, "activation": case.activation}
    for name, value in attribute_distances(*batch, **options).items():
        expected = oracles.distances(oracles.quantity(name, batch, **options))
        assert_same_slopes(off_diagonal(value), off_diagonal(expected), batch.inputs, 1e-9)


def test_attributes_do_not_depend_on_whether_the_head_has_a_bias():
    """Attributes are those of z, not of [z, 1]: the table has a row of its own for the bias."""
    z, logits = torch.tensor([[1.0], [2.0]]), torch.zeros(2)
    found = attribute_distances(
        z, logits, torch.tensor([1, 1]), torch.tensor([0, 1]), loss="binary"
    )
    assert found["logit_covariance"][0, 1].item() == pytest.approx(0.25 * 3)
    assert found["logit_feature"][0, 1].item() == pytest.approx(0.25)
    assert found["logit"][0, 1].item() == 0


def test_distances_follow_the_order_of_the_ids():
    batch = CASES[1].build()
    hessians = oracles.dense_hessian(batch, **CASES[1].options)
    actual = measure(CASES[1], batch)
    ids = sorted(set(UNSORTED))
    assert actual[ids.index(-3), ids.index(7)].item() == pytest.approx(
        (hessians[0] - hessians[2]).square().sum().sqrt().item()
    )


def test_one_domain_is_at_no_distance_from_itself():
    z, logits, y, _ = CASES[1].build()
    domain = torch.zeros(len(z), dtype=torch.long)
    for norm in ("fro", "spectral"):
        assert hessian_distance(z, logits, domain, norm=norm).tolist() == [[0.0]]
    assert all(v.tolist() == [[0.0]] for v in attribute_distances(z, logits, y, domain).values())


def test_spectral_distances_take_a_head_with_float64_features():
    batch = CASES[1].build(requires_grad=False)
    head = linear_head(*batch)
    expected = oracles.spectral_distances(oracles.dense_hessian(batch, loss="cross_entropy"))
    assert_agrees(distance._spectral_distances(head), expected)
    assert math.isclose(
        hessian_difference(head.domain(0), head.domain(2)).spectral_norm(),
        expected[0, 2].item(),
        rel_tol=1e-10,
    )
