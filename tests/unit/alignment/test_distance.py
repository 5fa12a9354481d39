"""Distances between Hessians, and Table 1 measured."""

import math

import pytest
import torch
from tests import cases, oracles
from tests.cases import BY_NAME, CASES, UNSORTED, Batch, Case
from tests.comparison import assert_agrees, assert_same_slopes
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

from hessalign import attribute_distances, hessian_distance
from hessalign.alignment import TABLE_1, distance
from hessalign.alignment.distance import attribute_dispersions
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


DOUBLE = torch.float64


def attributes_by_definition(z, logits, y):
    """Each sample's attributes written out, classes as columns."""
    p = logits.softmax(1)
    r = p - one_hot(y, p.shape[1])
    S = torch.diag_embed(p) - torch.einsum("ni,nj->nij", p, p)
    return {
        "loss": cross_entropy(logits, y, reduction="none"),
        "feature": z,
        "covariance": torch.einsum("ni,nj->nij", z, z),
        "error": r,
        "error_feature": torch.einsum("ni,nj->nij", r, z),
        "logit": S,
        "logit_feature": torch.einsum("nij,nk->nijk", S, z),
        "logit_covariance": torch.einsum("nij,nk,nl->nijkl", S, z, z),
    }


@pytest.fixture
def samples():
    z = torch.randn(40, 3, dtype=DOUBLE)
    domain = torch.tensor([2, 5, 9])[torch.randint(3, (40,))]
    z[domain == 5] += 1
    return z, 2 * torch.randn(40, 4, dtype=DOUBLE), torch.randint(4, (40,)), domain


def test_every_attribute_is_as_defined(samples):
    z, logits, y, domain = samples
    found = attribute_dispersions(z, logits, y, domain)
    values = attributes_by_definition(z, logits, y)
    assert list(found) == list(values)
    for name, value in values.items():
        groups = [value[domain == e].flatten(1) if value.ndim > 1 else value[domain == e, None]
                  for e in (2, 5, 9)]  # fmt: skip
        means = torch.stack([group.mean(0) for group in groups])
        spread = (means - means.mean(0)).square().sum(1).mean()
        square = torch.stack([group.square().sum(1).mean() for group in groups]).mean()
        # The variance of the mean of n draws, summed over components; of E means around theirs.
        chance = sum(group.var(0).sum() / len(group) for group in groups) * (1 / 3 - 1 / 9)
        assert found[name].dispersion == pytest.approx(float(spread), rel=1e-9)
        assert found[name].mean_square == pytest.approx(float(square), rel=1e-9)
        assert found[name].chance == pytest.approx(float(chance), rel=1e-9)
        assert found[name].relative == pytest.approx(float(spread / square), rel=1e-9)
        assert 0 <= found[name].relative <= 1


def test_one_logit_is_binary():
    z, y = torch.randn(12, 2, dtype=DOUBLE), torch.randint(2, (12,))
    logits, domain = torch.randn(12, dtype=DOUBLE), torch.arange(12) % 2
    found = attribute_dispersions(z, logits, y, domain, loss="binary")
    p = logits.sigmoid()
    value = torch.einsum("n,ni,nj->nij", p * (1 - p), z, z)
    means = [value[domain == e].mean(0) for e in (0, 1)]
    expected = float((means[0] - means[1]).square().sum() / 4)
    assert found["logit_covariance"].dispersion == pytest.approx(expected, rel=1e-9)


def test_only_the_raw_dispersion_feels_the_scale_of_features(samples):
    z, logits, y, domain = samples
    small, large = (attribute_dispersions(c * z, logits, y, domain) for c in (1, 10))
    for name, power in (("feature", 2), ("logit_covariance", 4), ("error", 0)):
        ratio = large[name].dispersion / small[name].dispersion
        assert ratio == pytest.approx(10**power, rel=1e-9)
        assert large[name].relative == pytest.approx(small[name].relative, rel=1e-9)


@pytest.mark.slow
def test_without_a_difference_all_is_chance():
    """Many draws of domains that do not differ: the mean dispersion is the mean chance."""
    spread, chance = [], []
    for _ in range(300):
        z, y = torch.randn(60, 2, dtype=DOUBLE), torch.randint(2, (60,))
        domain = torch.arange(3).repeat_interleave(torch.tensor([10, 20, 30]))
        found = attribute_dispersions(z, z, y, domain)["error_feature"]
        spread.append(found.dispersion)
        chance.append(found.chance)
    assert math.fsum(spread) / math.fsum(chance) == pytest.approx(1, abs=0.1)
