"""How the weight of the penalty changes during training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, final, runtime_checkable

from hessalign._errors import InputError


@final
@dataclass(frozen=True)
class PenaltySchedule:
    """One weight first, then suddenly another.

    Attributes:
        before: The weight before the jump.
        after: The weight from step `jump` on.
        jump: The step at which it changes.
        rescale: Divide the whole loss by the weight where that is above 1, so that gradients stay
            in a usual range (the IRM setup of Colored MNIST).
        reset: Start the optimiser afresh at the jump, because its averages of past gradients
            belong to another loss (DomainBed).

    Example:
        >>> schedule = PenaltySchedule(before=1.0, after=100.0, jump=190, rescale=True)
        >>> schedule.weight(189), schedule.weight(190), schedule.divisor(190)
        (1.0, 100.0, 100.0)
    """

    before: float = 1.0
    after: float = 1.0
    jump: int = 0
    rescale: bool = False
    reset: bool = False

    def __post_init__(self) -> None:
        for name, weight in (("before", self.before), ("after", self.after)):
            if not (math.isfinite(weight) and weight >= 0):
                raise InputError(
                    f"Expected the penalty weight {name} the jump to be a finite number of 0 or "
                    f"more, got {weight!r}."
                )
        if self.jump < 0:
            raise InputError(
                f"Expected the penalty weight to jump at step 0 or later, got {self.jump}."
            )

    def weight(self, step: int) -> float:
        """The weight of the penalty at a step, from 0."""
        return self.after if step >= self.jump else self.before

    def divisor(self, step: int) -> float:
        """What the whole loss is divided by: a weight above 1, if it is rescaled, else 1."""
        return max(1.0, self.weight(step)) if self.rescale else 1.0

    def starts_afresh(self, step: int) -> bool:
        """Whether the optimiser is reset before this step; a jump at step 0 needs no reset."""
        return self.reset and step == self.jump > 0


@runtime_checkable
class _Scheduled(Protocol):
    """A configuration whose penalty has a weight of its own that may change."""

    @property
    def schedule(self) -> PenaltySchedule:
        """How the weight of the penalty changes."""


def penalty_schedule(config: object) -> PenaltySchedule:
    """The schedule that a configuration asks for; the weight 1 throughout if it has none."""
    return config.schedule if isinstance(config, _Scheduled) else PenaltySchedule()
