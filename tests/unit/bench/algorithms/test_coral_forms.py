"""CORAL without covariances: the form by inner products of samples."""

import pytest
import torch

from hessalign.bench.algorithms.features import _covariance, _covariance_distance


def pair_mean(features):
    """The definition: covariances by torch.cov, every pair by itself."""
    each = [torch.cov(z.T) for z in features]
    pairs = [(a - b).square().sum() for i, a in enumerate(each) for b in each[i + 1 :]]
    return torch.stack(pairs).mean()


@pytest.mark.parametrize("sizes", [(5, 7), (4, 4, 4), (2, 3, 9, 3)])
@pytest.mark.parametrize("width", [3, 60])
def test_distance_and_gradient_equal_the_definition(sizes, width):
    generator = torch.Generator().manual_seed(0)
    features = [
        torch.randn(n, width, dtype=torch.float64, generator=generator, requires_grad=True)
        for n in sizes
    ]
    ours, theirs = _covariance_distance(features), pair_mean(features)
    torch.testing.assert_close(ours, theirs)
    for a, b in zip(
        torch.autograd.grad(ours, features), torch.autograd.grad(theirs, features), strict=True
    ):
        torch.testing.assert_close(a, b)


def test_nearly_equal_covariances_keep_their_distance_in_float32():
    generator = torch.Generator().manual_seed(1)
    base = torch.randn(32, 512, dtype=torch.float64, generator=generator)
    near = base + 1e-4 * torch.randn(32, 512, dtype=torch.float64, generator=generator)
    exact = _covariance_distance([base.float().double(), near.float().double()])
    assert exact < 1e-6 * _covariance(base).square().sum()
    torch.testing.assert_close(
        _covariance_distance([base.float(), near.float()]).double(), exact, rtol=1e-3, atol=0
    )


def test_one_sample_and_one_domain_have_no_spread():
    assert _covariance_distance([torch.randn(1, 9)]) == 0
    assert _covariance_distance([torch.randn(1, 9), torch.randn(1, 9)]) == 0
