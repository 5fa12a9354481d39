"""Plain and penalised fits against autograd, Newton's method and the public dispersions."""

import pytest
import torch
from tests.diagnosis_data import alike
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

import hessalign as ha
from hessalign.alignment import gradient_dispersion, hessian_dispersion
from hessalign.curvature import make_loss
from hessalign.diagnosis import penalised_fit as module
from hessalign.diagnosis.penalised_fit import (
    Weights,
    dispersions,
    fix_features,
    penalised_fit,
)
from hessalign.heads import fit_aligned_head, fit_head


def problem(loss, *, bias=True, free=False):
    z, y, domain = alike(3, 40, 4, classes=2 if loss == "binary" else 3)
    z[domain == 2] += 0.7
    outputs = 1 if loss == "binary" else 3
    data = fix_features(z, y, domain, make_loss(loss), outputs, bias=bias, free_bias=free)
    return z, y, domain, data, outputs


def by_autograd(theta, z, y, domain, loss, bias, kind, weights, l2):
    """The objective from its definition, dispersions by the public functions."""
    logits = z @ theta[:, : z.shape[1]].T + (theta[:, -1] if bias else 0)
    head = ha.linear_head(z, logits, y, domain, loss=loss, bias=bias)
    if loss == "binary":
        losses = binary_cross_entropy_with_logits(logits[:, 0], y.double(), reduction="none")
    else:
        losses = cross_entropy(logits, y, reduction="none")
    risk = torch.stack([losses[domain == e].mean() for e in range(3)]).mean()
    penalty = weights.alpha * hessian_dispersion(head, kind)
    penalty = penalty + weights.beta * gradient_dispersion(head)
    return risk + l2 / 2 * theta.square().sum() + penalty


@pytest.mark.parametrize("loss", ["cross_entropy", "binary"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", ["full", "diagonal"])
@pytest.mark.parametrize("factored", [True, False])
def test_value_and_gradient_follow_from_the_definition(loss, bias, kind, factored, monkeypatch):
    if loss == "cross_entropy" and kind == "diagonal":
        monkeypatch.setattr(module, "FULL_COMPONENTS", 0)
    z, y, domain, data, outputs = problem(loss, bias=bias)
    if not factored:
        z, y, domain = z[::6], y[::6], domain[::6]
        data = fix_features(z, y, domain, make_loss(loss), outputs, bias=bias)
    form = data._hessian_form
    assert form.factored == factored or data.kind == "diagonal" or loss == "binary"
    theta = torch.randn(outputs, 4 + bias, dtype=torch.float64)
    weights = Weights(0.7, 1.3)
    value, gradient, _ = data.objective(theta, weights, 0.2)
    leaf = theta.clone().requires_grad_()
    kind = data.kind if loss == "cross_entropy" else "full"
    wanted = by_autograd(leaf, z, y, domain, loss, bias, kind, weights, 0.2)
    assert value == pytest.approx(float(wanted.detach()))
    torch.testing.assert_close(gradient, torch.autograd.grad(wanted, leaf)[0])


@pytest.mark.parametrize("loss", ["cross_entropy", "binary"])
def test_a_plain_fit_is_the_one_newton_finds(loss):
    z, y, domain, _, outputs = problem(loss)
    one = torch.zeros_like(domain)
    found = penalised_fit(fix_features(z, y, one, make_loss(loss), outputs), 0.05)
    wanted = fit_head(z, y, loss, 0.05, outputs=outputs)
    torch.testing.assert_close(found.parameters, wanted.parameters, atol=1e-4, rtol=0)
    assert found.gradient_norm < 1e-4


def test_a_stronger_penalty_aligns_more():
    _, _, _, data, _ = problem("cross_entropy")
    plain = penalised_fit(data, 0.01)
    before = dispersions(data, plain.parameters)
    for weight in (1.0, 100.0):
        fit = penalised_fit(data, 0.01, Weights(weight, weight), plain.parameters)
        after = dispersions(data, fit.parameters)
        assert sum(after) < sum(before)
        assert fit.risk > plain.risk
        before = after
    assert sum(before) < 0.3 * sum(dispersions(data, plain.parameters))


@pytest.mark.parametrize("loss", ["cross_entropy", "binary"])
@pytest.mark.parametrize("bias", [True, False])
def test_an_aligned_fit_is_the_one_the_general_function_finds(loss, bias):
    z, y, domain, data, _ = problem(loss, bias=bias, free=True)
    found = penalised_fit(data, 0.1, Weights(0.5, 0.5))
    wanted = fit_aligned_head(z, y, domain, alpha=0.5, beta=0.5, loss=loss, l2=0.1, bias=bias)
    if loss == "cross_entropy" and bias:  # the same number on all biases changes nothing
        found.parameters[:, -1] -= found.parameters[:, -1].mean()
        wanted.parameters[:, -1] -= wanted.parameters[:, -1].mean()
    torch.testing.assert_close(found.parameters, wanted.parameters, atol=1e-4, rtol=0)


def test_one_domain_has_no_dispersion():
    z, y, _ = alike(1, 20, 3)
    data = fix_features(z, y, torch.zeros(20).long(), make_loss("cross_entropy"), 3)
    assert dispersions(data, torch.ones(3, 4).double()) == (0.0, 0.0)
