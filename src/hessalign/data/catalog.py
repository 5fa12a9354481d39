"""The benchmark data sets of domain generalization: their order, domains and evaluation schedule.

Names, order and abbreviations are DomainBed's, so that results of both can stand in one table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, final

Family = Literal["small", "big", "DomainNet"]
"""Which default hyper-parameters and search ranges a data set takes."""

DEFAULT_STEPS: Final = 5001
"""Steps of training where nothing else is asked for."""


@final
@dataclass(frozen=True)
class DatasetInfo:
    """One row of the catalog.

    Attributes:
        name: How records call it.
        domains: Abbreviations of its domains, in their order.
        family: Which hyper-parameters it takes.
        checkpoint_freq: Steps between evaluations where nothing else is asked for.
    """

    name: str
    domains: tuple[str, ...]
    family: Family = "big"
    checkpoint_freq: int = 300


_ROWS = (
    DatasetInfo("Debug28", ("0", "1", "2"), "small", 100),
    DatasetInfo("Debug224", ("0", "1", "2"), "big", 100),
    DatasetInfo("ColoredMNIST", ("+90%", "+80%", "-90%"), "small", 100),
    DatasetInfo("RotatedMNIST", ("0", "15", "30", "45", "60", "75"), "small", 100),
    DatasetInfo("VLCS", ("C", "L", "S", "V")),
    DatasetInfo("PACS", ("A", "C", "P", "S")),
    DatasetInfo("OfficeHome", ("A", "C", "P", "R")),
    DatasetInfo("TerraIncognita", ("L100", "L38", "L43", "L46")),
    DatasetInfo(
        "DomainNet", ("clip", "info", "paint", "quick", "real", "sketch"), "DomainNet", 1000
    ),
    DatasetInfo(
        "SVIRO",
        ("aclass", "escape", "hilux", "i3", "lexus", "tesla", "tiguan", "tucson", "x5", "zoe"),
    ),
    DatasetInfo("WILDSCamelyon", tuple(f"hospital_{i}" for i in range(5)), "big", 100),
    DatasetInfo("WILDSFMoW", tuple(f"region_{i}" for i in range(6)), "big", 100),
)

DATASETS: Mapping[str, DatasetInfo] = {row.name: row for row in _ROWS}
"""The catalog by name, in the order in which tables list data sets."""
