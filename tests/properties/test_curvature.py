"""What holds for the Hessian of every linear head."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.comparison import assert_agrees
from tests.properties.strategies import batches

from hessalign.curvature import linear_head


@given(batches(losses=("cross_entropy", "binary")))
def test_symmetric_and_positive_semi_definite(drawn_batch):
    batch, options = drawn_batch
    hessian = linear_head(*batch, **options).hessian
    size = hessian.abs().max().item() + 1e-30
    assert (hessian - hessian.mT).abs().max() <= 1e-14 * size
    assert torch.linalg.eigvalsh(hessian).min() >= -1e-13 * size * hessian.shape[1]


@given(batches(losses=("squared",)))
def test_symmetric_for_any_loss(drawn_batch):
    batch, options = drawn_batch
    hessian = linear_head(*batch, **options).hessian
    assert (hessian - hessian.mT).abs().max() <= 1e-14 * (hessian.abs().max() + 1e-30)


@given(batches(losses=("cross_entropy",)))
def test_softmax_is_flat_along_shifts_of_all_classes(drawn_batch):
    """Convex, but not strongly: adding one vector to the weights of all classes changes nothing."""
    batch, options = drawn_batch
    head = linear_head(*batch, **options)
    classes, width = head.shape
    shift = torch.randn(width, dtype=torch.float64).repeat(classes).unsqueeze(0)
    assert head.hvp(shift).abs().max() <= 1e-13 * shift.abs().max() * batch.z.square().sum(1).max()
    assert head.gradient.view(-1, classes, width).sum(1).abs().max() <= 1e-13


@given(batches())
def test_products_and_diagonal_are_those_of_the_dense_hessian(drawn_batch):
    batch, options = drawn_batch
    head = linear_head(*batch, **options)
    vectors = torch.randn(3, len(head.domains), head.num_parameters, dtype=torch.float64)
    expected = torch.einsum("epq,meq->mep", head.hessian, vectors)
    assert_agrees(head.hvp(vectors), expected, 1e-12)
    assert_agrees(head.diagonal, head.hessian.diagonal(dim1=1, dim2=2), 1e-13)
    product = torch.einsum("epq,eq->ep", head.hessian, head.gradient)
    assert_agrees(head.hgp, product, 1e-12)


@given(batches(), st.integers(2, 4))
def test_repeating_every_sample_changes_nothing(drawn_batch, times):
    batch, options = drawn_batch
    repeated = [x.repeat(times, *[1] * (x.ndim - 1)) for x in batch]
    once, often = linear_head(*batch, **options), linear_head(*repeated, **options)
    for field in ("risk", "gradient", "diagonal", "hessian", "hgp"):
        assert_agrees(getattr(often, field), getattr(once, field), 1e-12)


@given(batches(min_domains=2))
def test_a_domain_does_not_depend_on_the_others(drawn_batch):
    batch, options = drawn_batch
    head = linear_head(*batch, **options)
    keep = batch.domain == batch.domain.max()
    alone = linear_head(*(x[keep] for x in batch), **options)
    for field in ("risk", "gradient", "diagonal", "hessian", "hgp"):
        assert_agrees(getattr(alone, field)[0], getattr(head, field)[-1], 1e-12)
