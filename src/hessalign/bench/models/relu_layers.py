r"""Two ReLU layers, evaluated in blocks of samples that stay in the processor's cache.

$$z_n = \max(0,\; W_2 \max(0,\; W_1 x_n + b_1) + b_2)$$

A full batch of Colored MNIST makes every intermediate array some 80 MB large, and writing it,
reading it again for the ReLU and asking the system for fresh pages costs as much as the products.
Here a block of rows goes through all operations while it is in cache, forward and backward. The
function and its gradient are the same, up to the order of summation.

Indices: n sample, q input, h hidden unit, d feature.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import Tensor

from hessalign._shapes import Float

BLOCK: Final = 768
"""Rows at a time: those of 390 units take 1.2 MB, about a core's second-level cache."""

CACHE_LINE: Final = 16
"""Rows begin at multiples of so many numbers, 64 bytes in float32: products run faster then."""

Runs = tuple[tuple[int, int], ...]
"""Which of the first weights applies to how many consecutive samples, in order."""


def relu_layers(
    x: Float[Tensor, "n q"],
    runs: Runs,
    first: Float[Tensor, "c h q"],
    first_bias: Float[Tensor, " h"],
    second: Float[Tensor, "d h"],
    second_bias: Float[Tensor, " d"],
) -> Float[Tensor, "n d"]:
    """Two layers of weights, biases and ReLU.

    Args:
        x: Inputs; they are constants.
        runs: Pairs of an index into `first` and a number of samples; the numbers add up to n.
        first: Alternative weights of the first layer.
        first_bias: Its bias.
        second: Weights of the second layer.
        second_bias: Its bias.

    Returns:
        Features, differentiable any number of times in weights and biases.

    Example:
        >>> x, one = torch.tensor([[1.0], [-2.0]]), torch.ones(1)
        >>> weights = torch.stack([torch.eye(1), -torch.eye(1)])
        >>> relu_layers(x, ((0, 1), (1, 1)), weights, one, torch.eye(1), one)
        tensor([[3.],
                [4.]])
    """
    return _relu_layers(x, runs, first, first_bias, second, second_bias)


def _blocks(runs: Runs) -> Iterator[tuple[int, slice]]:
    start = 0
    for index, length in runs:
        for offset in range(0, length, BLOCK):
            yield index, slice(start + offset, start + min(offset + BLOCK, length))
        start += length


class _ReluLayers(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's context has no public type
        x: Tensor,
        runs: Runs,
        first: Tensor,
        first_bias: Tensor,
        second: Tensor,
        second_bias: Tensor,
    ) -> Tensor:
        hidden = _aligned(x, len(x), len(first_bias))
        z = _aligned(x, len(x), len(second_bias))
        weights = _aligned(x, *second.shape).copy_(second)
        for index, rows in _blocks(runs):
            torch.addmm(first_bias, x[rows], first[index].T, out=hidden[rows]).relu_()
            torch.addmm(second_bias, hidden[rows], weights.T, out=z[rows]).relu_()
        ctx.runs = runs
        ctx.save_for_backward(x, first, first_bias, second, second_bias, hidden, z)
        return z

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        *grad_outputs: Tensor,
    ) -> tuple[Tensor | None, ...]:
        (dz,) = grad_outputs
        x, first, first_bias, second, second_bias, hidden, z = ctx.saved_tensors
        if torch.is_grad_enabled():  # a graph of the gradient is wanted
            parameters = (first, first_bias, second, second_bias)
            again = _plain(x, ctx.runs, *parameters)
            return (None, None, *torch.autograd.grad(again, parameters, dz, create_graph=True))
        d_first, d_second = torch.zeros_like(first), torch.zeros_like(second)
        d_first_bias, d_second_bias = torch.zeros_like(first_bias), torch.zeros_like(second_bias)
        weights = _aligned(x, *second.shape).copy_(second)
        passed = _aligned(x, BLOCK, second.shape[1])
        for index, rows in _blocks(ctx.runs):
            d_sum = torch.ops.aten.threshold_backward(dz[rows], z[rows], 0)
            d_second.addmm_(d_sum.T, hidden[rows])
            d_second_bias += d_sum.sum(0)
            down = torch.mm(d_sum, weights, out=passed[: len(d_sum)])
            d_sum = torch.ops.aten.threshold_backward(down, hidden[rows], 0)
            d_first[index].addmm_(d_sum.T, x[rows])
            d_first_bias += d_sum.sum(0)
        return None, None, d_first, d_first_bias, d_second, d_second_bias


_relu_layers: Callable[..., Tensor] = _ReluLayers.apply


def _aligned(like: Tensor, rows: int, columns: int) -> Tensor:
    """An empty matrix whose rows begin at cache lines."""
    return like.new_empty(rows, -(-columns // CACHE_LINE) * CACHE_LINE)[:, :columns]


def _plain(
    x: Tensor, runs: Runs, first: Tensor, first_bias: Tensor, second: Tensor, second_bias: Tensor
) -> Tensor:
    parts = zip(runs, x.split([length for _, length in runs]), strict=True)
    hidden = [torch.addmm(first_bias, part, first[index].T) for (index, _), part in parts]
    return torch.addmm(second_bias, torch.cat(hidden).relu(), second.T).relu()
