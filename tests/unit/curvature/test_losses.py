"""Losses of a head: value, error and curvature in the logits, and the targets they accept."""

import pytest
import torch
from tests import cases, oracles
from tests.cases import CASES
from tests.comparison import assert_agrees

from hessalign._errors import UnknownNameError
from hessalign.curvature import ACTIVATIONS, LOSSES, make_loss
from hessalign.curvature.inputs import check_targets
from hessalign.curvature.losses import Binary, CrossEntropy, Squared


@pytest.mark.parametrize("case", CASES, ids=cases.name)
def test_value_error_and_curvature(case):
    batch = case.build()
    logits = oracles.matrix(batch.logits)
    loss = make_loss(case.loss, case.activation)
    options = {"loss": case.loss, "activation": case.activation}
    values, errors, curvatures = oracles.per_sample(batch, **options)
    assert_agrees(loss.values(logits, batch.y), values)
    prediction = loss.predict(logits)
    assert_agrees(loss.error(prediction, logits, batch.y), errors)
    assert_agrees(loss.curvature(prediction, logits, batch.y).matrix(), curvatures)


@pytest.mark.parametrize("loss", ["cross_entropy", "binary"])
def test_extreme_logits_are_harmless(loss):
    logits = torch.tensor([[900.0, -900.0]]).double()
    y = torch.tensor([1])
    if loss == "binary":
        logits, y = logits.T, torch.tensor([0, 1])
    head_loss = make_loss(loss)
    assert head_loss.values(logits, y).max().item() == (900 if loss == "binary" else 1800)
    prediction = head_loss.predict(logits)
    assert bool(head_loss.error(prediction, logits, y).isfinite().all())
    curvature = head_loss.curvature(prediction, logits, y).diagonal()
    assert_agrees(curvature, torch.zeros_like(logits), 1e-15)


def test_binary_curvature_keeps_its_digits_when_saturated():
    """p(1 − p) as a product of two sigmoids, not a difference of numbers near 1."""
    logits = torch.tensor([[40.0]]).double()
    loss = make_loss("binary")
    curvature = loss.curvature(loss.predict(logits), logits, None).diagonal()
    assert curvature.item() == pytest.approx(4.248354255291589e-18, rel=1e-12, abs=0)


def test_names():
    assert LOSSES == ("cross_entropy", "binary", "squared", "multilabel")
    assert all(make_loss(name).name == name for name in LOSSES)
    assert isinstance(make_loss("cross_entropy"), CrossEntropy)
    assert isinstance(make_loss("binary"), Binary)
    assert make_loss("squared") == Squared(ACTIVATIONS["identity"])
    assert make_loss("squared", "tanh") == Squared(ACTIVATIONS["tanh"])
    loss = Squared(ACTIVATIONS["tanh"])
    assert make_loss(loss) is loss


def test_unknown_name():
    with pytest.raises(
        UnknownNameError,
        match=r"Unknown loss 'cross_entrpy'. Expected one of: 'cross_entropy', 'binary', "
        r"'squared', 'multilabel'. Did you mean 'cross_entropy'\?",
    ):
        make_loss("cross_entrpy")


@pytest.mark.parametrize("loss", ["cross_entropy", "binary"])
def test_an_activation_goes_with_squared_error_only(loss):
    with pytest.raises(
        ValueError, match=f"Expected no activation with loss='{loss}', which has its own"
    ):
        make_loss(loss, "tanh")


@pytest.mark.parametrize("activation", ["tanh", torch.sin], ids=["tanh", "sin"])
def test_curvature_of_squared_error_needs_targets_unless_linear(activation):
    logits = torch.randn(3, 1)
    plain = make_loss("squared").curvature(logits, logits, None)
    assert plain.diagonal().tolist() == [[1.0]] * 3
    with pytest.raises(ValueError, match="Expected targets y: the curvature of squared error"):
        make_loss("squared", activation).curvature(logits, logits, None)


BAD_TARGETS = {
    "float classes": (
        "cross_entropy",
        (3, 2),
        torch.zeros(3),
        TypeError,
        r"Expected integer class labels y, got dtype torch.float32. Use y.long\(\)",
    ),
    "boolean classes": (
        "cross_entropy",
        (3, 2),
        torch.zeros(3, dtype=torch.bool),
        TypeError,
        "Expected integer class labels y, got dtype torch.bool",
    ),
    "one-hot classes": (
        "cross_entropy",
        (3, 2),
        torch.zeros(3, 2, dtype=torch.long),
        ValueError,
        r"Expected one label per row of logits, shape \[3\], got \[3, 2\]",
    ),
    "class too high": (
        "cross_entropy",
        (3, 2),
        torch.tensor([0, 1, 2]),
        ValueError,
        r"Expected labels from 0 to 1 \(logits have 2 columns\), found labels from 0 to 2",
    ),
    "class below zero": (
        "cross_entropy",
        (3, 2),
        torch.tensor([0, -1, 1]),
        ValueError,
        "Expected labels from 0 to 1 .* found labels from -1 to 1",
    ),
    "one column": (
        "cross_entropy",
        (3, 1),
        torch.tensor([0, 0, 0]),
        ValueError,
        'at least 2 classes, got 1 column.*use loss="binary"',
    ),
    "two logits": (
        "binary",
        (3, 2),
        torch.tensor([0, 1, 1]),
        ValueError,
        'Expected a single logit per sample, got 2 columns.*use loss="cross_entropy"',
    ),
    "binary label 2": (
        "binary",
        (3, 1),
        torch.tensor([0, 1, 2]),
        ValueError,
        "Expected labels from 0 to 1, found labels from 0 to 2",
    ),
    "binary label NaN": (
        "binary",
        (2, 1),
        torch.tensor([0, torch.nan]),
        ValueError,
        "Expected labels from 0 to 1, found labels from nan to nan",
    ),
    "binary label shape": (
        "binary",
        (3, 1),
        torch.zeros(3, 2),
        ValueError,
        r"Expected y with one value per logit, shape \[3, 1\], got \[3, 2\]",
    ),
    "integer values": (
        "squared",
        (3, 1),
        torch.tensor([0, 1, 2]),
        TypeError,
        r"Expected floating-point targets y for squared error, got dtype torch.int64. Use y.float",
    ),
    "too few values": (
        "squared",
        (3, 2),
        torch.zeros(3),
        ValueError,
        r"Expected y with one value per logit, shape \[3, 2\], got \[3\]",
    ),
    "infinite value": (
        "squared",
        (2, 1),
        torch.tensor([0, torch.inf]),
        ValueError,
        "Expected finite targets y, found NaN or infinity",
    ),
}


@pytest.mark.parametrize("name", BAD_TARGETS)
def test_targets_that_do_not_suit_the_loss(name):
    loss, shape, y, error, text = BAD_TARGETS[name]
    with pytest.raises(error, match=text):
        check_targets(y, torch.zeros(shape), make_loss(loss))


def test_class_weights_that_a_mean_over_one_sample_would_lose():
    weight = torch.tensor([1.0, 5.0])
    with pytest.raises(ValueError, match=r"hessalign\.CrossEntropy"):
        make_loss(torch.nn.CrossEntropyLoss(weight=weight))
    assert make_loss(torch.nn.CrossEntropyLoss()).name == "own"
