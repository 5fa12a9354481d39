"""Dense Hessians, products and diagonals against two other libraries.

curvlinops and BackPACK order the parameters of a linear layer as all weights, then all biases.
"""

import pytest
import torch
from backpack import backpack, extend
from backpack.extensions import DiagHessian
from curvlinops import HessianLinearOperator
from tests.comparison import assert_agrees
from torch import nn

from hessalign.curvature import autograd_head, linear_head

N, D, K = 6, 4, 3
SIZES = (4, 2)


def make_data(outputs, targets):
    z = torch.randn(N, D, dtype=torch.float64, requires_grad=True)  # BackPACK warns without
    if targets == "classes":
        y = torch.randint(outputs, (N,))
    elif targets == "binary":
        y = torch.randint(2, (N, 1)).double()
    else:
        y = torch.randn(N, outputs, dtype=torch.float64)
    return z, y, torch.tensor([0, 0, 0, 0, 1, 1])


SIGMOID = {"loss": "squared", "activation": "sigmoid"}
TANH = {"loss": "squared", "activation": "tanh"}
HEADS = {
    "softmax": (K, "classes", [], nn.CrossEntropyLoss, {}),
    "binary": (1, "binary", [], nn.BCEWithLogitsLoss, {"loss": "binary"}),
    "squared": (2, "values", [], nn.MSELoss, {"loss": "squared"}),
    "sigmoid": (2, "values", [nn.Sigmoid], nn.MSELoss, SIGMOID),
    "tanh": (1, "values", [nn.Tanh], nn.MSELoss, TANH),
}
"""Outputs, targets, their activation and loss, our options."""


def weights_then_biases(outputs, bias):
    """Where each of our parameters is in the order of the other libraries."""
    weights = torch.arange(outputs * D).view(outputs, D)
    if not bias:
        return weights.flatten()
    return torch.cat([weights, outputs * D + torch.arange(outputs).unsqueeze(1)], 1).flatten()


def scale(loss_function, outputs):
    """Their mean squared error is the mean over outputs too, and without our ½."""
    return outputs / 2 if isinstance(loss_function, nn.MSELoss) else 1


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("name", HEADS)
def test_dense_hessian_and_products_of_curvlinops(name, bias):
    outputs, targets, activation, loss_class, options = HEADS[name]
    loss_function = loss_class()
    z, y, domain = make_data(outputs, targets)
    linear = nn.Linear(D, outputs, bias=bias, dtype=torch.float64)
    model = nn.Sequential(linear, *(layer() for layer in activation))
    head = linear_head(z, linear(z), y, domain, bias=bias, **options)
    order = weights_then_biases(outputs, bias)
    vectors = torch.randn(5, 1, head.num_parameters, dtype=torch.float64)
    parts = zip(z.split(SIZES), y.split(SIZES), strict=True)
    for e, data in enumerate(parts):
        operator = HessianLinearOperator(
            model, loss_function, list(model.parameters()), [data], check_deterministic=False
        )
        identity = torch.eye(head.num_parameters, dtype=torch.float64)
        dense = (operator @ identity)[order][:, order] * scale(loss_function, outputs)
        assert_agrees(head.hessian[e], dense)
        theirs = torch.empty(head.num_parameters, 5, dtype=torch.float64)
        theirs[order] = vectors[:, 0].T
        products = (operator @ theirs)[order].T * scale(loss_function, outputs)
        assert_agrees(head.hvp(vectors)[:, e], products)


@pytest.mark.parametrize("name", HEADS)
def test_diagonal_of_backpack(name):
    outputs, targets, activation, loss_class, options = HEADS[name]
    loss_function = loss_class()
    z, y, domain = make_data(outputs, targets)
    linear = nn.Linear(D, outputs, dtype=torch.float64)
    head = linear_head(z, linear(z), y, domain, **options)
    model, extended_loss = (
        extend(nn.Sequential(linear, *(layer() for layer in activation))),
        extend(loss_function),
    )
    parts = zip(z.split(SIZES), y.split(SIZES), strict=True)
    for e, (z_e, y_e) in enumerate(parts):
        with backpack(DiagHessian()):
            extended_loss(model(z_e), y_e).backward()
        diagonal = torch.cat(
            [linear.weight.diag_h, linear.bias.diag_h.unsqueeze(1)], 1
        ).flatten() * scale(loss_function, outputs)
        assert_agrees(head.diagonal[e], diagonal)


def test_two_layer_head_against_curvlinops_and_backpack():
    z, y, domain = make_data(K, "classes")
    model = nn.Sequential(nn.Linear(D, 5), nn.Sigmoid(), nn.Linear(5, K)).double()
    head = autograd_head(model, z, y, domain)
    loss_function = nn.CrossEntropyLoss()
    for e, data in enumerate(zip(z.split(SIZES), y.split(SIZES), strict=True)):
        operator = HessianLinearOperator(
            model, loss_function, list(model.parameters()), [data], check_deterministic=False
        )
        dense = operator @ torch.eye(head.num_parameters, dtype=torch.float64)
        assert_agrees(head.hessian[e], dense)
    extended, extended_loss = extend(model), extend(loss_function)
    with backpack(DiagHessian()):
        extended_loss(extended(z[4:]), y[4:]).backward()
    diagonal = torch.cat([parameter.diag_h.flatten() for parameter in extended.parameters()])
    assert_agrees(head.diagonal[1], diagonal)
