"""Penalties and distances of losses with options, against torch's own loss functions."""

from pathlib import Path

import pytest
import torch
from tests import loss_options, oracles
from tests.comparison import assert_agrees, assert_same_slopes
from tests.definitions import expected_extra
from tests.loss_options import BY_NAME, CASES, IGNORED, SHORT
from torch import nn
from torch.autograd import gradgradcheck

import hessalign as ha
from hessalign.alignment import TABLE_1, moments

ALPHA, BETA, PROBES = 0.3, 0.7, 4
KINDS = ("full", "diagonal", "product", "expected", "sampled", None)


def hessian_term(kind, case, batch, weight, signs=()):
    """The dispersion of the variant named, by dense derivatives."""
    given = (case, batch, weight)
    if kind is None:
        return torch.zeros((), dtype=torch.float64)
    hessians = loss_options.dense_hessian(*given)
    diagonals = hessians.diagonal(dim1=1, dim2=2)
    if kind == "expected":
        extra = expected_extra(hessians, PROBES, shared=False, pooled=False)
        return oracles.dispersion(diagonals) + extra
    if kind == "sampled":
        each = signs[0].double()
        return oracles.dispersion(torch.einsum("mep,epq,meq->ep", each, hessians, each) / PROBES)
    return oracles.dispersion(
        {
            "full": lambda: hessians,
            "diagonal": lambda: diagonals,
            "product": lambda: loss_options.hgp(*given),
        }[kind]()
    )


@pytest.mark.pairwise
@pytest.mark.parametrize("evaluation", ["primal", "dual", "auto"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES, ids=loss_options.name)
def test_terms(drawn, case, kind, evaluation):
    batch, weight = case.build()
    align = ha.HessianAlignment(
        ALPHA, BETA, kind, **case.options, probes=PROBES, evaluation=evaluation
    )
    terms = align(*batch, weight=weight)
    hessian = hessian_term(kind, case, batch, weight, drawn)
    gradient = oracles.dispersion(loss_options.gradient(case, batch, weight))
    for actual, expected in (
        (terms.hessian, hessian),
        (terms.gradient, gradient),
        (terms.penalty, ALPHA * hessian + BETA * gradient),
    ):
        assert_agrees(actual, expected)
        assert_same_slopes(actual, expected, batch.inputs)


@pytest.mark.pairwise
@pytest.mark.parametrize("evaluation", ["primal", "dual"])
@pytest.mark.parametrize("kind", ["full", "diagonal", "product", "expected"])
def test_many_pairs_and_the_routes_of_large_shapes(kind, evaluation, route, monkeypatch):
    if route == "large":  # pairs of samples block by block, too
        monkeypatch.setattr(moments, "PAIR_ELEMENTS", 40)
    for case in SHORT:
        batch, weight = case.build()
        align = ha.HessianAlignment(
            ALPHA, BETA, kind, **case.options, probes=PROBES, evaluation=evaluation
        )
        actual, expected = (
            align(*batch, weight=weight).hessian,
            hessian_term(kind, case, batch, weight),
        )
        assert_agrees(actual, expected)
        assert_same_slopes(actual, expected, batch.inputs)


@pytest.mark.parametrize("evaluation", ["primal", "dual"])
@pytest.mark.parametrize("name", ["weights, all options", "soft, both", "coupled, weights"])
def test_second_derivatives(name, evaluation):
    case = BY_NAME[name]
    (z, logits, y, _), weight = case.build()
    rows = [0, 3, 5, 6, 9]
    z, logits = (x.detach()[rows].requires_grad_() for x in (z[:, :2], logits))
    y = y[rows]
    weight = None if weight is None else weight[rows]
    for kind in ("full", "product"):
        align = ha.HessianAlignment(ALPHA, BETA, kind, **case.options, evaluation=evaluation)

        def penalty(z, logits, align=align):
            return align(z, logits, y, (2, 3), weight=weight).penalty

        assert gradgradcheck(penalty, (z, logits))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", SHORT, ids=loss_options.name)
def test_a_linear_head_given_as_a_module_is_the_same(case, kind):
    batch, weight = case.build()
    head = nn.Linear(case.features, case.outputs).double()
    penalties = [
        ha.HessianAlignment(
            *(ALPHA, BETA, kind),
            loss=case.loss,
            probes=PROBES,
            generator=torch.Generator().manual_seed(1),
        )(batch.z, head(batch.z), batch.y, batch.domain, head=given, weight=weight).penalty
        for given in (None, head)
    ]
    assert_agrees(*penalties)
    assert_same_slopes(*penalties, (batch.z, *head.parameters()))


@pytest.mark.parametrize("fidelity", ["domainbed", "released"])
@pytest.mark.parametrize("case", SHORT, ids=loss_options.name)
def test_targets_of_the_released_code(case, fidelity):
    batch, weight = case.build()
    align = ha.HessianAlignment(ALPHA, BETA, "product", **case.options, fidelity=fidelity)
    given = (case, batch, weight)
    gradients, hessians = loss_options.gradient(*given), loss_options.dense_hessian(*given)
    expected = oracles.deviation(loss_options.hgp(*given), hessians.mean(0) @ gradients.mean(0))
    scale = 3 if fidelity == "released" else 1
    assert_agrees(align(*batch, weight=weight).hessian, scale * expected)


# --- without what finite samples add --------------------------------------------------------------


UNBIASED = (
    "smoothing",
    "soft, both",
    "poisson",
    "multilabel",
    "weights, class weights",
    "coupled, weights",
)


def unbiased_dispersion(each, weight, domain):
    """Σ over pairs of different samples, from its definition, for each sample's values [n, ...]."""
    rows = oracles.groups(domain)
    count, flat = len(rows), each.flatten(1)
    shares = [weight[r] / weight[r].sum() for r in rows]
    means, norms = [], []
    for u, r in zip(shares, rows, strict=True):
        means.append(u @ flat[r])
        pairs = torch.outer(u, u)
        pairs = pairs - torch.diag(pairs.diagonal())
        norms.append((pairs * (flat[r] @ flat[r].T)).sum() / pairs.sum())
    products = torch.stack(means) @ torch.stack(means).T
    other = (products - torch.diag(products.diagonal())).sum()
    return (count - 1) / count**2 * torch.stack(norms).sum() - other / count**2


def sample_derivatives(case, batch, weight):
    """Gradient and Hessian of each sample as a domain of its own, and its weight in a mean."""
    alone = batch._replace(domain=torch.arange(len(batch.z)))
    share = loss_options.share(case, batch.y)
    own = share if weight is None else weight * share
    ones = None if weight is None else torch.ones_like(weight)
    given = (case, alone, ones)
    return loss_options.gradient(*given), loss_options.dense_hessian(*given), own


@pytest.mark.parametrize("evaluation", ["primal", "dual"])
@pytest.mark.parametrize("name", UNBIASED)
def test_unbiased(name, evaluation):
    case = BY_NAME[name]
    batch, weight = case.build()
    gradients, hessians, own = sample_derivatives(case, batch, weight)
    for kind, values in (
        ("full", hessians),
        ("diagonal", hessians.diagonal(dim1=1, dim2=2)),
        (None, None),
    ):
        align = ha.HessianAlignment(
            ALPHA, BETA, kind, **case.options, evaluation=evaluation, unbiased=True
        )
        terms = align(*batch, weight=weight)
        expected = unbiased_dispersion(gradients, own, batch.domain)
        assert_agrees(terms.gradient, expected)
        assert_same_slopes(terms.gradient, expected, batch.inputs)
        if values is not None:
            expected = unbiased_dispersion(values, own, batch.domain)
            assert_agrees(terms.hessian, expected)
            assert_same_slopes(terms.hessian, expected, batch.inputs)


@pytest.mark.parametrize("evaluation", ["primal", "dual"])
def test_unbiased_without_samples_that_do_not_count(evaluation):
    batch, _ = BY_NAME["ignored, smoothing"].build()
    kept = [part[batch.y != IGNORED] for part in batch]
    options = {"evaluation": evaluation, "unbiased": True}
    ignoring = ha.HessianAlignment(
        ALPHA, BETA, loss=ha.CrossEntropy(None, 0.2, IGNORED), **options
    )(*batch)
    dropped = ha.HessianAlignment(ALPHA, BETA, loss=ha.CrossEntropy(None, 0.2), **options)(*kept)
    assert_agrees(ignoring.penalty, dropped.penalty)


def test_weights_of_1_are_as_unbiased_as_none():
    batch, _ = BY_NAME["smoothing"].build()
    align = ha.HessianAlignment(ALPHA, BETA, unbiased=True)
    ones = torch.ones(len(batch.z))
    assert_agrees(align(*batch, weight=ones).penalty, align(*batch).penalty, 1e-13)


def test_unbiased_needs_two_samples_that_count():
    batch, _ = BY_NAME["smoothing"].build()
    weight = torch.ones(len(batch.z))
    weight[:4] = 0
    with pytest.raises(ValueError, match="at least two samples that count in each domain"):
        ha.HessianAlignment(ALPHA, BETA, unbiased=True)(*batch, weight=weight)
    unchecked = ha.HessianAlignment(ALPHA, BETA, unbiased=True, checks=False)
    assert not unchecked(*batch, weight=weight).penalty.isfinite()
    with pytest.raises(ValueError, match="at least two samples of each domain"):
        ha.HessianAlignment(ALPHA, BETA, unbiased=True, evaluation="dual")(*batch[:3], (1, 11))


def test_unbiased_is_for_linear_heads():
    batch, _ = BY_NAME["smoothing"].build()
    head, align = nn.Linear(4, 3).double(), ha.HessianAlignment(ALPHA, BETA, unbiased=True)
    with pytest.raises(ValueError, match="Expected a linear head for an unbiased dispersion"):
        align(batch.z, head(batch.z), batch.y, batch.domain, head=head)


@pytest.mark.parametrize("kind", ["product", "sampled", "expected"])
def test_kinds_that_are_no_means_over_pairs_have_no_unbiased_form(kind):
    with pytest.raises(ValueError, match=r'Expected unbiased=True with hessian="full", "diagonal"'):
        ha.HessianAlignment(ALPHA, BETA, kind, unbiased=True)


# --- weights, layouts, checks ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["full", "diagonal", "product", "expected", None])
def test_whole_weights_are_repetitions(kind):
    batch, _ = BY_NAME["smoothing and class weights"].build()
    times = torch.arange(len(batch.z)) % 3 + 1
    align = ha.HessianAlignment(ALPHA, BETA, kind, loss=BY_NAME["smoothing and class weights"].loss)
    repeated = [part.repeat_interleave(times, dim=0) for part in batch]
    assert_agrees(align(*batch, weight=times.float()).penalty, align(*repeated).penalty, 1e-12)


@pytest.mark.parametrize("kind", ["full", "diagonal", "product", "expected", None])
def test_weights_of_1_change_nothing(kind):
    batch, _ = BY_NAME["smoothing"].build()
    align = ha.HessianAlignment(ALPHA, BETA, kind)
    ones = torch.ones(len(batch.z))
    assert_agrees(align(*batch, weight=ones).penalty, align(*batch).penalty, 1e-14)


@pytest.mark.parametrize("case", SHORT, ids=loss_options.name)
def test_layouts(case):
    batch, weight = case.build()
    align = ha.HessianAlignment(ALPHA, BETA, **case.options)
    expected = align(*batch, weight=weight).penalty
    layout = ha.domain_layout(batch.domain)
    assert torch.equal(align(*batch[:3], layout, weight=weight).penalty, expected)
    order = torch.cat(oracles.groups(batch.domain))
    sizes = tuple(len(rows) for rows in oracles.groups(batch.domain))
    z, logits, y = (part[order] for part in batch[:3])
    own = None if weight is None else weight[order]
    for domain in (sizes, ha.domain_layout(sizes)):
        assert torch.equal(align(z, logits, y, domain, weight=own).penalty, expected)


def test_sizes_that_do_not_suit():
    batch, _ = BY_NAME["smoothing"].build()
    align = ha.HessianAlignment(ALPHA, BETA)
    with pytest.raises(ValueError, match=r"domains of 12 samples in all.* got sizes \(5, 5\)"):
        align(*batch[:3], (5, 5))
    with pytest.raises(ValueError, match=r"Expected sizes of domains of 1 or more, got \(12, 0\)"):
        align(*batch[:3], (12, 0))
    with pytest.raises(ValueError, match=r"Expected sizes of domains of 1 or more, got \(\)"):
        ha.domain_layout(())


def test_values_are_looked_at_if_asked_for():
    z, logits = torch.randn(4, 2), torch.randn(4, 3)
    logits[1] = torch.nan
    y, weight = torch.tensor([0, 1, 2, 0]), torch.tensor([1.0, 1.0, 0.0, 0.0])
    for checks in (None, True):
        with pytest.raises(ValueError, match="Expected finite logits"):
            ha.HessianAlignment(ALPHA, BETA, checks=checks)(z, logits, y, (2, 2))
    unchecked = ha.HessianAlignment(ALPHA, BETA, checks=False)
    assert not unchecked(z, logits, y, (2, 2)).penalty.isfinite()
    assert not unchecked(z, torch.randn(4, 3), y, (2, 2), weight=weight).penalty.isfinite()


@pytest.mark.parametrize("kind", ["full", "product"])
@pytest.mark.parametrize("case", [*SHORT, BY_NAME["ordinal"]], ids=loss_options.name)
def test_transforms(case, kind):
    batch, weight = case.build()
    align = ha.HessianAlignment(ALPHA, BETA, kind, **case.options)
    layout = ha.domain_layout(batch.domain)

    def penalty(z, logits):
        return align(z, logits, batch.y, layout, weight=weight).penalty

    expected = torch.autograd.grad(penalty(*batch.inputs), batch.inputs)
    actual = torch.func.grad(penalty, argnums=(0, 1))(*(x.detach() for x in batch.inputs))
    for found, slope in zip(actual, expected, strict=True):
        assert_agrees(found, slope)


GRAPHS = """
import sys
sys.path.insert(0, {root!r})
import torch
import hessalign as ha
from tests.loss_options import BY_NAME, SHORT

for case in (*SHORT, BY_NAME["ordinal"]):
    (z, logits, y, domain), weight = case.build()
    layout = ha.domain_layout(domain)
    for kind in ("full", "product"):
        align = ha.HessianAlignment(0.3, 0.7, kind, **case.options)

        def penalty(z, logits):
            return align(z, logits, y, layout, weight=weight).penalty

        torch._dynamo.reset()
        expected = penalty(z, logits)
        found = torch.compile(penalty, backend="eager", fullgraph=True)(z, logits)
        assert abs((found - expected).item()) <= 1e-12 * abs(expected.item()), case.name
print("the same")
"""


@pytest.mark.slow
def test_graphs(python):
    """In an interpreter of its own: torch compiles nothing that the tests' type checks wrap."""
    assert python(GRAPHS.format(root=str(Path(__file__).parents[3]))) == "the same\n"


# --- distances ------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=loss_options.name)
def test_hessian_distances(case):
    batch, weight = case.build()
    hessians = loss_options.dense_hessian(case, batch, weight)
    expected, spectral = oracles.distances(hessians), oracles.spectral_distances(hessians)
    given = {**case.options, "y": batch.y, "weight": weight}
    for domain in (batch.domain, ha.domain_layout(batch.domain)):
        for evaluation in ("primal", "dual"):
            actual = ha.hessian_distance(*batch.inputs, domain, evaluation=evaluation, **given)
            assert_agrees(actual.square(), expected.square())
        actual = ha.hessian_distance(*batch.inputs, domain, "spectral", **given)
        assert_agrees(actual, spectral)


@pytest.mark.parametrize("case", [case for case in CASES if case.bias], ids=loss_options.name)
def test_attribute_distances(case):
    batch, weight = case.build()
    given = (case, batch, weight)
    found = ha.attribute_distances(*batch, loss=case.loss, weight=weight)
    assert tuple(found) == TABLE_1
    part = {name: value.square() for name, value in found.items()}
    hessian = oracles.distances(loss_options.dense_hessian(*given)).square()
    assert_agrees(part["logit_covariance"] + 2 * part["logit_feature"] + part["logit"], hessian)
    gradient = oracles.distances(loss_options.gradient(*given)).square()
    assert_agrees(part["error_feature"] + part["error"], gradient)
    risk = loss_options.risk(*given)
    assert_agrees(part["loss"], (risk.unsqueeze(0) - risk.unsqueeze(1)).square())
    own = loss_options.share(case, batch.y) * (1 if weight is None else weight)
    features = torch.stack(
        [
            (own[rows].unsqueeze(1) * batch.z[rows]).sum(0) / own[rows].sum()
            for rows in oracles.groups(batch.domain)
        ]
    )
    assert_agrees(part["feature"], oracles.distances(features).square())
    layout = ha.domain_layout(batch.domain)
    again = ha.attribute_distances(*batch[:3], layout, loss=case.loss, weight=weight)
    assert all(torch.equal(again[name], found[name]) for name in TABLE_1)


def test_distances_that_need_targets():
    batch, _ = BY_NAME["class weights"].build()
    for loss in (BY_NAME["class weights"].loss, BY_NAME["ignored"].loss):
        with pytest.raises(ValueError, match="Expected targets y: the curvature of cross-entropy"):
            ha.hessian_distance(*batch.inputs, batch.domain, loss=loss)
    with pytest.raises(ValueError, match="Expected targets y: the curvature of a loss of one's"):
        ha.hessian_distance(*batch.inputs, batch.domain, loss=loss_options.coupled_of_one)
    ha.hessian_distance(*batch.inputs, batch.domain, loss=BY_NAME["smoothing"].loss)
    ha.hessian_distance(*batch.inputs, batch.domain, loss="multilabel")
