"""Sampled estimates: their error at m probes, and the expectation of the penalty they give.

Statistical bounds are in standard errors of the simulation, with fixed seeds.
"""

import itertools

import pytest
import torch
from tests import oracles
from tests.cases import Case
from tests.comparison import assert_agrees
from tests.definitions import expected_extra

from hessalign.alignment import hessian_dispersion
from hessalign.alignment.penalties import MEAN, POOLED
from hessalign.curvature import hutchinson, hutchinson_diagonal, linear_head
from hessalign.curvature.hutchinson import _rademacher

SOFTMAX = Case("softmax", "cross_entropy", 3, features=3, domain=(0,) * 4 + (1,) * 6 + (2,) * 5)
BINARY = Case("binary", "binary", features=4, flat=True, domain=(0,) * 4 + (1,) * 6)
STANDARD_ERRORS = 4


def assert_mean(samples, expected, precision):
    """The mean of independent samples, and that there were enough of them to tell."""
    error = samples.std().item() / len(samples) ** 0.5
    assert error < precision * abs(expected), "too few samples for this test to mean anything"
    assert abs(samples.mean().item() - expected) < STANDARD_ERRORS * error


# --- the estimate ---------------------------------------------------------------------------------


def many_estimates(case, probes, count):
    """Independent estimates of one domain's diagonal: as many copies of the domain."""
    z, logits, y, domain = (x[: case.domain.count(0)] for x in case.build(requires_grad=False))
    copies = torch.arange(count).repeat_interleave(len(domain))
    head = linear_head(
        z.repeat(count, 1),
        logits.repeat(count, *[1] * (logits.ndim - 1)),
        y.repeat(count),
        copies,
        **case.options,
    )
    hessian = head.domain(0).hessian[0]
    estimates = hutchinson_diagonal(head, probes, generator=torch.Generator().manual_seed(9))
    return estimates, hessian


@pytest.mark.parametrize("probes", [1, 4, 16, 64])
@pytest.mark.parametrize("case", [SOFTMAX, BINARY], ids=["softmax", "binary"])
def test_the_squared_error_is_off_over_m(case, probes):
    estimates, hessian = many_estimates(case, probes, 2000)
    errors = (estimates - hessian.diagonal()).square().sum(1)
    assert_mean(errors, oracles.off(hessian).item() / probes, 0.05)


@pytest.mark.parametrize("probes", [1, 16])
@pytest.mark.parametrize("case", [SOFTMAX, BINARY], ids=["softmax", "binary"])
def test_unbiased(case, probes):
    estimates, hessian = many_estimates(case, probes, 2000)
    error = estimates.std(0) / len(estimates) ** 0.5
    assert bool(((estimates.mean(0) - hessian.diagonal()).abs() < 5 * error).all())


def test_converges_to_the_exact_diagonal():
    head = linear_head(*SOFTMAX.build(requires_grad=False))
    exact = head.diagonal
    off = torch.stack([oracles.off(H) for H in head.hessian]).sum().item()
    errors = []
    for probes in (100, 10_000):
        generator = torch.Generator().manual_seed(2)
        estimate = hutchinson_diagonal(head, probes, generator=generator)
        errors.append((estimate - exact).square().sum().item())
        assert errors[-1] < 4 * off / probes
    assert errors[1] < errors[0] / 10


# --- the penalty ----------------------------------------------------------------------------------

FORMS = {"mean": (False, False), "pooled": (False, True), "shared": (True, False)}


@pytest.mark.parametrize("probes", [1, 3])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", [SOFTMAX, BINARY], ids=["softmax", "binary"])
def test_the_expected_penalty_is_the_mean_of_20000_draws(case, form, probes):
    shared, pooled = FORMS[form]
    head = linear_head(*case.build(requires_grad=False), **case.options)
    count, domains = 20_000, len(head.domains)
    axes = (count * probes, 1 if shared else domains, head.num_parameters)
    signs = _rademacher(axes, 5, torch.device("cpu")).double()
    estimates = (signs * head.hvp(signs)).view(count, probes, domains, -1).mean(1)
    target = estimates.mean(1, keepdim=True)
    if pooled:
        own = _rademacher((count * probes, 1, head.num_parameters), 6, torch.device("cpu")).double()
        of_mean = own * head.hvp(own).mean(1, keepdim=True)
        target = of_mean.view(count, probes, 1, -1).mean(1)
    penalties = (estimates - target).square().sum(2).mean(1)
    expected = hessian_dispersion(
        head,
        "expected",
        probes=probes,
        shared_probes=shared,
        target=POOLED if pooled else MEAN,
    ).item()
    assert_mean(penalties, expected, 0.01)


@pytest.mark.parametrize("form", FORMS)
def test_the_three_forms_differ(form):
    """By far more than the simulation's precision, so it can tell them apart."""
    hessians = linear_head(*SOFTMAX.build(requires_grad=False)).hessian
    diagonal = oracles.dispersion(hessians.diagonal(dim1=1, dim2=2)).item()
    values = {
        name: diagonal + expected_extra(hessians, 3, shared=shared, pooled=pooled).item()
        for name, (shared, pooled) in FORMS.items()
    }
    own = values.pop(form)
    assert all(abs(own / other - 1) > 0.1 for other in values.values())


@pytest.mark.parametrize(
    ("form", "domains", "probes"),
    [("mean", 2, 2), ("mean", 3, 1), ("pooled", 2, 1), ("shared", 2, 2), ("shared", 3, 1)],
)
def test_the_expected_penalty_is_the_mean_over_all_probes_there_are(
    monkeypatch, form, domains, probes
):
    """Two parameters have so few sign vectors that every possible draw can be had once."""
    shared, pooled = FORMS[form]
    case = Case(
        "tiny", "binary", features=1, flat=True, domain=tuple(range(domains)) * 2, seed=domains
    )
    head = linear_head(*case.build(requires_grad=False), **case.options)
    target = POOLED if pooled else MEAN
    rows = 1 if shared else domains
    count = probes * rows * 2
    count_pooled = probes * 2 if pooled else 0
    values, draws = [], []
    monkeypatch.setattr(
        hutchinson, "_rademacher", lambda shape, seed, device: draws.pop(0).view(shape)
    )
    for signs in itertools.product((-1.0, 1.0), repeat=count + count_pooled):
        draws[:] = [torch.tensor(signs[:count]), torch.tensor(signs[count:])]
        values.append(
            hessian_dispersion(head, "sampled", probes=probes, shared_probes=shared, target=target)
        )
    expected = hessian_dispersion(
        head, "expected", probes=probes, shared_probes=shared, target=target
    )
    assert_agrees(torch.stack(values).mean(), expected, 1e-12)


def test_independent_probes_penalise_identical_domains_and_shared_ones_do_not():
    z, logits, y, _ = SOFTMAX.build(requires_grad=False)
    twice = (torch.cat([x, x]) for x in (z, logits, y))
    head = linear_head(*twice, torch.arange(2).repeat_interleave(len(z)))
    independent = hessian_dispersion(head, "sampled", probes=10).item()
    shared = hessian_dispersion(head, "sampled", probes=10, shared_probes=True).item()
    assert independent > 1e-3
    assert shared < 1e-16
