"""What a procedure asks of torch: its operations, counted as they are dispatched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

import torch
from torch import Tensor, autograd
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten

PRODUCTS = frozenset({aten.mm, aten.addmm, aten.bmm, aten.baddbmm, aten.mv, aten.addmv})


@final
@dataclass(frozen=True)
class Counts:
    """Operations of one forward and backward pass.

    Attributes:
        forward: Kernels of the forward pass: operations that are neither views nor reads.
        backward: Kernels of the backward pass.
        float64: Kernels of both that produce float64.
        large: Products of matrices in float64 with a dimension of at least the size asked for.
        reads: Operations that hand a value to Python, which waits for the device:
            `_local_scalar_dense` and its like. `tolist` on the CPU asks nothing of torch and is
            not seen.
    """

    forward: int
    backward: int
    float64: int
    large: int
    reads: int

    @property
    def kernels(self) -> int:
        """Kernels of both passes."""
        return self.forward + self.backward

    def record(self) -> dict[str, int]:
        """The counts as they are written to JSON."""
        return {"kernels": self.kernels, **asdict(self)}


class _Counter(TorchDispatchMode):
    """Counts while it is entered."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.kernels = self.float64 = self.large = self.reads = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if torch.Tag.data_dependent_output in func.tags:
            self.reads += 1
        elif not func.is_view and func is not aten._unsafe_view.default:
            self.kernels += 1
            results = out if isinstance(out, tuple | list) else (out,)
            if any(isinstance(x, Tensor) and x.dtype == torch.float64 for x in results):
                self.float64 += 1
                sizes = [size for x in args if isinstance(x, Tensor) for size in x.shape]
                self.large += func.overloadpacket in PRODUCTS and max(sizes) >= self.size
        return out


def count(forward: Callable[[], Tensor], inputs: Sequence[Tensor], size: int) -> Counts:
    """Count the operations of a function and of its derivative.

    Args:
        forward: Gives a scalar. It is called once beforehand, so that what is made only once is
            not counted.
        inputs: What to differentiate in.
        size: From which dimension on a product of matrices is large.

    Returns:
        The counts.

    Example:
        >>> x = torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
        >>> count(lambda: (x @ x.T).sum(), [x], size=3)
        Counts(forward=2, backward=4, float64=6, large=3, reads=0)
    """
    autograd.grad(forward(), inputs)
    with _Counter(size) as counter:
        value = forward()
        kernels = counter.kernels
        autograd.grad(value, inputs)
    backward = counter.kernels - kernels
    return Counts(kernels, backward, counter.float64, counter.large, counter.reads)
