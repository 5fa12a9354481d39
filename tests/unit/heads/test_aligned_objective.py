"""The aligned objective and its gradient are those of the definition, by every route."""

import pytest
import torch
from tests import oracles
from tests.aligned_objective import QUANTITY, Batch, expected_objective, problem_of

from hessalign.curvature import make_loss
from hessalign.heads import aligned_objective as module
from hessalign.heads.aligned_objective import AlignedObjective, Weights
from hessalign.heads.samples import make_samples

LOSSES = ("cross_entropy", "binary", "squared")
WEIGHTS = Weights(0.7, 0.4)


def objective_of(problem, kind, l2=0.3, bias=True, **options):
    loss = make_loss(problem.loss)
    samples = make_samples(*problem.arguments, loss, bias=bias, l2=l2, free_bias=True)
    return AlignedObjective(samples, kind, **options)


def draw_head(objective):
    return torch.randn(objective.samples.shape, dtype=torch.float64)


def assert_follows_from_the_definition(problem, objective, kind, bias=True):
    head = draw_head(objective).requires_grad_()
    value, slope = objective.value_and_gradient(head.detach(), WEIGHTS)
    expected = expected_objective(problem, head, kind, 0.3, bias)
    (expected_slope,) = torch.autograd.grad(expected, head)
    assert value == pytest.approx(float(expected.detach()), rel=1e-10)
    assert torch.allclose(slope, expected_slope, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", [*QUANTITY, None])
@pytest.mark.parametrize("loss", LOSSES)
def test_objective_and_gradient_are_those_of_the_definition(loss, kind, bias):
    problem = problem_of(loss)
    objective = objective_of(problem, kind, bias=bias)
    assert_follows_from_the_definition(problem, objective, kind, bias)


@pytest.mark.parametrize("route", ["pairs", "means", "anew"])
@pytest.mark.parametrize("kind", QUANTITY)
@pytest.mark.parametrize("loss", LOSSES)
def test_every_route_gives_the_same(loss, kind, route, monkeypatch):
    """Few samples: a matrix over pairs. Many: the domains' means. Too many: nothing is held."""
    sizes = (3, 2, 2) if route == "pairs" else (30, 45, 25)
    problem = problem_of(loss, sizes=sizes)
    if route == "anew":
        monkeypatch.setattr(module, "_FORM_ELEMENTS", 0)
    objective = objective_of(problem, kind)
    way = torch.matmul if route == "pairs" else module._by_means
    assert objective._of_rows.func is objective._of_diagonals.func is way
    curvatures = objective._of_curvatures
    assert curvatures is None if route == "anew" else curvatures.func is way
    assert_follows_from_the_definition(problem, objective, kind)


def test_many_classes_are_not_written_out(monkeypatch):
    problem = problem_of("cross_entropy")
    objective = objective_of(problem, "full")
    assert_follows_from_the_definition(problem, objective, "full")
    monkeypatch.setattr(module, "FULL_COMPONENTS", 0)
    monkeypatch.setattr(AlignedObjective, "_of_curvatures", property(lambda self: 1 / 0))
    assert_follows_from_the_definition(problem, objective, "full")


@pytest.mark.parametrize("kind", ["sampled", "expected"])
def test_gradient_of_the_other_kinds_by_differences(kind):
    problem = problem_of("cross_entropy")
    objective = objective_of(problem, kind, probes=5)
    head, weights = draw_head(objective), Weights(0.7, 0.0)
    _, slope = objective.value_and_gradient(head, weights)
    for index in range(head.numel()):
        step = torch.zeros_like(head)
        step.view(-1)[index] = 1e-5
        up, down = (objective.value_and_gradient(head + s * step, weights)[0] for s in (1, -1))
        found = float(slope.flatten()[index])
        assert found == pytest.approx((up - down) / 2e-5, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("kind", [*QUANTITY, None])
def test_terms_are_before_their_weights(kind):
    problem = problem_of("binary")
    objective = objective_of(problem, kind)
    head = draw_head(objective)
    loss, hessian, gradient = objective.terms(head)
    value, _ = objective.value_and_gradient(head, WEIGHTS)
    ridge = 0.15 * float(head[:, :-1].square().sum())
    assert value == pytest.approx(loss + ridge + 0.7 * hessian + 0.4 * gradient, rel=1e-12)
    assert (hessian == 0) == (kind is None)
    assert objective.value_and_gradient(head, Weights())[0] == pytest.approx(loss + ridge)


def test_the_l2_term_may_be_over_the_biases_too():
    problem = problem_of("binary")
    samples = make_samples(*problem.arguments, make_loss("binary"), l2=0.3)
    objective = AlignedObjective(samples)
    head = draw_head(objective)
    value, slope = objective.value_and_gradient(head, Weights())
    free_value, free_slope = objective_of(problem, "full").value_and_gradient(head, Weights())
    assert value - free_value == pytest.approx(0.15 * float(head[0, -1]) ** 2)
    assert torch.allclose((slope - free_slope)[0, :-1], torch.zeros(1).double(), atol=1e-12)
    assert float((slope - free_slope)[0, -1]) == pytest.approx(0.3 * float(head[0, -1]))


def test_one_domain_has_no_dispersion():
    problem = problem_of("cross_entropy", sizes=(20,))
    objective = objective_of(problem, "full")
    assert objective.terms(draw_head(objective))[1:] == (0.0, 0.0)


def test_terms_near_alignment_keep_their_digits():
    """Two domains that differ by a millionth: a dispersion of 1e-12 of the squared norm."""
    problem = problem_of("cross_entropy", sizes=(40, 40))
    z, y, domain = problem.arguments
    z[40:], y = z[:40] * (1 + 1e-6), torch.cat([y[:40], y[:40]])
    for count in (40, 4):  # means, pairs
        rows = torch.cat([torch.arange(count), torch.arange(40, 40 + count)])
        samples = make_samples(z[rows], y[rows], domain[rows], make_loss("cross_entropy"))
        objective = AlignedObjective(samples)
        head = draw_head(objective)
        logits = samples.features @ head.T
        batch = samples.features, logits, samples.targets, domain[rows]
        _, hessian, gradient = objective.terms(head)
        for name, found in (("hessian", hessian), ("gradient", gradient)):
            values = oracles.quantity(name, Batch(*batch), loss="cross_entropy", bias=False)
            assert found == pytest.approx(float(oracles.dispersion(values)), rel=1e-3)
