"""Losses with options: every field of a head against torch's own loss functions."""

import pytest
import torch
from tests import loss_options
from tests.cases import UNSORTED
from tests.comparison import assert_agrees, assert_same_slopes
from tests.loss_options import BY_NAME, CASES, IGNORED, SHORT
from torch import nn
from torch.func import functional_call, grad, hessian
from torch.nn import functional

import hessalign as ha
from hessalign.curvature import hutchinson_diagonal, linear_head, make_loss
from hessalign.curvature.factors import DenseCurvature, ScaledCurvature, SoftmaxCurvature

FIELDS = {
    "risk": loss_options.risk,
    "gradient": loss_options.gradient,
    "diagonal": loss_options.diagonal,
    "hessian": loss_options.dense_hessian,
    "hgp": loss_options.hgp,
    "gradient_variance": loss_options.gradient_variance,
}


def build(case, **changes):
    batch, weight = case.build()
    return batch, weight, linear_head(*batch, **{**case.options, "weight": weight, **changes})


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("case", CASES, ids=loss_options.name)
def test_field_and_its_slopes(case, field):
    batch, weight, head = build(case)
    actual, expected = getattr(head, field), FIELDS[field](case, batch, weight)
    assert actual.dtype == torch.float64
    assert_agrees(actual, expected)
    assert_same_slopes(actual, expected, batch.inputs)


@pytest.mark.parametrize("axes", [(), (6,)], ids=str)
@pytest.mark.parametrize("case", CASES, ids=loss_options.name)
def test_hvp(case, axes):
    batch, weight, head = build(case)
    vectors = torch.randn(*axes, 3, head.num_parameters, dtype=torch.float64)
    dense = loss_options.dense_hessian(case, batch, weight)
    expected, actual = torch.einsum("epq,...eq->...ep", dense, vectors), head.hvp(vectors)
    assert_agrees(actual, expected)
    assert_same_slopes(actual, expected, batch.inputs)


@pytest.mark.parametrize("probes", [1, 40])
@pytest.mark.parametrize("case", CASES, ids=loss_options.name)
def test_hutchinson(drawn, case, probes):
    batch, weight, head = build(case)
    actual = hutchinson_diagonal(head, probes)
    signs = drawn[0].double()
    dense = loss_options.dense_hessian(case, batch, weight)
    expected = torch.einsum("mep,epq,meq->ep", signs, dense, signs) / probes
    assert_agrees(actual, expected)


@pytest.mark.parametrize("case", CASES, ids=loss_options.name)
def test_a_domain_alone_has_the_same_statistics(case):
    _, _, head = build(case)
    for index in range(3):
        alone = head.domain(index)
        for field in FIELDS:
            assert_agrees(getattr(alone, field), getattr(head, field)[index : index + 1], 1e-13)


# --- one sample -----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=loss_options.name)
def test_value_error_and_curvature_of_single_samples(case):
    batch, _ = case.build()
    loss, logits = make_loss(case.loss), batch.logits

    def value(a, y):
        return case.risk(a.unsqueeze(0), y.unsqueeze(0), "none").squeeze(0)

    samples = list(zip(logits, batch.y, strict=True))
    prediction = loss.predict(logits)
    curvature = loss.curvature(prediction, logits, batch.y)
    expected = torch.stack([hessian(value)(a, y) for a, y in samples])
    assert_agrees(loss.values(logits, batch.y), torch.stack([value(a, y) for a, y in samples]))
    errors = torch.stack([grad(value)(a, y) for a, y in samples])
    assert_agrees(loss.error(prediction, logits, batch.y), errors)
    assert_agrees(curvature.matrix(), expected)
    assert_agrees(curvature.diagonal(), expected.diagonal(dim1=1, dim2=2))


def test_plain_labels_and_smoothing_leave_the_curvature_as_it_is():
    logits, y = torch.randn(3, 2), torch.tensor([0, 1, 1])
    for loss in (ha.CrossEntropy(), ha.CrossEntropy(label_smoothing=0.3)):
        assert isinstance(loss.curvature(logits.softmax(1), logits, y), SoftmaxCurvature)
        assert isinstance(loss.curvature(logits.softmax(1), logits, None), SoftmaxCurvature)


def test_one_hot_soft_targets_are_labels():
    batch, _ = BY_NAME["smoothing"].build()
    soft = functional.one_hot(batch.y, 3).double()
    for loss in (ha.CrossEntropy(), ha.CrossEntropy(label_smoothing=0.2)):
        heads = [
            linear_head(batch.z, batch.logits, y, batch.domain, loss=loss) for y in (batch.y, soft)
        ]
        for field in FIELDS:
            assert_agrees(*(getattr(head, field) for head in heads), 1e-14)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32], ids=str)
def test_labels_of_any_integer_type(dtype):
    loss = ha.CrossEntropy(loss_options.CLASS_WEIGHT, 0.1, ignore_index=7)
    logits, y = torch.randn(4, 3), torch.tensor([0, 7, 2, 1])
    for other in (loss.values, lambda a, y: loss.error(a.softmax(1), a, y)):
        assert torch.equal(other(logits, y.to(dtype)), other(logits, y))
    assert torch.equal(loss.share(y.to(dtype)), loss.share(y))
    below = ha.CrossEntropy(ignore_index=IGNORED)
    assert below.share(torch.tensor([156], dtype=torch.uint8)).tolist() == [1]  # −100 modulo 256


# --- curvatures that are not special --------------------------------------------------------------


def symmetric(n, k):
    matrices = torch.randn(n, k, k, dtype=torch.float64)
    return matrices + matrices.mT


FACTORS = {
    "dense": lambda: DenseCurvature(symmetric(6, 3)),
    "scaled dense": lambda: ScaledCurvature(
        DenseCurvature(symmetric(6, 3)), torch.rand(6, 1, dtype=torch.float64)
    ),
    "scaled softmax": lambda: ScaledCurvature(
        SoftmaxCurvature(torch.randn(6, 4, dtype=torch.float64).softmax(1)),
        torch.rand(6, 1, dtype=torch.float64),
    ),
    "scaled twice": lambda: ScaledCurvature(
        ScaledCurvature(DenseCurvature(symmetric(6, 2)), torch.rand(6, 1, dtype=torch.float64)),
        torch.rand(6, 1, dtype=torch.float64),
    ),
}


@pytest.mark.parametrize("name", FACTORS)
def test_factors_agree_with_their_matrices(name):
    factor = FACTORS[name]()
    matrices = factor.matrix()
    products = torch.einsum("nkl,mkl->nm", matrices, matrices)
    assert_agrees(factor.diagonal(), matrices.diagonal(dim1=1, dim2=2))
    assert_agrees(factor.rows() @ factor.rows().T, products)
    assert factor.rows().shape[1] == factor.size
    for block in (slice(None), slice(2, 5)):
        assert_agrees(factor.inner(block), products[block])
        vectors = torch.randn(len(matrices[block]), 5, matrices.shape[1], dtype=torch.float64)
        expected = torch.einsum("nkl,nml->nmk", matrices[block], vectors)
        assert_agrees(factor.apply(vectors, block), expected)
        assert_agrees(factor.apply(vectors[:, 0], block), expected[:, 0])


# --- weights of samples ---------------------------------------------------------------------------


@pytest.mark.parametrize("case", SHORT, ids=loss_options.name)
def test_weights_of_1_change_nothing(case):
    batch, _, with_ones = build(case, weight=torch.ones(len(case.domain)))
    without = linear_head(*batch, **case.options)
    for field in FIELDS:
        assert_agrees(getattr(with_ones, field), getattr(without, field), 3e-15)


@pytest.mark.parametrize("case", SHORT, ids=loss_options.name)
def test_whole_weights_are_repetitions(case):
    batch, _, _ = build(case)
    times = torch.tensor([1, 2, 3, 1, 1, 2, 1, 4, 1, 2, 1, 3])[: len(case.domain)]
    repeated = [part.repeat_interleave(times, dim=0) for part in batch]
    actual = linear_head(*batch, **case.options, weight=times.double())
    expected = linear_head(*repeated, **case.options)
    for field in FIELDS:
        assert_agrees(getattr(actual, field), getattr(expected, field), 1e-13)


@pytest.mark.parametrize("case", SHORT, ids=loss_options.name)
def test_samples_of_weight_0_are_not_there(case):
    batch, _, _ = build(case)
    weight = torch.ones(len(case.domain), dtype=torch.float64)
    weight[[0, 6]] = 0
    kept = [part[weight > 0] for part in batch]
    actual = linear_head(*batch, **case.options, weight=weight)
    expected = linear_head(*kept, **case.options)
    for field in FIELDS:
        assert_agrees(getattr(actual, field), getattr(expected, field), 1e-13)


def test_ignored_samples_are_not_there():
    case = BY_NAME["all options"]
    batch, _, head = build(case)
    kept = [part[batch.y != IGNORED] for part in batch]
    loss = ha.CrossEntropy(case.class_weight, 0.15)
    expected = linear_head(*kept, loss=loss)
    for field in FIELDS:
        assert_agrees(getattr(head, field), getattr(expected, field), 1e-13)


@pytest.mark.parametrize("case", SHORT, ids=loss_options.name)
def test_only_ratios_of_weights_matter(case):
    batch, weight, _ = build(case)
    weight = torch.rand(len(case.domain), dtype=torch.float64) + 0.1 if weight is None else weight
    scale = torch.where(batch.domain == batch.domain[0], 3.0, 0.01)
    heads = [
        linear_head(*batch, **case.options, weight=given) for given in (weight, scale * weight)
    ]
    for field in FIELDS:
        assert_agrees(*(getattr(head, field) for head in heads), 1e-13)


def test_the_variance_does_not_change_with_the_scale_of_class_weights():
    batch, _ = BY_NAME["class weights"].build()
    variances = [
        linear_head(
            *batch, loss=ha.CrossEntropy(scale * loss_options.CLASS_WEIGHT)
        ).gradient_variance
        for scale in (1.0, 0.01)
    ]
    assert_agrees(*variances, 1e-13)
    assert variances[0].min() >= 0


@pytest.mark.parametrize("name", ["weights", "weights, all options", "poisson, weights"])
def test_slopes_in_the_weights(name):
    case = BY_NAME[name]
    batch, weight = case.build()
    weight.requires_grad_()
    head = linear_head(*batch, **case.options, weight=weight)
    for field in ("risk", "gradient", "hessian"):
        expected = FIELDS[field](case, batch, weight)
        assert_same_slopes(getattr(head, field), expected, (weight,))


def test_float32_weights_and_class_weights():
    """They are given in float32 as a rule; what is made of them is in float64."""
    case = BY_NAME["weights, class weights"]
    batch, weight, head = build(case)
    loss = ha.CrossEntropy(loss_options.CLASS_WEIGHT.float())
    single = linear_head(*batch, loss=loss, weight=weight.float())
    assert single.gradient.dtype == torch.float64
    assert_agrees(single.gradient, head.gradient, 1e-6)


# --- heads that are modules -----------------------------------------------------------------------


def module_risks(case, module, batch, weight):
    def make(rows):
        own = None if weight is None else weight[rows]

        def risk(parameters):
            logits = functional_call(module, parameters, (batch.z[rows],))
            return loss_options.domain_risk(case, logits, batch.y[rows], own)

        return risk

    return [make(rows) for rows in loss_options.oracles.groups(batch.domain)]


@pytest.mark.parametrize("case", CASES, ids=loss_options.name)
def test_linear_modules_agree_with_the_closed_form(case):
    batch, weight = case.build()
    module = nn.Linear(case.features, case.outputs).double()
    statistics = ha.autograd_head(
        module, batch.z, batch.y, batch.domain, loss=case.loss, weight=weight
    )
    given = (batch.z, module(batch.z), batch.y, batch.domain)
    head = linear_head(*given, loss=case.loss, weight=weight)
    for field in (*FIELDS, "error", "logits"):
        assert_agrees(getattr(statistics, field), getattr(head, field), 1e-12)
    inputs = (batch.z, *module.parameters())
    assert_same_slopes(statistics.gradient, head.gradient, inputs)


@pytest.mark.parametrize("case", SHORT, ids=loss_options.name)
def test_hidden_layers(case):
    batch, weight = case.build()
    module = nn.Sequential(nn.Linear(4, 2), nn.Tanh(), nn.Linear(2, case.outputs)).double()
    statistics = ha.autograd_head(
        module, batch.z, batch.y, batch.domain, loss=case.loss, weight=weight
    )
    parameters = dict(module.named_parameters())
    functions = module_risks(case, module, batch, weight)
    assert_agrees(statistics.risk, torch.stack([risk(parameters) for risk in functions]))
    slopes = [grad(risk)(parameters) for risk in functions]
    expected = torch.stack([torch.cat([s[name].flatten() for name in parameters]) for s in slopes])
    assert_agrees(statistics.gradient, expected)
    assert statistics.gradient_variance.min() >= -1e-15


# --- what does not suit ---------------------------------------------------------------------------

Z, LOGITS, DOMAIN = torch.randn(4, 2), torch.randn(4, 3), torch.tensor([0, 0, 1, 1])
LABELS = torch.tensor([0, 1, 2, 0])


def call(y=LABELS, logits=LOGITS, **options):
    return linear_head(Z, logits, y, DOMAIN, **options)


BAD = {
    "negative class weight": (
        lambda: ha.CrossEntropy(torch.tensor([1.0, -1.0])),
        "Expected finite class weights of 0 or more, found others",
    ),
    "class weights NaN": (
        lambda: ha.CrossEntropy(torch.tensor([1.0, torch.nan])),
        "Expected finite class weights of 0 or more, found others",
    ),
    "class weights as a matrix": (
        lambda: ha.CrossEntropy(torch.ones(2, 2)),
        r"Expected class_weight as one number per class, got shape \[2, 2\]",
    ),
    "too few class weights": (
        lambda: call(loss=ha.CrossEntropy(torch.ones(2))),
        "Expected 3 class weights, one per column of logits, got 2",
    ),
    "smoothing above 1": (
        lambda: ha.CrossEntropy(label_smoothing=1.5),
        r"Expected label_smoothing as a number of at least 0 and at most 1, got 1\.5",
    ),
    "negative soft targets": (
        lambda: call(-torch.ones(4, 3)),
        "Expected soft targets y of 0 or more, found others",
    ),
    "soft targets NaN": (
        lambda: call(torch.full((4, 3), torch.nan)),
        "Expected soft targets y of 0 or more, found others",
    ),
    "soft targets to be ignored": (
        lambda: call(torch.ones(4, 3), loss=ha.CrossEntropy(ignore_index=-1)),
        "Expected class labels with ignore_index, got soft targets y",
    ),
    "labels below 0": (
        lambda: call(LABELS - 1),
        "found labels from -1 to 1. Use ignore_index for labels that do not count",
    ),
    "all labels ignored": (
        lambda: call(0 * LABELS, loss=ha.CrossEntropy(ignore_index=0)),
        "Expected labels other than 0, which is ignored",
    ),
    "all labels of a domain ignored": (
        lambda: call(torch.tensor([-1, -1, 2, 0]), loss=ha.CrossEntropy(ignore_index=-1)),
        "Expected a sample that counts in each domain, found a domain whose weights are all 0 or "
        "whose labels are all ignored. Leave it out of the batch",
    ),
    "all class weights of a domain 0": (
        lambda: call(
            torch.tensor([1, 1, 2, 0]), loss=ha.CrossEntropy(torch.tensor([1.0, 0.0, 1.0]))
        ),
        "found a domain whose weights are all 0 or whose labels are all ignored",
    ),
    "no weight in a domain": (
        lambda: call(weight=torch.tensor([1.0, 1.0, 0.0, 0.0])),
        "found a domain whose weights are all 0 or whose labels are all ignored",
    ),
    "no weight in a domain of a module": (
        lambda: ha.autograd_head(
            nn.Linear(2, 3), Z, LABELS, DOMAIN, weight=torch.tensor([1.0, 1.0, 0.0, 0.0])
        ),
        "found a domain whose weights are all 0 or whose labels are all ignored",
    ),
    "negative weight": (
        lambda: call(weight=torch.tensor([1.0, -0.5, 1.0, 1.0])),
        r"Expected weights of 0 or more, found -0\.5",
    ),
    "weight NaN": (
        lambda: call(weight=torch.tensor([1.0, torch.nan, 1.0, 1.0])),
        "Expected finite weights, found 1 NaN or infinite values in 1 of 4 rows",
    ),
    "several logits of one target": (
        lambda: call(LABELS, loss="multilabel"),
        r"Expected y with one value per logit, shape \[4, 3\], got \[4\]",
    ),
    "labels above 1": (
        lambda: call(2 * torch.ones(4, 3), loss="multilabel"),
        "Expected labels from 0 to 1, found labels from 2 to 2",
    ),
    "own loss that fails": (
        lambda: call(loss=lambda a, y: a @ torch.ones(7)),
        r"Expected a loss that takes the logits of one sample .* given \[3\] logits it fails",
    ),
    "own loss that reads values": (
        lambda: call(loss=lambda a, y: a.sum().item() * a.sum()),
        "is made of operations of torch; given .* it fails",
    ),
    "own loss without targets": (
        lambda: call(None, loss=lambda a, y: a.exp().sum()),
        "Expected targets y: the curvature of a loss of one's own needs them",
    ),
    "class weights without targets": (
        lambda: call(None, loss=ha.CrossEntropy(torch.ones(3))),
        "Expected targets y: the curvature of cross-entropy with class_weight or ignore_index",
    ),
    "labels to be ignored without targets": (
        lambda: call(None, loss=ha.CrossEntropy(ignore_index=-1)),
        "Expected targets y: the curvature of cross-entropy with class_weight or ignore_index",
    ),
    "an activation": (
        lambda: call(loss=ha.CrossEntropy(label_smoothing=0.1), activation="tanh"),
        "Expected no activation with loss=CrossEntropy",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_suit(name):
    function, text = BAD[name]
    with pytest.raises(ValueError, match=text):
        function()


def test_types_that_do_not_suit(outcomes_without_type_checks):
    setup = """
    z, logits = torch.randn(4, 2), torch.randn(4, 3)
    y, domain = torch.tensor([0, 1, 2, 0]), torch.tensor([0, 0, 1, 1])
    layer = torch.nn.Linear(2, 3)
    def head(**options):
        return ha.linear_head(z, logits, y, domain, **options)
    """
    texts = {
        "ha.CrossEntropy([1.0, 2.0])": "InputTypeError: Expected class_weight as a floating-point "
        "tensor, got list. Use torch.tensor with dtype=torch.float.",
        "ha.CrossEntropy(torch.tensor([1, 2]))": "InputTypeError: Expected class_weight as a "
        "floating-point tensor, got torch.int64.",
        "ha.CrossEntropy(ignore_index=0.5)": "InputError: Expected ignore_index as a whole number, "
        "got 0.5.",
        "ha.CrossEntropy(label_smoothing='much')": "InputError: Expected label_smoothing as a "
        "number of at least 0 and at most 1, got 'much', a str.",
        "head(weight=[1.0] * 4)": "InputTypeError: Expected floating-point weights of samples, got "
        "list. Use torch.as_tensor(weight).",
        "head(weight=torch.ones(4).long())": "InputTypeError: Expected floating-point weights of "
        "samples, got torch.int64. Use weight.float().",
        "head(weight=torch.ones(3))": "InputError: Expected one weight per row of z, shape [4], "
        "got [3].",
        "ha.autograd_head(layer, z, y, domain, weight=torch.ones(3))": "InputError: Expected one "
        "weight per row of z, shape [4], got [3].",
        "head(loss=lambda a, y: a)": "InputError: Expected a loss that gives a scalar for the "
        "logits and the target of one sample, got shape [3].",
        "head(loss=3)": "InputTypeError: Expected a loss as a name, a loss object or a function of "
        "one sample's logits and target, got int.",
        "ha.OwnLoss('cross_entropy')": "InputTypeError: Expected a loss as a name, a loss object "
        "or a function of one sample's logits and target, got str.",
    }
    found = outcomes_without_type_checks(setup, {call: call for call in texts})
    for call_, text in texts.items():
        assert found[call_].startswith(text), found[call_]


def test_a_function_is_a_loss_of_its_own():
    function = loss_options.poisson_of_one
    assert make_loss(function) == ha.OwnLoss(function)
    assert make_loss(function).name == "own"
    assert make_loss("multilabel") == ha.Binary(several=True)
    loss = ha.CrossEntropy(label_smoothing=0.1)
    assert make_loss(loss) is loss


def test_domains_in_all_their_forms():
    case = BY_NAME["weights, all options"]
    batch, weight, head = build(case)
    sizes = (5, 3, 4)
    for domain in (sizes, ha.domain_layout(sizes), ha.domain_layout(batch.domain)):
        other = linear_head(*batch[:3], domain, **case.options, weight=weight)
        for field in FIELDS:
            assert torch.equal(getattr(other, field), getattr(head, field))
    unsorted = BY_NAME["weights, class weights"]
    batch, weight, head = build(unsorted)
    layout = ha.domain_layout(torch.tensor(UNSORTED))
    other = linear_head(*batch[:3], layout, **unsorted.options, weight=weight)
    assert torch.equal(other.hessian, head.hessian)
