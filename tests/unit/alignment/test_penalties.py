"""Each variant of Hessian dispersion and each target against the definition."""

import pytest
import torch
from tests import cases, oracles
from tests.cases import CASES, ONE_PER_LOSS
from tests.comparison import assert_agrees, assert_same_slopes, slopes
from tests.definitions import hessian_term

from hessalign.alignment import HESSIAN_KINDS, gradient_dispersion, hessian_dispersion
from hessalign.alignment.penalties import MEAN, POOLED, POOLED_DETACHED, Target, _deviation
from hessalign.curvature import hutchinson_diagonal, linear_head

TARGETS = {"mean": MEAN, "pooled": POOLED, "pooled detached": POOLED_DETACHED}


def test_the_variants():
    assert HESSIAN_KINDS == ("full", "diagonal", "sampled", "expected", "product")


@pytest.mark.pairwise
@pytest.mark.parametrize("shared", [False, True], ids=["independent", "shared"])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", HESSIAN_KINDS)
@pytest.mark.parametrize("case", ONE_PER_LOSS, ids=cases.name)
def test_variant(drawn, case, kind, target, shared):
    batch = case.build()
    head = linear_head(*batch, **case.options)
    actual = hessian_dispersion(head, kind, probes=3, shared_probes=shared, target=TARGETS[target])
    expected = hessian_term(
        kind,
        batch,
        case.options,
        pooled=TARGETS[target].pooled,
        detach=TARGETS[target].detach,
        probes=3,
        shared=shared,
        signs=drawn,
    )
    assert_agrees(actual, expected)
    assert_same_slopes(actual, expected, batch.inputs)


@pytest.mark.pairwise
@pytest.mark.parametrize("evaluation", ["primal", "dual"])
@pytest.mark.parametrize("kind", ["full", "diagonal", "expected", "product"])
@pytest.mark.parametrize("case", ONE_PER_LOSS, ids=cases.name)
def test_both_evaluations(case, kind, evaluation):
    batch = case.build()
    head = linear_head(*batch, **case.options)
    actual = hessian_dispersion(head, kind, probes=3, evaluation=evaluation)
    assert_agrees(actual, hessian_term(kind, batch, case.options, probes=3))


@pytest.mark.parametrize("evaluation", ["auto", "primal", "dual"])
@pytest.mark.parametrize("case", CASES, ids=cases.name)
def test_gradient_dispersion(case, evaluation):
    batch = case.build()
    head = linear_head(*batch, **case.options)
    actual = gradient_dispersion(head, evaluation)
    expected = oracles.dispersion(oracles.gradient(batch, **case.options))
    assert_agrees(actual, expected)
    assert_same_slopes(actual, expected, batch.inputs)


def test_deviation():
    values = torch.randn(3, 4, dtype=torch.float64)
    target = torch.randn(4, dtype=torch.float64)
    assert_agrees(_deviation(values, target), oracles.deviation(values, target), 1e-15)


# --- what detaching changes -----------------------------------------------------------------------


def changed(kind, pooled, **options):
    """How much detaching the target changes the slopes in features and logits, relatively."""
    batch = CASES[1].build()
    attached, detached = (
        slopes(
            hessian_dispersion(
                linear_head(*batch),
                kind,
                probes=3,
                generator=torch.Generator().manual_seed(4),
                target=Target(pooled=pooled, detach=detach),
                **options,
            ),
            batch.inputs,
        )
        for detach in (False, True)
    )
    return max(((a - b).norm() / a.norm()).item() for a, b in zip(attached, detached, strict=True))


FIELDS = {
    "product": lambda head: head.hgp,
    "diagonal": lambda head: head.diagonal,
    "sampled": lambda head: hutchinson_diagonal(head, 3),
    "full": lambda head: head.hessian,
    "gradient": lambda head: head.gradient,
}


@pytest.mark.parametrize("field", FIELDS)
def test_detaching_the_mean_changes_no_slope(field):
    """The deviations from the mean sum to zero, so the mean passes nothing on."""
    batch = CASES[1].build()
    values = FIELDS[field](linear_head(*batch)).flatten(1)
    attached = slopes(_deviation(values, values.mean(0)), batch.inputs)
    detached = slopes(_deviation(values, values.mean(0).detach()), batch.inputs)
    for a, b in zip(attached, detached, strict=True):
        assert_agrees(a, b, 1e-13)
        assert a.abs().max() > 1e-3


@pytest.mark.parametrize("kind", ["product", "sampled", "expected"])
def test_the_mean_target_is_the_same_whether_detached_or_not(kind):
    assert changed(kind, pooled=False) < 1e-12


@pytest.mark.parametrize("kind", ["product", "sampled", "expected"])
def test_detaching_the_pooled_target_changes_slopes(kind):
    assert changed(kind, pooled=True) > 1e-2


@pytest.mark.parametrize("kind", ["sampled", "expected"])
def test_with_shared_probes_the_pooled_target_is_the_mean(kind):
    assert changed(kind, pooled=True, shared_probes=True) < 1e-12


@pytest.mark.parametrize("kind", ["full", "diagonal"])
def test_exact_variants_have_no_pooled_target(kind):
    head = linear_head(*CASES[1].build())
    values = {hessian_dispersion(head, kind, target=t).item() for t in TARGETS.values()}
    assert len(values) == 1


# --- probes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
def test_the_probes_drawn(drawn, target):
    head = linear_head(*CASES[1].build())
    hessian_dispersion(head, "sampled", probes=7, target=TARGETS[target])
    shapes = [(7, 3, 15)] if target == "mean" else [(7, 3, 15), (7, 1, 15)]
    assert [tuple(signs.shape) for signs in drawn] == shapes


def test_the_pooled_target_has_probes_of_its_own(drawn):
    head = linear_head(*CASES[1].build())
    hessian_dispersion(head, "sampled", probes=7, target=POOLED)
    domains, mean = drawn
    assert not any(torch.equal(domains[:, e], mean[:, 0]) for e in range(3))
    assert not torch.equal(domains[:, 0], domains[:, 1])


def test_expected_needs_no_probes(drawn):
    head = linear_head(*CASES[1].build())
    first = hessian_dispersion(head, "expected", probes=7)
    assert torch.equal(first, hessian_dispersion(head, "expected", probes=7))
    assert drawn == []


@pytest.mark.parametrize("shared", [False, True], ids=["independent", "shared"])
@pytest.mark.parametrize("target", TARGETS)
def test_many_probes_approach_the_exact_diagonal(target, shared):
    head = linear_head(*CASES[1].build())
    exact = hessian_dispersion(head, "diagonal").item()
    options = {"shared_probes": shared, "target": TARGETS[target]}
    many = hessian_dispersion(head, "expected", probes=10**9, **options).item()
    assert many == pytest.approx(exact, rel=1e-6)


def test_one_shared_probe_aligns_the_full_hessian():
    head = linear_head(*CASES[1].build())
    full = hessian_dispersion(head, "full")
    assert_agrees(hessian_dispersion(head, "expected", probes=1, shared_probes=True), full)
