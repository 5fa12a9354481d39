"""Inner products between domains of every quantity, in both evaluations."""

import pytest
import torch
from tests import cases, oracles
from tests.cases import CASES, UNSORTED, Case
from tests.comparison import assert_agrees, assert_same_slopes
from torch import nn

from hessalign._errors import UnknownNameError
from hessalign.alignment import QUANTITIES, TABLE_1, inner_products
from hessalign.alignment.quantities import moment
from hessalign.curvature import autograd_head, linear_head


@pytest.mark.pairwise
@pytest.mark.parametrize("quantity", QUANTITIES)
@pytest.mark.parametrize("case", CASES, ids=cases.name)
def test_both_evaluations(route, case, quantity):
    batch = case.build()
    expected = oracles.inner_products(oracles.quantity(quantity, batch, **case.options))
    for evaluation in ("primal", "dual", "auto"):
        head = linear_head(*batch, **case.options)
        actual = inner_products(head, quantity, evaluation)
        assert actual.dtype == torch.float64
        assert_agrees(actual, expected)
        assert_same_slopes(actual, expected, batch.inputs)


@pytest.mark.parametrize("evaluation", ["primal", "dual"])
@pytest.mark.parametrize("classes", [2, 12])
def test_ties_between_classes(route, classes, evaluation):
    """All classes equally probable, as in a head that starts from zero."""
    case = Case("ties", "cross_entropy", classes, features=2, domain=UNSORTED)
    batch = case.build()
    batch = batch._replace(logits=torch.zeros_like(batch.logits).requires_grad_())
    for quantity in ("logit", "hessian", "hessian_diagonal"):
        actual = inner_products(linear_head(*batch), quantity, evaluation)
        dense = oracles.quantity(quantity, batch, loss="cross_entropy")
        assert_agrees(actual, oracles.inner_products(dense))
        assert_same_slopes(actual, oracles.inner_products(dense), batch.inputs)


def test_the_list_of_quantities():
    assert TABLE_1 == (
        "loss",
        "feature",
        "covariance",
        "error",
        "error_feature",
        "logit",
        "logit_feature",
        "logit_covariance",
    )
    assert set(QUANTITIES) - set(TABLE_1) == {
        "gradient",
        "hessian",
        "hessian_diagonal",
        "hessian_gradient",
    }


@pytest.mark.parametrize(
    "quantity", ["feature", "covariance", "logit", "logit_feature", "logit_covariance", "hessian"]
)
def test_what_needs_no_targets(quantity):
    z, logits, y, domain = CASES[1].build()
    with_targets = inner_products(linear_head(z, logits, y, domain), quantity)
    assert_agrees(inner_products(linear_head(z, logits, None, domain), quantity), with_targets)


@pytest.mark.parametrize(
    "quantity", ["loss", "gradient", "hessian", "hessian_diagonal", "hessian_gradient"]
)
def test_a_head_with_a_hidden_layer(quantity):
    mlp = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    z = torch.randn(len(UNSORTED), 4, dtype=torch.float64, requires_grad=True)
    data = (z, torch.randint(2, (len(z),)), torch.tensor(UNSORTED))
    gradient = oracles.module_gradient(mlp, *data, loss="cross_entropy")
    hessian = oracles.module_hessian(mlp, *data, loss="cross_entropy")
    risks = oracles.module_risks(mlp, *data, loss="cross_entropy")
    values = {
        "loss": lambda: torch.stack([risk(dict(mlp.named_parameters())) for risk in risks]),
        "gradient": lambda: gradient,
        "hessian": lambda: hessian,
        "hessian_diagonal": lambda: hessian.diagonal(dim1=1, dim2=2),
        "hessian_gradient": lambda: torch.einsum("epq,eq->ep", hessian, gradient),
    }[quantity]()
    expected = oracles.inner_products(values)
    actual = inner_products(autograd_head(mlp, *data), quantity)
    assert_agrees(actual, expected)
    assert_same_slopes(actual, expected, (z, *mlp.parameters()))


def test_unknown_quantity():
    head = linear_head(*CASES[0].build())
    text = r"Unknown quantity 'hesian'. Expected one of: 'loss', .*Did you mean 'hessian'\?"
    with pytest.raises(UnknownNameError, match=text):
        inner_products(head, "hesian")
    with pytest.raises(UnknownNameError, match=text):
        moment(head, "hesian")


def test_a_quantity_that_only_the_closed_form_has():
    z, _, y, domain = CASES[0].build()
    head = autograd_head(nn.Linear(4, 2).double(), z, y, domain)
    text = "Unknown quantity of a head without closed form 'covariance'. Expected one of: 'loss', "
    with pytest.raises(UnknownNameError, match=text):
        inner_products(head, "covariance")
