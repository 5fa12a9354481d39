r"""The rows of a batch shared out among processes: each computes the features of some of them.

Every process has the same parameters and the same batch of n rows x. The layers φ of a featurizer
see each row by itself, so process r computes the features of its rows $x_r$ alone and gets those of
the others; everything after them is done by all processes, in the same way. Four maps connect what
all have with what each has of its own, and the derivative of each is another of them:

- *slice*: all rows → one's own; derivative: gather
- *gather*: one's own rows → all; derivative: slice
- *hand out*: the parameters θ → those of one's own computation; derivative: add
- *add*: one's own terms → their sum over processes; derivative: hand out

$$z = \text{gather}\big(\varphi(\text{hand out}(\theta),\, \text{slice}(x))\big)$$

So the features and all their derivatives, of any order, are those of one process, to rounding, and
equal on all processes: an algorithm need not know that there are several.

What layers do with a batch as a whole is done with all of it: batch normalisation in training adds
up its sums, dropout and stochastic depth draw for all rows and use their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Final, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from hessalign._errors import InputError, UserError
from hessalign.alignment.parts import Processes


@final
class LostProcessError(UserError, RuntimeError):
    """Another process of a run ended, or did not answer in time."""


_current: Processes | None = None
"""The processes among which rows are shared out; None while one computes all."""


def current_processes() -> Processes | None:
    """The processes among which rows are shared out; None if this one computes all."""
    return _current


def sharers(x: Tensor) -> Processes | None:
    """The processes that share out the rows of a batch; None if each computes all of it."""
    return None if _current is None or len(x) < _current.count else _current


@contextmanager
def sharing(processes: Processes | None) -> Iterator[None]:
    """Share out the rows of what is computed inside among processes; None computes all here."""
    global _current
    before, _current = _current, processes
    try:
        yield
    finally:
        _current = before


@contextmanager
def meeting() -> Iterator[None]:
    """Say what it means if processes that should meet do not."""
    try:
        yield
    except RuntimeError as error:
        reason = re.sub(r"^\[\S*\] *", "", str(error)).splitlines()[0].partition(". ")[0]
        raise LostProcessError(
            f"Another process of this run ended, or did not answer in time ({reason.rstrip('.')}). "
            "If it had time for a message, that says why. The same command continues what was "
            "saved, with any number of processes."
        ) from error


def own_rows(count: int, processes: Processes) -> slice:
    """The rows of this process among so many: shares differ by one at most."""
    place, places = processes.own, processes.count
    return slice(count * place // places, count * (place + 1) // places)


# --- the four maps --------------------------------------------------------------------------------


class _Slice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, processes: Processes) -> Tensor:  # noqa: ANN401
        ctx.count, ctx.processes = len(x), processes
        return x[own_rows(len(x), processes)]

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        return gather(slopes[0], ctx.count, ctx.processes), None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, count: int, processes: Processes) -> Tensor:  # noqa: ANN401
        ctx.processes = processes
        places = processes.count
        sizes = [count * (r + 1) // places - count * r // places for r in range(places)]
        padded = own.new_zeros(max(sizes), *own.shape[1:])
        padded[: len(own)] = own
        with meeting():
            found = processes.gathered(padded)
        return torch.cat([rows[:size] for rows, size in zip(found, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401
        return _slice(slopes[0], ctx.processes), None, None


class _HandOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, processes: Processes, *values: Tensor) -> tuple[Tensor, ...]:  # noqa: ANN401
        ctx.processes = processes
        ctx.set_materialize_grads(False)  # what is not used has no slope, with one process too
        return tuple(value.view_as(value) for value in values)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor | None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        there = [slope for slope in slopes if slope is not None]
        total = iter(added(there, ctx.processes))
        return None, *(None if slope is None else next(total) for slope in slopes)


class _Add(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, processes: Processes, *terms: Tensor) -> tuple[Tensor, ...]:  # noqa: ANN401
        ctx.processes = processes
        ctx.set_materialize_grads(False)
        flat = torch.cat([term.detach().flatten() for term in terms])
        with meeting():
            dist.all_reduce(flat, group=processes.group)
        pieces = flat.split([term.numel() for term in terms])
        return tuple(
            piece.view(term.shape).to(term.dtype) for piece, term in zip(pieces, terms, strict=True)
        )

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor | None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        there = [slope for slope in slopes if slope is not None]
        handed = iter(_handed_out(there, ctx.processes))
        return None, *(None if slope is None else next(handed) for slope in slopes)


_hand_out: Callable[..., tuple[Tensor, ...]] = _HandOut.apply
_add: Callable[..., tuple[Tensor, ...]] = _Add.apply
_slice: Callable[[Tensor, Processes], Tensor] = _Slice.apply
gather: Callable[[Tensor, int, Processes], Tensor] = _Gather.apply
"""All rows, so many, from those that `own_rows` gives each process."""


def _handed_out(values: Sequence[Tensor], processes: Processes) -> Sequence[Tensor]:
    """The same values, for a computation of which each process does a part."""
    return _hand_out(processes, *values) if values else ()


def added(terms: Sequence[Tensor], processes: Processes) -> Sequence[Tensor]:
    """The sums over processes of some tensors, by one message."""
    return _add(processes, *terms) if terms else ()


# --- layers ---------------------------------------------------------------------------------------


@final
class RowLayers(nn.Sequential):
    """Layers that see each row by itself, one after another; processes share out the rows.

    What they do with a batch as a whole is named above; a layer that draws random numbers by other
    means is refused where there are several processes.

    Example:
        >>> RowLayers(nn.Flatten(), nn.ReLU())(torch.tensor([[[-1.0, 2.0]]]))
        tensor([[0., 2.]])
    """

    def forward(self, x: Tensor) -> Tensor:
        """What the layers make of all rows."""
        processes = sharers(x)
        if processes is not None:
            return by_rows(self, x, processes)
        features: Tensor = super().forward(x)  # type: ignore[no-untyped-call]
        return features


_met: Final = WeakIdKeyDictionary()
"""The own rows of constant batches by batch: layers may know one that comes again."""


def by_rows(module: nn.Module, x: Tensor, processes: Processes) -> Tensor:
    """What a module makes of each row, of which this process computes a share."""
    named = {name: each for name, each in module.named_parameters() if each.requires_grad}
    handed = _handed_out(list(named.values()), processes)
    whole = _WholeBatch(len(x), processes) if module.training else nullcontext()
    with sharing(None), whole:
        own = functional_call(module, dict(zip(named, handed, strict=True)), (_own(x, processes),))
    return gather(own, len(x), processes)


def in_place(own: Tensor, count: int, processes: Processes) -> Tensor:
    """So many rows with this process's own in their place: those of the others are not filled."""
    rows = own.new_empty(count, *own.shape[1:])
    rows[own_rows(count, processes)] = own
    return rows


def _own(x: Tensor, processes: Processes) -> Tensor:
    """The rows of this process; the same tensor for a constant batch that is unchanged."""
    if x.requires_grad:
        return _slice(x, processes)
    rows: Tensor | None
    version, rows = _met.get(x, (-1, None))
    if rows is None or version != x._version:
        rows = x[own_rows(len(x), processes)]
        _met[x] = (x._version, rows)
    return rows


_DROPOUT: Final = (
    functional.dropout,
    functional.dropout1d,
    functional.dropout2d,
    functional.dropout3d,
)


@final
class _WholeBatch(TorchFunctionMode):
    """Lets layers that are given some rows of a batch draw and average as if they had all."""

    def __init__(self, rows: int, processes: Processes) -> None:
        super().__init__()
        self.rows, self.processes = rows, processes
        self.own = own_rows(rows, processes)

    def __enter__(self) -> _WholeBatch:
        self.state = _random_states()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:  # noqa: ANN401
        super().__exit__(kind, *rest)  # type: ignore[no-untyped-call]
        if kind is None:
            self._check()

    def _check(self) -> None:
        """Refuse random numbers that were drawn for one's own rows: others would draw the same."""
        if not all(map(torch.equal, self.state, _random_states())):
            raise InputError(
                "Expected a backbone that draws random numbers in training by dropout or "
                "Tensor.bernoulli_, which processes can share, got one that draws others. Switch "
                "that off in the backbone, or train it by one process."
            )

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        kwargs = kwargs or {}
        if func is functional.batch_norm:
            return self._batch_norm(*args, **kwargs)
        if func in _DROPOUT:
            return self._dropout(func, *args, **kwargs)
        if func is Tensor.bernoulli_:
            drawn = self._drawn(args[0], lambda whole: whole.bernoulli_(*args[1:], **kwargs))
            return args[0].copy_(drawn)
        return func(*args, **kwargs)

    def _drawn(self, like: Tensor, draw: Callable[[Tensor], Tensor]) -> Tensor:
        """This process's rows of what is drawn for all; the same for all if it is not for rows."""
        self._check()
        first, rest = like.shape[:1], like.shape[1:]
        each, left = divmod(first[0] if first else 1, self.own.stop - self.own.start)
        if left:
            drawn = draw(torch.ones_like(like))
        else:  # a row may have been made into several, such as windows of an image
            whole = draw(like.new_ones(self.rows * each, *rest))
            drawn = whole[self.own.start * each : self.own.stop * each]
        self.state = _random_states()
        return drawn

    def _dropout(
        self,
        dropout: Callable[..., Tensor],
        x: Tensor,
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
    ) -> Tensor:
        if not training or p == 0:
            return x
        return x * self._drawn(x, lambda whole: dropout(whole, p, True))

    def _batch_norm(
        self,
        x: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        if not training:
            given = (running_mean, running_var, weight, bias, training, momentum, eps)
            return functional.batch_norm(x, *given)
        axes = [0, *range(2, x.ndim)]
        count = self.rows * x[:1, :1].numel()
        kind = x.dtype  # may be a short one, in which torch does not average either
        x = x.to(torch.promote_types(kind, torch.float32))
        mean = self._sum(x.sum(axes, keepdim=True)) / count
        variance = self._sum((x - mean).square().sum(axes, keepdim=True)) / count
        if running_mean is not None and running_var is not None:
            unbiased = variance.detach() * (count / (count - 1))
            # Unseen by autograd, as torch's own: a pass by torch before this one may keep them.
            running_mean.data.lerp_(mean.detach().flatten(), momentum)
            running_var.data.lerp_(unbiased.flatten(), momentum)
        normal = (x - mean) * (variance + eps).rsqrt()
        shape = mean.shape
        scaled = normal if weight is None else normal * weight.view(shape)
        return (scaled if bias is None else scaled + bias.view(shape)).to(kind)

    def _sum(self, own: Tensor) -> Tensor:
        """The sum over processes, for a computation of which each does a part."""
        return _handed_out(added([own], self.processes), self.processes)[0]


def _random_states() -> list[Tensor]:
    """The states of torch's own generators."""
    cuda = [torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else []
    return [torch.get_rng_state(), *cuda]
