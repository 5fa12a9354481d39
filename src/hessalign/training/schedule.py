"""How the weight of the penalty changes during training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True)
class PenaltySchedule:
    """A small weight first, then suddenly a large one (the IRM setup of Colored MNIST).

    Attributes:
        before: The weight before the jump.
        after: The weight from step `jump` on.
        jump: The step at which it changes.

    Example:
        >>> schedule = PenaltySchedule(before=1.0, after=100.0, jump=190)
        >>> schedule.weight(189), schedule.weight(190), schedule.divisor(190)
        (1.0, 100.0, 100.0)
    """

    before: float
    after: float
    jump: int

    def weight(self, step: int) -> float:
        """The weight of the penalty.

        Args:
            step: The step, from 0.

        Returns:
            The factor of the penalty.
        """
        return self.after if step >= self.jump else self.before

    def divisor(self, step: int) -> float:
        """What the whole loss is divided by, so that gradients stay in a usual range.

        Args:
            step: The step, from 0.

        Returns:
            The weight, where it is above 1.
        """
        return max(1.0, self.weight(step))
