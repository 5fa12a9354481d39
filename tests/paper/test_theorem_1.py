"""Theorem 1 with the radius corrected: the transfer measure is below its bound, which is tight."""

import dataclasses
import math

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests import oracles, trust_region
from tests.cases import Batch
from tests.transfer_problems import Problem, classification, regression
from tests.trust_region import Quadratic

from hessalign import transfer_bound, transfer_measure
from hessalign._errors import InputError

SLACK = 1 + 1e-9
seeds = st.integers(0, 2**32 - 1)


def powers_of_ten(lowest, highest):
    return st.floats(lowest, highest).map(lambda power: 10.0**power)


def brute_force(problem, tolerance):
    source, target = (Quadratic.of(*problem.of(e), problem.l2, problem.bias) for e in (0, 1))
    return trust_region.transfer_measure(source, target, tolerance)


def bound(problem, tolerance, **options):
    return transfer_bound(
        *problem.arguments, source=0, target=1, tolerance=tolerance, **problem.options, **options
    )


def measure(problem, tolerance, **options):
    return transfer_measure(
        *problem.arguments, source=0, target=1, tolerance=tolerance, **problem.options, **options
    )


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@settings(max_examples=1700)
@given(
    seeds,
    powers_of_ten(-5, 1),
    powers_of_ten(-3, 0),
    st.integers(1, 3),
    st.integers(1, 2),
    st.booleans(),
    st.booleans(),
)
def test_quadratics_stay_below_the_bound(seed, tolerance, l2, features, outputs, bias, by_weight):
    """The measure comes from eigen-decompositions; there is no remainder."""
    problem = regression(seed, features=features, outputs=outputs, l2=l2, bias=bias)
    found = bound(problem, tolerance, strong_convexity="l2" if by_weight else "hessian")
    assert found.remainder == 0
    assert found.strong_convexity.everywhere
    assert brute_force(problem, tolerance) <= found.value * SLACK


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("loss", ["cross_entropy", "binary"])
@settings(max_examples=150)
@given(seeds, powers_of_ten(-4, 0), powers_of_ten(-2, 0), st.integers(1, 3), st.booleans())
def test_regularised_classifiers_stay_below_the_bound(loss, seed, tolerance, l2, features, bias):
    problem = classification(seed, loss, features=features, l2=l2, bias=bias)
    measured = measure(problem, tolerance, restarts=0)
    found = bound(problem, tolerance, measure=measured)
    assert measured.feasible
    assert found.strong_convexity.origin == "l2"
    assert measured.value <= found.guaranteed * SLACK
    assert abs(found.measured_remainder) <= found.remainder * SLACK + 1e-12
    # What was neglected at the maximiser is all that the expansion can be short of.
    assert measured.value <= (found.value + max(0, found.measured_remainder)) * SLACK + 1e-12


def shared_minimiser(seed, d=4):
    """H_S = 1, so the radius is exact in every direction; the same minimiser."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=d)
    z = torch.tensor(np.r_[math.sqrt(d) * np.eye(d), 2 * rng.normal(size=(9, d)) + 1])
    y = z @ torch.tensor(truth)
    return Problem(z, y, torch.arange(len(z)).ge(d).long(), "squared", 0.0, bias=False)


@pytest.mark.parametrize("tolerance", [1e-4, 0.1, 3.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_bound_is_attained(seed, tolerance):
    problem = shared_minimiser(seed)
    measured, found = measure(problem, tolerance), bound(problem, tolerance)
    assert measured.same_minimiser
    assert found.gradient_term + found.target_term < 1e-6 * found.hessian_term
    assert measured.value == pytest.approx(found.hessian_term, rel=1e-6)
    assert found.radius == pytest.approx(math.sqrt(2 * tolerance))


@pytest.mark.usefixtures("unchecked")
@settings(max_examples=200)
@given(seeds, powers_of_ten(-4, 1), st.integers(1, 5))
def test_the_bound_is_tight_for_quadratics(seed, tolerance, features):
    """The measure comes from eigen-decompositions, so nothing but the bound is the library's.

    The bound takes the absolute difference of the curvatures, so it is attained where the target is
    the more curved of the two; where it is flatter, its loss grows more slowly than the source's.
    """
    problem = shared_minimiser(seed, features)
    target = problem.z[problem.domain == 1].numpy()
    difference = np.linalg.eigvalsh(target.T @ target / len(target) - np.eye(features))
    assume(difference[-1] > -difference[0])
    expected = brute_force(problem, tolerance)
    assert bound(problem, tolerance).hessian_term == pytest.approx(expected, rel=1e-6)


def test_the_printed_radius_would_be_too_small():
    """μ = 1, h = 4: T = (h − μ) δ_S / μ, the errata's example."""
    z, y = torch.tensor([[1.0], [2.0]], dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    problem = Problem(z, y, torch.tensor([0, 1]), "squared", 0.0, bias=False)
    measured, found = measure(problem, 0.1), bound(problem, 0.1)
    assert measured.value == pytest.approx(0.3)
    assert found.value == pytest.approx(0.3)
    printed = 2 * 0.1 / found.strong_convexity.value
    assert printed**2 * found.hessian_distance / 2 < measured.value


@pytest.mark.parametrize("seed", range(3))
def test_same_minimiser_of_logistic_risks(seed):
    """Labels that are the probabilities of one head: it is optimal on every domain."""
    hard = classification(seed, "binary", l2=0.0)
    truth = torch.tensor([1.0, -0.5, 0.3], dtype=torch.float64)
    problem = Problem(hard.z, (hard.z @ truth).sigmoid(), hard.domain, "binary", 0.0, outputs=1)
    measured = measure(problem, 1e-4)
    found = bound(problem, 1e-4, measure=measured)
    assert measured.same_minimiser
    assert found.gradient_term + found.target_term < 1e-6 * found.hessian_term
    assert found.strong_convexity.origin == "hessian"
    assert not found.strong_convexity.everywhere
    assert measured.value <= found.hessian_term + abs(found.measured_remainder)


@pytest.mark.parametrize("loss", ["cross_entropy", "binary", "squared"])
def test_both_vanish_as_the_target_turns_into_the_source(loss):
    """Soft targets are mixed with the features; hard labels are the source's throughout."""
    sizes = (20, 20)
    if loss == "squared":
        problem = regression(5, sizes=sizes)
    else:
        problem = classification(5, loss, sizes=sizes)
    (z0, y0), (z1, y1) = problem.of(0), problem.of(1)
    values, bounds = [], []
    for share in (0.0, 0.5, 0.9, 0.99, 0.999, 1.0):
        z = torch.cat([z0, (1 - share) * z1 + share * z0])
        moved = (1 - share) * y1 + share * y0 if loss == "squared" else y0
        mixed = Problem(
            z, torch.cat([y0, moved]), problem.domain, loss, 0.05, True, problem.outputs
        )
        values.append(measure(mixed, 0.01, restarts=0).value)
        bounds.append(bound(mixed, 0.01).value)
    assert all(a <= b * SLACK + 1e-12 for a, b in zip(values[2:], bounds[2:], strict=True))
    assert values[-2] < 0.02 * values[0]
    assert bounds[-2] < 0.02 * bounds[0]
    assert abs(values[-1]) < 1e-9
    assert bounds[-1] < 1e-9


@pytest.mark.usefixtures("unchecked")
@settings(max_examples=100)
@given(seeds, powers_of_ten(-3, 0), st.booleans())
def test_both_vanish_in_step_for_random_quadratics(seed, tolerance, bias):
    """Close to the source both are in proportion to what is left of the way."""
    problem = regression(seed, sizes=(10, 10), bias=bias)
    (z0, y0), (z1, y1) = problem.of(0), problem.of(1)
    values, bounds = [], []
    for left in (1e-4, 1e-5, 0.0):
        z, y = (torch.cat([a, a + left * (b - a)]) for a, b in ((z0, z1), (y0, y1)))
        mixed = Problem(z, y, problem.domain, "squared", problem.l2, bias)
        values.append(brute_force(mixed, tolerance))
        bounds.append(bound(mixed, tolerance).value)
        assert values[-1] <= bounds[-1] * SLACK + 1e-12
    assert values[1] == pytest.approx(values[0] / 10, rel=0.1)
    assert bounds[1] == pytest.approx(bounds[0] / 10, rel=0.1)
    assert abs(values[2]) < 1e-9
    assert bounds[2] < 1e-9


def test_remainder_is_of_third_order():
    problem = classification(6)
    ratios = []
    for tolerance in (1e-3, 1e-5):
        found = bound(problem, tolerance, measure=measure(problem, tolerance))
        ratios.append(abs(found.measured_remainder) / found.radius**3)
        assert found.remainder / found.radius**3 >= ratios[-1]
    assert ratios[1] < 10 * ratios[0]


# ---------------------------------------------------------------------- in the source's own metric


def derivatives(problem, theta, domain):
    """Hessian and gradient of a domain's risk at a head, by torch.func."""
    rows = problem.domain == domain
    z, y = problem.z[rows], problem.y[rows]
    batch = Batch(z, oracles.augmented(z, problem.bias) @ theta.T, y, torch.zeros(len(z)).long())
    options = {"loss": problem.loss, "bias": problem.bias}
    hessian = oracles.dense_hessian(batch, **options)[0] + problem.l2 * torch.eye(theta.numel())
    gradient = oracles.gradient(batch, **options)[0] + problem.l2 * theta.flatten()
    return hessian.numpy(), gradient.numpy()


@pytest.mark.parametrize("loss", ["cross_entropy", "binary", "squared"])
def test_terms_in_the_source_metric(loss):
    problem = regression(3) if loss == "squared" else classification(3, loss)
    found = bound(problem, 0.02, metric="source")
    (hs, gs), (ht, gt) = (derivatives(problem, found.source.parameters, e) for e in (0, 1))
    largest = scipy.linalg.eigh(ht - hs, hs, eigvals_only=True)[-1]
    assert found.hessian_distance == pytest.approx(largest)
    assert found.hessian_term == pytest.approx(0.02 * max(0, largest))
    length = math.sqrt((gt - gs) @ np.linalg.solve(hs, gt - gs))
    assert found.gradient_term == pytest.approx(math.sqrt(0.04) * length)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@settings(max_examples=300)
@given(seeds, powers_of_ten(-5, 1), powers_of_ten(-3, 0), st.integers(1, 3), st.booleans())
def test_quadratics_stay_below_the_bound_of_the_source(seed, tolerance, l2, features, bias):
    problem = regression(seed, features=features, l2=l2, bias=bias)
    found = bound(problem, tolerance, metric="source")
    assert found.remainder <= 1e-6 * found.value
    assert brute_force(problem, tolerance) <= found.guaranteed * SLACK


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("loss", ["cross_entropy", "binary"])
@settings(max_examples=100)
@given(seeds, powers_of_ten(-4, 0), powers_of_ten(-3, 0), st.integers(1, 3), st.booleans())
def test_classifiers_stay_below_the_bound_of_the_source(loss, seed, tolerance, l2, features, bias):
    """Against direct maximisation; and no head of the minimal set is outside of the radius."""
    problem = classification(seed, loss, features=features, l2=l2, bias=bias)
    measured = measure(problem, tolerance, restarts=0)
    found = bound(problem, tolerance, measure=measured, metric="source")
    assert measured.value <= found.guaranteed * SLACK
    hessian, _ = derivatives(problem, found.source.parameters, 0)
    move = (measured.maximiser - found.source.parameters).flatten().numpy()
    assert math.sqrt(move @ hessian @ move) <= found.radius * SLACK
    assert found.radius >= math.sqrt(2 * tolerance)


@pytest.mark.parametrize("loss", ["cross_entropy", "binary"])
@pytest.mark.parametrize("tolerance", [1e-3, 0.1])
def test_a_classifier_stays_below_the_bound_of_the_source(loss, tolerance):
    problem = classification(11, loss)
    measured = measure(problem, tolerance, restarts=1)
    found = bound(problem, tolerance, metric="source")
    assert 0 < measured.value <= found.guaranteed


@pytest.mark.parametrize("tolerance", [1e-4, 0.1, 3.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_bound_of_the_source_is_attained(seed, tolerance):
    """With one minimiser it is the transfer measure, also where the source's Hessian is not 1."""
    problem = shared_minimiser(seed)
    change = torch.tensor(np.random.default_rng(seed).normal(size=(4, 4)))
    problem = dataclasses.replace(problem, z=problem.z @ change)
    found = bound(problem, tolerance, metric="source")
    assert found.remainder == pytest.approx(0, abs=1e-6 * found.value)
    assert brute_force(problem, tolerance) == pytest.approx(found.value, rel=1e-6)


@pytest.mark.parametrize("scale", [0.01, 30.0])
def test_the_features_may_change_linearly(scale):
    """Without L2 term the bound of the source is that of the predictors; the other one is not."""
    problem = classification(5, "binary", sizes=(40, 50), l2=0.0)
    change = torch.tensor(np.random.default_rng(1).normal(size=(3, 3))) * scale
    other = dataclasses.replace(problem, z=problem.z @ change)
    names = ("hessian_term", "gradient_term", "target_term", "radius", "guaranteed")
    before, after = (bound(each, 0.01, metric="source") for each in (problem, other))
    for name in names:
        assert getattr(after, name) == pytest.approx(getattr(before, name), rel=1e-5), name
    plain, changed = (bound(each, 0.01).value for each in (problem, other))
    assert not 0.8 < changed / plain < 1.25


def test_small_tolerances_leave_no_remainder():
    problem = classification(7, "binary")
    shares = []
    for tolerance in (1e-2, 1e-4, 1e-6):
        found = bound(problem, tolerance, metric="source")
        shares.append(found.remainder / found.value)
    assert shares[0] > shares[1] > shares[2]
    assert shares[2] < 0.02


@pytest.mark.usefixtures("unchecked")
def test_flat_sources_are_refused():
    with pytest.raises(InputError, match="positive definite Hessian"):
        bound(classification(1, l2=0.0), 0.1, metric="source")
    with pytest.raises(InputError, match="metric"):
        bound(classification(1), 0.1, metric="sauce")
