"""What holds for dispersions and distances of every batch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cases import Batch
from tests.comparison import assert_agrees, assert_same_slopes, slopes
from tests.properties.strategies import batches

import hessalign as ha
from hessalign.alignment import QUANTITIES, dispersion, distances, inner_products
from hessalign.curvature import linear_head

DETERMINISTIC = st.sampled_from(["full", "diagonal", "expected", "product"])
FIDELITY = st.sampled_from(["paper", "domainbed", "released"])
EVALUATION = st.sampled_from(["primal", "dual", "auto"])


def terms(batch, options, kind, fidelity="paper", evaluation="auto"):
    align = ha.HessianAlignment(
        1.0, 1.0, kind, fidelity=fidelity, evaluation=evaluation, probes=3, **options
    )
    return align(*batch)


def assert_same_terms(actual, expected, size=1.0, tolerance=1e-11):
    for name in ("hessian", "gradient"):
        a, b = getattr(actual, name).item(), getattr(expected, name).item()
        assert abs(a - b) <= tolerance * max(abs(b), size)


def size_of(batch, options):
    """The squared norm of the Hessian, which rounding errors are to be measured by."""
    head = linear_head(*batch, **options)
    sizes = [inner_products(head, q).max().item() for q in ("hessian", "hessian_gradient")]
    return max(*sizes, inner_products(head, "gradient").max().item(), 1e-3)


@given(batches(losses=("cross_entropy",), min_domains=2), DETERMINISTIC, FIDELITY, EVALUATION)
def test_shifting_all_logits_of_a_sample_changes_nothing(drawn_batch, kind, fidelity, evaluation):
    batch, options = drawn_batch
    shifts = torch.randn(len(batch.z), 1, dtype=torch.float64) * 5
    shifted = batch._replace(logits=batch.logits + shifts)
    assert_same_terms(
        terms(shifted, options, kind, fidelity, evaluation),
        terms(batch, options, kind, fidelity, evaluation),
        size_of(batch, options),
    )


@given(batches(min_domains=2), DETERMINISTIC, FIDELITY, EVALUATION, st.randoms())
def test_permuting_samples_changes_nothing(drawn_batch, kind, fidelity, evaluation, random):
    batch, options = drawn_batch
    order = list(range(len(batch.z)))
    random.shuffle(order)
    permuted = Batch(*(x[order] for x in batch))
    assert_same_terms(
        terms(permuted, options, kind, fidelity, evaluation),
        terms(batch, options, kind, fidelity, evaluation),
        size_of(batch, options),
    )
    assert_agrees(
        hessian_distances(permuted, options).square(), hessian_distances(batch, options).square()
    )


def hessian_distances(batch, options):
    return ha.hessian_distance(batch.z, batch.logits, batch.domain, y=batch.y, **options)


@given(batches(min_domains=2), DETERMINISTIC, FIDELITY, st.randoms())
def test_renaming_domains_permutes_distances_and_keeps_terms(drawn_batch, kind, fidelity, random):
    batch, options = drawn_batch
    ids = batch.domain.unique().tolist()
    names = list(range(-1, len(ids) - 1))
    random.shuffle(names)
    renamed = batch._replace(
        domain=torch.tensor([names[ids.index(i)] for i in batch.domain.tolist()])
    )
    assert_same_terms(
        terms(renamed, options, kind, fidelity),
        terms(batch, options, kind, fidelity),
        size_of(batch, options),
    )
    order = torch.tensor(names) + 1
    assert_agrees(
        hessian_distances(renamed, options)[order][:, order].square(),
        hessian_distances(batch, options).square(),
    )


@given(batches(), DETERMINISTIC, EVALUATION, st.integers(2, 4))
def test_identical_domains_have_no_dispersion(drawn_batch, kind, evaluation, copies):
    batch, options = drawn_batch
    n = len(batch.z)
    repeated = Batch(
        *(x.repeat(copies, *[1] * (x.ndim - 1)) for x in batch[:3]),
        torch.arange(copies).repeat_interleave(n),
    )
    size = size_of(repeated, options)
    if kind != "expected":
        found = terms(repeated, options, kind, evaluation=evaluation)
        assert abs(found.hessian.item()) <= 1e-13 * size
        assert abs(found.gradient.item()) <= 1e-13 * size
    shared = ha.HessianAlignment(
        1.0, 1.0, "expected", shared_probes=True, evaluation=evaluation, **options
    )(*repeated)
    assert abs(shared.hessian.item()) <= 1e-13 * size
    assert hessian_distances(repeated, options).square().max() <= 1e-13 * size


@given(batches(min_domains=2))
def test_different_domains_have_some(drawn_batch):
    """Otherwise the test above could be passed by zero."""
    batch, options = drawn_batch
    batch = batch._replace(z=batch.z + 3 * torch.sign(batch.z))
    head = linear_head(*batch, **options)
    hessian = head.hessian
    exact = (hessian - hessian.mean(0)).square().sum((1, 2)).mean().item()
    found = terms(batch, options, "full").hessian.item()
    assert abs(found - exact) <= 1e-10 * max(exact, 1e-3 * size_of(batch, options))


@pytest.mark.parametrize("quantity", QUANTITIES)
@given(batches())
@settings(max_examples=15)
def test_dual_is_primal(quantity, drawn_batch):
    batch, options = drawn_batch
    inputs = batch.z.requires_grad_(), batch.logits.requires_grad_()
    primal, dual = (
        inner_products(linear_head(*batch, **options), quantity, evaluation)
        for evaluation in ("primal", "dual")
    )
    assert_agrees(dual, primal, 1e-11)
    assert_same_slopes(dual, primal, inputs, 1e-10)


@given(batches(min_domains=2), st.sampled_from(sorted(QUANTITIES)), EVALUATION)
def test_distances_are_a_metric(drawn_batch, quantity, evaluation):
    batch, options = drawn_batch
    inner = inner_products(linear_head(*batch, **options), quantity, evaluation)
    found = distances(inner)
    slack = 1e-7 * (inner.abs().max().sqrt() + 1e-30)
    assert found.min() >= 0
    assert not found.diagonal().any()
    for middle in range(len(found)):
        detour = found[:, middle, None] + found[None, middle, :]
        assert bool((found <= detour + slack).all())
    assert dispersion(inner) >= -1e-13 * inner.abs().max()


@given(batches(min_domains=2), DETERMINISTIC, FIDELITY)
def test_slopes_are_finite(drawn_batch, kind, fidelity):
    batch, options = drawn_batch
    inputs = batch.z.requires_grad_(), batch.logits.requires_grad_()
    for slope in slopes(terms(batch, options, kind, fidelity).penalty, inputs):
        assert bool(slope.isfinite().all())


@given(batches(losses=("cross_entropy", "binary"), min_domains=2), EVALUATION)
def test_rotating_the_features_keeps_the_full_distances(drawn_batch, evaluation):
    batch, options = drawn_batch
    rotation, _ = torch.linalg.qr(torch.randn(batch.z.shape[1], batch.z.shape[1]).double())
    rotated = batch._replace(z=batch.z @ rotation)
    actual, expected = (
        inner_products(linear_head(*b, **options), "hessian", evaluation) for b in (rotated, batch)
    )
    assert_agrees(actual, expected, 1e-11)
