"""Grouping of samples by integer ids."""

import pytest
import torch
from tests.comparison import assert_agrees

from hessalign.alignment import HessianAlignment
from hessalign.curvature.domains import make_domains

DTYPES = [torch.int8, torch.int16, torch.int32, torch.int64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_groups_are_ordered_by_id_and_keep_the_order_inside(dtype):
    domain = torch.tensor([9, 2, 9, 5, 2, 2], dtype=dtype)
    domains = make_domains(domain)
    assert domains.ids.tolist() == [2, 5, 9]
    assert domains.sizes == (3, 1, 2)
    assert len(domains) == 3
    samples = torch.arange(6).unsqueeze(1)
    assert domains.arrange(samples).flatten().tolist() == [1, 4, 5, 3, 0, 2]


def test_huge_and_negative_ids():
    low, high = -(2**63), 2**63 - 1
    domains = make_domains(torch.tensor([high, low, 0, high]))
    assert domains.ids.tolist() == [low, 0, high]
    assert domains.sizes == (1, 1, 2)
    assert domains.order.tolist() == [1, 2, 0, 3]


def test_contiguous_samples_are_not_copied():
    domains = make_domains(torch.tensor([-4, -4, 3]))
    samples = torch.randn(3, 2)
    assert domains.order is None
    assert domains.arrange(samples) is samples


def test_ids_that_descend_are_reordered():
    domains = make_domains(torch.tensor([1, 1, 0]))
    assert domains.arrange(torch.tensor([10, 11, 12])).tolist() == [12, 10, 11]


def test_averaging_gives_the_means():
    domains = make_domains(torch.tensor([0, 0, 0, 4, 4]))
    samples = torch.randn(5, 3, dtype=torch.float64)
    expected = torch.stack([samples[:3].mean(0), samples[3:].mean(0)])
    assert_agrees(domains.weights.averaging @ samples, expected, 1e-15)


def test_what_was_grouped_in_inference_mode_can_be_trained_on():
    """Ids that were seen before are looked up, with the constants that slopes are made of."""
    domain = torch.tensor([7, 7, 7, 7, 7, 8, 8])  # sizes that no other test has
    z, logits = torch.randn(7, 300), torch.randn(7, 3)
    y, align = torch.randint(3, (7,)), HessianAlignment(1.0, 1.0, "product", evaluation="dual")
    with torch.inference_mode():
        expected = align(z, logits, y, domain).penalty.item()
    assert make_domains(domain) is make_domains(domain.clone())
    terms = align(z.requires_grad_(), logits, y, domain)
    terms.penalty.backward()
    assert terms.penalty.item() == expected
    assert z.grad.isfinite().all()


def test_one_sample():
    domains = make_domains(torch.tensor([3]))
    assert domains.sizes == (1,)
    assert domains.weights.averaging.tolist() == [[1.0]]
