"""Activations and their derivatives."""

import pytest
import torch
from tests import oracles
from tests.comparison import assert_agrees
from torch.func import grad, vmap

from hessalign._errors import UnknownNameError
from hessalign.curvature import ACTIVATIONS, Activation, make_activation

POINTS = torch.linspace(-6, 6, 25, dtype=torch.float64).view(5, 5)
FUNCTIONS = {
    **oracles.ACTIVATIONS,
    "cube": lambda a: a**3,
    "sin": torch.sin,
    "mixed": lambda a: a.square() * torch.exp(-a.square()),
}


def test_the_named_ones():
    assert set(ACTIVATIONS) == set(oracles.ACTIVATIONS)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives(name):
    function = FUNCTIONS[name]
    activation = make_activation(name if name in ACTIVATIONS else function)
    first = grad(function)
    assert_agrees(activation.value(POINTS), function(POINTS))
    assert_agrees(activation.first(POINTS), vmap(first)(POINTS.flatten()).view(5, 5))
    assert_agrees(activation.second(POINTS), vmap(grad(first))(POINTS.flatten()).view(5, 5))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_can_be_differentiated(name):
    activation = make_activation(name if name in ACTIVATIONS else FUNCTIONS[name])
    points = POINTS.clone().requires_grad_()
    for derivative in (activation.first, activation.second):
        value = derivative(points).sum()
        if not value.requires_grad:  # the derivatives of the identity are constants
            assert name == "identity"
            continue
        (slope,) = torch.autograd.grad(value, points)
        step = 1e-5
        expected = (derivative(POINTS + step) - derivative(POINTS - step)) / (2 * step)
        assert_agrees(slope, expected, 1e-7)


@pytest.mark.parametrize("name", ["sigmoid", "tanh", "softplus"])
def test_saturation_is_harmless(name):
    activation = make_activation(name)
    for a in (torch.tensor([-800.0, 800.0]), torch.tensor([-800.0, 800.0]).double()):
        for function in (activation.value, activation.first, activation.second):
            assert bool(function(a).isfinite().all())


def test_an_activation_object_is_taken_as_it_is():
    activation = Activation("mine", torch.sin, torch.cos, lambda a: -torch.sin(a))
    assert make_activation(activation) is activation


def test_a_function_keeps_its_name():
    assert make_activation(torch.sin).name == "sin"


def test_unknown_name():
    with pytest.raises(
        UnknownNameError, match=r"Unknown activation 'sigmiod'.*Did you mean 'sigmoid'\?"
    ):
        make_activation("sigmiod")
