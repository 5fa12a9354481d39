"""Averages of the weights that a run goes through: of which iterates, and in the network's place.

An iterate is what the parameters of the network that predicts are after an update. Buffers are not
averaged: an average goes with those of the last iterate, but for the statistics of batch
normalisation that is trained, which are taken afresh from training inputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import fmean
from typing import Annotated, Any, Final, Literal, final

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from hessalign._errors import InputError
from hessalign.bench.algorithms.options import Count, NonNegative, Options, Range, Whole
from hessalign.bench.models import Network
from hessalign.bench.runs.machine import device_of
from hessalign.bench.runs.sampling import Sampler

AVERAGED: Final = "avg_"
"""What the names of measurements of the average begin with."""

VALIDATION_LOSS: Final = "validation_loss"
"""Mean loss on the held-out parts of the training domains, which SWAD reads."""

_STATISTICS: Final = 2_000
"""Training inputs, or a batch more, that batch normalisation takes its statistics from."""

_TAKERS: Final = {
    "average_decay": ("ema",),
    "average_start": ("ema", "uniform"),
    "n_converge": ("swad",),
    "n_tolerance": ("swad",),
    "tolerance_ratio": ("swad",),
}
"""Which averages take an option."""


@dataclass(frozen=True, kw_only=True)
class AverageOptions(Options):
    """Which average of a run's iterates is kept.

    Attributes:
        average: None for none; "ema", the exponential moving average; "uniform", the mean from a
            step on; "swad", the mean over the valley of the validation loss (`LossValley`).
        average_decay: Of "ema": what the average so far counts at each step.
        average_start: Of "ema" and "uniform": the first step whose iterate counts. None is 0 for
            "ema" and half of the run for "uniform".
        n_converge: Of "swad": evaluations after which a minimum counts as one.
        n_tolerance: Of "swad": evaluations above the threshold that end the valley.
        tolerance_ratio: Of "swad": how far above the valley's mean loss the threshold is.
    """

    average: Literal["ema", "swad", "uniform"] | None = None
    average_decay: Annotated[float, Range(0, 1, open_high=True)] = 0.99
    average_start: Whole | None = None
    n_converge: Count = 3
    n_tolerance: Count = 6
    tolerance_ratio: NonNegative = 0.3

    def make_average(self, steps: int) -> AbstractAverage | None:
        """A new average for a run of so many steps; None if none is asked for."""
        for name, takers in _TAKERS.items():
            value = getattr(self, name)
            if self.average not in takers and value != getattr(AverageOptions, name):
                found = f"average={self.average}" if self.average else "no average"
                raise InputError(
                    f"Expected {name} with average={' or '.join(takers)} only, got {name}={value} "
                    f"with {found}, which does not take it."
                )
        if self.average is None:
            return None
        if self.average == "swad":
            return LossValley(self.n_converge, self.n_tolerance, self.tolerance_ratio)
        moving = self.average == "ema"
        usual = 0 if moving else steps // 2
        start = usual if self.average_start is None else self.average_start
        if start >= steps:
            raise InputError(
                f"Expected average_start below the {steps} steps of the run, got {start}."
            )
        return RunningAverage(start, self.average_decay if moving else None)


@final
@dataclass(eq=False)
class Mean:
    """A mean of lists of tensors that grows by one at a time.

    Example:
        >>> mean = Mean()
        >>> for value, weight in ((1.0, 1), (4.0, 2)):
        ...     mean.add([torch.tensor(value)], weight)
        >>> mean.tensors, mean.weight
        ([tensor(3.)], 3)
    """

    tensors: list[Tensor] = field(default_factory=list)
    weight: int = 0  # of all that was added

    @torch.no_grad()
    def add(self, tensors: Sequence[Tensor], weight: int = 1, share: float | None = None) -> None:
        """Add a list by its weight among all; or by a share, what was there keeps the rest."""
        self.weight += weight
        if self.tensors:
            share = weight / self.weight if share is None else share
            torch._foreach_lerp_(self.tensors, list(tensors), share)
        else:
            self.tensors = [each.detach().clone() for each in tensors]

    def merge(self, other: Mean) -> None:
        """Add all that another mean is of."""
        if other.weight:
            self.add(other.tensors, other.weight)

    def state_dict(self) -> dict[str, Any]:
        """Tensors and numbers."""
        return {"tensors": self.tensors, "weight": self.weight}


def _read_mean(state: Mapping[str, Any], device: torch.device) -> Mean:
    """What `Mean.state_dict` gave."""
    return Mean([each.to(device) for each in state["tensors"]], state["weight"])


class AbstractAverage(ABC):
    """An average of the iterates of a run, as far as it has come."""

    @abstractmethod
    def add(self, step: int, network: Network) -> None:
        """Take note of the iterate after a step; nothing is read from the device."""

    @abstractmethod
    def judge(self, metrics: Mapping[str, float]) -> None:
        """Take note of an evaluation of the last iterate."""

    @abstractmethod
    def mean(self) -> Mean:
        """The average if the run ended here; of weight 0 if there is nothing in it yet."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """All that it is, as tensors and numbers."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Put everything back."""


@final
class RunningAverage(AbstractAverage):
    """The iterates from a step on: their mean, or, by a decay d, θ̄ ← d θ̄ + (1 − d) θ.

    The moving average begins with its first iterate.
    """

    def __init__(self, start: int, decay: float | None = None) -> None:
        self.start, self.share = start, None if decay is None else 1 - decay
        self._mean = Mean()

    def add(self, step: int, network: Network) -> None:
        """Count the iterate if its turn has come."""
        if step >= self.start:
            self._mean.add(list(network.parameters()), share=self.share)

    def judge(self, metrics: Mapping[str, float]) -> None:
        """It does not matter here."""

    def mean(self) -> Mean:
        """The average so far."""
        return self._mean

    def state_dict(self) -> dict[str, Any]:
        """The average."""
        return self._mean.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Put it back."""
        self._mean = _read_mean(state, device)


@final
class LossValley(AbstractAverage):
    """SWAD: the mean of every iterate in the valley of the validation loss.

    Algorithm 1 of Cha et al. (2021), with evaluations in place of iterations. The valley begins at
    an evaluation whose loss is not above those of the `n_converge` − 1 after it. The mean of these
    losses times 1 + `tolerance_ratio` is the threshold. The valley ends when `n_tolerance`
    evaluations in a row are above it, before the first of them, else with the run. If it never
    begins, all iterates are averaged. What an evaluation stands for are the iterates since the one
    before it, as in the authors' code; each counts the same.

    At most `n_tolerance` + 1, or `n_converge` + 1, copies of the parameters are held.
    """

    def __init__(self, n_converge: int, n_tolerance: int, tolerance_ratio: float) -> None:
        self.n_converge, self.n_tolerance = n_converge, n_tolerance
        self.tolerance_ratio = tolerance_ratio
        self.threshold: float | None = None  # None before the valley
        self.ended = False
        self.losses: list[float] = []
        self.decided = Mean()  # in the valley for sure; before it, what cannot be its beginning
        self.open: list[Mean] = []  # by evaluation
        self.last = Mean()  # since the last evaluation

    def add(self, step: int, network: Network) -> None:
        """Keep the iterate, until the next evaluation says what of."""
        if not self.ended:
            self.last.add(list(network.parameters()))

    def judge(self, metrics: Mapping[str, float]) -> None:
        """Decide about the iterates of earlier evaluations."""
        if VALIDATION_LOSS not in metrics:
            raise InputError(
                f"Expected evaluations to measure {VALIDATION_LOSS!r}, the mean loss on the "
                f"held-out parts of training domains, for SWAD; got {', '.join(metrics) or 'none'}."
            )
        if self.ended or not self.last.weight:  # nothing new: an evaluation before the first update
            return
        self.losses.append(metrics[VALIDATION_LOSS])
        self.open.append(self.last)
        self.last = Mean()
        undecided = self.n_tolerance - 1
        if self.threshold is None:
            first = self.losses[-self.n_converge :]
            if len(first) == self.n_converge and first[0] == min(first):
                self.threshold = (1 + self.tolerance_ratio) * fmean(first)
                self.decided = Mean()
            else:
                undecided = self.n_converge - 1
        elif min(self.losses[-self.n_tolerance :]) > self.threshold:
            self.ended, self.open = True, []
        while len(self.open) > undecided:
            self.decided.merge(self.open.pop(0))

    def mean(self) -> Mean:
        """The mean over the valley if it ended with the last evaluation."""
        mean = Mean()
        for each in (self.decided, *self.open):
            mean.merge(each)
        return mean

    def state_dict(self) -> dict[str, Any]:
        """What was decided and what is open."""
        return {
            "threshold": self.threshold,
            "ended": self.ended,
            "losses": list(self.losses),
            "decided": self.decided.state_dict(),
            "open": [each.state_dict() for each in self.open],
            "last": self.last.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Put it back."""
        self.threshold, self.ended = state["threshold"], state["ended"]
        self.losses = list(state["losses"])
        self.decided, self.last = (_read_mean(state[key], device) for key in ("decided", "last"))
        self.open = [_read_mean(each, device) for each in state["open"]]


@torch.no_grad()
def install(network: Network, mean: Mean, sampler: Sampler) -> None:
    """Give a network, in place, averaged parameters, if there are some, and statistics to match."""
    # The inputs for batch normalisation come from the sampler, which is put back.
    if mean.weight:
        torch._foreach_copy_(list(network.parameters()), mean.tensors)
        _refresh_statistics(network, sampler)


@contextmanager
def averaged(network: Network, mean: Mean, sampler: Sampler) -> Iterator[None]:
    """As `install`, for as long as the block lasts."""
    kept = {name: value.clone() for name, value in network.state_dict().items()}
    try:
        install(network, mean, sampler)
        yield
    finally:
        network.load_state_dict(kept)


def _refresh_statistics(network: Network, sampler: Sampler) -> None:
    """Give batch normalisation that is trained the mean statistics of batches of training."""
    training, device = network.training, device_of(network)
    trained = [each for each in network.train().modules() if isinstance(each, _BatchNorm)]
    trained = [each for each in trained if each.training and each.track_running_stats]
    network.eval()  # with nothing at random, such as dropout
    if trained:
        momenta, position, seen = [each.momentum for each in trained], sampler.state_dict(), 0
        for each in trained:
            each.train().reset_running_stats()
            each.momentum = None  # the mean over batches
        while seen < _STATISTICS:
            x = sampler.draw().x
            network(x.to(device))
            seen += len(x)
        sampler.load_state_dict(position)
        for each, momentum in zip(trained, momenta, strict=True):
            each.momentum = momentum
    network.train(training)
