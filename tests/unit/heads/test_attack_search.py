"""The attack against plain ascent from many starts, and what it says it has proved."""

import itertools

import numpy as np
import pytest
import torch
from tests import oracles
from tests.transfer_problems import domains

from hessalign import worst_case_gap
from hessalign.heads import PublishedAttack

QUICK = PublishedAttack(learning_rate=0.01, batch_size=8, epochs=1)
STARTS, STEPS = 24, 150


def problem(seed, kind, features, outputs, sizes=(12, 20)):
    """Samples and a head for a kind such as "squared tanh"."""
    rng = np.random.default_rng(seed)
    loss, _, activation = kind.partition(" ")
    z, domain = domains(rng, sizes, features)
    if loss == "squared":
        y = torch.tensor(rng.normal(size=(len(z), outputs)))
    else:
        y = torch.tensor(rng.integers(max(2, outputs), size=len(z)))
    head = torch.tensor(rng.normal(size=(outputs, features)))
    return (z, y, domain, head), {"loss": loss, "activation": activation or "identity"}


def plain_ascent(z, y, domain, head, delta, *, loss, activation, starts=STARTS):
    """The largest gap from random starts: steps along the gradient, shorter and shorter."""
    groups = oracles.groups(domain)
    generator = torch.Generator().manual_seed(5)
    best = -float("inf")
    for i, j in itertools.permutations(range(len(groups)), 2):
        move = torch.randn(starts, *head.shape, generator=generator, dtype=torch.float64)
        move = delta * move / lengths(move)
        move[1::2] *= torch.rand(starts // 2, 1, 1, generator=generator, dtype=torch.float64)
        for share in torch.logspace(-0.5, -4, STEPS).tolist():
            move = move.detach().requires_grad_()
            first, second = (
                losses(z[groups[e]], y[groups[e]], head + move, loss, activation) for e in (i, j)
            )
            gaps = first - second
            best = max(best, float(gaps.detach().max()))
            (slope,) = torch.autograd.grad(gaps.sum(), move)
            move = move + share * delta * slope / lengths(slope).clamp_min(1e-30)
            move = move * (delta / lengths(move)).clamp_max(1)
    return best


def lengths(moves):
    return moves.flatten(1).norm(dim=1).view(-1, 1, 1)


def losses(z, y, heads, loss, activation):
    """The mean loss of each head."""
    logits = torch.einsum("nd,bkd->bnk", z, heads).flatten(0, 1)
    repeated = y.repeat(len(heads), *[1] * (y.ndim - 1))
    return oracles.losses(logits, repeated, loss, activation).view(len(heads), -1).mean(1)


def attack(arguments, options, delta, **more):
    return worst_case_gap(*arguments, delta, published=QUICK, **options, **more).attacks[-1]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("kind", "features", "outputs", "delta"),
    [
        ("squared tanh", 4, 2, 2.0),
        ("squared tanh", 8, 1, 0.5),
        ("squared tanh", 2, 3, 5.0),
        ("squared sigmoid", 4, 2, 2.0),
        ("squared sigmoid", 8, 2, 5.0),
        ("squared softplus", 5, 2, 2.0),
        ("squared", 4, 2, 2.0),
        ("cross_entropy", 4, 3, 2.0),
        ("cross_entropy", 1, 4, 10.0),
        ("cross_entropy", 12, 4, 0.5),
        ("binary", 6, 1, 3.0),
    ],
)
def test_plain_ascent_from_many_starts_finds_no_more(kind, features, outputs, delta, seed):
    arguments, options = problem(seed, kind, features, outputs)
    found = attack(arguments, options, delta)
    reference = plain_ascent(*arguments, delta, **options)
    assert found.gap >= (1 - 1e-3) * reference
    assert found.limit >= reference * (1 - 1e-9)  # what is proved holds for all that is found


@pytest.mark.parametrize("kind", ["squared tanh", "cross_entropy"])
def test_more_restarts_never_find_less(kind):
    arguments, options = problem(3, kind, 6, 3, (4, 5, 6))
    found = [
        [a.gap for a in worst_case_gap(
            *arguments, (2.0, 6.0), published=QUICK, restarts=restarts, **options
        ).attacks]
        for restarts in (0, 1, 2, 5, 9)
    ]  # fmt: skip
    for fewer, more in itertools.pairwise(found):
        assert all(b >= a for a, b in zip(fewer, more, strict=True))


@pytest.mark.parametrize("outputs", [1, 3])
def test_the_maximum_is_certified_for_quadratics(outputs):
    arguments, options = problem(1, "squared", 4, outputs, (8, 9, 10))
    for delta in (0.01, 1.0, 30.0):
        found = attack(arguments, options, delta)
        assert found.certified
        assert found.limit == pytest.approx(found.gap, rel=1e-4)


@pytest.mark.parametrize(("kind", "outputs"), [("cross_entropy", 3), ("binary", 1)])
def test_the_maximum_is_certified_where_the_radius_is_small(kind, outputs):
    arguments, options = problem(2, kind, 4, outputs)
    near, far = (attack(arguments, options, delta) for delta in (0.01, 3.0))
    assert near.certified
    assert not far.certified
    assert far.gap < far.limit < float("inf")


@pytest.mark.parametrize("kind", ["squared tanh", "squared softplus"])
def test_nothing_is_certified_with_an_activation(kind):
    arguments, options = problem(2, kind, 3, 1)
    found = attack(arguments, options, 0.01)
    assert not found.certified
    assert found.limit == float("inf")


def test_nothing_is_certified_for_a_head_with_many_parameters():
    rng = np.random.default_rng(0)
    z, domain = domains(rng, (30, 30), 300)
    y = torch.tensor(rng.integers(2, size=60))
    found = worst_case_gap(z, y, domain, torch.zeros(2, 300), 1e-3, published=QUICK).attacks[0]
    assert not found.certified


@pytest.mark.parametrize("kind", ["cross_entropy", "binary", "squared"])
def test_no_head_within_the_radius_exceeds_the_limit(kind):
    """At random heads, for radii at which the two bounds take turns."""
    arguments, options = problem(4, kind, 3, 1 if kind == "binary" else 3)
    z, y, domain, head = arguments
    generator = torch.Generator().manual_seed(0)
    for delta in (0.03, 0.3, 3.0, 30.0):
        limit = attack(arguments, options, delta, mode="published").limit
        move = torch.randn(2000, *head.shape, generator=generator, dtype=torch.float64)
        move = delta * move / lengths(move)
        first, second = (losses(z[g], y[g], head + move, **options) for g in oracles.groups(domain))
        assert float((first - second).abs().max()) <= limit * (1 + 1e-12)
