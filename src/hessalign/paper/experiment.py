"""What an experiment of the paper consists of: rows, their runs, and what they are made into.

Runs on Colored MNIST are in a folder that experiments share, and get there by any launcher.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

from hessalign._errors import InputError
from hessalign._numbers import check_count
from hessalign.bench.algorithms import ALGORITHMS
from hessalign.bench.data.catalog import COLORED_MNIST
from hessalign.bench.data.colored_mnist import Imbalance
from hessalign.bench.runs import Job, Record, Run, read_records, train_job
from hessalign.bench.runs.irm import IrmOptions, irm_job, settle
from hessalign.bench.runs.records import DONE, RESULTS
from hessalign.bench.sweep import (
    JobStatus,
    Launcher,
    SweepSpec,
    Work,
    open_sweep,
    sweep_status,
    training_work,
)
from hessalign.bench.sweep.progress import SweepProgress
from hessalign.report.page import render_template

if TYPE_CHECKING:
    from hessalign.paper.sweeps import Sweep

_Item = TypeVar("_Item")
_MakeProgress = Callable[[Sequence[JobStatus], Launcher], SweepProgress]
_Display = Callable[[str, str], Callable[[int, int], None]]
"""From what is going on and what is counted: shows how many are done, and of how many."""

_SETTLED: Final[Mapping[str, str]] = {
    "algorithm": "the rows of an experiment are its methods",
    "options": "each row has its own; name an option of all methods as KEY=VALUE",
    "imbalance": "an experiment has its version of the data",
    "seed": "restarts have seeds of their own, from --seed on",
    "hessian_distance": "the figures need it, so all runs measure it",
}
"""Values of a run on Colored MNIST that an experiment decides, and why."""


@final
@dataclass(frozen=True)
class Options:
    """How to reproduce.

    Runs on Colored MNIST have a few options of their own, sweeps on DomainBed others. An experiment
    on Colored MNIST may report beside it on the one sweep of a feature bank `dataset`, which is
    below `data_dir`.
    """

    launcher: Launcher | None = None  # None runs nothing and reports on the runs that are there
    # What differs from the published protocol: values of all runs on Colored MNIST, or sweep keys.
    entries: Mapping[str, object] = field(default_factory=dict)
    restarts: int = 10  # of each row on Colored MNIST, with seeds `seed`, `seed + 1`, …
    seed: int = 0
    cache: Path = Path("outputs/runs")  # the folder of runs that experiments share
    written: Path | None = None  # earlier results, for tables of accuracies to take from, or none
    scale: str = "full"  # size of experiments on DomainBed
    data_dir: str | None = None  # the folder that holds data sets; None for that of the size
    backbone: str | None = None  # None for ResNet-50, or for that of the only banks there are
    sweeps: tuple[Path, ...] = ()  # folders, one for each head
    dataset: str | None = None
    progress: _MakeProgress = lambda statuses, to: SweepProgress(statuses, to, StringIO())
    display: _Display = lambda title, unit: lambda done, total: None  # of long measurements

    def __post_init__(self) -> None:
        check_count(self.restarts, "restarts")

    @property
    def seeds(self) -> range:
        """The seeds of the restarts."""
        return range(self.seed, self.seed + self.restarts)

    def counted(self, items: Sequence[_Item], title: str, unit: str) -> Iterator[_Item]:
        """Things to go through one by one, with a display of how far it is."""
        show = self.display(title, unit)
        for number, item in enumerate(items, start=1):
            yield item
            show(number, len(items))


@final
@dataclass(frozen=True, eq=False)
class FinishedRun:
    """A complete run, of which only the records are in memory."""

    job: Job
    folder: Path
    records: Sequence[Record]

    @property
    def options(self) -> IrmOptions:
        """The options of a run on Colored MNIST."""
        return settle(self.job)[0]

    @property
    def final(self) -> Mapping[str, float]:
        """What the last evaluation measured."""
        return self.records[-1].metrics

    def load(self) -> Run:
        """The run with its network and its data, which are large: for one run at a time."""
        return train_job(self.job, self.folder, evaluate="all", keep_model=True)


def cached_runs(cache: Path, jobs: Iterable[Job]) -> list[FinishedRun]:
    """Those of some runs that are complete in the cache."""
    folders = {job: cache / job.folder for job in jobs}
    return [
        FinishedRun(job, folder, read_records(folder / RESULTS))
        for job, folder in folders.items()
        if (folder / DONE).exists()
    ]


def have_done(
    jobs: Sequence[Job],
    folder: Path,
    launcher: Launcher,
    progress: _MakeProgress,
    spec: SweepSpec | None = None,
) -> None:
    """Have the runs done that are not, in the cache or in the folder of the sweep that they are.

    A sweep that is there already keeps its own specification. In the cache, runs that failed are
    tried again.
    """
    before = sweep_status(folder, jobs)
    if all(status.state == "done" for status in before):
        return
    work: Work = partial(train_job, evaluate="all", keep_model=True)  # as `hessalign train` does
    if spec is not None:
        open_sweep(folder, spec, keep=True)
        work = training_work(spec)
    progress(before, launcher).run(folder, work, retry_failed=spec is None)


def run_name(job: Job) -> str:
    """What a run is called in a display: its algorithm and seed, where that says enough."""
    if job.dataset == COLORED_MNIST:
        return f"{job.algorithm} #{job.trial_seed}"
    return job.describe()


@final
@dataclass(frozen=True, eq=False)
class Method:
    """One row of a table: an algorithm with its options."""

    title: str
    algorithm: str
    options: Mapping[str, object] = field(default_factory=dict)
    published: str | None = None  # its name in the published table, if not that of the algorithm

    def jobs(self, options: Options, imbalance: str | None) -> list[Job]:
        """The restarts of this row on one version of Colored MNIST."""
        for name, reason in _SETTLED.items():
            if name in options.entries:
                raise InputError(f"Expected no entry {name!r}: {reason}.")
        settled = {"imbalance": imbalance, "hessian_distance": True}
        values = {**self.options, **options.entries, **settled}
        first = irm_job(self.algorithm, options.seed, values)
        return [dataclasses.replace(first, trial_seed=seed) for seed in options.seeds]

    def entry(self, **values: object) -> dict[str, Any]:
        """What was measured of this row, as plain JSON values."""
        return {"method": self.title, "algorithm": self.algorithm, **values}


def plain(*algorithms: str) -> tuple[Method, ...]:
    """Rows without options of their own."""
    return tuple(Method(ALGORITHMS[name].title, name) for name in algorithms)


@final
@dataclass(frozen=True)
class Report:
    """What an experiment is made into: paragraphs, numbers, and figures to draw.

    The first paragraph is what a reader has to know; `readings.md.j2` has its words.
    """

    texts: Sequence[str]  # in Markdown, without a title
    data: Mapping[str, Any]  # of JSON values and dataclasses
    figures: Mapping[str, Callable[[Path], None]] = field(default_factory=dict)
    facts: Mapping[str, object] = field(default_factory=dict)  # of the reading that comes first


@final
@dataclass(frozen=True)
class Finished:
    """What there is of the runs of an experiment: those in the cache, and those of its sweeps."""

    options: Options
    sweeps: Sequence[Sweep] = ()

    def __call__(self, method: Method, imbalance: str | None = None) -> list[FinishedRun]:
        """The restarts of a row that are complete."""
        return cached_runs(self.options.cache, method.jobs(self.options, imbalance))

    def measure(
        self,
        methods: Sequence[Method],
        measure: Callable[[Run], Mapping[str, Any]],
        title: str,
        unit: str = "runs",
    ) -> dict[Method, dict[str, list[Any]]]:
        """What is measured of complete runs on balanced data, by row and name a list."""
        found: dict[Method, dict[str, list[Any]]] = {}
        runs = [(method, run) for method in methods for run in self(method)]
        for method, run in self.options.counted(runs, title, unit):
            for name, value in measure(run.load()).items():
                found.setdefault(method, {}).setdefault(name, []).append(value)
        return found


@final
@dataclass(frozen=True)
class Experiment:
    """One table or figure of the paper, made from runs on Colored MNIST or sweeps on DomainBed."""

    name: str
    title: str
    present: Callable[[Finished], Report]
    rows: Mapping[Imbalance | None, Sequence[Method]] = field(default_factory=dict)
    sweeps: Callable[[Options], Sequence[Sweep]] | None = None

    @property
    def swept(self) -> bool:
        """Whether it is on DomainBed."""
        return self.sweeps is not None

    def cached_jobs(self, options: Options) -> list[Job]:
        """Its runs on Colored MNIST, those of the first seed first."""
        found = [
            job
            for version, methods in self.rows.items()
            for method in methods
            for job in method.jobs(options, version)
        ]
        return sorted(dict.fromkeys(found), key=lambda job: job.trial_seed)


def reading(part: str, **facts: object) -> str:
    """What a reader has to know of an experiment, or of a part of it."""
    return render_template(__package__, "readings.md.j2", part=part, **facts)


def no_runs(titles: Sequence[str]) -> list[str]:
    """Nothing, or a paragraph on which methods have no runs."""
    return [f"No runs yet: {', '.join(titles)}."] if titles else []


IMBALANCED: Final[dict[str, Imbalance | None]] = {
    "imbalanced 95/5, as the paper says": "paper",
    "imbalanced as the released code builds it": "released",
}
"""Both readings of the imbalanced data, by title."""

_RELEASED_PROBES: Final[dict[Imbalance | None, int]] = {None: 150, "paper": 200, "released": 200}
"""Probes of the released scripts."""

_PAPER_PROBES: Final = 100


def hutchinson(imbalance: Imbalance | None) -> Method:
    """Hutchinson with the probes of the released script."""
    probes = _RELEASED_PROBES[imbalance]
    title = f"Hutchinson, {probes} probes (released code)"
    return Method(title, "hutchinson", {"probes": probes})


def paper_six(imbalance: Imbalance | None = None) -> tuple[Method, ...]:
    """The six methods of the paper's Colored MNIST experiments."""
    return (*plain("erm", "irm", "vrex", "fishr", "hgp"), hutchinson(imbalance))


def comparison(imbalance: Imbalance | None) -> tuple[Method, ...]:
    """The methods of Tables 2 and 3, and our variants."""
    title = f"Hutchinson, {_PAPER_PROBES} probes (paper)"
    return (
        *paper_six(imbalance),
        Method(title, "hutchinson", {"probes": _PAPER_PROBES}),
        Method("Hutchinson, expected", "expected", {"probes": _RELEASED_PROBES[imbalance]}),
        *plain("diagonal", "full"),
    )
