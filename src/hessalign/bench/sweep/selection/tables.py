"""Model selection, and tables of its results as data: one per data set, and one of averages.

Which step of which run stands for an algorithm on an unseen domain is decided by one of three
methods, as DomainBed defines them. Each looks at the runs of one hyper-parameter seed of one trial
and returns its candidate; `choose` then takes the best candidate over the seeds. Whatever the
method, the accuracy reported is that on the larger part ("in") of the test domain.

A cell of a table averages over trials. What it lacks, it says: a trial without a value, or one
whose choice was made among fewer hyper-parameter seeds than the sweep has. Two methods are compared
on the same trials and domains; their difference says whether chance explains it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean, stdev
from typing import Final, NamedTuple, TypeVar, final

import numpy as np

from hessalign._errors import check_name, some
from hessalign.bench.data.catalog import DATASETS, catalog_entry
from hessalign.bench.sweep.selection.reading import Record, Run, braces
from hessalign.report.tables import grouped

_SHOWN: Final = 8  # trials, or draws, that lack the same

Runs = Mapping[tuple[int, ...], Run]
"""Runs of one data set, algorithm, trial and hyper-parameter seed, by test domains."""


@final
class Candidate(NamedTuple):
    """A step of a run with one test domain: the accuracies it is judged by, and that it reports."""

    validation: float
    test: float
    step: int
    run: Run

    @property
    def domain(self) -> int:
        """The test domain."""
        return self.run.key.test_domains[0]

    @property
    def distance(self) -> float | None:
        """That between the Hessians of training domains, if it was measured."""
        steps = [record.step for record in self.run.records]
        return self.run.distances[steps.index(self.step)] if self.run.distances else None


@final
@dataclass(frozen=True)
class Selection:
    """A method of model selection.

    Attributes:
        name: How it is called on the command line.
        title: How tables call it, in DomainBed's words.
        candidate: From the runs of one hyper-parameter seed, by their test domains, and a test
            domain to the candidate, or why there is none.
        pairs: Whether it needs runs that leave out two domains.
    """

    name: str
    title: str
    candidate: Callable[[Runs, int], Candidate | str]
    pairs: bool = False


def training_domain(runs: Runs, test_domain: int) -> Candidate | str:
    """Best mean accuracy on the held-out parts of the training domains, over all steps.

    Returns:
        As `Selection` says; the earliest of equals.
    """
    run = _single(runs, test_domain, least=2)
    if isinstance(run, str):
        return run
    judged = [
        (record, record.outer[:test_domain] + record.outer[test_domain + 1 :])
        for record in run.records
    ]
    return _best(run, test_domain, judged)


def leave_one_out(runs: Runs, test_domain: int) -> Candidate | str:
    """Best mean accuracy on training domains that were left out in turn, over all steps.

    The accuracy on domain v comes from the run with test domains {t, v}, on the larger part of v.
    Steps that not all runs recorded are dropped.

    Returns:
        As `Selection` says; the earliest of equals.
    """
    single = _single(runs, test_domain, least=2)
    if isinstance(single, str):
        return single
    pairs = {
        domain: (min(domain, test_domain), max(domain, test_domain))
        for domain in range(single.domains)
        if domain != test_domain
    }
    missing = [pair for pair in pairs.values() if pair not in runs]
    if missing:
        return _without(missing)
    left_out = [
        {record.step: record.test(domain) for record in runs[pair].records}
        for domain, pair in pairs.items()
    ]
    judged = [
        (record, [accuracies[record.step] for accuracies in left_out])
        for record in single.records
        if all(record.step in accuracies for accuracies in left_out)
    ]
    if not judged:
        return f"no step recorded by all of its {len(pairs) + 1} runs"
    return _best(single, test_domain, judged)


def oracle(runs: Runs, test_domain: int) -> Candidate | str:
    """Accuracy on the held-out part of the test domain itself, at the last step only."""
    run = _single(runs, test_domain)
    if isinstance(run, str):
        return run
    last = run.records[-1]
    return Candidate(last.outer[test_domain], last.test(test_domain), last.step, run)


_ROWS = (
    Selection("training-domain", "training-domain validation set", training_domain),
    Selection("leave-one-out", "leave-one-domain-out cross-validation", leave_one_out, pairs=True),
    Selection("oracle", "test-domain validation set (oracle)", oracle),
)

SELECTIONS: Mapping[str, Selection] = {row.name: row for row in _ROWS}
"""The methods by name, in the order in which results list them."""


def find_selection(name: str) -> Selection:
    """A method by its name; another name raises an UnknownNameError."""
    check_name("selection method", name, SELECTIONS)
    return SELECTIONS[name]


def choose(candidates: Iterable[Candidate]) -> Candidate:
    """The best candidate; of equals that of the largest hyper-parameter seed, as in DomainBed."""
    return max(
        candidates, key=lambda candidate: (candidate.validation, candidate.run.key.hparams_seed)
    )


def _single(runs: Runs, test_domain: int, least: int = 1) -> Run | str:
    """The run with one test domain, if it has so many domains; or why there is none."""
    run = runs.get((test_domain,))
    if run is None:
        return _without([(test_domain,)])
    return run if run.domains >= least else "no training domain"


def _best(
    run: Run, test_domain: int, judged: Iterable[tuple[Record, Sequence[float]]]
) -> Candidate:
    """The step with the best mean of accuracies, the earliest of equals."""
    candidates = (
        Candidate(float(np.mean(values)), record.test(test_domain), record.step, run)
        for record, values in judged
    )
    return max(candidates, key=lambda candidate: (candidate.validation, -candidate.step))


def _without(sets: Iterable[tuple[int, ...]]) -> str:
    return f"no run with test domains {', '.join(map(braces, sets))}"


_ALGORITHM_ORDER: Final = (
    "ERM", "ERMPlusPlus", "Fish", "IRM", "GroupDRO", "Mixup", "MLDG", "CORAL", "MMD", "DANN",
    "CDANN", "MTL", "SagNet", "ARM", "VREx", "RSC", "SD", "ANDMask", "SANDMask", "IGA", "SelfReg",
    "Fishr", "TRM", "IB_ERM", "IB_IRM", "CAD", "CondCAD", "Transfer", "CausIRL_CORAL",
    "CausIRL_MMD", "EQRM", "RDM", "ADRMX", "URM",
)  # fmt: skip
"""DomainBed's order of algorithms; others follow by name."""


@final
@dataclass(frozen=True, slots=True)
class Cell:
    """Results of an algorithm on one domain, or on average over the domains of a data set.

    The trials that have an accuracy, a fraction, the candidate behind each, which averages have
    not, and what is missing and why.
    """

    trials: tuple[int, ...]
    values: tuple[float, ...]
    chosen: tuple[Candidate, ...] = ()
    reasons: tuple[str, ...] = ()

    @property
    def by_trial(self) -> dict[int, float]:
        """The values by trial."""
        return dict(zip(self.trials, self.values, strict=True))

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
    """Results of an algorithm, a cell per column."""

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
    """Results under one method of selection, a row per algorithm.

    Columns are the domains of a data set; if that is None, data sets with their averages. Trials
    are all that there are, with or without values.
    """

    selection: Selection
    dataset: str | None
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    trials: tuple[int, ...]

    def without_value(self, row: Row) -> list[str]:
        """The columns in which a row has no value."""
        pairs = zip(self.columns, row.cells, strict=True)
        return [column for column, cell in pairs if cell.mean is None]

    @property
    def best(self) -> tuple[float | None, ...]:
        """The highest mean of each column and of the averages, to a tenth; None if fewer than 2."""
        columns = [[row.cells[i].mean for row in self.rows] for i in range(len(self.columns))]
        columns.append([row.average for row in self.rows])
        found = ([round(mean, 1) for mean in each if mean is not None] for each in columns)
        return tuple(max(means) if len(means) > 1 else None for means in found)

    def cells(self) -> Iterator[tuple[str, str, Cell]]:
        """All cells, each with its algorithm and its column."""
        for row in self.rows:
            for column, cell in zip(self.columns, row.cells, strict=True):
                yield row.algorithm, column, cell


def build_tables(runs: Sequence[Run], selections: Iterable[Selection]) -> list[Table]:
    """Select models and tabulate their accuracies.

    Returns:
        For each method a table per data set, then the averages; data sets and algorithms in
        DomainBed's order, those it does not know after the others by name.
    """
    by_dataset = grouped(runs, lambda run: run.key.dataset)
    datasets = _ordered(by_dataset, DATASETS)
    algorithms = _ordered({run.key.algorithm for run in runs}, _ALGORITHM_ORDER)
    tables = []
    for selection in selections:
        group = [_dataset_table(selection, name, by_dataset[name], algorithms) for name in datasets]
        tables += [*group, _averages_table(selection, group, algorithms)]
    return tables


def _ordered(names: Iterable[str], known: Iterable[str]) -> list[str]:
    remaining = set(names)
    first = [name for name in known if name in remaining]
    return first + sorted(remaining - set(first))


def _dataset_table(
    selection: Selection, dataset: str, runs: Sequence[Run], algorithms: Sequence[str]
) -> Table:
    groups: dict[tuple[str, int, int], dict[tuple[int, ...], Run]] = {}
    for run in runs:
        key = run.key
        group = groups.setdefault((key.algorithm, key.trial_seed, key.hparams_seed), {})
        group[key.test_domains] = run
    names, trials, seeds = (sorted(set(found)) for found in zip(*groups, strict=True))
    domains = max(run.domains for run in runs)
    rows = []
    for algorithm in algorithms:
        cells = (Cell((), (), reasons=(f"no run of {algorithm} on {dataset}",)),) * domains
        if algorithm in names:
            found = {
                trial: {seed: groups.get((algorithm, trial, seed), {}) for seed in seeds}
                for trial in trials
            }
            cells = tuple(_cell(selection, found, domain) for domain in range(domains))
        rows.append(Row(algorithm, cells))
    return Table(
        selection, dataset, _domain_names(dataset, runs, domains), tuple(rows), tuple(trials)
    )


def _domain_names(dataset: str, runs: Sequence[Run], domains: int) -> tuple[str, ...]:
    """What the catalog calls the domains, else what records do, else their numbers."""
    info = catalog_entry(dataset)
    names = [*([] if info is None else [info.domains]), *(run.domain_names for run in runs)]
    numbers = tuple(map(str, range(domains)))
    return next((found for found in names if len(found) == domains), numbers)


def _cell(selection: Selection, trials: Mapping[int, Mapping[int, Runs]], domain: int) -> Cell:
    """The choice of each trial among its hyper-parameter seeds."""
    chosen: dict[int, Candidate] = {}
    problems: list[tuple[int, str]] = []
    for trial, seeds in trials.items():
        outcomes = {seed: selection.candidate(runs, domain) for seed, runs in seeds.items()}
        candidates = [found for found in outcomes.values() if isinstance(found, Candidate)]
        failed = [(seed, found) for seed, found in outcomes.items() if isinstance(found, str)]
        reasons = _by_problem("hyper-parameter seed", failed)
        if candidates:
            chosen[trial] = choose(candidates)
        elif len(reasons) == 1:  # all seeds have the same
            reasons = (failed[0][1],)
        problems += [(trial, reason) for reason in reasons]
    values = tuple(candidate.test for candidate in chosen.values())
    return Cell(tuple(chosen), values, tuple(chosen.values()), _by_problem("trial", problems))


def _by_problem(noun: str, problems: Iterable[tuple[int, str]]) -> tuple[str, ...]:
    """Problems, each with the numbers of those that have it; long lists are cut."""
    lines = []
    for problem, group in grouped(problems, lambda pair: pair[1]).items():
        found = [number for number, _ in group]
        lines.append(f"{noun}{'s' * (len(found) > 1)} {some(found, _SHOWN)}: {problem}")
    return tuple(lines)


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
    problems: list[tuple[int, str]] = []
    nothing = f"no value on any domain of {table.dataset}"
    for trial in table.trials:
        present = {
            column: cell.by_trial[trial]
            for column, cell in zip(table.columns, row.cells, strict=True)
            if trial in cell.trials
        }
        absent = [column for column in table.columns if column not in present]
        if present:
            values[trial] = float(np.mean(list(present.values())))
        if absent:
            partial = f"no value for {', '.join(absent)}, average of the others"
            problems.append((trial, partial if present else nothing))
    reasons = _by_problem("trial", problems) if values else (nothing,)
    return Cell(tuple(values), tuple(values.values()), reasons=reasons)


LEVEL: Final = 0.05  # chance of calling a difference clear where there is none, for one comparison

_Key = TypeVar("_Key", bound=Hashable)


@final
@dataclass(frozen=True)
class Difference:
    """A mean difference over pairs, with its standard error unless there is only one pair."""

    mean: float
    error: float | None
    pairs: int

    def __str__(self) -> str:
        return f"{self.mean:+.1f}" + ("" if self.error is None else f" ± {self.error:.1f}")

    @property
    def interval(self) -> tuple[float, float] | None:
        """Where the mean lies but for chance, by Student's t: 95 % of such intervals hold it."""
        if self.error is None:
            return None
        width = clear_errors(self.pairs) * self.error
        return self.mean - width, self.mean + width

    @property
    def clear(self) -> bool:
        """Whether it is farther from 0 than chance explains, by Student's t."""
        return self.interval is not None and not self.interval[0] <= 0 <= self.interval[1]


def paired_difference(
    first: Mapping[_Key, float], second: Mapping[_Key, float]
) -> Difference | None:
    """The mean difference over the keys, such as trials, that both have.

    Returns:
        The difference; None if they share no key.

    Example:
        >>> found = paired_difference({0: 71.0, 1: 73.0, 2: 72.0}, {0: 70.0, 1: 71.0, 2: 70.5})
        >>> str(found), found.clear, [round(end, 2) for end in found.interval]
        ('+1.5 ± 0.3', True, [0.26, 2.74])
    """
    values = [value - second[key] for key, value in first.items() if key in second]
    if not values:
        return None
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return Difference(fmean(values), error, len(values))


@cache
def clear_errors(pairs: int) -> float:
    """Standard errors beyond which a mean over pairs is clearly not 0, by Student's t."""
    from scipy.stats import t

    return float(t.ppf(1 - LEVEL / 2, pairs - 1))
