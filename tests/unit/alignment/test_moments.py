"""Moments: the choice of an evaluation, and evaluation block by block."""

import pytest
import torch
from tests.cases import CASES, Case
from tests.comparison import assert_agrees, assert_same_slopes

from hessalign._errors import InputError, UnknownNameError
from hessalign.alignment import QUANTITIES, Moment, dispersion, inner_products, moments
from hessalign.alignment.moments import TooCostlyError
from hessalign.alignment.quantities import moment, quantity_dispersion
from hessalign.curvature import factors, linear_head, products
from hessalign.curvature.domains import Domains
from hessalign.curvature.factors import Features, Linear, Outer, Rows

LOSSES = {"cross_entropy": 3, "binary": 1, "squared": 2}


def head_of_size(*, features, outputs, sizes):
    """A head with the shapes of a large one, of which hardly anything is stored."""
    samples = sum(sizes)
    z = torch.ones(1, 1).expand(samples, features)
    logits = torch.zeros(1, 1).expand(samples, outputs)
    domain = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    y = torch.zeros(1, dtype=torch.long).expand(samples)
    return linear_head(z, logits, y, domain, loss="binary" if outputs == 1 else "cross_entropy")


IMAGES = {"sizes": (32, 32, 32)}
COLORED_MNIST = {"features": 390, "outputs": 1, "sizes": (25_000, 25_000)}


@pytest.mark.parametrize(
    ("size", "quantity", "expected"),
    [
        ({"features": 512, "outputs": 7, **IMAGES}, "hessian", "dual"),
        ({"features": 2048, "outputs": 7, **IMAGES}, "hessian", "dual"),
        ({"features": 2048, "outputs": 345, **IMAGES}, "hessian", "dual"),
        ({"features": 2048, "outputs": 345, **IMAGES}, "logit_covariance", "dual"),
        (COLORED_MNIST, "hessian", "primal"),
        (COLORED_MNIST, "hessian_diagonal", "primal"),
        (COLORED_MNIST, "gradient", "primal"),
        ({"features": 2048, "outputs": 7, **IMAGES}, "gradient", "primal"),
        ({"features": 2048, "outputs": 7, **IMAGES}, "logit", "primal"),
        ({"features": 2, "outputs": 2, "sizes": (1000, 1000)}, "hessian", "primal"),
        ({"features": 2048, "outputs": 345, "sizes": (1, 1)}, "gradient", "dual"),
    ],
)
def test_the_cheaper_evaluation(size, quantity, expected):
    assert moment(head_of_size(**size), quantity).cheaper() == expected


def test_a_gram_matrix_that_is_there_already_makes_dual_cheaper():
    head = head_of_size(features=2048, outputs=7, sizes=(32, 32, 32))
    gradient = moment(head, "gradient")
    assert gradient.cheaper() == "primal"
    moment(head, "hessian").inner("dual")
    assert gradient.cheaper() == "dual"


def note_evaluations(monkeypatch, called):
    """Have each evaluation take note of itself instead of computing anything."""

    def means(factors, *_, **__):
        called.extend("primal" for _ in factors)
        return [torch.eye(3).double() for _ in factors]

    def pairs(self, **_):
        called.append("dual")
        return torch.eye(3).double()

    monkeypatch.setattr(moments, "mean_inners", means)
    monkeypatch.setattr(Moment, "_dual", pairs)


@pytest.mark.parametrize("choice", ["primal", "dual"])
def test_auto_takes_the_cheaper_one(monkeypatch, choice):
    head = linear_head(*CASES[0].build())
    called = []
    note_evaluations(monkeypatch, called)
    monkeypatch.setattr(Moment, "cheaper", lambda self, **_: choice)
    inner_products(head, "hessian", "auto")
    inner_products(head, "hessian")
    assert called == [choice, choice]


@pytest.mark.parametrize("evaluation", ["primal", "dual"])
def test_the_choice_can_be_overridden(monkeypatch, evaluation):
    head = linear_head(*CASES[0].build())
    called = []
    note_evaluations(monkeypatch, called)
    inner_products(head, "hessian", evaluation)
    assert called == [evaluation]


@pytest.mark.pairwise
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("quantity", QUANTITIES)
@pytest.mark.parametrize("loss", LOSSES)
def test_blocks_of_pairs_change_nothing(monkeypatch, route, loss, quantity, rows):
    case = Case("blocks", loss, LOSSES[loss])
    batch = case.build()
    samples = len(batch.z)
    expected = inner_products(linear_head(*batch, **case.options), quantity, "dual")
    monkeypatch.setattr(moments, "PAIR_ELEMENTS", rows * samples)
    calls = []
    checkpoint = moments.checkpoint

    def spy(function, block, **options):
        calls.append(block)
        return checkpoint(function, block, **options)

    monkeypatch.setattr(moments, "checkpoint", spy)
    actual = inner_products(linear_head(*batch, **case.options), quantity, "dual")
    assert len(calls) == samples // rows
    assert_agrees(actual, expected, 1e-13)
    assert_same_slopes(actual, expected, batch.inputs, 1e-12)


@pytest.mark.pairwise
@pytest.mark.parametrize("rows", [1, 1000])
@pytest.mark.parametrize("evaluation", ["primal", "dual"])
@pytest.mark.parametrize("quantity", QUANTITIES)
@pytest.mark.parametrize("loss", LOSSES)
def test_dispersion_is_that_of_the_inner_products(monkeypatch, loss, quantity, evaluation, rows):
    case = Case("dispersion", loss, LOSSES[loss])
    batch = case.build()
    expected = dispersion(inner_products(linear_head(*batch, **case.options), quantity, evaluation))
    monkeypatch.setattr(moments, "PAIR_ELEMENTS", rows * len(batch.z))
    actual = quantity_dispersion(linear_head(*batch, **case.options), quantity, evaluation)
    assert_agrees(actual, expected, 1e-13)
    assert_same_slopes(actual, expected, batch.inputs, 1e-12)


@pytest.mark.parametrize("quantity", QUANTITIES)
@pytest.mark.parametrize("loss", LOSSES)
def test_chunks_of_samples_change_nothing(monkeypatch, loss, quantity):
    domain = (0,) * 70 + (1,) * 40 + (2,) * 33
    case = Case("chunks", loss, LOSSES[loss], domain=domain)
    batch = case.build()
    expected = inner_products(linear_head(*batch, **case.options), quantity, "primal")
    monkeypatch.setattr(products, "_CHUNK_ELEMENTS", 1)
    actual = inner_products(linear_head(*batch, **case.options), quantity, "primal")
    assert_agrees(actual, expected, 1e-13)
    assert_same_slopes(actual, expected, batch.inputs, 1e-12)


def test_the_dual_form_never_holds_more_pairs_than_allowed(monkeypatch):
    monkeypatch.setattr(moments, "PAIR_ELEMENTS", 100)
    head = linear_head(
        *Case("pairs", "binary", domain=(0,) * 20 + (1,) * 20).build(), loss="binary"
    )
    seen = []
    inner = Outer.inner

    def spy(self, block):
        result = inner(self, block)
        seen.append(result.numel())
        return result

    monkeypatch.setattr(Outer, "inner", spy)
    inner_products(head, "hessian", "dual")
    assert max(seen) <= 100
    assert sum(seen) == 1600


def test_a_moment_of_ones_own():
    """The abstraction is open: any left and right factor make a moment."""
    left = torch.randn(5, 2, dtype=torch.float64)
    z = torch.randn(5, 3, dtype=torch.float64)
    domains = Domains(torch.tensor([0, 1]), (2, 3), None)
    own = Moment(Rows(left), Linear(Features(z), bias=False), domains)
    each = torch.einsum("nl,nd->nld", left, z).flatten(1)
    means = torch.stack([each[:2].mean(0), each[2:].mean(0)])
    for evaluation in ("primal", "dual"):
        assert_agrees(own.inner(evaluation), means @ means.T, 1e-14)


def test_unknown_evaluation():
    text = (
        r"Unknown evaluation 'duel'. Expected one of: 'auto', 'primal', 'dual'. "
        r"Did you mean 'dual'\?"
    )
    with pytest.raises(UnknownNameError, match=text):
        moments.check_evaluation("duel")


def test_what_would_take_minutes_is_refused_before_it_begins():
    head = head_of_size(features=2048, outputs=7, sizes=(5000, 5000, 5000))
    with pytest.raises(
        TooCostlyError, match=r"15,000 samples with 28 × 4,198,401 derivatives"
    ) as e:
        inner_products(head, "hessian")
    for advice in ("s of one core", "fewer samples", 'hessian="diagonal"', 'evaluation="dual"'):
        assert advice in str(e.value)
    assert quantity_dispersion(head, "hessian_diagonal").item() < 1e-20  # this one is quick


def test_what_would_take_gigabytes_is_refused_even_if_asked_for_by_name():
    head = head_of_size(features=2048, outputs=345, sizes=(8, 8))
    with pytest.raises(TooCostlyError, match=r"GiB\. Use .* or take the dual evaluation\."):
        quantity_dispersion(head, "hessian", "primal")
    assert moment(head, "hessian").cheaper() == "dual"
    with pytest.raises(InputError, match=r"Expected dense Hessians of at most 4 GiB, .* Use hvp"):
        head.hessian  # noqa: B018


@pytest.mark.parametrize(
    "size",
    [
        {"features": 16, "outputs": 20, "sizes": (128, 128, 128)},
        {"features": 16, "outputs": 7, "sizes": (512, 512, 512)},
        {"features": 64, "outputs": 7, "sizes": (512, 512, 512)},
    ],
)
def test_narrow_heads_are_primal_and_need_few_products(size, monkeypatch):
    """No loop over pairs of classes: all means come from one product of rows."""
    head = head_of_size(**size)
    assert moment(head, "hessian").cheaper() == "primal"
    called = []
    plain = factors.mean_grams

    def spy(right, terms):
        called.extend(terms)
        return plain(right, terms)

    monkeypatch.setattr(factors, "mean_grams", spy)
    inner_products(head, "hessian", "primal")
    assert len(called) <= 2
