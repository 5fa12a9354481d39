"""Numbers the paper reports (Hemati et al., 2023), by table and by our names of the algorithms.

And whether ours agree with them, and with each other.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev, stdev
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


_HESSIAN: Final = ("error", "error_feature", "logit", "logit_feature", "logit_covariance")

TABLE_1: Final = {
    "vrex": ("loss",),
    "coral": ("feature", "covariance"),
    **dict.fromkeys(("iga", "fish"), ("error", "error_feature")),
    "fishr": ("loss", "error_feature"),
    **dict.fromkeys(("hgp", "hutchinson", "full"), _HESSIAN),
}
"""The ticks of Table 1: which attributes a method aligns. It has one row for Hessian alignment."""

TABLE_5: Final = {
    "erm": (15.3, 0.1),
    "coral": (32.0, 3.2),
    "vrex": (34.1, 2.3),
    "irm": (27.0, 4.6),
    "groupdro": (32.8, 2.9),
    "fishr": (25.3, 2.1),
    "hgp": (39.5, 4.4),
    "hutchinson": (62.4, 1.5),
}
"""Training time of 100 steps, mean and standard deviation over 10 runs; the unit is not given."""

TABLE_6: Final = {"both": 81.4, "gradient": 77.0, "hessian": 79.4}
"""Hutchinson on PACS, test domain sketch: which terms are aligned, with weights of 1e-5."""

DATASETS: Final = ("VLCS", "PACS", "OfficeHome", "DomainNet")
"""The data sets of Tables 4, 7 and 8, in their order."""

AVERAGE: Final = "average"  # the last column: the mean of the four
_DOMAINBED: Final = """\
erm        77.2 83.0 65.7 40.6 66.6 | 77.5 85.5 66.5 40.9 67.6 | 77.6 86.7 66.4 41.3 68.0
irm        76.3 81.5 64.3 33.5 63.9 | 78.5 83.5 64.3 33.9 65.1 | 76.9 84.5 63.0 28.0 63.1
groupdro   77.9 83.5 65.2 33.0 64.9 | 76.7 84.4 66.0 33.3 65.1 | 77.4 87.1 66.2 33.4 66.0
mixup      77.7 83.2 67.0 38.5 66.6 | 77.4 84.6 68.1 39.2 67.3 | 78.1 86.8 68.0 39.6 68.1
mldg       77.2 82.9 66.1 41.0 66.8 | 77.2 84.9 66.8 41.2 67.5 | 77.5 86.8 66.6 41.6 68.1
coral      78.7 82.6 68.5 41.1 67.7 | 78.8 86.2 68.7 41.5 68.8 | 77.7 87.1 68.4 41.8 68.8
mmd        77.3 83.2 60.2 23.4 61.0 | 77.5 84.6 66.3 23.4 63.0 | 77.9 87.2 66.2 23.5 63.7
dann       76.9 81.0 64.9 38.2 65.2 | 78.6 83.6 65.9 38.3 66.6 | 79.7 85.2 65.3 38.3 67.1
cdann      77.5 78.8 64.3 38.0 64.6 | 77.5 82.6 65.8 38.3 66.1 | 79.9 85.8 65.3 38.5 67.4
mtl        76.6 83.7 65.7 40.6 66.7 | 77.2 84.6 66.4 40.6 67.2 | 77.7 86.7 66.5 40.8 67.9
sagnet     77.5 82.3 67.6 40.2 66.9 | 77.8 86.3 68.1 40.3 68.1 | 77.6 86.4 67.5 40.8 68.1
arm        76.6 81.7 64.4 35.2 64.5 | 77.6 85.1 64.8 35.5 65.8 | 77.8 85.8 64.8 36.0 66.1
vrex       76.7 81.3 64.9 33.4 64.1 | 78.3 84.9 66.4 33.6 65.8 | 78.1 87.2 65.7 30.1 65.3
rsc        77.5 82.6 65.8 38.9 66.2 | 77.1 85.2 65.5 38.9 66.7 | 77.8 86.2 66.5 38.9 67.4
andmask       –    –    –    –    – | 78.1 84.4 65.5 37.2 66.3 | 76.4 86.4 66.1 37.9 66.7
sandmask      –    –    –    –    – | 77.4 84.6 65.8 32.1 65.0 | 76.2 85.9 65.9 32.2 65.1
fish          –    –    –    –    – | 77.8 85.5 68.6 42.7 68.7 | 77.8 85.8 66.0 42.7 68.1
fishr      78.2 85.4 67.8    –    – | 77.8 85.8 67.8 41.7 68.3 | 78.2 86.9 68.2 43.4 69.2
hgp        76.7 82.2 67.5 41.1 66.9 | 77.6 84.7 68.2 41.1 67.9 | 77.3 86.5 67.4 41.2 68.1
hutchinson 79.3 84.8 68.5 41.4 68.5 | 76.8 83.9 68.2 41.6 67.6 | 77.9 86.3 68.4 41.9 68.6
"""

_COLORED_MNIST: Final = """\
erm               86.4 0.2 14.0 0.7 | 86.4 0.1 16.7 0.1
irm               71.0 0.5 65.6 1.8 | 84.9 0.1 14.3 1.4
vrex              71.7 1.5 67.2 1.5 | 83.3 0.2 35.1 1.2
fishr             71.0 0.9 69.5 1.0 | 75.7 2.7 35.5 5.3
hgp               71.0 1.5 69.4 1.3 | 83.0 0.2 30.0 0.9
hutchinson        61.7 1.9 74.0 1.2 | 79.4 0.3 47.7 1.4
gradient          70.6 1.8 69.3 1.2 | 83.2 0.4 29.7 1.7
hgp_beta_0        78.9 0.3 53.3 1.7 | 84.3 0.1 20.4 1.0
hutchinson_beta_0 84.9 0.1  9.8 0.2 | 84.9 0.1  9.8 0.2
"""

PublishedTable = Mapping[str, Mapping[str, float]]
"""By our name of the algorithm, the accuracy by data set, and their average."""


def _block(text: str, number: int) -> dict[str, list[str]]:
    """One of the tables that stand side by side: cells by name of the row."""
    rows = [line.split(maxsplit=1) for line in text.splitlines()]
    return {name: cells.split("|")[number].split() for name, cells in rows}


def _colored_mnist(number: int) -> dict[str, Accuracy]:
    return {
        name: Accuracy(*map(float, cells)) for name, cells in _block(_COLORED_MNIST, number).items()
    }


def _domainbed(number: int) -> PublishedTable:
    """A table of DomainBed without what the paper does not have."""
    rows = {
        name: {
            column: float(cell)
            for column, cell in zip((*DATASETS, AVERAGE), cells, strict=True)
            if cell != "–"
        }
        for name, cells in _block(_DOMAINBED, number).items()
    }
    return {name: row for name, row in rows.items() if row}


TABLE_2: Final = _colored_mnist(0)
"""Colored MNIST, 10 restarts; the last three rows, of the ablation of α and β, from Table 9."""

TABLE_3: Final = _colored_mnist(1)
"""Imbalanced Colored MNIST, likewise from Table 10, whose last row is that of Table 9."""

TABLE_4: Final = _domainbed(0)
"""DomainBed by leave-one-domain-out cross-validation; Fishr was not finished on DomainNet.

The paper prints no spread for this table, nor for 6, 7 and 8.
"""

TABLE_7: Final = _domainbed(1)  # training-domain validation
TABLE_8: Final = _domainbed(2)  # validation on the test domain (oracle)
_TOLERANCE: Final = 2.0
"""Combined standard deviations that a difference may have and still count as reproduced."""

LEVEL: Final = 0.05  # chance of calling a difference clear where there is none, for one comparison


@final
@dataclass(frozen=True)
class Measured:
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


def measured(values: Collection[float]) -> Measured:
    """Mean and spread of some values."""
    return Measured(fmean(values), pstdev(values), len(values))


def or_dash(value: object, form: str = "") -> str:
    """A value as text, or a dash if there is none."""
    return "–" if value is None else format(value, form)


def measured_columns(curves: Sequence[Sequence[float]], form: str = ".1f") -> list[str]:
    """Mean and spread of curves at each of their places, as text."""
    return [measured(column).show(form, form) for column in zip(*curves, strict=True)]


def verdict(ours: Measured, published: float, published_std: float) -> str:
    """Whether a published number is reproduced, or by how many combined standard deviations not."""
    if ours.runs < 2:  # without a spread to judge by
        return "one run only"
    spread = math.hypot(ours.std, published_std)
    distance = abs(ours.mean - published) / spread if spread > 0 else math.inf
    if ours.mean == published:
        distance = 0.0
    return "reproduced" if distance <= _TOLERANCE else f"not reproduced ({distance:.1f} std)"


@final
@dataclass(frozen=True)
class Difference:
    """A mean difference over trials, with its standard error unless there is only one trial."""

    mean: float
    error: float | None
    trials: int

    def __str__(self) -> str:
        return f"{self.mean:+.1f}" + ("" if self.error is None else f" ± {self.error:.1f}")

    @property
    def clear(self) -> bool:
        """Whether it is farther from 0 than chance explains, by Student's t."""
        return self.error is not None and abs(self.mean) > clear_errors(self.trials) * self.error


def paired_difference(first: Mapping[int, float], second: Mapping[int, float]) -> Difference | None:
    """The mean difference over the trials that both have, if there are any."""
    values = [value - second[trial] for trial, value in first.items() if trial in second]
    if not values:
        return None
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return Difference(fmean(values), error, len(values))


def mean_by_trial(cells: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """The mean of several values by trial, of the trials that all of them have."""
    shared = [trial for trial in cells[0] if all(trial in cell for cell in cells)] if cells else ()
    return {trial: fmean(cell[trial] for cell in cells) for trial in shared}


def clear_errors(trials: int) -> float:
    """Standard errors beyond which a mean over trials is clearly not 0, by Student's t."""
    from scipy.stats import t

    return float(t.ppf(1 - LEVEL / 2, trials - 1))
