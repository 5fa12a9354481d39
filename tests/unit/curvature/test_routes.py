"""Where the code takes one of two routes by size, both lead to the same place."""

import pytest
import torch

from hessalign.curvature.factors import SoftmaxCurvature


@pytest.mark.parametrize("margin", [0.0, 5.0, 20.0, 40.0])
@pytest.mark.parametrize("classes", [2, 3, 7, 30])
@pytest.mark.parametrize("block", [slice(None), slice(2, 7)])
def test_inner_products_of_curvature_written_out_or_not(classes, margin, block, monkeypatch):
    generator = torch.Generator().manual_seed(classes)
    logits = torch.randn(9, classes, generator=generator, dtype=torch.float64)
    logits[torch.arange(9), torch.randint(classes, (9,), generator=generator)] += margin
    logits.requires_grad_()
    probs = logits.softmax(1)
    # The entries of S without a difference of numbers near 1, then their inner products.
    others = 1 - torch.eye(classes, dtype=torch.float64)
    dense = -probs.unsqueeze(2) * probs.unsqueeze(1) * others
    dense = (dense + torch.diag_embed(probs * (probs @ others))).flatten(1)
    expected = dense[block] @ dense.T
    weights = torch.rand(expected.shape, generator=generator, dtype=torch.float64)
    (slope,) = torch.autograd.grad((weights * expected).sum(), logits, retain_graph=True)
    for limit in (0, 10**6):
        monkeypatch.setattr("hessalign.curvature.softmax._FEW_CLASSES", limit)
        inner = SoftmaxCurvature(probs).inner(block)
        torch.testing.assert_close(inner, expected, rtol=1e-12, atol=0)
        (found,) = torch.autograd.grad((weights * inner).sum(), logits, retain_graph=True)
        scale = float(slope.abs().max())
        torch.testing.assert_close(found, slope, rtol=1e-9, atol=1e-12 * scale)
