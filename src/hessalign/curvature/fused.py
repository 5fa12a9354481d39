"""Functions whose backward pass is written by hand, and what stands in for them elsewhere.

Left to autograd, a small formula is a graph of dozens of operations that take longer than the few
products that matter. A `Fused` function has its derivative written out; beside it stands the same
formula in plain operations, which torch can differentiate as often as asked and take through
`torch.func`. The plain one serves second derivatives, the transforms of `torch.func` and
forward-mode differentiation.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import Function, forward_ad

Context = Any
"""What torch hands to both passes of a function; it has no public type."""

_Results = Tensor | tuple[Tensor, ...]


def is_traced(tensor: Tensor | None = None) -> bool:
    """Whether tensors may have no values to look at: in graphs, under `torch.func`, as fakes."""
    if torch.compiler.is_compiling() or _is_transformed():
        return True
    return tensor is not None and has_no_values(tensor)


def has_no_values(tensor: Tensor) -> bool:
    """Whether there is nothing to look at in a tensor: in graphs, on the meta device, in fakes."""
    return torch.compiler.is_compiling() or tensor.is_meta or isinstance(tensor, FakeTensor)


def _is_transformed() -> bool:
    """Whether a transform of `torch.func` or forward-mode differentiation is at work."""
    if torch.compiler.is_compiling():
        return False
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


class Fused(Function):
    """A function with a backward pass of its own; subclasses are final.

    `forward` saves its tensors by `ctx.save_for_backward(*inputs, *more)`, the inputs first, and
    other arguments as `ctx.others`.
    """

    def __init_subclass__(cls) -> None:
        def backward(ctx: Context, *slopes: Tensor) -> tuple[Tensor | None, ...]:
            return _pulled_back(cls, ctx, slopes)

        cls.backward = staticmethod(backward)  # type: ignore[method-assign]

    @staticmethod
    @abstractmethod
    def plain(*arguments: Any) -> _Results:  # noqa: ANN401
        """The same formula in operations that autograd knows."""

    @staticmethod
    @abstractmethod
    def pull_back(ctx: Context, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        """The slopes in the inputs, given those in the results."""


def _pulled_back(
    function: type[Fused], ctx: Context, slopes: tuple[Tensor, ...]
) -> tuple[Tensor | None, ...]:
    """The backward pass: by hand, or by autograd where its result is to be differentiated again."""
    nothing = (None,) * len(ctx.others)
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return *function.pull_back(ctx, *slopes), *nothing
    count = len(ctx.needs_input_grad) - len(nothing)
    # Views, so that a slope in one input knows nothing of what another is made of.
    inputs = [x.view_as(x) for x in ctx.saved_tensors[:count]]
    results = function.plain(*inputs, *ctx.others)
    needed = ctx.needs_input_grad[:count]
    wanted = [x for x, asked in zip(inputs, needed, strict=True) if asked]
    found = iter(torch.autograd.grad(results, wanted, slopes, create_graph=True, allow_unused=True))
    return *(next(found) if asked else None for asked in needed), *nothing


def call(function: type[Fused], *arguments: Any) -> Any:  # noqa: ANN401
    """Apply a function, in its plain form where the other one does not work."""
    apply: Callable[..., _Results] = function.plain if _is_transformed() else function.apply
    return apply(*arguments)
