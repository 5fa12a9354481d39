"""How features are computed while a run trains: precision, layout in memory, compilation.

All of it is around `Network.features` alone: head, loss and penalty have what is given out, in
float32, and know nothing of it.

Gradients of float16 features may be too small for float16. They are multiplied by a factor where
they enter the featurizer and divided by it where they leave it, at its parameters, so everybody
else sees gradients as they are: objectives, gradient rules and step owners alike. If one overflows,
the step of its optimiser is left out and the factor becomes smaller, as torch's GradScaler does.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, final

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import Optimizer

from hessalign._errors import Warn
from hessalign.bench.algorithms import AbstractAlgorithm, DivergedError, Options, Whole
from hessalign.bench.models import Network

Precision = Literal[32, "bf16", "fp16"]
"""What features are computed in: float32, or under autocast."""

_DTYPES: Final = {"bf16": torch.bfloat16, "fp16": torch.float16}

_FIRST_FACTOR: Final = 2.0**16
_STEPS_TO_GROWTH: Final = 2000
"""GradScaler's own numbers, with a factor of 2 up and down."""


@final
@dataclass(frozen=True)
class Computing(Options):
    """What changes how fast a run is but not what it is; no part of its identity.

    Attributes:
        compile: Have the featurizer compiled by `torch.compile`.
        channels_last: Lay images out with their channels last.
        workers: Processes that make batches of images, 0 for the run itself; None for what suits
            the machine.
    """

    compile: bool = False
    channels_last: bool = False
    workers: Whole | None = None


COMPUTING_KEYS: Final = tuple(each.name for each in fields(Computing))


def take_computing(values: Mapping[str, Any]) -> tuple[Computing, dict[str, Any]]:
    """What some entries say of computing, and the others."""
    own = {key: value for key, value in values.items() if key in COMPUTING_KEYS}
    return Computing(**own), {key: values[key] for key in values if key not in own}


@final
class _GradientScale(nn.Module):
    """The factor of gradients inside the featurizer; its state is a part of checkpoints."""

    def __init__(self) -> None:
        super().__init__()
        self.factor, self._steps, self._overflowed = _FIRST_FACTOR, 0, False

    def get_extra_state(self) -> dict[str, float]:
        """The factor, and for how many steps it has held."""
        return {"factor": self.factor, "steps": self._steps}

    def set_extra_state(self, state: dict[str, float]) -> None:
        """Go on from a state."""
        self.factor, self._steps = state["factor"], int(state["steps"])

    def watch(self, optimizer: Optimizer) -> None:
        """From now on leave out steps of an optimiser that would follow what is not finite."""
        optimizer.register_step_pre_hook(self._check)

    def _check(self, optimizer: Optimizer, *_: object) -> None:
        groups = optimizer.param_groups
        moved = [each for group in groups for each in group["params"] if each.grad is not None]
        if moved and not bool(torch.stack([each.grad.isfinite().all() for each in moved]).all()):
            self._overflowed = True
            for parameter in moved:
                parameter.grad = None  # what has none is not moved

    def adapt(self, step: int) -> None:
        """After a step: half the factor if something overflowed, twice if nothing did for long."""
        self._steps = 0 if self._overflowed else self._steps + 1
        if self._overflowed:
            self.factor /= 2
        elif self._steps == _STEPS_TO_GROWTH:
            self.factor, self._steps = 2 * self.factor, 0
        self._overflowed = False
        if self.factor < 1:
            raise DivergedError(
                f"The gradients are not finite at step {step}, however they are scaled. Use "
                "precision=bf16 or 32, or lower the learning rate or the penalty weight."
            )


@contextmanager
def computed(
    algorithm: AbstractAlgorithm, precision: Precision, computing: Computing, warn: Warn
) -> Iterator[None]:
    """Have features computed so, by every network it has; afterwards they are as before."""
    networks = [each for each in algorithm.modules() if isinstance(each, Network)]
    compiles = computing.compile
    if compiles and algorithm.differentiates_twice(algorithm.config):
        warn("Not compiled: the algorithm differentiates twice, and what is compiled can be once.")
        compiles = False
    if not (compiles or computing.channels_last or precision != 32):
        yield
        return
    scale = _GradientScale() if precision == "fp16" else None
    dtype, patch = _DTYPES.get(str(precision)), nullcontext()
    if compiles:
        from torch._functorch import config

        torch.compiler.reset()  # what other runs of this process had compiled
        patch = config.patch(donated_buffer=False)  # gradient rules go back several times
    for network in networks:
        if computing.channels_last:
            _lay_out(network.featurizer, torch.channels_last)
        compiled = torch.compile(network.featurizer) if compiles else None
        network.compute = _Compute(computing.channels_last, dtype, scale, compiled, warn)
    algorithm.gradient_scale = scale
    try:
        with patch:
            yield
    finally:
        algorithm.gradient_scale = None
        for network in networks:
            network.compute = None
            if computing.channels_last:
                _lay_out(network.featurizer, torch.contiguous_format)


def _lay_out(module: nn.Module, layout: torch.memory_format) -> None:
    """Give the weights of a module, in place, another layout."""
    module.to(memory_format=layout)  # type: ignore[call-overload]


@final
@dataclass(eq=False)
class _Compute:
    """What `Network.features` calls in place of the featurizer."""

    channels_last: bool
    dtype: torch.dtype | None
    scale: _GradientScale | None
    compiled: Any  # the featurizer, compiled when it is called; None if it is not
    warn: Warn

    def __call__(self, featurizer: nn.Module, x: Tensor, *more: Any) -> Tensor:  # noqa: ANN401
        if self.channels_last and x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        if self.dtype is None:
            return self._called(featurizer, None, x, *more)
        parameters, factor = None, 1.0
        if self.scale is not None:
            factor = self.scale.factor
            named = featurizer.named_parameters()
            parameters = {name: _with_gradient_times(1 / factor, each) for name, each in named}
            x = _with_gradient_times(1 / factor, x)
        with torch.autocast(x.device.type, self.dtype):
            z = self._called(featurizer, parameters, x, *more)
        return _with_gradient_times(factor, z.float())

    def _called(
        self, featurizer: nn.Module, parameters: Mapping[str, Tensor] | None, *inputs: object
    ) -> Tensor:
        """The features by a featurizer with its own parameters, or with others."""
        if self.compiled is not None:
            try:
                with warnings.catch_warnings():  # torch looks at `grad` of parameters that are none
                    warnings.filterwarnings("ignore", "The .grad attribute of a Tensor")
                    return _call(self.compiled, parameters, "_orig_mod.", *inputs)
            except torch._dynamo.exc.TorchDynamoException as error:
                reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
                self.warn(f"Not compiled, the run goes on without: {reason}")
                self.compiled = None
        return _call(featurizer, parameters, "", *inputs)


def _call(
    module: nn.Module, parameters: Mapping[str, Tensor] | None, prefix: str, *inputs: object
) -> Tensor:
    """What a module gives with its own parameters, or with others by names after a prefix."""
    if parameters is None:
        made: Tensor = module(*inputs)
    else:
        others = {f"{prefix}{name}": each for name, each in parameters.items()}
        made = functional_call(module, others, inputs)
    return made


def _with_gradient_times(factor: float, x: Tensor) -> Tensor:
    """The same numbers, but gradients that come back to them are multiplied by a factor."""
    if factor == 1:
        return x
    x = x.view_as(x)
    if x.requires_grad:
        x.register_hook(lambda gradient: gradient * factor)
    return x
