"""Equations 17 to 20: the losses of HGP and of Hutchinson's method, and what they are made of."""

import pytest
import torch
from tests import oracles
from tests.cases import UNSORTED, Case
from tests.comparison import assert_agrees, assert_same_slopes
from torch.func import grad, hessian

import hessalign as ha
from hessalign.curvature import hutchinson, hutchinson_diagonal, linear_head

CASE = Case("paper", "cross_entropy", 2, features=2, domain=UNSORTED)
ALPHA, BETA = 0.3, 0.7


@pytest.fixture
def batch():
    return CASE.build()


@pytest.fixture
def risks(batch):
    """L_e as functions of the head's parameters, and where they are differentiated."""
    return oracles.risks(batch, **CASE.options)


def mean(terms):
    return sum(terms) / len(terms)


def squared_norm(v):
    return sum(x**2 for x in v.flatten())


def test_eq17(batch, risks):
    """L_HGP = 1/n Σ_e L_e + α ‖H_e ∇L_e − mean H∇L‖² + β ‖∇L_e − mean ∇L‖²."""
    functions, theta = risks
    slopes = [grad(risk)(theta) for risk in functions]
    products = [hessian(risk)(theta) @ g for risk, g in zip(functions, slopes, strict=True)]
    expected = mean(
        [
            risk(theta)
            + ALPHA * squared_norm(product - mean(products))
            + BETA * squared_norm(slope - mean(slopes))
            for risk, product, slope in zip(functions, products, slopes, strict=True)
        ]
    )
    terms = ha.HessianAlignment(ALPHA, BETA, "product")(*batch)
    actual = linear_head(*batch).risk.mean() + terms.penalty
    assert_agrees(actual, expected)
    assert_same_slopes(actual, expected, batch.inputs)


def test_eq18(batch, risks):
    """H_e ∇L_e = ‖∇L_e‖ · ∇‖∇L_e‖."""
    functions, theta = risks
    actual = linear_head(*batch).hgp
    for e, risk in enumerate(functions):

        def norm(theta, risk=risk):
            return grad(risk)(theta).square().sum().sqrt()

        expected = norm(theta) * grad(norm)(theta)
        for p in range(len(theta)):
            assert actual[e, p].item() == pytest.approx(expected[p].item(), abs=1e-12)


def all_signs(count):
    return torch.cartesian_prod(*[torch.tensor([1.0, -1.0])] * count)


def test_eq19(monkeypatch, batch, risks):
    """diag(H_e) = E_r[r ⊙ (H_e r)]: exactly, with every sign vector once."""
    functions, theta = risks
    signs = all_signs(len(theta))
    monkeypatch.setattr(hutchinson, "_rademacher", lambda shape, seed, device: signs.unsqueeze(1))
    actual = hutchinson_diagonal(linear_head(*batch), len(signs), shared=True)
    for e, risk in enumerate(functions):
        H = hessian(risk)(theta)
        expectation = mean([r * (H @ r) for r in signs.double()])
        for p in range(len(theta)):
            assert expectation[p].item() == pytest.approx(H[p, p].item(), abs=1e-12)
            assert actual[e, p].item() == pytest.approx(H[p, p].item(), abs=1e-12)


@pytest.mark.parametrize("kind", ["diagonal", "sampled"])
def test_eq20(drawn, batch, risks, kind):
    """L_Hutchinson = 1/n Σ_e L_e + α ‖D_e − mean D‖² + β ‖∇L_e − mean ∇L‖².

    D is the diagonal itself, or "the mean over a set of samples" of r ⊙ (H r).
    """
    functions, theta = risks
    terms = ha.HessianAlignment(ALPHA, BETA, kind, probes=100)(*batch)
    slopes = [grad(risk)(theta) for risk in functions]
    diagonals = []
    for e, risk in enumerate(functions):
        H = hessian(risk)(theta)
        if kind == "diagonal":
            diagonals.append(H.diagonal())
        else:
            diagonals.append(mean([r * (H @ r) for r in drawn[0][:, e].double()]))
    expected = mean(
        [
            risk(theta)
            + ALPHA * squared_norm(diagonal - mean(diagonals))
            + BETA * squared_norm(slope - mean(slopes))
            for risk, diagonal, slope in zip(functions, diagonals, slopes, strict=True)
        ]
    )
    actual = linear_head(*batch).risk.mean() + terms.penalty
    assert_agrees(actual, expected)
    assert_same_slopes(actual, expected, batch.inputs)
