"""Activations of a regression head with the two derivatives that Proposition 2 needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.func import grad, vmap

from hessalign._errors import check_name

Elementwise = Callable[[Tensor], Tensor]


@final
@dataclass(frozen=True)
class Activation:
    """An elementwise function σ with its first and second derivative.

    Attributes:
        name: How it is shown.
        value: σ.
        first: σ'.
        second: σ''.
    """

    name: str
    value: Elementwise
    first: Elementwise
    second: Elementwise


def _sigmoid_first(a: Tensor) -> Tensor:
    return torch.sigmoid(a) * torch.sigmoid(-a)


def _sigmoid_second(a: Tensor) -> Tensor:
    return _sigmoid_first(a) * (1 - 2 * torch.sigmoid(a))


def _tanh_first(a: Tensor) -> Tensor:
    return 1 - torch.tanh(a).square()


def _tanh_second(a: Tensor) -> Tensor:
    return -2 * torch.tanh(a) * _tanh_first(a)


ACTIVATIONS = {
    activation.name: activation
    for activation in (
        Activation("identity", lambda a: a, torch.ones_like, torch.zeros_like),
        Activation("sigmoid", torch.sigmoid, _sigmoid_first, _sigmoid_second),
        Activation("tanh", torch.tanh, _tanh_first, _tanh_second),
        Activation("softplus", torch.nn.functional.softplus, torch.sigmoid, _sigmoid_first),
    )
}


def _pointwise_derivative(function: Elementwise) -> Elementwise:
    derivative = vmap(grad(function))
    return lambda a: derivative(a.flatten()).view_as(a)


def make_activation(activation: str | Elementwise | Activation) -> Activation:
    """An activation from its name or from any twice differentiable elementwise function.

    The derivatives of a function that is not in `ACTIVATIONS` come from `torch.func`.

    Args:
        activation: A name in `ACTIVATIONS`, an `Activation`, or a function built of torch
            operations that maps each element on its own.

    Returns:
        The activation with its derivatives. An unknown name raises an UnknownNameError.

    Example:
        >>> cube = make_activation(lambda a: a**3)
        >>> cube.first(torch.tensor([2.0])), cube.second(torch.tensor([2.0]))
        (tensor([12.]), tensor([12.]))
    """
    if isinstance(activation, Activation):
        return activation
    if callable(activation):
        first = _pointwise_derivative(activation)
        second = _pointwise_derivative(grad(activation))
        return Activation(getattr(activation, "__name__", "custom"), activation, first, second)
    check_name("activation", activation, ACTIVATIONS)
    return ACTIVATIONS[activation]
