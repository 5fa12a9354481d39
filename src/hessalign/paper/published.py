"""Numbers the paper reports (Hemati et al., 2023), by table and by our names of the algorithms.

And whether ours agree with them, and with each other.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from statistics import fmean, pstdev
from typing import Final, final


@final
@dataclass(frozen=True)
class Accuracy:
    """Published accuracies in percent, on training and unseen domains, each with its spread."""

    train: float
    train_std: float
    test: float
    test_std: float

    @property
    def cells(self) -> list[str]:
        """Both as text."""
        return [f"{self.train} ± {self.train_std}", f"{self.test} ± {self.test_std}"]


PublishedTable = Mapping[str, Mapping[str, float]]
"""By our name of the algorithm, the accuracy by data set, and their average."""

DATASETS: Final = ("VLCS", "PACS", "OfficeHome", "DomainNet")
"""The data sets of Tables 4, 7 and 8, in their order."""

AVERAGE: Final = "average"  # the last column: the mean of the four
_TABLES: Final = json.loads(files(__package__).joinpath("published.json").read_bytes())


def _accuracies(number: int) -> dict[str, Accuracy]:
    return {name: Accuracy(*row) for name, row in _TABLES[str(number)].items()}


def _domainbed(number: int) -> PublishedTable:
    """A table of DomainBed without what the paper does not have."""
    return {
        name: {
            column: value
            for column, value in zip((*DATASETS, AVERAGE), row, strict=True)
            if value is not None
        }
        for name, row in _TABLES[str(number)].items()
    }


TABLE_1: Final[Mapping[str, Sequence[str]]] = _TABLES["1"]
"""The ticks of Table 1: which attributes a method aligns. It has one row for Hessian alignment."""

TABLE_2: Final = _accuracies(2)
"""Colored MNIST, 10 restarts; the last three rows, of the ablation of α and β, from Table 9."""

TABLE_3: Final = _accuracies(3)
"""Imbalanced Colored MNIST, likewise from Table 10, whose last row is that of Table 9."""

TABLE_4: Final = _domainbed(4)
"""DomainBed by leave-one-domain-out cross-validation; Fishr was not finished on DomainNet.

The paper prints no spread for this table, nor for 6, 7 and 8.
"""

TABLE_5: Final[Mapping[str, Sequence[float]]] = _TABLES["5"]
"""Training time of 100 steps, mean and standard deviation over 10 runs; the unit is not given."""

TABLE_6: Final[Mapping[str, float]] = _TABLES["6"]
"""Hutchinson on PACS, test domain sketch: which terms are aligned, with weights of 1e-5."""

TABLE_7: Final = _domainbed(7)  # training-domain validation
TABLE_8: Final = _domainbed(8)  # validation on the test domain (oracle)
_TOLERANCE: Final = 2.0
"""Combined standard deviations that a difference may have and still count as reproduced."""


@final
@dataclass(frozen=True)
class _Measured:
    """Mean and spread over restarts; the latter is that of a population, as the published ones."""

    mean: float
    std: float
    runs: int

    def __str__(self) -> str:
        return self.show(".1f", ".1f")

    def show(self, mean: str, std: str) -> str:
        """The summary as text, for example "71.0 ± 0.5"; one run alone has no spread to show."""
        text = format(self.mean, mean)
        return f"{text} ± {format(self.std, std)}" if self.runs > 1 else text


def measured(values: Collection[float]) -> _Measured:
    """Mean and spread of some values."""
    return _Measured(fmean(values), pstdev(values), len(values))


def or_dash(value: object, form: str = "") -> str:
    """A value as text, or a dash if there is none."""
    return "–" if value is None else format(value, form)


def measured_columns(curves: Sequence[Sequence[float]], form: str = ".1f") -> list[str]:
    """Mean and spread of curves at each of their places, as text."""
    return [measured(column).show(form, form) for column in zip(*curves, strict=True)]


def verdict(ours: _Measured, published: float, published_std: float) -> str:
    """Whether a published number is reproduced, or by how many combined standard deviations not."""
    if ours.runs < 2:  # without a spread to judge by
        return "one run only"
    spread = math.hypot(ours.std, published_std)
    distance = abs(ours.mean - published) / spread if spread > 0 else math.inf
    if ours.mean == published:
        distance = 0.0
    return "reproduced" if distance <= _TOLERANCE else f"not reproduced ({distance:.1f} std)"


def mean_by_trial(cells: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """The mean of several values by trial, of the trials that all of them have."""
    shared = [trial for trial in cells[0] if all(trial in cell for cell in cells)] if cells else ()
    return {trial: fmean(cell[trial] for cell in cells) for trial in shared}
