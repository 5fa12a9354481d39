"""What an algorithm of the kind "objective" provides: the terms of a loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

from torch import Tensor

from hessalign._shapes import Float
from hessalign.curvature import HeadStatistics


@final
@dataclass(frozen=True)
class ObjectiveTerms:
    """The terms of a training loss; the loop adds `risk` and the scheduled weight times `penalty`.

    Attributes:
        risk: Mean over domains of the mean loss.
        penalty: What the penalty weight multiplies; None if there is none.
        parts: Named pieces of the penalty, for the log.
    """

    risk: Float[Tensor, ""]
    penalty: Float[Tensor, ""] | None = None
    parts: dict[str, Tensor] = field(default_factory=dict)


Objective = Callable[[HeadStatistics], ObjectiveTerms]
"""An algorithm that is fully described by the loss it minimises."""
