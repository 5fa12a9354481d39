"""The readings of the alignment penalty: the paper's equations, and its two released codes.

| fidelity | what it follows | over domains | a domain is compared with | probes |
|---|---|---|---|---|
| "paper" | eq. 17 and 20 as printed | mean | the mean over domains | 100 |
| "domainbed" | the authors' code on DomainBed | mean | the mean loss, as a constant | 300 |
| "released" | their Colored MNIST scripts | sum | the mean loss | 150 |

"The mean loss" is short for the same quantity of the mean loss, see
`hessalign.alignment.penalties.Target`; "as a constant" means that nothing flows back through it.
The scripts for imbalanced Colored MNIST have 200 probes; the rest is the same there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, final

from hessalign.alignment.penalties import MEAN, POOLED, POOLED_DETACHED, Target

Fidelity = Literal["paper", "domainbed", "released"]


@final
@dataclass(frozen=True)
class Reading:
    """What the sources differ in."""

    target: Target  # what each domain is compared with
    probes: int  # probes per domain, for what is sampled and for its expectation
    summed: bool = False  # add the domains up instead of taking their mean

    def scale(self, domains: int) -> int:
        """What turns a mean over so many domains into what is asked for."""
        return domains if self.summed else 1


READINGS: Final[Mapping[Fidelity, Reading]] = {
    "paper": Reading(MEAN, probes=100),
    "domainbed": Reading(POOLED_DETACHED, probes=300),
    "released": Reading(POOLED, probes=150, summed=True),
}
"""By fidelity; the only place that says what one means for the alignment penalty."""


def make_reading(fidelity: Fidelity, probes: int | None = None) -> Reading:
    """A reading, with the probes that a user wants.

    Returns:
        The reading.

    Example:
        >>> make_reading("domainbed").probes, make_reading("domainbed", 7).probes
        (300, 7)
    """
    reading = READINGS[fidelity]
    if probes is None or probes == reading.probes:
        return reading
    return dataclasses.replace(reading, probes=probes)
