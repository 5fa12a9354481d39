"""What the library promises, checked against what was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, final


@final
@dataclass(frozen=True)
class Target:
    """A bound on a measured number.

    Attributes:
        what: What is bounded.
        measured: The number.
        relation: On which side of the bound it should be.
        bound: The bound.
        unit: What follows the numbers.
    """

    what: str
    measured: float
    relation: Literal["at least", "at most", "below"]
    bound: float
    unit: str = "×"

    @property
    def met(self) -> bool:
        """Whether the measurement satisfies the bound."""
        if self.relation == "at least":
            return self.measured >= self.bound
        return (
            self.measured < self.bound
            if self.relation == "below"
            else (self.measured <= self.bound)
        )

    def record(self) -> dict[str, Any]:
        """The target as it is written to JSON."""
        return {
            "what": self.what,
            "measured": self.measured,
            "relation": self.relation,
            "bound": self.bound,
            "unit": self.unit.strip(),
            "met": self.met,
        }
