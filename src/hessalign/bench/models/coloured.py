r"""The network of Colored MNIST: two hidden ReLU layers that multiply only what is lit.

$$z_n = \max(0,\; W_2 \max(0,\; W_1 x_n + b_1) + b_2)$$

A coloured digit has zeros in every channel but one, and many pixels that are dark in every image.
Leaving out products with zero changes no result and saves more than half of the first layer. The
layers look at a batch once, when they first meet it: this pays for full batches, which come again.

A full batch makes every intermediate array some 80 MB large, and writing it, reading it again for
the ReLU and asking for fresh pages costs as much as the products. So a block of rows goes through
all operations while it is in the processor's cache, forward and backward. The function and its
gradient are the same, up to the order of summation.

Indices: n sample, c channel, q pixel that is lit somewhere, h hidden unit, d feature.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from math import prod
from typing import Any, Final, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from hessalign._shapes import Float, Int
from hessalign.bench.models.network import Network
from hessalign.bench.models.sharded import by_rows, sharers

BLOCK: Final = 768  # rows at a time: of 390 units they take 1.2 MB, about a core's level-2 cache
_CACHE_LINE: Final = 16  # rows begin at multiples of so many numbers, 64 bytes: products run faster
_LEAST_RUN: Final = 64  # samples of one channel in a row, on average, from which runs pay
_Runs = tuple[tuple[int, int], ...]  # which first weights, by channel, for how many samples


class _ReluLayers(torch.autograd.Function):
    """Two ReLU layers on constants x [n, q], differentiable any number of times.

    The parameters are weights [c, h, q] and bias [h] of one layer, [d, h] and [d] of the other.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, runs: _Runs, *parameters: Tensor) -> Tensor:  # noqa: ANN401
        first, first_bias, second, second_bias = parameters
        hidden = _aligned(x, len(x), len(first_bias))
        z = _aligned(x, len(x), len(second_bias))
        weights = _aligned(x, *second.shape).copy_(second)
        for index, rows in _blocks(runs):
            torch.addmm(first_bias, x[rows], first[index].T, out=hidden[rows]).relu_()
            torch.addmm(second_bias, hidden[rows], weights.T, out=z[rows]).relu_()
        ctx.runs = runs
        ctx.save_for_backward(x, *parameters, hidden, z)
        return z

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        (dz,) = grad_outputs
        x, *parameters, hidden, z = ctx.saved_tensors
        if torch.is_grad_enabled():  # a graph of the gradient is wanted
            again = _plain(x, ctx.runs, *parameters)
            return (None, None, *torch.autograd.grad(again, parameters, dz, create_graph=True))
        d_first, d_first_bias, d_second, d_second_bias = map(torch.zeros_like, parameters)
        second = parameters[2]
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


relu_layers: Callable[..., Tensor] = _ReluLayers.apply


def _blocks(runs: _Runs) -> Iterator[tuple[int, slice]]:
    start = 0
    for index, length in runs:
        for offset in range(0, length, BLOCK):
            yield index, slice(start + offset, start + min(offset + BLOCK, length))
        start += length


def _aligned(like: Tensor, rows: int, columns: int) -> Tensor:
    """An empty matrix whose rows begin at cache lines."""
    return like.new_empty(rows, -(-columns // _CACHE_LINE) * _CACHE_LINE)[:, :columns]


def _plain(x: Tensor, runs: _Runs, *parameters: Tensor) -> Tensor:
    first, first_bias, second, second_bias = parameters
    parts = zip(runs, x.split([length for _, length in runs]), strict=True)
    hidden = [torch.addmm(first_bias, part, first[index].T) for (index, _), part in parts]
    return torch.addmm(second_bias, torch.cat(hidden).relu(), second.T).relu()


@final
class _LitImages(NamedTuple):
    """A batch of images, each with one lit channel, at the pixels that are lit in some image."""

    lit: Float[Tensor, "n q"]
    pixels: Int[Tensor, " q"]
    runs: _Runs


def _lit_images(images: Float[Tensor, "n c all"]) -> _LitImages | None:
    """The same images without what is dark; None if that is not how they are lit."""
    lit = images.ne(0)
    by_channel = lit.any(2)
    if int(by_channel.sum(1).max()) > 1:
        return None
    channel = by_channel.int().argmax(1)
    runs = tuple((int(key), len(list(group))) for key, group in groupby(channel.tolist()))
    if len(images) < _LEAST_RUN * len(runs):
        return None
    pixels = lit.any(1).any(0).nonzero().squeeze(1)
    grey = images[torch.arange(len(images)), channel]
    return _LitImages(grey[:, pixels], pixels, runs)


@final
class _ColouredLayers(nn.Module):
    """Two ReLU layers on flattened images."""

    def __init__(self, channels: int, size: int, width: int) -> None:
        super().__init__()
        self.shape = (channels, size)
        self.first = nn.Linear(channels * size, width)
        self.second = nn.Linear(width, width)
        self._met = WeakIdKeyDictionary()

    def __getstate__(self) -> dict[str, object]:  # copies meet their own batches
        return {**self.__dict__, "_met": WeakIdKeyDictionary()}

    def forward(self, x: Float[Tensor, "n ..."]) -> Float[Tensor, "n d"]:
        """The features of some images of any shape."""
        processes = sharers(x)
        if processes is not None:
            return by_rows(self, x, processes)
        lit = self._lit(x)
        if lit is None:
            features: Tensor = self.second(self.first(x.flatten(1)).relu()).relu()
            return features
        weights = self.first.weight.view(-1, *self.shape)[:, :, lit.pixels].transpose(0, 1)
        parameters = (weights, self.first.bias, self.second.weight, self.second.bias)
        return relu_layers(lit.lit, lit.runs, *parameters)

    def _lit(self, x: Tensor) -> _LitImages | None:
        """What is lit in a batch, found when it is first met; changed batches are met anew."""
        plain = type(x) is Tensor and x.device.type == "cpu" and not x.requires_grad
        if not plain or len(x) < _LEAST_RUN or prod(x.shape[1:]) != prod(self.shape):
            return None
        lit: _LitImages | None
        version, lit = self._met.get(x, (-1, None))
        if version != x._version:
            lit = _lit_images(x.detach().reshape(len(x), *self.shape))
            self._met[x] = (x._version, lit)
        return lit


def make_coloured_mlp(
    channels: int, size: int, width: int, generator: torch.Generator, head_factor: int = 1
) -> Network:
    """Two hidden ReLU layers and one logit; the hidden layers are the featurizer.

    Weights are drawn uniformly after Glorot and Bengio (2010), biases start at 0, as in the IRM
    setup.

    Returns:
        The network.

    Example:
        >>> network = make_coloured_mlp(2, 14 * 14, 390, torch.Generator().manual_seed(0))
        >>> sum(parameter.numel() for parameter in network.parameters())
        306151
    """
    featurizer = _ColouredLayers(channels, size, width)
    head = nn.Linear(head_factor * width, 1)
    for layer in (featurizer.first, featurizer.second, head):
        nn.init.xavier_uniform_(layer.weight, generator=generator)
        nn.init.zeros_(layer.bias)
    return Network(featurizer, head)
