"""The aligned head is a minimum of its objective, and says what it attains."""

import pytest
import torch
from tests.aligned_objective import expected_objective, problem_of
from tests.transfer_problems import classification

from hessalign.bench.data import make_shifted_data
from hessalign.curvature import make_loss
from hessalign.heads import fit_aligned_head, fit_head
from hessalign.heads.aligned_objective import AlignedObjective, Weights
from hessalign.heads.fit import minimise
from hessalign.heads.samples import make_samples

LOSSES = ("cross_entropy", "binary", "squared")
WEIGHTS = {"alpha": 0.7, "beta": 0.4}


@pytest.mark.parametrize("kind", ["full", "diagonal", "product", None])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_slope_vanishes_at_the_fitted_head(loss, kind):
    problem = problem_of(loss, seed=1)
    fitted = fit_aligned_head(
        *problem.arguments, hessian=kind, loss=loss, l2=0.05, tolerance=1e-7, **WEIGHTS
    )
    head = fitted.parameters.clone().requires_grad_()
    value = expected_objective(problem, head, kind, 0.05)
    (slope,) = torch.autograd.grad(value, head)
    assert fitted.converged
    assert fitted.value == pytest.approx(float(value.detach()), rel=1e-9)
    assert fitted.slope == pytest.approx(float(slope.abs().max()), abs=1e-9)
    assert slope.abs().max() < 1e-5
    for _ in range(20):
        other = fitted.parameters + 0.01 * torch.randn_like(fitted.parameters)
        assert expected_objective(problem, other, kind, 0.05) > fitted.value


@pytest.mark.parametrize("loss", LOSSES)
def test_one_domain_is_a_plain_fit(loss):
    """Newton's method, an implementation of its own, finds the same head; it has an L2 bias."""
    problem = problem_of(loss, sizes=(40,))
    plain = fit_head(problem.z, problem.y, loss, 0.1, bias=False)
    fitted = fit_aligned_head(
        *problem.arguments, loss=loss, l2=0.1, bias=False, tolerance=1e-9, **WEIGHTS
    )
    assert torch.allclose(fitted.parameters, plain.parameters, atol=1e-6)
    assert fitted.hessian == fitted.gradient == 0


@pytest.mark.parametrize("loss", ["cross_entropy", "binary"])
def test_a_free_bias_and_a_start_elsewhere_lead_to_the_same_minimum(loss):
    """The diagnosis' own way to a fit: samples and an objective that several fits share."""
    problem = problem_of(loss, sizes=(30, 40, 35))
    samples = make_samples(*problem.arguments, make_loss(loss), l2=0.1, free_bias=True)
    objective, weights = AlignedObjective(samples), Weights(0.5, 0.5)
    start = torch.randn(samples.shape, dtype=torch.float64)
    wanted = fit_aligned_head(*problem.arguments, alpha=0.5, beta=0.5, loss=loss, l2=0.1)
    for options in ({}, {"start": start}):
        found = minimise(objective, weights, tolerance=1e-8, **options)
        assert found.value == pytest.approx(wanted.value, rel=1e-9)
        moved = found.parameters - wanted.parameters
        if loss == "cross_entropy":  # the same number on all biases changes nothing
            moved[:, -1] -= moved[:, -1].mean()
        assert moved.abs().max() < 1e-4


@pytest.mark.parametrize("loss", ["cross_entropy", "binary"])
def test_a_plain_fit_without_a_free_bias_is_the_one_newton_finds(loss):
    problem = problem_of(loss, sizes=(60,))
    samples = make_samples(problem.z, problem.y, None, make_loss(loss), l2=0.05)
    found = minimise(AlignedObjective(samples), tolerance=1e-9)
    wanted = fit_head(problem.z, problem.y, loss, 0.05)
    torch.testing.assert_close(found.parameters, wanted.parameters, atol=1e-6, rtol=0)
    for name in ("value", "risk", "loss"):
        assert getattr(found, name) == pytest.approx(getattr(wanted, name), rel=1e-9)
    assert found.value == found.risk
    assert found.risk > found.loss
    assert found.gradient_norm >= found.slope


def test_float32_samples_are_fitted_as_well_as_they_can_be():
    problem = problem_of("cross_entropy", sizes=(60, 50))
    samples = make_samples(*problem.arguments, make_loss("cross_entropy"), l2=0.05)
    narrow, wide = (
        minimise(AlignedObjective(samples.to(dtype)), Weights(0.5, 0.5))
        for dtype in (torch.float32, torch.float64)
    )
    assert narrow.slope < 1e-4
    torch.testing.assert_close(narrow.parameters, wide.parameters, atol=1e-3, rtol=0)


def test_value_risk_and_loss_are_the_objective_and_its_parts():
    problem = problem_of("cross_entropy")
    fitted = fit_aligned_head(*problem.arguments, l2=0.3, **WEIGHTS)
    ridge = 0.15 * float(fitted.parameters[:, :-1].square().sum())
    assert fitted.risk == pytest.approx(fitted.loss + ridge)
    penalty = 0.7 * fitted.hessian + 0.4 * fitted.gradient
    assert fitted.value == pytest.approx(fitted.risk + penalty)
    assert fitted.l2 == 0.3


def test_domains_count_the_same_whatever_their_sizes():
    problem = classification(2, "binary", sizes=(5, 50))
    repeated = torch.cat([torch.arange(5).repeat(10), torch.arange(5, 55)])
    even = [values[repeated] for values in problem.arguments]
    unequal, equal = (
        fit_aligned_head(*values, loss="binary", l2=0.1, tolerance=1e-9)
        for values in (problem.arguments, even)
    )
    pooled = fit_aligned_head(
        *even[:2], torch.zeros(100).long(), loss="binary", l2=0.1, tolerance=1e-9
    )
    assert torch.allclose(unequal.parameters, equal.parameters, atol=1e-6)
    assert torch.allclose(unequal.parameters, pooled.parameters, atol=1e-6)


@pytest.mark.parametrize(("weight", "term"), [("alpha", "hessian"), ("beta", "gradient")])
def test_more_weight_brings_the_domains_together(weight, term):
    problem = problem_of("cross_entropy", seed=3, sizes=(20, 30, 25))
    values = [
        getattr(fit_aligned_head(*problem.arguments, l2=1e-3, **{weight: power}), term)
        for power in (0.0, 0.1, 1.0, 10.0, 1000.0)
    ]
    assert values == sorted(values, reverse=True)
    assert values[-1] < 0.2 * values[0]


def test_order_of_the_samples_and_repetition_do_not_matter():
    problem = problem_of("cross_entropy", sizes=(20, 30))
    order = torch.randperm(50)
    shuffled = [values[order] for values in problem.arguments]
    options = {"l2": 0.01, "tolerance": 1e-8, **WEIGHTS}
    first, second = (fit_aligned_head(*problem.arguments, **options) for _ in range(2))
    assert torch.equal(first.parameters, second.parameters)
    other = fit_aligned_head(*shuffled, **options)
    assert torch.allclose(first.parameters, other.parameters, atol=1e-5)


def test_probes_follow_the_seed():
    problem = problem_of("cross_entropy", sizes=(20, 30))
    options = {"hessian": "sampled", "probes": 3, "l2": 0.01, "alpha": 1.0}
    first, same, other = (
        fit_aligned_head(*problem.arguments, seed=seed, **options) for seed in (1, 1, 2)
    )
    assert torch.equal(first.parameters, same.parameters)
    assert not torch.allclose(first.parameters, other.parameters, atol=1e-3)


def test_too_few_steps_are_admitted():
    problem = problem_of("cross_entropy", sizes=(20, 30))
    fitted = fit_aligned_head(*problem.arguments, l2=1e-4, max_steps=2)
    assert (fitted.converged, fitted.steps) == (False, 2)
    assert fitted.slope > 1e-3


BAD = {
    "alpha=-1.0": "finite alpha of 0 or more, got -1.0",
    "beta=float('nan')": "finite beta of 0 or more, got nan",
    "hessian='ful'": "Did you mean 'full'",
    "l2=-0.1": "L2 weight of 0 or more, got -0.1",
    "probes=0": "at least 1 probe, got 0",
    "max_steps=0": "max_steps of 1 or more, got 0",
    "tolerance=0.0": "positive, finite tolerance, got 0.0",
}


def test_bad_options_are_named(outcomes_without_type_checks):
    setup = """
        from hessalign.heads import fit_aligned_head
        z, y, domain = torch.randn(6, 2), torch.arange(6) % 2, torch.arange(6) // 3
    """
    calls = {word: f"fit_aligned_head(z, y, domain, {word})" for word in BAD}
    found = outcomes_without_type_checks(setup, calls)
    assert [word for word, message in BAD.items() if message not in found[word]] == []


def test_alignment_pays_on_a_domain_where_a_shortcut_fails():
    """Paired differences over seeds that were not chosen; the weights are the same for all."""
    gains = []
    for seed in range(8):
        data = make_shifted_data("correlation", seed, domains=3, samples=400)
        z, y = (torch.cat([getattr(part, name) for part in data.source]) for name in ("x", "y"))
        domain = torch.arange(3).repeat_interleave(400)
        accuracies = []
        for alpha, beta in ((0.0, 0.0), (1.0, 100.0)):
            head = fit_aligned_head(z, y, domain, loss="binary", alpha=alpha, beta=beta, l2=1e-3)
            weights, bias = head.parameters[0].float().split([z.shape[1], 1])
            right = (data.target.x @ weights + bias > 0).long() == data.target.y
            accuracies.append(float(right.double().mean()))
        gains.append(accuracies[1] - accuracies[0])
    mean, spread = torch.tensor(gains).mean(), torch.tensor(gains).std()
    assert mean > 0.1
    assert mean > 3 * spread / len(gains) ** 0.5
