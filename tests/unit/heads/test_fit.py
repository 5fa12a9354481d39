"""The fitted head is the minimiser, and says how close it came."""

import pytest
import torch
from tests import oracles
from tests.transfer_problems import classification, regression
from tests.trust_region import Quadratic

from hessalign.heads import fit_head


def risk(theta, z, y, loss, l2, bias):
    logits = oracles.augmented(z, bias) @ theta.T
    return oracles.losses(logits, y, loss).mean() + l2 / 2 * theta.square().sum()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("l2", [1e-4, 1.0])
@pytest.mark.parametrize("loss", ["cross_entropy", "binary", "squared"])
def test_gradient_vanishes_at_the_minimum(loss, l2, bias):
    problem = regression(0) if loss == "squared" else classification(0, loss)
    fitted = fit_head(problem.z, problem.y, loss, l2, bias=bias)
    arguments = (problem.z, problem.y, loss, l2, bias)
    slope = torch.func.grad(risk)(fitted.parameters, *arguments)
    assert slope.norm() < 1e-9
    assert fitted.gradient_norm == pytest.approx(float(slope.norm()), abs=1e-12)
    assert fitted.risk == pytest.approx(float(risk(fitted.parameters, *arguments)))
    for _ in range(20):
        other = fitted.parameters + 0.1 * torch.randn_like(fitted.parameters)
        assert risk(other, *arguments) > fitted.risk


@pytest.mark.parametrize("l2", [0.0, 0.3])
def test_squared_error_is_ridge_regression(l2):
    problem = regression(1)
    fitted = fit_head(problem.z, problem.y, "squared", l2)
    expected = Quadratic.of(problem.z, problem.y, l2).minimiser
    assert torch.allclose(fitted.parameters.flatten(), torch.tensor(expected), atol=1e-9)


@pytest.mark.parametrize("loss", ["cross_entropy", "binary", "squared"])
def test_smallest_eigenvalue_of_the_hessian(loss):
    problem = regression(2) if loss == "squared" else classification(2, loss)
    fitted = fit_head(problem.z, problem.y, loss, 0.01)
    H = torch.func.hessian(risk)(fitted.parameters, problem.z, problem.y, loss, 0.01, True)
    size = fitted.parameters.numel()
    smallest = float(torch.linalg.eigvalsh(H.reshape(size, size))[0])
    assert fitted.smallest_eigenvalue == pytest.approx(smallest, rel=1e-8)
    by_weight, by_hessian = (fitted.strong_convexity(o) for o in ("l2", "hessian"))
    assert (by_weight.value, by_weight.everywhere) == (0.01, True)
    assert by_hessian.value >= by_weight.value
    assert by_hessian.everywhere == (loss == "squared")
    assert fitted.strong_convexity().origin == ("hessian" if loss == "squared" else "l2")


def test_many_features_few_samples_in_float32():
    """More parameters than the dense routines take, and a null space only the L2 term bends."""
    z, y = torch.randn(30, 60).relu(), torch.randint(4, (30,))
    fitted = fit_head(z, y, l2=1e-3)
    slope = torch.func.grad(risk)(fitted.parameters, z.double(), y, "cross_entropy", 1e-3, True)
    assert slope.norm() < 1e-9


def test_without_l2_a_minimum_is_found_where_there_is_one():
    problem = classification(3)
    fitted = fit_head(problem.z, problem.y, l2=0.0)
    assert fitted.gradient_norm < 1e-9
    assert torch.allclose(fitted.parameters.sum(0), torch.zeros(4, dtype=torch.float64), atol=1e-9)
    assert fitted.strong_convexity().value == 0  # flat along common shifts


LINE = torch.linspace(-1, 1, 12, dtype=torch.float64).unsqueeze(1)


@pytest.mark.parametrize("loss", ["cross_entropy", "binary"])
def test_separable_data_have_no_minimum_without_l2(loss):
    y = (LINE[:, 0] > 0).long()
    with pytest.raises(ValueError, match=r"keeps falling .* separable, .* Use l2 > 0"):
        fit_head(LINE, y, loss, l2=0.0)
    assert fit_head(LINE, y, loss, l2=1e-3).gradient_norm < 1e-9


def test_a_missing_class_has_no_minimum_without_l2():
    y = torch.tensor([0, 2] * 6)
    with pytest.raises(ValueError, match=r"separable, or one is missing: without an L2 term"):
        fit_head(LINE, y, l2=0.0)


def test_a_fit_that_takes_too_long_says_how_far_it_came(monkeypatch):
    monkeypatch.setattr("hessalign.heads.fit._NEWTON_STEPS", 1)
    problem = classification(4)
    with pytest.raises(ValueError, match=r"in 1 Newton steps, but the gradient norm is .* larger"):
        fit_head(problem.z, problem.y, l2=1e-3)
