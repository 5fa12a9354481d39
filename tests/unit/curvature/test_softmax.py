"""The dispersions of a softmax head from one function: values, slopes, precision."""

import functools

import pytest
import torch
from tests.comparison import assert_agrees, assert_same_slopes
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional

from hessalign.curvature import softmax
from hessalign.curvature.domains import domain_layout
from hessalign.curvature.softmax import softmax_sums

SIZES = (3, 2, 4)
COMPARED = ["full", "product", None]


def make_batch(features=4, classes=3, sizes=SIZES, scale=1.0, dtype=torch.float64):
    z = torch.randn(sum(sizes), features, dtype=torch.float64)
    logits = scale * torch.randn(sum(sizes), classes, dtype=torch.float64)
    y = torch.randint(classes, (sum(sizes),))
    return z.to(dtype).requires_grad_(), logits.to(dtype).requires_grad_(), y


def dispersions(z, logits, y, sizes, compared, *, bias):
    """The same by derivatives that are written out for each domain, in float64."""
    z, logits = z.double(), logits.double()
    z = functional.pad(z, (0, 1), value=1.0) if bias else z
    gradients, others = [], []
    for rows, scores, labels in zip(
        z.split(sizes), logits.split(sizes), y.split(sizes), strict=True
    ):
        p = scores.softmax(1)
        r = p - functional.one_hot(labels, p.shape[1])
        s = torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)
        gradient = torch.einsum("nk,nd->kd", r, rows) / len(rows)
        gradients.append(gradient)
        if compared == "full":
            others.append(torch.einsum("nkc,nd,nf->kdcf", s, rows, rows) / len(rows))
        if compared == "product":
            bent = torch.einsum("nkc,cd,nd->nk", s, gradient, rows)
            others.append(torch.einsum("nk,nd->kd", bent, rows) / len(rows))
    found = []
    for values in filter(None, (others, gradients)):
        stacked = torch.stack(values).flatten(1)
        found.append((stacked - stacked.mean(0)).square().sum(1).mean())
    return found


def assert_right(batch, compared, tolerance, sizes=SIZES, bias=True):
    z, logits, _ = batch
    actual = softmax_sums(*batch, domain_layout(sizes).weights, compared, bias=bias)
    expected = dispersions(*batch, sizes, compared, bias=bias)
    for found, wanted in zip(actual, expected, strict=True):
        assert found.dtype == torch.float64
        assert_agrees(found, wanted, tolerance)
        assert_same_slopes(found, wanted, (z, logits), 10 * tolerance)
    assert_same_slopes(
        sum(actual, 2 * actual[0]), sum(expected, 2 * expected[0]), (z, logits), 10 * tolerance
    )


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("classes", [3, 20])
@pytest.mark.parametrize("compared", COMPARED)
def test_values_and_slopes(compared, classes, bias):
    assert_right(make_batch(classes=classes), compared, 1e-12, bias=bias)


@pytest.mark.parametrize("classes", [3, 14])
@pytest.mark.parametrize("compared", COMPARED)
def test_slopes_of_slopes(compared, classes):
    z, logits, y = make_batch(features=2, classes=classes, sizes=(2, 2))
    weights = domain_layout((2, 2)).weights
    sums = functools.partial(softmax_sums, y=y, weights=weights, compared=compared, bias=True)
    assert gradcheck(sums, (z, logits))
    assert gradgradcheck(sums, (z, logits))


@pytest.mark.parametrize("scale", [1.0, 20.0])
@pytest.mark.parametrize("classes", [3, 13])
@pytest.mark.parametrize("compared", COMPARED)
def test_float32_is_float64_to_a_few_digits(compared, classes, scale):
    batch = make_batch(256, classes, scale=scale, dtype=torch.float32)
    assert_right(batch, compared, 1e-5)


@pytest.mark.parametrize("compared", COMPARED)
def test_products_are_float64_only_where_they_must_be(compared, monkeypatch):
    """Near alignment, and where errors are differences of numbers near 1."""
    used = []

    def noting(z, logits, *rest, dtype):
        used.append(dtype)
        return make(z, logits, *rest, dtype=dtype)

    make = softmax._sums
    monkeypatch.setattr(softmax, "_sums", noting)
    layout, sizes = domain_layout((20, 20)), (20, 20)
    z, logits, y = make_batch(300, 3, sizes, dtype=torch.float32)
    softmax_sums(z, logits, y, layout.weights, compared, bias=True)
    assert used == [torch.float32]
    near = z.detach()[:20] + 1e-5 * z.detach()[20:]
    z = torch.cat([z.detach()[:20], near]).requires_grad_()
    logits, y = logits[:20].detach().repeat(2, 1).requires_grad_(), y[:20].repeat(2)
    assert_right((z, logits, y), compared, 2e-3, sizes)
    assert used[1:] == [torch.float32, torch.float64]
    z, _, y = make_batch(300, 3, sizes, dtype=torch.float32)
    logits = (18.0 * functional.one_hot(y, 3) + 0.1 * torch.randn(40, 3)).requires_grad_()
    assert_right((z, logits, y), compared, 1e-5, sizes)
    assert used[3:] == [torch.float32, torch.float64]
