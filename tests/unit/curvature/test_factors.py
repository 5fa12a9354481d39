"""Left and right factors of a moment against their dense forms."""

from decimal import Decimal, localcontext

import pytest
import torch
from tests.comparison import assert_agrees

from hessalign.curvature.domains import domain_layout
from hessalign.curvature.factors import (
    Constant,
    DenseCurvature,
    DiagonalCurvature,
    Features,
    Linear,
    Outer,
    Rows,
    ScaledCurvature,
    SoftmaxCurvature,
    mean_inners,
)

N, K, D = 6, 4, 3
BLOCKS = [slice(None), slice(0, 2), slice(4, 6), slice(2, 3)]
SIZES = (1, 3, 2)


def make_left(name):
    """A left factor and its dense form, one flat row per sample."""
    values = torch.randn(N, K, dtype=torch.float64)
    if name == "rows":
        return Rows(values), values
    if name == "diagonal":
        return DiagonalCurvature(values), torch.diag_embed(values).flatten(1)
    p = values.softmax(1)
    dense = torch.diag_embed(p) - torch.einsum("nc,nk->nck", p, p)
    if name == "scaled":
        scale = torch.rand(N, 1, dtype=torch.float64)
        return ScaledCurvature(SoftmaxCurvature(p), scale), scale * dense.flatten(1)
    if name == "dense":
        matrices = torch.randn(N, K, K, dtype=torch.float64)
        matrices = matrices + matrices.mT
        return DenseCurvature(matrices), matrices.flatten(1)
    return SoftmaxCurvature(p), dense.flatten(1)


def make_right(name, bias):
    """A right factor and its dense form, one flat row per sample."""
    z = torch.randn(N, D, dtype=torch.float64)
    one = torch.ones(N, 1, dtype=torch.float64)
    augmented = torch.cat([z, one], 1) if bias else z
    if name == "constant":
        return Constant(z), one
    if name == "linear":
        return Linear(Features(z), bias), augmented
    if name == "squared":
        return Linear(Features(z), bias, squared=True), augmented.square()
    return Outer(Features(z), bias), torch.einsum("nd,nc->ndc", augmented, augmented).flatten(1)


LEFT = ["rows", "diagonal", "softmax", "dense", "scaled"]
RIGHT = ["constant", "linear", "squared", "outer"]


@pytest.mark.parametrize("block", BLOCKS, ids=str)
@pytest.mark.parametrize("name", LEFT)
def test_left_inner_products(route, name, block):
    factor, dense = make_left(name)
    assert_agrees(factor.inner(block), dense[block] @ dense.T, 1e-14)


@pytest.mark.parametrize("name", LEFT)
def test_left_rows_keep_inner_products(name):
    factor, dense = make_left(name)
    rows = factor.rows()
    assert rows.shape == (N, factor.size)
    assert_agrees(rows @ rows.T, dense @ dense.T, 1e-14)


@pytest.mark.parametrize("name", LEFT[1:])
def test_curvature_matrix_diagonal_and_product(name):
    factor, dense = make_left(name)
    matrices = dense.view(N, K, K)
    assert_agrees(factor.matrix(), matrices, 1e-15)
    assert_agrees(factor.diagonal(), matrices.diagonal(dim1=1, dim2=2), 1e-15)
    one, several = torch.randn(N, K).double(), torch.randn(3, 2, 5, K).double()
    assert_agrees(factor.apply(one, slice(None)), torch.einsum("nkc,nc->nk", matrices, one), 1e-14)
    assert_agrees(
        factor.apply(several, slice(2, 5)),
        torch.einsum("nkc,nabc->nabk", matrices[2:5], several),
        1e-14,
    )


def softmax_curvature_of(logits):
    """S of each row, to 60 digits."""
    with localcontext() as context:
        context.prec = 60
        result = []
        for row in logits.tolist():
            exponentials = [Decimal(a).exp() for a in row]
            p = [e / sum(exponentials) for e in exponentials]
            result.append([[p[c] * ((c == k) - p[k]) for k in range(K)] for c in range(K)])
        return result


@pytest.mark.parametrize("margin", [0, 15, 40])
def test_confident_predictions_lose_no_digits(route, margin):
    """p = 1 − 1e-17 is 1 in float64, but S = p(1 − p), … and inner products of S are not 0."""
    logits = torch.randn(N, K, dtype=torch.float64)
    logits[torch.arange(N), torch.randint(K, (N,))] += margin
    factor, exact = SoftmaxCurvature(logits.softmax(1)), softmax_curvature_of(logits)
    relative = {"rel": 1e-13 if margin == 0 else 1e-12, "abs": 0}
    matrix, diagonal, inner = factor.matrix(), factor.diagonal(), factor.inner(slice(None))
    rows = factor.rows() @ factor.rows().T
    for n in range(N):
        for c in range(K):
            assert diagonal[n, c].item() == pytest.approx(float(exact[n][c][c]), **relative)
            for k in range(K):
                assert matrix[n, c, k].item() == pytest.approx(float(exact[n][c][k]), **relative)
        for m in range(N):
            with localcontext() as context:
                context.prec = 60
                expected = float(
                    sum(exact[n][c][k] * exact[m][c][k] for c in range(K) for k in range(K))
                )
            assert inner[n, m].item() == pytest.approx(expected, **relative)
            assert rows[n, m].item() == pytest.approx(expected, **relative)


@pytest.mark.parametrize("block", BLOCKS, ids=str)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("name", RIGHT)
def test_right_inner_products(name, bias, block):
    factor, dense = make_right(name, bias)
    assert_agrees(factor.inner(block), dense[block] @ dense.T, 1e-13)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("right", RIGHT)
@pytest.mark.parametrize("left", LEFT)
def test_inner_products_of_the_means(left, right, bias):
    left_factor, left_dense = make_left(left)
    right_factor, right_dense = make_right(right, bias)
    each = torch.einsum("nl,nd->nld", left_dense, right_dense).flatten(1)
    means = torch.stack([part.mean(0) for part in each.split(SIZES)])
    (actual,) = mean_inners([(left_factor, right_factor)], domain_layout(SIZES), [False])
    assert_agrees(actual, means @ means.T, 1e-13)
    assert left_factor.size == left_factor.rows().shape[1]
    assert right_factor.size == right_dense.shape[1]


def test_the_gram_matrix_is_computed_once_and_then_free():
    features = Features(torch.randn(N, D))
    linear, outer = Linear(features, True), Outer(features, False)
    assert linear.dual_size == outer.dual_size == D
    linear.inner(slice(None))
    assert linear.dual_size == outer.dual_size == 0
    assert features.inner(slice(None)) is features.gram


def test_float32_features_have_float64_inner_products():
    z = torch.randn(N, D)
    expected = z.double() @ z.double().T
    for block in BLOCKS:
        actual = Features(z).inner(block)
        assert actual.dtype == torch.float64
        assert_agrees(actual, expected[block], 1e-15)
