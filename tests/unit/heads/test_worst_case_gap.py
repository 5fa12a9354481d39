"""The attack: exact for quadratics, never below the published one nor random search."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import oracles, trust_region
from tests.transfer_problems import classification, regression
from tests.trust_region import Quadratic

from hessalign import worst_case_gap
from hessalign.heads import PublishedAttack

SIZES = (9, 14, 20)
FAST = PublishedAttack(learning_rate=0.02, batch_size=4, epochs=3)


def setup(seed, loss, bias=True, sizes=SIZES):
    make = regression if loss == "squared" else classification
    problem = make(seed, sizes=sizes, bias=bias, **({} if loss == "squared" else {"loss": loss}))
    outputs = problem.outputs or problem.y.shape[1]
    rng = np.random.default_rng(seed)
    head = torch.tensor(rng.normal(size=(outputs, problem.z.shape[1] + bias)))
    return problem, head


def risks(problem, head, activation="identity"):
    """Loss of each domain, from the definitions."""
    bias = head.shape[1] > problem.z.shape[1]
    return torch.stack(
        [
            oracles.losses(
                oracles.augmented(problem.z[rows], bias) @ head.T,
                problem.y[rows],
                problem.loss,
                activation,
            ).mean()
            for rows in oracles.groups(problem.domain)
        ]
    )


@settings(max_examples=8)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_quadratics_reach_the_trust_region_optimum(seed, bias):
    problem, head = setup(seed, "squared", bias)
    radii = (0.01, 0.3, 1.0, 5.0)
    result = worst_case_gap(*problem.arguments, head, radii, loss="squared", published=FAST)
    quadratics = [Quadratic.of(*problem.of(e), 0.0, bias) for e in range(3)]
    for attack in result.attacks:
        best = trust_region.worst_gap(quadratics, head.flatten().numpy(), attack.delta)
        assert attack.gap == pytest.approx(best, rel=1e-6)
        assert attack.gap <= attack.predicted * (1 + 1e-9)  # no remainder: Theorem 1 holds


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("loss", ["cross_entropy", "binary", "squared"])
def test_what_an_attack_says_is_true(loss, bias):
    problem, head = setup(1, loss, bias)
    result = worst_case_gap(*problem.arguments, head, (0.1, 1.0), loss=loss, published=FAST)
    assert result.gap == pytest.approx(
        float(risks(problem, head).max() - risks(problem, head).min())
    )
    assert result.ids == (0, 1, 2)
    assert result.reach is None
    for attack in result.attacks:
        found = risks(problem, attack.head)
        assert torch.allclose(attack.losses, found)
        assert attack.gap == pytest.approx(float(found.max() - found.min()))
        assert attack.pair == (int(found.argmax()), int(found.argmin()))
        assert attack.distance <= attack.delta * (1 + 1e-12)
        assert attack.distance == pytest.approx(float((attack.head - head).norm()))
        assert (attack.accuracy is None) == (loss == "squared")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("loss", ["cross_entropy", "binary", "squared"])
def test_exact_is_never_below_published_nor_random_search_and_grows(loss, seed):
    problem, head = setup(seed, loss)
    radii = (0.05, 0.5, 2.0)
    exact, published = (
        worst_case_gap(*problem.arguments, head, radii, loss=loss, mode=mode, published=FAST)
        for mode in ("exact", "published")
    )
    gaps = [attack.gap for attack in exact.attacks]
    assert gaps == sorted(gaps)
    assert gaps[0] >= exact.gap
    for ours, theirs in zip(exact.attacks, published.attacks, strict=True):
        assert ours.gap >= theirs.gap
        for _ in range(200):
            move = torch.randn_like(head)
            found = risks(problem, head + ours.delta * move / move.norm())
            assert found.max() - found.min() <= ours.gap


def test_published_follows_the_protocol_step_by_step():
    """A literal re-implementation: autograd, torch's Adam, projection; one radius at a time."""
    problem, head = setup(4, "cross_entropy")
    settings_ = PublishedAttack(learning_rate=0.05, batch_size=4, epochs=2)
    steps = 2 * int(9 / 4 + 1)
    result = worst_case_gap(
        *problem.arguments,
        head,
        (0.2, 1.5),
        mode="published",
        published=settings_,
        generator=torch.Generator().manual_seed(3),
    )
    groups = oracles.groups(problem.domain)
    for attack in result.attacks:
        generator = torch.Generator().manual_seed(3)
        theta = head.clone().requires_grad_()
        adam = torch.optim.Adam([theta], lr=0.05)
        for _ in range(steps):
            losses = []
            for rows in groups:
                batch = rows[torch.randint(len(rows), (4,), generator=generator)]
                logits = oracles.augmented(problem.z[batch], True) @ theta.T
                losses.append(oracles.losses(logits, problem.y[batch], "cross_entropy").mean())
            adam.zero_grad()
            (min(losses) - max(losses)).backward()
            adam.step()
            with torch.no_grad():
                distance = (theta - head).norm()
                if distance > attack.delta:
                    theta.copy_(head + attack.delta / distance * (theta - head))
        assert torch.allclose(attack.head, theta.detach(), atol=1e-10)
    assert result.reach == pytest.approx(0.05 * steps * math.sqrt(head.numel()))


def test_published_does_not_reach_beyond_its_limit():
    problem, head = setup(5, "cross_entropy")
    short = PublishedAttack(learning_rate=1e-3, batch_size=4, epochs=2)
    result = worst_case_gap(
        *problem.arguments, head, (1.0, 10.0), mode="published", published=short
    )
    near, far = result.attacks
    assert far.distance <= result.reach < 1.0
    assert torch.equal(near.head, far.head)


def test_an_activation_and_a_linear_layer():
    problem, _ = setup(6, "squared")
    layer = torch.nn.Linear(3, 2).double()
    result = worst_case_gap(
        *problem.arguments, layer, 0.5, loss="squared", activation="tanh", published=FAST
    )
    (attack,) = result.attacks
    found = risks(problem, attack.head, "tanh")
    assert attack.gap == pytest.approx(float(found.max() - found.min()))
    assert attack.gap > result.gap


def test_evaluation_on_other_samples_and_domains():
    problem, head = setup(7, "cross_entropy")
    other, _ = setup(8, "cross_entropy", sizes=(5, 6, 7))
    domain = other.domain + 1
    result = worst_case_gap(
        *problem.arguments, head, 0.3, evaluation=(other.z, other.y, domain), published=FAST
    )
    (attack,) = result.attacks
    assert result.ids == (1, 2, 3)
    assert torch.allclose(attack.losses, risks(other, attack.head))
    right = (oracles.augmented(other.z, True) @ attack.head.T).argmax(1) == other.y
    expected = [float(right[rows].double().mean()) for rows in oracles.groups(domain)]
    assert attack.accuracy.tolist() == pytest.approx(expected)
    assert torch.allclose(result.losses, risks(other, head))


def test_a_head_that_is_not_at_its_optimum_says_so():
    from hessalign.heads import fit_head

    problem, head = setup(9, "cross_entropy", sizes=(20, 20))
    best = fit_head(problem.z, problem.y, l2=0.0).parameters
    norms = [
        worst_case_gap(*problem.arguments, theta, 0.1, published=FAST).gradient_norm
        for theta in (best, head)
    ]
    assert norms[0] < 1e-9
    assert norms[1] > 0.05


def test_identical_domains_have_no_gap():
    problem, head = setup(10, "cross_entropy", sizes=(20, 20))
    z, y = problem.of(0)
    twice = (torch.cat([z, z]), torch.cat([y, y]), problem.domain)
    for attack in worst_case_gap(*twice, head, (0.1, 2.0), published=FAST).attacks:
        assert abs(attack.gap) < 1e-12


def test_float32_samples_and_more_parameters_than_the_dense_routine():
    """Steps in float32, results in float64; the gap is close to that of float64 steps."""
    z, y, domain = torch.randn(80, 40).relu(), torch.randint(3, (80,)), torch.arange(80) % 4
    head = 0.1 * torch.randn(3, 41)
    single = worst_case_gap(z, y, domain, head, (0.1, 1.0), published=FAST)
    double = worst_case_gap(z.double(), y, domain, head, (0.1, 1.0), published=FAST)
    for a, b in zip(single.attacks, double.attacks, strict=True):
        assert a.gap == pytest.approx(b.gap, rel=1e-3)
        assert a.gap <= a.predicted * 1.05


def test_radii_are_sorted_and_merged():
    problem, head = setup(11, "binary")
    result = worst_case_gap(
        *problem.arguments, head, torch.tensor([1.0, 0.5, 1.0]), loss="binary", published=FAST
    )
    assert [attack.delta for attack in result.attacks] == [0.5, 1.0]
