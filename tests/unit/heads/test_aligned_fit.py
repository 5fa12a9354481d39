"""The aligned head: its objective, its gradient, and that it is a minimum."""

from types import SimpleNamespace

import pytest
import torch
from tests import oracles
from tests.transfer_problems import classification, regression

from hessalign.alignment import HessianAlignment
from hessalign.bench.data import make_shifted_data
from hessalign.curvature import make_loss
from hessalign.curvature.domains import make_domains
from hessalign.heads import fit_aligned_head, fit_head
from hessalign.heads.aligned_objective import AlignedObjective

LOSSES = ("cross_entropy", "binary", "squared")
QUANTITY = {"full": "hessian", "diagonal": "hessian_diagonal", "product": "hessian_gradient"}
WEIGHTS = {"alpha": 0.7, "beta": 0.4}


def problem_of(loss, seed=0, sizes=(9, 14, 6)):
    if loss == "squared":
        return regression(seed, sizes=sizes)
    return classification(seed, loss, sizes=sizes)


def expected_objective(problem, head, kind, l2, bias=True, alpha=0.7, beta=0.4):
    """The definition, densely and by `torch.func`; differentiable in the head."""
    logits = oracles.augmented(problem.z, bias) @ head.T
    batch = Batch(problem.z, logits, problem.y, problem.domain)
    options = {"loss": problem.loss, "bias": bias}
    weights = head[:, :-1] if bias else head
    value = oracles.risk(batch, **options).mean() + l2 / 2 * weights.square().sum()
    if kind is not None:
        value = value + alpha * oracles.dispersion(
            oracles.quantity(QUANTITY[kind], batch, **options)
        )
    return value + beta * oracles.dispersion(oracles.gradient(batch, **options))


class Batch(SimpleNamespace):
    def __init__(self, z, logits, y, domain):
        super().__init__(z=z, logits=logits, y=y, domain=domain)

    def __iter__(self):
        return iter((self.z, self.logits, self.y, self.domain))


def objective_of(problem, kind, l2, bias=True, **weights):
    return AlignedObjective(
        oracles.augmented(problem.z, bias),
        problem.y,
        make_domains(problem.domain),
        make_loss(problem.loss),
        outputs_of(problem),
        bias,
        HessianAlignment(hessian=kind, **weights),
        l2,
        seed=0,
    )


def outputs_of(problem):
    return problem.y.shape[1] if problem.loss == "squared" else problem.outputs


def draw_head(problem, bias):
    shape = (outputs_of(problem), problem.z.shape[1] + bias)
    return torch.randn(shape, dtype=torch.float64)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", [*QUANTITY, None])
@pytest.mark.parametrize("loss", LOSSES)
def test_objective_and_gradient_are_those_of_the_definition(loss, kind, bias):
    problem = problem_of(loss)
    head = draw_head(problem, bias).requires_grad_()
    objective = objective_of(problem, kind, 0.3, bias, **WEIGHTS)
    value, slope = objective.value_and_gradient(head.detach())
    expected = expected_objective(problem, head, kind, 0.3, bias)
    (expected_slope,) = torch.autograd.grad(expected, head)
    assert value == pytest.approx(float(expected.detach()), rel=1e-10)
    assert torch.allclose(slope, expected_slope, rtol=1e-8, atol=1e-10)
    terms = objective.terms(head.detach())
    assert float(terms.value) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("kind", ["sampled", "expected"])
def test_gradient_of_the_other_kinds_by_differences(kind):
    problem = problem_of("cross_entropy")
    objective = objective_of(problem, kind, 0.3, alpha=0.7, beta=0.0, probes=5)
    head = draw_head(problem, True)
    _, slope = objective.value_and_gradient(head)
    for index in range(head.numel()):
        step = torch.zeros_like(head)
        step.view(-1)[index] = 1e-5
        up, down = (objective.value_and_gradient(head + s * step)[0] for s in (1, -1))
        found = float(slope.flatten()[index])
        assert found == pytest.approx((up - down) / 2e-5, rel=1e-5, abs=1e-7)


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
