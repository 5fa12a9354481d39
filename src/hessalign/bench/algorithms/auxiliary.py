"""What algorithms need besides the network they train: networks of their own, classes, randomness.

Indices: n sample, k output of the head, c class.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from hessalign._errors import InputError, InputTypeError
from hessalign._shapes import Float
from hessalign.bench.algorithms.kinds import Setting, Terms

_KEPT_ENTRIES: Final = 2**22  # entries of a matrix over pairs of samples that are held at a time


def sum_over_rows(part: Callable[..., Tensor], *rows: Tensor) -> Tensor:
    """Sum of a function of blocks of rows, which makes as many columns as there are rows in all."""
    # Where there are several, what blocks hold is made anew in backpropagation.
    count = max(1, _KEPT_ENTRIES // len(rows[0]))
    blocks = list(zip(*(each.split(count) for each in rows), strict=True))
    if len(blocks) == 1:
        return part(*blocks[0])
    made: list[Tensor] = [checkpoint(part, *each, use_reentrant=False) for each in blocks]
    return torch.stack(made).sum(0)


def _draw_seed(generator: torch.Generator) -> int:
    """A seed for a source of randomness that torch's generators cannot serve."""
    return int(torch.randint(2**31, (), generator=generator, device=generator.device))


def draw_order(count: int, generator: torch.Generator) -> list[int]:
    """The numbers from 0 on in random order."""
    order: list[int] = torch.randperm(count, generator=generator, device=generator.device).tolist()
    return order


def draw_beta(shape: float, generator: torch.Generator) -> float:
    """A draw from the symmetric Beta(a, a) distribution; the generator moves on by one draw."""
    return float(np.random.default_rng(_draw_seed(generator)).beta(shape, shape))


def draw_uniform(generator: torch.Generator, *shape: int) -> Tensor:
    """Uniform draws from 0 to 1, where the generator is."""
    return torch.rand(shape, generator=generator, device=generator.device)


def draw_normal(like: Tensor, generator: torch.Generator) -> Tensor:
    """Standard normal draws in the shape, precision and place of a tensor."""
    return torch.randn(like.shape, generator=generator, device=generator.device).to(like)


@contextmanager
def seeded(generator: torch.Generator) -> Iterator[None]:
    """Let modules made inside take their weights from a generator; torch's own is put back."""
    seed = _draw_seed(generator)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def make_perceptron(
    inputs: int,
    outputs: int,
    width: int,
    depth: int,
    dropout: float,
    generator: torch.Generator,
    activation: type[nn.Module] = nn.ReLU,
) -> nn.Sequential:
    """A multi-layer perceptron: `depth` linear layers, dropout and activation between them."""
    layers: list[nn.Module] = []
    with seeded(generator):
        for before in (inputs, *[width] * (depth - 2)):
            layers += [nn.Linear(before, width), nn.Dropout(dropout), activation()]
        return nn.Sequential(*layers, nn.Linear(width, outputs))


def fresh_copy(module: nn.Module, generator: torch.Generator) -> nn.Module:
    """The same architecture with new weights; layers without `reset_parameters` keep theirs."""
    fresh = copy.deepcopy(module)
    with seeded(generator):
        for layer in fresh.modules():
            if callable(reset := getattr(layer, "reset_parameters", None)):
                reset()
    return fresh


def trainable(module: nn.Module) -> dict[str, Tensor]:
    """The parameters of a module that are trained, by name."""
    return {name: each for name, each in module.named_parameters() if each.requires_grad}


def gradients(
    loss: Tensor, parameters: Mapping[str, Tensor], create_graph: bool = False
) -> dict[str, Tensor]:
    """The derivatives of a loss in parameters, by their names."""
    slopes = torch.autograd.grad(loss, list(parameters.values()), create_graph=create_graph)
    return dict(zip(parameters, slopes, strict=True))


def match(module: nn.Module, network: nn.Module) -> None:
    """Give a module, in place, the precision and the device of the network it works with."""
    module.to(next(network.parameters()))


def head_inputs(head: nn.Module) -> int:
    """How many features a head receives: the inputs of its first linear layer, which it needs."""
    for layer in head.modules():
        if isinstance(layer, nn.Linear):
            return layer.in_features
    raise InputTypeError(
        f"Expected a head with a linear layer, which says how many features there are, got "
        f"{type(head).__name__}."
    )


def count_classes(setting: Setting) -> int:
    """How many classes there are; one logit stands for two. Without classes it is refused."""
    if setting.loss == "squared":
        raise InputError(
            "Expected a loss of classification, got 'squared': the algorithm needs classes. Use "
            "loss 'cross_entropy' or 'binary'."
        )
    return 2 if setting.loss == "binary" else setting.outputs


def class_logits(logits: Float[Tensor, "n k"]) -> Float[Tensor, "n c"]:
    """Logits with one column per class; a single logit a becomes (0, a)."""
    if logits.shape[1] > 1:
        return logits
    return torch.cat([torch.zeros_like(logits), logits], dim=1)


def detached(**terms: Tensor) -> Terms:
    """Terms of a loss as what to log, which hold no graph."""
    return {name: term.detach() for name, term in terms.items()}


def follow(loss: Tensor, optimizers: Mapping[str, Optimizer], *names: str) -> Tensor:
    """One step of some of the optimisers down a loss, whose value is returned."""
    for optimizer in optimizers.values():
        optimizer.zero_grad()
    loss.backward()
    for name in names:
        if name in optimizers:  # features that are given have nothing to update
            optimizers[name].step()
    return loss.detach()
