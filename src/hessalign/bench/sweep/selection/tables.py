"""Tables of results as data: one per data set, and one of averages over domains.

A cell averages over trials. What it lacks, it says: a trial without a value, or one whose choice
was made among fewer hyper-parameter seeds than the sweep has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from hessalign.bench.data.catalog import DATASETS, catalog_entry
from hessalign.bench.sweep.selection.methods import Candidate, Runs, Selection, choose
from hessalign.bench.sweep.selection.reading import Run

_ALGORITHM_ORDER: Final = (
    "ERM", "Fish", "IRM", "GroupDRO", "Mixup", "MLDG", "CORAL", "MMD", "DANN", "CDANN", "MTL",
    "SagNet", "ARM", "VREx", "RSC", "SD", "ANDMask", "SANDMask", "IGA", "SelfReg", "Fishr", "TRM",
    "IB_ERM", "IB_IRM", "CAD", "CondCAD", "Transfer", "CausIRL_CORAL", "CausIRL_MMD",
)  # fmt: skip
"""DomainBed's order of algorithms; others follow by name."""


@final
@dataclass(frozen=True, slots=True)
class Cell:
    """Results of an algorithm on one domain, or on average over the domains of a data set.

    Attributes:
        trials: Trial seeds that have a value.
        values: Accuracy of each of these trials, as a fraction.
        chosen: The candidate behind each value; empty for averages.
        reasons: What is missing and why; empty if nothing is.
    """

    trials: tuple[int, ...]
    values: tuple[float, ...]
    chosen: tuple[Candidate, ...] = ()
    reasons: tuple[str, ...] = ()

    @property
    def mean(self) -> float | None:
        """Mean over trials in percent; None without trials."""
        return 100 * float(np.mean(self.values)) if self.values else None

    @property
    def error(self) -> float | None:
        """Standard error of the mean in percent, from the population's deviation."""
        if not self.values:
            return None
        return 100 * float(np.std(np.array(self.values) / np.sqrt(len(self.values))))


@final
@dataclass(frozen=True, slots=True)
class Row:
    """Results of an algorithm.

    Attributes:
        algorithm: Its name.
        cells: One per column.
    """

    algorithm: str
    cells: tuple[Cell, ...]

    @property
    def average(self) -> float | None:
        """Mean of the cells' means in percent; None if one has none."""
        means = [cell.mean for cell in self.cells]
        present = [mean for mean in means if mean is not None]
        return sum(present) / len(present) if len(present) == len(means) else None


@final
@dataclass(frozen=True, slots=True)
class Table:
    """Results under one method of selection.

    Attributes:
        selection: The method.
        dataset: The data set; None for the averages of all.
        columns: Domains, or data sets for the averages.
        rows: One per algorithm.
        trials: Trial seeds that there are, with or without values.
    """

    selection: Selection
    dataset: str | None
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    trials: tuple[int, ...]

    def without_value(self, row: Row) -> list[str]:
        """The columns in which a row has no value."""
        return [
            column
            for column, cell in zip(self.columns, row.cells, strict=True)
            if cell.mean is None
        ]


_Seeds = dict[int, dict[tuple[int, ...], Run]]
_Trials = dict[int, _Seeds]


def build_tables(runs: Sequence[Run], selections: Iterable[Selection]) -> list[Table]:
    """Select models and tabulate their accuracies.

    Args:
        runs: Runs with different keys.
        selections: Methods of selection.

    Returns:
        For each method a table per data set, then the averages; data sets and algorithms in
        DomainBed's order, those it does not know after the others by name.
    """
    index: dict[str, dict[str, _Trials]] = {}
    for run in runs:
        trials = index.setdefault(run.key.dataset, {}).setdefault(run.key.algorithm, {})
        seeds = trials.setdefault(run.key.trial_seed, {})
        seeds.setdefault(run.key.hparams_seed, {})[run.key.test_domains] = run
    datasets = _ordered(index, DATASETS)
    algorithms = _ordered({run.key.algorithm for run in runs}, _ALGORITHM_ORDER)
    tables = []
    for selection in selections:
        group = [_dataset_table(selection, name, index[name], algorithms) for name in datasets]
        tables += [*group, _averages_table(selection, group, algorithms)]
    return tables


def _ordered(names: Iterable[str], known: Iterable[str]) -> list[str]:
    remaining = set(names)
    first = [name for name in known if name in remaining]
    return first + sorted(remaining - set(first))


def _dataset_table(
    selection: Selection, dataset: str, index: Mapping[str, _Trials], algorithms: Sequence[str]
) -> Table:
    all_trials = list(index.values())
    trial_seeds = sorted({trial for trials in all_trials for trial in trials})
    hparams_seeds = sorted(
        {seed for trials in all_trials for seeds in trials.values() for seed in seeds}
    )
    runs = [
        run
        for trials in all_trials
        for seeds in trials.values()
        for group in seeds.values()
        for run in group.values()
    ]
    domains = max(run.domains for run in runs)
    columns = _domain_names(dataset, runs, domains)
    rows = []
    for algorithm in algorithms:
        if algorithm in index:
            trials = index[algorithm]
            cells = tuple(
                _cell(selection, trials, trial_seeds, hparams_seeds, domain)
                for domain in range(domains)
            )
        else:
            cells = (Cell((), (), reasons=(f"no run of {algorithm} on {dataset}",)),) * domains
        rows.append(Row(algorithm, cells))
    return Table(selection, dataset, columns, tuple(rows), tuple(trial_seeds))


def _domain_names(dataset: str, runs: Sequence[Run], domains: int) -> tuple[str, ...]:
    """What the catalog calls the domains, else what records do, else their numbers."""
    info = catalog_entry(dataset)
    names = {} if info is None else {info.domains: None}
    names |= dict.fromkeys(run.domain_names for run in runs)
    numbers = tuple(map(str, range(domains)))
    return next((found for found in names if len(found) == domains), numbers)


def _cell(
    selection: Selection,
    trials: _Trials,
    trial_seeds: Sequence[int],
    hparams_seeds: Sequence[int],
    domain: int,
) -> Cell:
    chosen: dict[int, Candidate] = {}
    problems: dict[int, list[str]] = {}
    for trial in trial_seeds:
        seeds = trials.get(trial, {})
        none: Runs = {}
        outcomes = {
            seed: selection.candidate(seeds.get(seed, none), domain) for seed in hparams_seeds
        }
        candidates = [found for found in outcomes.values() if isinstance(found, Candidate)]
        if candidates:
            chosen[trial] = choose(candidates)
        problems[trial] = _seed_problems(
            {seed: found for seed, found in outcomes.items() if isinstance(found, str)},
            every=not candidates,
        )
    return Cell(
        trials=tuple(chosen),
        values=tuple(candidate.test for candidate in chosen.values()),
        chosen=tuple(chosen.values()),
        reasons=_trial_problems(problems),
    )


def _seed_problems(problems: Mapping[int, str], *, every: bool) -> list[str]:
    """Problems of hyper-parameter seeds, each with its seeds unless all have the same one."""
    seeds: dict[str, list[int]] = {}
    for seed, problem in problems.items():
        seeds.setdefault(problem, []).append(seed)
    if every and len(seeds) == 1:
        return list(seeds)
    return [f"{_counted('hyper-parameter seed', found)}: {text}" for text, found in seeds.items()]


def _trial_problems(problems: Mapping[int, Sequence[str]]) -> tuple[str, ...]:
    trials: dict[str, list[int]] = {}
    for trial, found in problems.items():
        for problem in found:
            trials.setdefault(problem, []).append(trial)
    return tuple(f"{_counted('trial', found)}: {text}" for text, found in trials.items())


def _counted(noun: str, numbers: Sequence[int]) -> str:
    """Numbers with their noun; long lists are cut."""
    shown = ", ".join(map(str, numbers[:8]))
    more = f" and {len(numbers) - 8} more" if len(numbers) > 8 else ""
    return f"{noun}{'s' * (len(numbers) > 1)} {shown}{more}"


def _averages_table(
    selection: Selection, tables: Sequence[Table], algorithms: Sequence[str]
) -> Table:
    rows = tuple(
        Row(algorithm, tuple(_average_cell(table, table.rows[i]) for table in tables))
        for i, algorithm in enumerate(algorithms)
    )
    datasets = tuple(table.dataset or "" for table in tables)
    trials = tuple(sorted({trial for table in tables for trial in table.trials}))
    return Table(selection, None, datasets, rows, trials)


def _average_cell(table: Table, row: Row) -> Cell:
    values: dict[int, float] = {}
    problems: dict[int, list[str]] = {}
    for trial in table.trials:
        present = {
            column: cell.values[cell.trials.index(trial)]
            for column, cell in zip(table.columns, row.cells, strict=True)
            if trial in cell.trials
        }
        if present:
            values[trial] = float(np.mean(list(present.values())))
        absent = [column for column in table.columns if column not in present]
        if absent and present:
            problems[trial] = [f"no value for {', '.join(absent)}, average of the others"]
        elif absent:
            problems[trial] = [f"no value on any domain of {table.dataset}"]
    reasons = _trial_problems(problems)
    if not values:
        reasons = (f"no value on any domain of {table.dataset}",)
    return Cell(tuple(values), tuple(values.values()), reasons=reasons)
