"""The drop-in penalty: every variant, fidelity and loss against the definition."""

import warnings

import pytest
import torch
from tests import cases, oracles
from tests.cases import CASES, ONE_PER_LOSS, UNSORTED, Case
from tests.comparison import assert_agrees, assert_same_slopes, slopes
from tests.definitions import hessian_term
from torch import nn

import hessalign as ha
from hessalign.alignment import HESSIAN_KINDS

ALPHA, BETA = 0.3, 0.7
FIDELITIES = pytest.mark.parametrize("fidelity", ["paper", "domainbed", "released"])
LOSSES = [
    *ONE_PER_LOSS,
    Case("softmax-2-no-bias", "cross_entropy", 2, bias=False),
    Case("squared-sin", "squared", 1, torch.sin, flat=True),
]


def domains_of(batch):
    return len(batch.domain.unique())


@pytest.mark.pairwise
@FIDELITIES
@pytest.mark.parametrize("kind", [*HESSIAN_KINDS, None])
@pytest.mark.parametrize("case", LOSSES, ids=cases.name)
def test_terms(drawn, case, kind, fidelity):
    batch = case.build()
    align = ha.HessianAlignment(ALPHA, BETA, kind, **case.options, probes=4, fidelity=fidelity)
    terms = align(*batch)
    pooled, detach = fidelity != "paper", fidelity == "domainbed"
    scale = domains_of(batch) if fidelity == "released" else 1
    gradient = scale * oracles.dispersion(oracles.gradient(batch, **case.options))
    hessian = torch.zeros((), dtype=torch.float64)
    if kind is not None:
        hessian = scale * hessian_term(
            kind, batch, case.options, pooled=pooled, detach=detach, probes=4, signs=drawn
        )
    expected = {
        "hessian": hessian,
        "gradient": gradient,
        "penalty": ALPHA * hessian + BETA * gradient,
    }
    for name, value in expected.items():
        assert_agrees(getattr(terms, name), value)
        assert_same_slopes(getattr(terms, name), value, batch.inputs)


@FIDELITIES
@pytest.mark.parametrize("kind", ["sampled", "expected"])
def test_shared_probes(drawn, kind, fidelity):
    batch = CASES[1].build()
    align = ha.HessianAlignment(ALPHA, BETA, kind, probes=4, shared_probes=True, fidelity=fidelity)
    actual = align(*batch).hessian
    options = CASES[1].options
    expected = hessian_term(kind, batch, options, shared=True, probes=4, signs=drawn)
    expected = expected * (domains_of(batch) if fidelity == "released" else 1)
    assert_agrees(actual, expected)
    assert_same_slopes(actual, expected, batch.inputs)
    assert [signs.shape[1] for signs in drawn] == ([1] if kind == "sampled" else [])


@pytest.mark.parametrize("evaluation", ["primal", "dual"])
@pytest.mark.parametrize("kind", [*HESSIAN_KINDS, None])
def test_evaluations_agree(kind, evaluation):
    batch = CASES[1].build()
    terms = [
        ha.HessianAlignment(
            ALPHA, BETA, kind, evaluation=choice, generator=torch.Generator().manual_seed(1)
        )(*batch)
        for choice in (evaluation, "auto")
    ]
    assert_agrees(terms[0].penalty, terms[1].penalty)
    assert_same_slopes(terms[0].penalty, terms[1].penalty, batch.inputs)


def test_the_evaluation_is_passed_on(monkeypatch):
    from hessalign.alignment import Moment

    seen = []
    original = Moment._chosen

    def spy(self, evaluation, **options):
        seen.append(evaluation)
        return original(self, evaluation, **options)

    monkeypatch.setattr(Moment, "_chosen", spy)
    for kind in ("full", "diagonal", "product", "expected"):
        # Labels and no options would be a case of their own.
        loss = ha.CrossEntropy(label_smoothing=0.1)
        ha.HessianAlignment(ALPHA, BETA, kind, loss, evaluation="dual")(*CASES[1].build())
    assert set(seen) == {"dual"}
    assert len(seen) == 9


def test_softmax_heads_have_both_dispersions_from_one_function(monkeypatch):
    from hessalign.alignment import quantities

    calls = []
    original = quantities.softmax_sums

    def spy(*arguments, **options):
        calls.append(arguments[-1])
        return original(*arguments, **options)

    monkeypatch.setattr(quantities, "softmax_sums", spy)
    for evaluation in ("dual", "primal"):
        for kind in ("full", "diagonal", "product", None):
            ha.HessianAlignment(ALPHA, BETA, kind, evaluation=evaluation)(*CASES[1].build())
    assert calls == ["full", "product", None]


def test_the_defaults_are_those_of_the_paper():
    align = ha.HessianAlignment(alpha=1e-2, beta=1e-3)
    assert align.hessian == "full"
    assert align.loss == "cross_entropy"
    assert align.bias
    assert align.probes == 100
    assert not align.shared_probes
    assert align.fidelity == "paper"
    assert align.evaluation == "auto"


@pytest.mark.parametrize(
    ("fidelity", "probes"), [("paper", 100), ("domainbed", 300), ("released", 150)]
)
@pytest.mark.parametrize("kind", ["sampled", "expected"])
def test_the_fidelity_says_how_many_probes_unless_the_user_does(drawn, kind, fidelity, probes):
    batch, weights = CASES[1].build(), (ALPHA, BETA, kind)
    default = ha.HessianAlignment(*weights, fidelity=fidelity)
    assert default.probes == probes
    for align, expected in (
        (default, probes),
        (ha.HessianAlignment(*weights, fidelity=fidelity, probes=5), 5),
    ):
        drawn.clear()
        align(*batch)
        assert {len(signs) for signs in drawn} == ({expected} if kind == "sampled" else set())


# --- other heads ----------------------------------------------------------------------------------


def module_term(kind, gradient, hessian, fidelity):
    products = torch.einsum("epq,eq->ep", hessian, gradient)
    if kind == "product" and fidelity != "paper":
        target = hessian.mean(0) @ gradient.mean(0)
        return oracles.deviation(products, target.detach() if fidelity == "domainbed" else target)
    values = {
        "full": hessian,
        "diagonal": hessian.diagonal(dim1=1, dim2=2),
        "product": products,
    }[kind]
    return oracles.dispersion(values)


@pytest.mark.pairwise
@FIDELITIES
@pytest.mark.parametrize("kind", ["full", "diagonal", "product"])
@pytest.mark.parametrize("loss", ["cross_entropy", "binary", "squared"])
def test_a_head_with_a_hidden_layer(loss, kind, fidelity):
    outputs = {"cross_entropy": 3, "binary": 1, "squared": 2}[loss]
    mlp = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs)).double()
    n = len(UNSORTED)
    z = torch.randn(n, 3, dtype=torch.float64, requires_grad=True)
    y = torch.randint(max(2, outputs), (n,))
    options = {"loss": loss}
    if loss == "squared":
        y = torch.randn(n, outputs, dtype=torch.float64)
        options["activation"] = "sigmoid"
    data = (z, y, torch.tensor(UNSORTED))
    align = ha.HessianAlignment(ALPHA, BETA, kind, fidelity=fidelity, **options)
    terms = align(z, mlp(z), y, data[2], head=mlp)
    gradient = oracles.module_gradient(mlp, *data, **options)
    hessian = oracles.module_hessian(mlp, *data, **options)
    scale = len(gradient) if fidelity == "released" else 1
    inputs = (z, *mlp.parameters())
    for actual, expected in (
        (terms.hessian, scale * module_term(kind, gradient, hessian, fidelity)),
        (terms.gradient, scale * oracles.dispersion(gradient)),
    ):
        assert_agrees(actual, expected)
        assert_same_slopes(actual, expected, inputs)


@pytest.mark.parametrize("kind", ["sampled", "expected"])
def test_probes_through_a_hidden_layer(drawn, kind):
    mlp = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 2)).double()
    z = torch.randn(len(UNSORTED), 3, dtype=torch.float64)
    data = (z, torch.randint(2, (len(z),)), torch.tensor(UNSORTED))
    terms = ha.HessianAlignment(ALPHA, BETA, kind, probes=4)(z, mlp(z), *data[1:], head=mlp)
    hessian = oracles.module_hessian(mlp, *data, loss="cross_entropy")
    if kind == "sampled":
        signs = drawn[0].double()
        estimates = torch.einsum("mep,epq,meq->ep", signs, hessian, signs) / 4
        expected = oracles.dispersion(estimates)
    else:
        off = torch.stack([oracles.off(H) for H in hessian]).mean()
        expected = oracles.dispersion(hessian.diagonal(dim1=1, dim2=2)) + 2 / 3 * off / 4
    assert_agrees(terms.hessian, expected)


@pytest.mark.parametrize("kind", [*HESSIAN_KINDS, None])
def test_a_linear_head_given_as_a_module_is_the_same(kind):
    z, _, y, domain = CASES[1].build()
    linear = nn.Linear(4, 3).double()
    terms = [
        ha.HessianAlignment(ALPHA, BETA, kind, generator=torch.Generator().manual_seed(1))(
            z, linear(z), y, domain, head=head
        )
        for head in (None, linear)
    ]
    assert_agrees(terms[0].penalty, terms[1].penalty)
    inputs = (z, *linear.parameters())
    assert_same_slopes(terms[0].penalty, terms[1].penalty, inputs)


# --- in a training loop ---------------------------------------------------------------------------


def test_the_slopes_reach_featurizer_and_head():
    featurizer, head = nn.Linear(5, 4), nn.Linear(4, 3)
    x, y, domain = torch.randn(8, 5), torch.randint(3, (8,)), torch.tensor([0, 1] * 4)
    z = featurizer(x)
    terms = ha.HessianAlignment(alpha=1.0, beta=1.0)(z, head(z), y, domain)
    terms.penalty.backward()
    for parameter in (*featurizer.parameters(), head.weight, head.bias):
        assert parameter.grad.abs().max() > 0


@pytest.mark.parametrize("kind", ["full", "diagonal", "product", "expected"])
def test_descending_the_penalty_aligns_the_domains(kind):
    z, _, y, domain = CASES[1].build(requires_grad=False)
    z.requires_grad_()
    head = nn.Linear(4, 3).double().requires_grad_(False)
    align = ha.HessianAlignment(1.0, 1.0, kind)
    optimizer = torch.optim.Adam([z], 0.02)
    first = align(z, head(z), y, domain).penalty.item()
    for _ in range(200):
        optimizer.zero_grad()
        align(z, head(z), y, domain).penalty.backward()
        optimizer.step()
    assert align(z, head(z), y, domain).penalty.item() < 0.1 * first


@pytest.mark.parametrize("kind", ["full", "diagonal", "product", "expected", None])
def test_terms_that_sample_nothing_repeat_exactly(kind):
    batch = CASES[1].build()
    align = ha.HessianAlignment(ALPHA, BETA, kind)
    assert torch.equal(align(*batch).penalty, align(*batch).penalty)


def test_a_generator_makes_sampling_repeatable():
    batch = CASES[1].build()
    values = []
    for seed in (1, 1, 2):
        generator = torch.Generator().manual_seed(seed)
        align = ha.HessianAlignment(ALPHA, BETA, "sampled", generator=generator)
        values.append([align(*batch).penalty.item() for _ in range(2)])
    assert values[0] == values[1] != values[2]
    assert values[0][0] != values[0][1]


# --- defined answers at the edges -----------------------------------------------------------------


@pytest.mark.parametrize("kind", [*HESSIAN_KINDS, None])
def test_one_domain_gives_zero_and_warns_once(kind):
    z, logits, y, _ = CASES[1].build()
    domain = torch.full((len(z),), 3)
    align = ha.HessianAlignment(ALPHA, BETA, kind)
    text = "All samples come from one domain: there is nothing to align and the penalty is 0."
    with pytest.warns(UserWarning, match=text):
        terms = align(z, logits, y, domain)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        align(z, logits, y, domain)
    assert terms.penalty.item() == terms.hessian.item() == terms.gradient.item() == 0
    assert not any(slope.any() for slope in slopes(terms.penalty, (z, logits)))


def test_each_object_warns_for_itself():
    z, logits, y, _ = CASES[1].build()
    domain = torch.zeros(len(z), dtype=torch.long)
    for _ in range(2):
        with pytest.warns(UserWarning, match="Put at least two domains into each batch"):
            ha.HessianAlignment(ALPHA, BETA)(z, logits, y, domain)


def test_several_domains_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ha.HessianAlignment(ALPHA, BETA)(*CASES[1].build())


def test_one_domain_through_a_module():
    z, _, y, _ = CASES[1].build()
    head, domain = nn.Linear(4, 3).double(), torch.zeros(len(z), dtype=torch.long)
    with pytest.warns(UserWarning, match="one domain"):
        terms = ha.HessianAlignment(ALPHA, BETA)(z, head(z), y, domain, head=head)
    terms.penalty.backward()
    assert not z.grad.any()


@pytest.mark.parametrize("scale", [6e4, 3e38])
def test_one_domain_of_huge_logits_still_gives_zero(scale):
    dtype = torch.float16 if scale < 1e5 else torch.float32
    logits = torch.full((4, 3), scale, dtype=dtype, requires_grad=True)
    align = ha.HessianAlignment(ALPHA, BETA)
    y, domain = torch.zeros(4, dtype=torch.long), torch.zeros(4, dtype=torch.long)
    with pytest.warns(UserWarning, match="one domain"):
        terms = align(torch.randn(4, 2), logits, y, domain)
    terms.penalty.backward()
    assert terms.penalty.item() == 0
    assert not logits.grad.any()


@pytest.mark.parametrize("kind", [*HESSIAN_KINDS, None])
def test_features_that_require_no_grad(kind):
    z, logits, y, domain = CASES[1].build(requires_grad=False)
    terms = ha.HessianAlignment(ALPHA, BETA, kind)(z, logits, y, domain)
    assert not terms.penalty.requires_grad
    logits.requires_grad_()
    terms = ha.HessianAlignment(ALPHA, BETA, kind)(z, logits, y, domain)
    assert torch.autograd.grad(terms.penalty, logits)[0].abs().max() > 0


@pytest.mark.parametrize("kind", [*HESSIAN_KINDS, None])
def test_no_graph_is_kept_under_no_grad(kind):
    with torch.no_grad():
        assert not ha.HessianAlignment(ALPHA, BETA, kind)(*CASES[1].build()).penalty.requires_grad


@pytest.mark.parametrize("kind", ["full", "diagonal", "product", "expected"])
def test_one_class_only_in_each_domain(kind):
    case = Case("one class", "cross_entropy", 3, domain=(0, 0, 1, 1, 2, 2))
    batch = case.build()._replace(y=torch.tensor([0, 0, 1, 1, 2, 2]))
    actual = ha.HessianAlignment(ALPHA, BETA, kind, probes=4)(*batch)
    assert_agrees(actual.hessian, hessian_term(kind, batch, case.options, probes=4))
    assert_agrees(actual.gradient, oracles.dispersion(oracles.gradient(batch, **case.options)))


@pytest.mark.parametrize("kind", ["full", "diagonal", "product", "expected"])
def test_one_sample_per_domain(kind):
    case = CASES[4]
    assert len(set(case.domain)) == len(case.domain)
    batch = case.build()
    actual = ha.HessianAlignment(ALPHA, BETA, kind, probes=4)(*batch)
    assert_agrees(actual.hessian, hessian_term(kind, batch, case.options, probes=4))


@pytest.mark.parametrize(
    "ids",
    [(0, 1, 2), (-5, 0, 5), (2**62, -(2**62), 0), (3, 2, 1)],
    ids=str,
)
def test_any_integers_are_domain_ids(ids):
    z, logits, y, domain = CASES[0].build()
    expected = ha.HessianAlignment(ALPHA, BETA)(z, logits, y, domain).penalty
    renamed = torch.tensor(ids)[domain]
    assert_agrees(ha.HessianAlignment(ALPHA, BETA)(z, logits, y, renamed).penalty, expected, 1e-13)
    if max(ids) < 2**31:
        narrow = renamed.int()
        assert_agrees(
            ha.HessianAlignment(ALPHA, BETA)(z, logits, y, narrow).penalty, expected, 1e-13
        )


# --- precision of the inputs ----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("kind", ["full", "diagonal", "product", "expected", "sampled", None])
def test_inputs_of_low_precision(kind, dtype):
    """The terms are those of the rounded inputs; only the result may be rounded again."""
    case = CASES[1]
    low = case.build(dtype=dtype)
    high = low._replace(z=low.z.detach().double(), logits=low.logits.detach().double())
    low_terms, high_terms = (
        ha.HessianAlignment(ALPHA, BETA, kind, generator=torch.Generator().manual_seed(2))(*batch)
        for batch in (low, high)
    )
    precision = torch.finfo(dtype).eps
    for name in ("penalty", "hessian", "gradient"):
        actual, expected = getattr(low_terms, name), getattr(high_terms, name)
        assert torch.finfo(actual.dtype).eps <= precision
        assert actual.item() == pytest.approx(expected.item(), rel=4 * precision)
    low_terms.penalty.backward()
    assert low.z.grad.dtype == low.logits.grad.dtype == dtype
    assert bool(low.z.grad.isfinite().all())
    assert low.z.grad.abs().max() > 0


def test_features_and_logits_of_different_precision():
    z, logits, y, domain = CASES[1].build(requires_grad=False)
    expected = ha.HessianAlignment(ALPHA, BETA)(z, logits, y, domain).penalty.item()
    mixed = ha.HessianAlignment(ALPHA, BETA)(z.float(), logits, y, domain).penalty
    assert mixed.dtype == torch.float64
    assert mixed.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", [*HESSIAN_KINDS, None])
def test_mixed_precision_does_not_reach_the_penalty(kind):
    """Features so large that the penalty is above 65,504, the largest half."""
    z, _, y, domain = CASES[1].build(dtype=torch.float32, requires_grad=False)
    z = (100 * z).requires_grad_()
    head = nn.Linear(z.shape[1], 3)
    with torch.no_grad():
        head.weight *= 1e-2

    def penalty(logits):
        generator = torch.Generator().manual_seed(1)
        align = ha.HessianAlignment(ALPHA, 1e2, kind, generator=generator)
        return align(z, logits, y, domain).penalty

    with torch.autocast("cpu", dtype=torch.float16):
        logits = head(z).detach()  # whose slopes would overflow as halves
        actual = penalty(logits)
    assert logits.dtype == torch.float16
    assert actual.dtype == torch.float32
    assert 65_504 < actual.item() < float("inf")
    expected = penalty(logits.float())
    assert torch.equal(actual, expected)
    for ours, theirs in zip(slopes(actual, [z]), slopes(expected, [z]), strict=True):
        assert torch.equal(ours, theirs)
