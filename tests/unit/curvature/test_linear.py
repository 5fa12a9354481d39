"""Every field of the closed form against `torch.func`: values, and slopes in z and logits."""

import pytest
import torch
from tests import cases, oracles
from tests.cases import BY_NAME, CASES, ONE_PER_LOSS, Case
from tests.comparison import assert_agrees, assert_same_slopes

from hessalign.curvature import linear as linear_module
from hessalign.curvature import linear_head, products

FIELDS = {
    "risk": oracles.risk,
    "gradient": oracles.gradient,
    "hessian": oracles.dense_hessian,
    "diagonal": oracles.diagonal,
    "hgp": oracles.hgp,
    "gradient_logits": oracles.gradient_logits,
}


def build(case, **changes):
    batch = case.build()
    return batch, linear_head(*batch, **case.options, **changes)


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("case", CASES, ids=cases.name)
def test_field_and_its_slopes(case, field):
    batch, head = build(case)
    actual, expected = getattr(head, field), FIELDS[field](batch, **case.options)
    assert actual.dtype == torch.float64
    assert_agrees(actual, expected)
    assert_same_slopes(actual, expected, batch.inputs)


@pytest.mark.parametrize("case", CASES, ids=cases.name)
def test_losses_and_error_are_those_of_the_samples(case):
    batch, head = build(case)
    options = {"loss": case.loss, "activation": case.activation}
    values, errors, curvatures = oracles.per_sample(batch, **options)
    order = torch.cat(oracles.groups(batch.domain))
    assert_agrees(head.losses, values[order])
    assert_agrees(head.error, errors[order])
    assert_agrees(head.curvature.matrix(), curvatures[order])


@pytest.mark.pairwise
@pytest.mark.parametrize("axes", [(), (1,), (6,), (2, 3)], ids=str)
@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("case", CASES, ids=cases.name)
def test_hvp_broadcasts(case, shared, axes):
    batch, head = build(case)
    rows = 1 if shared else len(set(case.domain))
    vectors = torch.randn(*axes, rows, head.num_parameters, dtype=torch.float64)
    vectors.requires_grad_()
    dense = oracles.dense_hessian(batch, **case.options)
    expected = torch.einsum("epq,...eq->...ep", dense, vectors.expand(*axes, len(dense), -1))
    actual = head.hvp(vectors)
    assert_agrees(actual, expected)
    assert_same_slopes(actual, expected, (*batch.inputs, vectors))


@pytest.mark.pairwise
@pytest.mark.parametrize("route", ["dense", "products", "probes first", "class by class"])
@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("case", CASES, ids=cases.name)
def test_probed_diagonal_on_every_route(monkeypatch, case, shared, route):
    """Few parameters: through the Hessian. Few probes: products H r. Else probes come first."""
    if route != "dense":
        monkeypatch.setattr(linear_module, "_PARAMETERS_PER_PROBE", 0)
    monkeypatch.setattr(
        linear_module, "_MANY_SAMPLES_PER_PROBE", 0 if route == "products" else 10**6
    )
    if route == "class by class":
        monkeypatch.setattr(products, "_CHUNK_ELEMENTS", 1)
    batch, head = build(case)
    used = []
    hvp = linear_module.LinearHead.hvp
    monkeypatch.setattr(
        linear_module.LinearHead, "hvp", lambda self, v: used.append("hvp") or hvp(self, v)
    )
    rows = 1 if shared else len(set(case.domain))
    signs = torch.randn(4, rows, head.num_parameters, dtype=torch.float64).sign()
    dense = oracles.dense_hessian(batch, **case.options)
    each = signs.expand(-1, len(dense), -1)
    expected = torch.einsum("mep,epq,meq->ep", each, dense, each)
    actual = head.probed_diagonal(signs)
    assert used == (["hvp"] if route == "products" else [])
    assert_agrees(actual, expected)
    assert_same_slopes(actual, expected, batch.inputs)


def test_parameters_are_ordered_by_output_its_weights_then_its_bias():
    linear = torch.nn.Linear(3, 2, dtype=torch.float64)
    z, y = torch.randn(4, 3, dtype=torch.float64), torch.tensor([0, 1, 1, 0])
    logits = linear(z)
    torch.nn.functional.cross_entropy(logits, y).backward()
    head = linear_head(z, logits, y, torch.zeros(4, dtype=torch.long))
    gradient = head.gradient.view(2, 4)
    assert head.shape == (2, 4)
    assert head.num_parameters == 8
    assert_agrees(gradient[:, :3], linear.weight.grad)
    assert_agrees(gradient[:, 3], linear.bias.grad)


@pytest.mark.parametrize("field", ["gradient", "hessian", "hgp"])
def test_one_backward_pass_is_enough(field):
    """No double backward: the slopes carry no graph unless asked for."""
    batch, head = build(CASES[1])
    getattr(head, field).sum().backward()
    assert not batch.z.grad.requires_grad
    assert not batch.logits.grad.requires_grad


@pytest.mark.pairwise
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("loss", ["cross_entropy", "binary", "squared"])
@pytest.mark.parametrize("domain", [(70, 45, 33), (40, 40)], ids=["unequal", "equal"])
def test_chunks_of_samples_change_nothing(monkeypatch, loss, domain, field):
    ids = tuple(e for e, size in enumerate(domain) for _ in range(size))
    case = Case("chunks", loss, 3 if loss == "cross_entropy" else 1, domain=ids)
    batch, whole = build(case)
    expected = getattr(whole, field)
    monkeypatch.setattr(products, "_CHUNK_ELEMENTS", 1)
    assert products.chunk_rows(10) == 32
    actual = getattr(linear_head(*batch, **case.options), field)
    assert_agrees(actual, expected, 1e-13)
    assert_same_slopes(actual, expected, batch.inputs, 1e-12)


def test_chunks_really_occur(monkeypatch):
    lengths = []
    case = Case("chunks", "cross_entropy", 3, domain=(0,) * 70)
    _, head = build(case)
    monkeypatch.setattr(products, "_CHUNK_ELEMENTS", 1)
    apply = type(head.curvature).apply

    def spy(self, vectors, samples):
        lengths.append(len(vectors))
        return apply(self, vectors, samples)

    monkeypatch.setattr(type(head.curvature), "apply", spy)
    head.hvp(torch.ones(2, 1, head.num_parameters, dtype=torch.float64))
    assert lengths == [32, 32, 6]


@pytest.mark.parametrize("case", ONE_PER_LOSS, ids=cases.name)
def test_both_routes_to_the_gradients_logits(monkeypatch, case):
    """Through the gradient; or through the features' Gram matrix, if it is there already."""
    calls = []
    plain = linear_module.mean_products

    def spy(left, right, domains, *, bias):
        calls.append(right.shape[1])
        return plain(left, right, domains, bias=bias)

    monkeypatch.setattr(linear_module, "mean_products", spy)
    for features, known in ((2, False), (12, True)):
        narrow_or_wide = Case(
            case.name,
            case.loss,
            case.outputs,
            case.activation,
            features=features,
            domain=case.domain,
            flat=case.flat,
        )
        batch, head = build(narrow_or_wide)
        if known:
            head.features.inner(slice(None), bias=head.bias)
        expected = oracles.gradient_logits(batch, **narrow_or_wide.options)
        assert_agrees(head.gradient_logits, expected)
    few = len(head.features.z) <= 2 * head.shape[0]  # then the matrix is worth making
    assert calls == ([] if few else [2])


@pytest.mark.parametrize("case", CASES, ids=cases.name)
def test_domain_is_the_head_seen_from_one_domain(case):
    _, head = build(case)
    for e in range(len(head.domains)):
        single = head.domain(e)
        assert single.domains.ids.tolist() == [sorted(set(case.domain))[e]]
        for field in ("risk", "gradient", "diagonal", "hessian"):
            assert_agrees(getattr(single, field), getattr(head, field)[e : e + 1], 1e-13)


@pytest.mark.parametrize("field", ["hessian", "diagonal"])
@pytest.mark.parametrize("loss", ["cross_entropy", "binary", "squared"])
def test_curvature_needs_no_targets(loss, field):
    case = Case("no targets", loss, 3 if loss == "cross_entropy" else 1)
    z, logits, y, domain = case.build()
    without = linear_head(z, logits, None, domain, loss=loss)
    assert_agrees(
        getattr(without, field), getattr(linear_head(z, logits, y, domain, loss=loss), field)
    )
    assert without.domain(1).y is None


@pytest.mark.parametrize("field", ["risk", "gradient", "hgp"])
def test_fields_that_need_targets_say_so(field):
    z, logits, _, domain = CASES[0].build()
    with pytest.raises(ValueError, match="Expected targets y: risk and gradient depend on them"):
        getattr(linear_head(z, logits, None, domain), field)


def test_fields_are_computed_once():
    _, head = build(CASES[0])
    assert head.hessian is head.hessian
    assert head.gradient is head.gradient


@pytest.mark.parametrize("labels", [torch.int32, torch.uint8, torch.int64])
def test_labels_of_any_integer_dtype(labels):
    z, logits, y, domain = CASES[1].build()
    assert_agrees(
        linear_head(z, logits, y.to(labels), domain).gradient,
        linear_head(z, logits, y, domain).gradient,
    )


@pytest.mark.parametrize("labels", [torch.bool, torch.uint8, torch.float32, torch.float64])
def test_binary_labels_of_any_dtype(labels):
    z, logits, y, domain = BY_NAME["binary"].build()
    assert_agrees(
        linear_head(z, logits, y.to(labels), domain, loss="binary").gradient,
        linear_head(z, logits, y, domain, loss="binary").gradient,
    )


def test_soft_binary_labels():
    z, logits, y, domain = BY_NAME["binary"].build()
    soft = 0.8 * y.double() + 0.1
    batch = cases.Batch(z, logits, soft, domain)
    head = linear_head(*batch, loss="binary")
    for field in ("risk", "gradient", "hgp"):
        assert_agrees(getattr(head, field), FIELDS[field](batch, loss="binary"))


@pytest.mark.parametrize("layout", ["transposed", "strided", "expanded"])
@pytest.mark.parametrize("field", FIELDS)
def test_any_memory_layout(layout, field):
    z, logits, y, domain = CASES[0].build(requires_grad=False)
    if layout == "transposed":
        layouts = (z.T.contiguous().T, logits.T.contiguous().T)
    elif layout == "strided":
        layouts = tuple(x.repeat_interleave(2, 1)[:, ::2] for x in (z, logits))
    else:
        layouts = (z[:1].expand_as(z), logits[:1].expand_as(logits))
    actual = getattr(linear_head(*layouts, y, domain), field)
    copies = (x.contiguous() for x in layouts)
    assert_agrees(actual, getattr(linear_head(*copies, y, domain), field), 1e-14)
