"""The transfer measure against eigen-decompositions and random search, with its certificate."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import oracles, trust_region
from tests.transfer_problems import Problem, classification, regression
from tests.trust_region import Quadratic

from hessalign import transfer_measure
from hessalign.heads import fit_head


def measure(problem, tolerance, **options):
    return transfer_measure(
        *problem.arguments, source=0, target=1, tolerance=tolerance, **problem.options, **options
    )


@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1), st.floats(-5, 1), st.floats(-3, 0), st.booleans())
def test_quadratics_agree_with_the_eigenproblem(seed, tolerance, l2, bias):
    """Different minimisers, so both the rise of the gap and the descent of the target count."""
    problem = regression(seed, l2=10.0**l2, bias=bias)
    quadratics = [Quadratic.of(*problem.of(e), problem.l2, bias) for e in (0, 1)]
    expected = trust_region.transfer_measure(*quadratics, 10.0**tolerance)
    found = measure(problem, 10.0**tolerance)
    assert found.value == pytest.approx(expected, rel=1e-7)
    assert found.feasible


def mean_loss(problem, theta, e):
    z, y = problem.of(e)
    logits = oracles.augmented(z, problem.bias) @ theta.T
    return oracles.losses(logits, y, problem.loss).mean() + problem.l2 / 2 * theta.square().sum()


@pytest.mark.parametrize("tolerance", [1e-3, 0.3])
@pytest.mark.parametrize("loss", ["cross_entropy", "binary"])
def test_the_certificate_from_scratch(loss, tolerance):
    """The value is what the maximiser says, by losses that the library does not compute."""
    problem = classification(1, loss)
    found = measure(problem, tolerance)
    source_excess = mean_loss(problem, found.maximiser, 0) - found.source.risk
    target_excess = mean_loss(problem, found.maximiser, 1) - found.target_lowest
    assert source_excess <= tolerance
    assert float(source_excess) == pytest.approx(found.source_excess, abs=1e-12)
    assert float(target_excess - source_excess) == pytest.approx(found.value)
    assert found.target_lowest >= found.target.risk - 1e-12
    assert found.restarts >= 8
    assert 0 <= found.spread <= found.value
    assert not found.same_minimiser


@pytest.mark.parametrize("loss", ["cross_entropy", "binary"])
def test_random_search_finds_nothing_larger(loss):
    problem = classification(2, loss, features=1)
    found = measure(problem, 0.2)
    best = fit_head(*problem.of(0), loss, problem.l2, outputs=problem.outputs).parameters
    lows, gaps = [], []
    for _ in range(3000):
        theta = best + 2 * float(torch.rand(())) * torch.randn_like(best)
        source = mean_loss(problem, theta, 0) - found.source.risk
        if source <= 0.2:
            target = mean_loss(problem, theta, 1)
            lows.append(float(target))
            gaps.append(float(target - source))
    assert len(gaps) > 50
    assert max(gaps) - found.target_lowest <= found.value * (1 + 1e-9)
    assert min(lows) >= found.target_lowest - 1e-12
    assert max(gaps) - found.target_lowest > 0.5 * found.value  # the search is worth something


def test_a_large_tolerance_contains_the_target_minimiser():
    problem = classification(3)
    found = measure(problem, 5.0)
    assert found.target_lowest == pytest.approx(found.target.risk, rel=1e-9)


def test_identical_domains_transfer_perfectly():
    problem = classification(4, sizes=(20, 20))
    z, y = problem.of(0)
    twice = Problem(torch.cat([z, z]), torch.cat([y, y]), problem.domain, problem.loss, 0.05)
    found = measure(twice, 0.1)
    assert abs(found.value) < 1e-12
    assert found.same_minimiser
    assert found.feasible


def test_more_tolerance_never_transfers_better():
    problem = classification(5)
    values = [measure(problem, tolerance).value for tolerance in (1e-4, 1e-3, 1e-2, 0.1, 1.0)]
    assert values == sorted(values)


def test_many_parameters_in_float32():
    """Lanczos instead of dense matrices; the maximiser still satisfies the constraint."""
    z, y = torch.randn(60, 30).relu(), torch.randint(3, (60,))
    domain = torch.arange(60) % 2
    found = transfer_measure(z, y, domain, source=1, target=0, tolerance=0.05, l2=0.1)
    assert found.feasible
    assert found.value > 0.05
    assert found.source.gradient_norm < 1e-8


def test_the_generator_decides_the_random_starts():
    problem = classification(6)
    draws = [
        measure(problem, 0.1, generator=torch.Generator().manual_seed(seed)).values
        for seed in (1, 1, 2)
    ]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
