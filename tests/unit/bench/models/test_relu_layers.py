"""Two ReLU layers in blocks: values and slopes of the plain formula."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from hessalign.bench.models import coloured as module
from hessalign.bench.models.coloured import relu_layers


def make_inputs(seed=0, runs=((1, 5), (0, 3), (1, 6))):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    parameters = draw(2, 5, 4), draw(5), draw(3, 5), draw(3)
    for parameter in parameters:
        parameter.requires_grad_()
    return draw(sum(n for _, n in runs), 4), runs, parameters


def plain(x, runs, first, first_bias, second, second_bias):
    rows = torch.cat([torch.full((length,), index) for index, length in runs])
    hidden = (torch.einsum("nq,nhq->nh", x, first[rows]) + first_bias).relu()
    return (hidden @ second.T + second_bias).relu()


@pytest.mark.parametrize("block", [1, 4, 100])
def test_values_and_slopes(monkeypatch, block):
    monkeypatch.setattr(module, "BLOCK", block)
    x, runs, parameters = make_inputs()
    actual, expected = relu_layers(x, runs, *parameters), plain(x, runs, *parameters)
    torch.testing.assert_close(actual, expected, rtol=1e-13, atol=1e-13)
    weights = torch.randn_like(expected)
    slopes = [torch.autograd.grad((z * weights).sum(), parameters) for z in (actual, expected)]
    for ours, theirs in zip(*slopes, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_it_can_be_differentiated_again():
    x, runs, parameters = make_inputs()

    def function(*given):
        return relu_layers(x, runs, *given)

    assert gradcheck(function, parameters)
    assert gradgradcheck(function, parameters)
