"""Means of outer products and Gram matrices: values, slopes, precision."""

import functools

import pytest
import torch
from tests.comparison import assert_agrees, assert_same_slopes
from torch.autograd import gradcheck, gradgradcheck

from hessalign.curvature import products
from hessalign.curvature.domains import accumulation_dtype, domain_layout
from hessalign.curvature.gram import PairTerm, gram, pair_sums
from hessalign.curvature.products import (
    MeanTerm,
    OuterMeans,
    SecondMoments,
    chunk_rows,
    domain_products,
    mean_grams,
    mean_outer,
    mean_products,
    mean_second_moments,
)
from hessalign.curvature.softmax import softmax_gram, softmax_inner

EQUAL, UNEQUAL = (3, 3), (2, 1, 3)


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.pairwise
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("sizes", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
def test_means_times_the_rows_they_are_of(sizes, bias, route):
    left, right = draw(6, 2), draw(6, 4)
    rows = torch.cat([right, torch.ones(6, 1)], 1) if bias else right
    parts = zip(left.split(sizes), rows.split(sizes), strict=True)
    expected = torch.cat([x @ (a.T @ x / len(x)).T for a, x in parts])

    def products(left, right):
        found, rows = mean_products(left, right, domain_layout(sizes), bias=bias)
        assert torch.equal(rows, right)
        return found, rows.square()  # what is made of the rows that are given back

    for found, wanted in zip(products(left, right), (expected, right.square()), strict=True):
        assert_agrees(found, wanted, 1e-13)
        assert_same_slopes(found, wanted, (left, right), 1e-13)
    found, squares = products(left, right)
    assert_same_slopes(
        found.square().sum() + squares.sum(),
        expected.square().sum() + right.square().sum(),
        (left, right),
        1e-13,
    )
    total = found.square().sum() + squares.sum()
    first, again = (torch.autograd.grad(total, right, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, again)  # what was added to in place was not what is kept
    assert gradcheck(products, (left, right))
    assert gradgradcheck(products, (left, right))


def mean_outer_gram(left, right, domains, *, bias=False, squared=False):
    """Inner products between the means of `mean_outer`."""
    form = OuterMeans(domains, float(bias), squared)
    return mean_grams(right, [MeanTerm(left, form)])[0]


@pytest.mark.parametrize("width", [1, 16, 127, 257, 390])
def test_second_moments_of_features_in_several_blocks(width):
    """Blocks of features end where the next begins, and what is below them is what is above."""
    weights, z = draw(6, 1), draw(6, width)
    parts = zip(weights.split(UNEQUAL), z.split(UNEQUAL), strict=True)
    expected = torch.stack([(w * x).T @ x / len(x) for w, x in parts]).unsqueeze(1)
    found = mean_second_moments(weights, z, domain_layout(UNEQUAL))
    assert_agrees(found, expected, 1e-12)
    slope = torch.randn_like(expected)  # not symmetric
    assert_same_slopes((found * slope).sum(), (expected * slope).sum(), (weights, z), 1e-11)


@pytest.mark.pairwise
@pytest.mark.parametrize("sizes", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
@pytest.mark.parametrize("centred", [True, False])
def test_several_means_at_once(sizes, centred, route):
    """Each as if it were alone, weights included, also in slopes and those of slopes."""
    domains = domain_layout(sizes)
    lefts, z = [draw(6, 2), draw(6, 1), draw(6, 1), draw(6, 2)], draw(6, 4)
    forms = [
        OuterMeans(domains, 0.5),
        OuterMeans(domains, 1.0, squared=True),
        SecondMoments(domains),
        SecondMoments(domains),
        OuterMeans(domains, 1.0, squared=True),  # the diagonals of the second moments before
    ]
    weights = (1.0, 3.0, 1.0, 2.0, 1.0)

    def together(z, *lefts):
        lefts = (*lefts, lefts[-1])
        terms = [MeanTerm(*each, centred) for each in zip(lefts, forms, weights, strict=True)]
        return tuple(mean_grams(z, terms))

    each_left = [*lefts, lefts[-1]]
    for found, left, form, weight in zip(
        together(z, *lefts), each_left, forms, weights, strict=True
    ):
        rows = z.square() if getattr(form, "squared", False) else z
        if isinstance(form, SecondMoments):
            rows = torch.einsum("nd,nf->ndf", z, z).flatten(1)
        elif form.bias:
            rows = torch.cat([rows, torch.full((6, 1), form.bias)], 1)
        each = torch.einsum("nl,nd->nld", left, rows).flatten(1)
        means = torch.stack([part.mean(0) for part in each.split(sizes)])
        means = means - means.mean(0) if centred else means
        assert_agrees(found, weight * means @ means.T, 1e-12)
        assert_same_slopes(found, weight * means @ means.T, (z, left), 1e-12)
    assert gradcheck(together, (z, *lefts))
    assert gradgradcheck(together, (z, *lefts))


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("squared", [True, False], ids=["squared", "plain"])
@pytest.mark.parametrize("sizes", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
def test_mean_outer(sizes, squared, bias):
    left, right = draw(6, 2), draw(6, 4)
    rows = torch.cat([right, torch.ones(6, 1)], 1) if bias else right
    each = torch.einsum("nl,nd->nld", left, rows.square() if squared else rows)
    expected = torch.stack([part.mean(0) for part in each.split(sizes)])
    actual = mean_outer(left, right, domain_layout(sizes), bias=bias, squared=squared)
    assert_agrees(actual, expected, 1e-14)
    assert_same_slopes(actual, expected, (left, right), 1e-13)
    inner = expected.flatten(1) @ expected.flatten(1).T
    actual = mean_outer_gram(left, right, domain_layout(sizes), bias=bias, squared=squared)
    assert_agrees(actual, inner, 1e-13)
    assert_same_slopes(actual, inner, (left, right), 1e-13)


@pytest.mark.parametrize("sizes", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
def test_mean_second_moments(sizes):
    weights, z = draw(6, 2), draw(6, 4)
    each = torch.einsum("nl,nd,nc->nldc", weights, z, z)
    expected = torch.stack([part.mean(0) for part in each.split(sizes)])
    actual = mean_second_moments(weights, z, domain_layout(sizes))
    assert_agrees(actual, expected, 1e-14)
    assert_same_slopes(actual, expected, (weights, z), 1e-13)


@pytest.mark.parametrize("shape", [(5, 3), (1, 2), (4, 1), (71, 40)], ids=str)
def test_gram(route, shape):
    z = draw(*shape)
    assert_agrees(gram(z), z @ z.T, 1e-15)
    assert_same_slopes(gram(z), z @ z.T, (z,), 1e-13)


@pytest.mark.parametrize("disturbance", [1, 1e-2, 1e-4])
def test_slopes_of_a_gram_matrix_where_terms_cancel(disturbance):
    """Rows against slightly disturbed copies: float32 sums alone would be off by 1e-3."""
    rows = torch.randn(50, 4).relu() + 1
    z = torch.cat([rows, rows + disturbance * torch.randn(50, 4)]).requires_grad_()
    signs = torch.ones(100, dtype=torch.float64)
    signs[50:] = -1
    weights = signs.unsqueeze(1) * signs
    (actual,) = torch.autograd.grad((weights * gram(z)).sum(), z)
    wide = z.detach().double()
    assert_agrees(actual.double(), 2 * weights @ wide, 1e-4)


def test_hand_written_slopes(route):
    """And those of the slopes, where they can be differentiated again."""
    z, weights = draw(4, 2), draw(4, 3)
    assert gradcheck(gram, (z,))
    assert gradcheck(softmax_gram, (draw(5, 4).softmax(1).detach().requires_grad_(),))

    assert gradgradcheck(gram, (z,))

    for squared in (False, True):
        options = {"domains": domain_layout((3, 1)), "bias": True, "squared": squared}
        for function in (mean_outer, mean_outer_gram):
            outer = functools.partial(function, **options)
            assert gradcheck(outer, (weights, z))
            assert gradgradcheck(outer, (weights, z))

    def moments(weights, z):
        return mean_second_moments(weights, z, domain_layout((3, 1)))

    assert gradcheck(moments, (weights, z))
    assert gradgradcheck(moments, (weights, z))

    def by_domain(z, matrices):
        return domain_products(z, matrices, domain_layout((3, 1)))

    assert gradcheck(by_domain, (z, draw(2, 3, 2)))
    assert gradgradcheck(by_domain, (z, draw(2, 3, 2)))


@pytest.mark.parametrize("sizes", [(100,), (70, 30), (50, 50)], ids=str)
def test_chunks_change_nothing(monkeypatch, sizes):
    left, right, domains = draw(100, 2), draw(100, 3), domain_layout(sizes)
    whole = mean_outer(left, right, domains), mean_second_moments(left, right, domains)
    monkeypatch.setattr(products, "_CHUNK_ELEMENTS", 1)
    chunked = mean_outer(left, right, domains), mean_second_moments(left, right, domains)
    for actual, expected in zip(chunked, whole, strict=True):
        assert_agrees(actual, expected, 1e-14)
        assert_same_slopes(actual, expected, (left, right), 1e-13)


def test_chunks_are_neither_tiny_nor_huge():
    assert chunk_rows(1) == chunk_rows(0) == 1024
    assert chunk_rows(2048) == 256
    assert chunk_rows(10**9) == 32


def test_sums_of_float32_products_are_kept_in_float64():
    """The mean of 10⁵ equal numbers: 5e-4 off if float32 sums ran over all of them."""
    n = 100_000
    z = torch.full((n, 1), 0.1)
    exact = z[0].double()
    for actual, expected in (
        (mean_outer(z, z, domain_layout((n,))), exact**2),
        (mean_second_moments(z, z, domain_layout((n,))), exact**3),
    ):
        assert actual.dtype == torch.float64
        assert actual.item() == pytest.approx(expected.item(), rel=5e-5)


def test_accumulation_precision():
    assert accumulation_dtype(torch.device("cpu")) == torch.float64
    assert accumulation_dtype(torch.device("cuda")) == torch.float64
    assert accumulation_dtype(torch.device("mps")) == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_slopes_have_the_precision_of_the_features(dtype):
    z, weights = draw(4, 2).to(dtype).detach().requires_grad_(), draw(4, 2)
    for result in (
        gram(z),
        mean_outer(weights, z, domain_layout((4,))),
        mean_outer_gram(weights, z, domain_layout((4,)), squared=True),
        mean_second_moments(weights, z, domain_layout((4,))),
    ):
        slope_z = torch.autograd.grad(result.sum(), z)[0]
        assert slope_z.dtype == dtype


def make_pairs(dtype=torch.float64, features=3, classes=4):
    z = torch.randn(6, features).to(dtype).requires_grad_()
    rows, logits = draw(6, 2), draw(6, classes)
    weights = torch.randn(6, 6, dtype=torch.float64)
    return z, rows, logits, weights + weights.T


@pytest.mark.parametrize("given", ["features", "products"])
@pytest.mark.parametrize("classes", [4, 30])
@pytest.mark.parametrize("bias", [False, True])
def test_pair_sums(bias, classes, given):
    z, rows, logits, weights = make_pairs(classes=classes)
    probs, products = logits.softmax(1), z @ z.T + bias
    lefts = rows @ rows.T, softmax_inner(probs, slice(None)), rows @ rows.T
    expected = [
        (weights * left * products**power).sum()
        for left, power in zip(lefts, (1, 2, 2), strict=True)
    ]
    terms = [
        PairTerm(rows, "rows", 1),
        PairTerm(softmax_gram(probs), "gram", 2),
        PairTerm(lefts[2], "gram", 2),
    ]
    base = {"features": z, "bias": bias} if given == "features" else {"products": products}
    actual = pair_sums(weights, terms, **base)
    for found, wanted in zip(actual, expected, strict=True):
        assert_agrees(found, wanted, 1e-13)
        assert_same_slopes(found, wanted, (z, rows, logits), 1e-12)
    total, wanted = (
        actual[0] + 3 * actual[1] - actual[2],
        expected[0] + 3 * expected[1] - expected[2],
    )
    assert_same_slopes(total, wanted, (z, rows, logits), 1e-12)


@pytest.mark.parametrize("classes", [4, 13])
def test_hand_written_slopes_of_pair_sums(classes):
    z, rows, logits, weights = make_pairs(classes=classes)

    def sums(z, rows, logits):
        terms = [PairTerm(rows, "rows", 1), PairTerm(softmax_gram(logits.softmax(1)), "gram", 2)]
        return pair_sums(weights, terms, features=z, bias=True)

    assert gradcheck(sums, (z, rows, logits))
    assert gradgradcheck(sums, (z, rows, logits))


def test_slopes_that_nobody_wants_are_not_made():
    z, rows, logits, weights = make_pairs()
    curvatures = softmax_gram(logits.softmax(1))
    terms = [PairTerm(rows.detach(), "rows", 1), PairTerm(curvatures, "gram", 2)]
    first, second = pair_sums(weights, terms, features=z.detach())
    assert torch.autograd.grad(first + second, logits)[0].shape == logits.shape
