"""Hutchinson's estimate (eq. 19) against a plain loop over Hessian-vector products."""

import pytest
import torch
from tests import cases, oracles
from tests.cases import CASES, ONE_PER_LOSS
from tests.comparison import assert_agrees, assert_same_slopes
from torch import nn

from hessalign.curvature import autograd_head, hutchinson, hutchinson_diagonal, linear_head
from hessalign.curvature.hutchinson import _rademacher, pooled_diagonal

CPU = torch.device("cpu")
PROBES = 5


@pytest.mark.parametrize("shared", [False, True], ids=["independent", "shared"])
@pytest.mark.parametrize("case", CASES, ids=cases.name)
def test_is_the_loop_over_the_same_probes(drawn, case, shared):
    batch = case.build()
    head = linear_head(*batch, **case.options)
    actual = hutchinson_diagonal(head, PROBES, shared=shared)
    (signs,) = drawn
    rows = 1 if shared else len(head.domains)
    assert signs.shape == (PROBES, rows, head.num_parameters)
    expected = oracles.hutchinson(*oracles.risks(batch, **case.options), signs)
    assert_agrees(actual, expected)
    assert_same_slopes(actual, expected, batch.inputs)


@pytest.mark.parametrize("case", CASES, ids=cases.name)
def test_pooled_is_the_loop_on_the_mean_loss(drawn, case):
    batch = case.build()
    head = linear_head(*batch, **case.options)
    actual = pooled_diagonal(head, PROBES)
    (signs,) = drawn
    assert signs.shape == (PROBES, 1, head.num_parameters)
    functions, origin = oracles.risks(batch, **case.options)
    expected = oracles.hutchinson([oracles.mean_function(functions)], origin, signs)[0]
    assert_agrees(actual, expected)
    assert_same_slopes(actual, expected, batch.inputs)


def test_a_head_with_a_hidden_layer(drawn):
    batch = CASES[1].build()
    mlp = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3)).double()
    head = autograd_head(mlp, batch.z, batch.y, batch.domain)
    dense = oracles.module_hessian(mlp, batch.z, batch.y, batch.domain, loss="cross_entropy")
    estimate, pooled = hutchinson_diagonal(head, PROBES), pooled_diagonal(head, PROBES)
    own, mean = (signs.double() for signs in drawn)
    assert_agrees(estimate, torch.einsum("mep,epq,meq->ep", own, dense, own) / PROBES)
    expected = torch.einsum("mp,pq,mq->p", mean[:, 0], dense.mean(0), mean[:, 0]) / PROBES
    assert_agrees(pooled, expected)


@pytest.mark.parametrize("shared", [False, True], ids=["independent", "shared"])
@pytest.mark.parametrize("case", ONE_PER_LOSS, ids=cases.name)
def test_several_rounds_of_probes(monkeypatch, drawn, case, shared):
    """More probes than fit at once: rounds of their own draws, redrawn alike in backward."""
    batch = case.build()
    head = linear_head(*batch, **case.options)
    rows = 1 if shared else len(head.domains)
    monkeypatch.setattr(hutchinson, "_PROBE_ELEMENTS", 3 * rows * head.num_parameters)
    actual = hutchinson_diagonal(head, 7, shared=shared)
    rounds = list(drawn)
    assert [len(signs) for signs in rounds] == [3, 3, 1]
    assert not torch.equal(rounds[0], rounds[1])
    expected = oracles.hutchinson(*oracles.risks(batch, **case.options), torch.cat(rounds))
    assert_agrees(actual, expected)
    assert_same_slopes(actual, expected, batch.inputs)
    again = drawn[3:]
    assert len(again) == 2  # the first round is kept
    assert all(any(torch.equal(new, old) for old in rounds[1:]) for new in again)


def test_pooled_in_several_rounds(monkeypatch, drawn):
    batch = CASES[1].build()
    head = linear_head(*batch)
    monkeypatch.setattr(hutchinson, "_PROBE_ELEMENTS", 1)
    actual = pooled_diagonal(head, 4)
    signs = torch.cat(drawn)
    assert len(drawn) == len(signs) == 4
    functions, origin = oracles.risks(batch, loss="cross_entropy")
    expected = oracles.hutchinson([oracles.mean_function(functions)], origin, signs)[0]
    assert_agrees(actual, expected)
    assert_same_slopes(actual, expected, batch.inputs)


@pytest.mark.parametrize("shared", [False, True], ids=["independent", "shared"])
def test_a_generator_makes_it_reproducible(shared):
    head = linear_head(*CASES[1].build())
    torch.manual_seed(5)
    generator = torch.Generator().manual_seed(3)
    first = hutchinson_diagonal(head, 4, shared=shared, generator=generator)
    second = hutchinson_diagonal(head, 4, shared=shared, generator=generator)
    torch.manual_seed(6)
    again = hutchinson_diagonal(head, 4, shared=shared, generator=torch.Generator().manual_seed(3))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_an_explicit_generator_leaves_the_global_one_alone():
    head = linear_head(*CASES[1].build())
    state = torch.get_rng_state()
    hutchinson_diagonal(head, 4, generator=torch.Generator())
    assert torch.equal(torch.get_rng_state(), state)


def test_without_generator_the_global_seed_decides():
    head = linear_head(*CASES[1].build())
    draws = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        draws.append(hutchinson_diagonal(head, 4))
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_rademacher_is_fair_and_independent():
    """Signs only; mean 0 and pairwise products 0 within five standard deviations."""
    signs = _rademacher((20_000, 6), 1, CPU).double()
    assert torch.equal(signs.abs(), torch.ones_like(signs))
    bound = 5 / 20_000**0.5
    assert signs.mean(0).abs().max() < bound
    products = signs.T @ signs / 20_000 - torch.eye(6)
    assert products.abs().max() < bound


def test_rademacher_is_determined_by_its_seed():
    shape = (3, 1, 7)
    first = _rademacher(shape, 1, CPU)
    assert first.shape == shape
    assert torch.equal(first, _rademacher(shape, 1, CPU))
    assert not torch.equal(first, _rademacher(shape, 2, CPU))


def test_identical_domains_get_different_estimates_unless_shared():
    z, logits, y, _ = CASES[1].build(requires_grad=False)
    twice = (torch.cat([x, x]) for x in (z, logits, y))
    domain = torch.arange(2).repeat_interleave(len(z))
    head = linear_head(*twice, domain)
    first, second = hutchinson_diagonal(head, 4)
    assert (first - second).abs().max() > 1e-3
    first, second = hutchinson_diagonal(head, 4, shared=True)
    assert_agrees(first, second, 1e-14)


@pytest.mark.parametrize("probes", [0, -1])
def test_at_least_one_probe(probes):
    head = linear_head(*CASES[1].build())
    for estimate in (hutchinson_diagonal, pooled_diagonal):
        with pytest.raises(ValueError, match=f"Expected at least 1 probe, got {probes}"):
            estimate(head, probes)
