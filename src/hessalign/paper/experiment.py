"""What an experiment of the paper consists of: rows, their runs, and what they are made into."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

from hessalign._errors import InputError
from hessalign._files import write_atomically
from hessalign.bench.algorithms import find_algorithm
from hessalign.bench.data.colored_mnist import Imbalance
from hessalign.bench.runs.irm import irm_job
from hessalign.bench.runs.job import Job
from hessalign.bench.runs.machine import describe_software
from hessalign.bench.sweep import Launcher
from hessalign.paper.cache import FinishedRun, MakeProgress, Part, finished_runs, no_progress

if TYPE_CHECKING:
    from hessalign.paper.sweeps import Results, Sweep

_Item = TypeVar("_Item")
_Display = Callable[[str, str], Callable[[int, int], None]]
"""From what is going on and what is counted: shows how many are done, and of how many."""

_FIGURE_FORMATS: Final = ("png", "svg")

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

    Attributes:
        launcher: What has runs done; None runs nothing and reports on the runs that are there.
        entries: What differs from the published protocol: values of all runs on Colored MNIST, or
            keys of sweeps.
        restarts: Runs of each row on Colored MNIST, with seeds `seed`, `seed + 1`, …
        seed: The first seed.
        cache: The folder of runs that experiments share.
        written: Where results are that were written before, from which tables of accuracies take
            what is not in the cache; None takes nothing.
        scale: Name of the size of experiments on DomainBed.
        data_dir: The folder that holds their data sets; None for that of the size.
        backbone: What is fine-tuned, or whose features; None for ResNet-50, or for the backbone of
            the only banks there are.
        sweeps: Folders of their sweeps, one for each head; or that of the one on a feature bank on
            which an experiment reports beside Colored MNIST.
        dataset: That feature bank; it is below `data_dir`.
        progress: Makes the display of runs that are done.
        display: Makes the display of long measurements on finished runs.
    """

    launcher: Launcher | None = None
    entries: Mapping[str, object] = field(default_factory=dict)
    restarts: int = 10
    seed: int = 0
    cache: Path = Path("outputs/runs")
    written: Path | None = None
    scale: str = "full"
    data_dir: str | None = None
    backbone: str | None = None
    sweeps: tuple[Path, ...] = ()
    dataset: str | None = None
    progress: MakeProgress = no_progress
    display: _Display = lambda title, unit: lambda done, total: None

    def __post_init__(self) -> None:
        if self.restarts < 1:
            raise InputError(f"Expected restarts of 1 or more, got {self.restarts}.")

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
class Method:
    """One row of a table.

    Attributes:
        title: What the row is called.
        algorithm: Name of the algorithm.
        options: Its options.
        published: The name of the row in the published table, if it is there.
    """

    title: str
    algorithm: str
    options: Mapping[str, object] = field(default_factory=dict)
    published: str | None = None

    def jobs(self, options: Options, imbalance: str | None) -> list[Job]:
        """The restarts of this row on one version of Colored MNIST."""
        for name, reason in _SETTLED.items():
            if name in options.entries:
                raise InputError(f"Expected no entry {name!r}: {reason}.")
        settled = {"imbalance": imbalance, "hessian_distance": True}
        values = {**self.options, **options.entries, **settled}
        first = irm_job(self.algorithm, options.seed, values)
        return [dataclasses.replace(first, trial_seed=seed) for seed in options.seeds]


@final
@dataclass(frozen=True)
class Report:
    """What an experiment is made into.

    Attributes:
        text: Markdown without a title.
        data: The numbers behind it, as plain JSON values.
        figures: By name, a function that draws the figure into a file.
    """

    text: str
    data: Mapping[str, Any]
    figures: Mapping[str, Callable[[Path], None]] = field(default_factory=dict)


@final
@dataclass(frozen=True)
class Finished:
    """What there is of the runs of an experiment.

    Attributes:
        options: Which were asked for.
        sweeps: The results of its sweeps.
    """

    options: Options
    sweeps: Sequence[Results] = ()

    def __call__(self, method: Method, imbalance: str | None) -> list[FinishedRun]:
        """The restarts of a row that are complete."""
        return finished_runs(self.options.cache, method.jobs(self.options, imbalance))


def _no_sweeps(options: Options) -> Sequence[Sweep]:
    """What an experiment on Colored MNIST has."""
    return ()


@final
@dataclass(frozen=True)
class Experiment:
    """One table or figure of the paper.

    Attributes:
        name: How it is called on the command line.
        title: What it shows.
        present: Makes the report from finished runs.
        rows: Its methods on Colored MNIST, each with the version of the data.
        sweeps: Its sweeps on DomainBed.
    """

    name: str
    title: str
    present: Callable[[Finished, Options], Report]
    rows: tuple[tuple[Method, str | None], ...] = ()
    sweeps: Callable[[Options], Sequence[Sweep]] = _no_sweeps

    @property
    def swept(self) -> bool:
        """Whether it is on DomainBed."""
        return self.sweeps is not _no_sweeps

    def cached(self, options: Options) -> Part | None:
        """Its runs on Colored MNIST, those of the first seed first; None if it has none."""
        found = [job for method, version in self.rows for job in method.jobs(options, version)]
        jobs = sorted(dict.fromkeys(found), key=lambda job: job.trial_seed)
        return Part(jobs, options.cache) if jobs else None


def write_report(experiment: Experiment, report: Report, command: str, folder: Path) -> Path:
    """Save a report: Markdown, JSON and figures."""
    name, title = experiment.name, experiment.title
    target = folder / name
    target.mkdir(parents=True, exist_ok=True)
    pictures = []
    for figure, draw in report.figures.items():
        for suffix in _FIGURE_FORMATS:
            draw(target / f"{figure}.{suffix}")
        pictures.append(f"![{title}]({figure}.{_FIGURE_FORMATS[0]})")
    page = "\n\n".join([f"# {title}", f"Made by `{command}`.", report.text, *pictures])
    content = {"experiment": name, "command": command, "software": describe_software()}
    text = json.dumps({**content, **report.data}, indent=1, ensure_ascii=False)
    write_atomically(target / f"{name}.json", (text + "\n").encode())
    path = target / f"{name}.md"
    write_atomically(path, (page + "\n").encode())
    return path


ERM: Final = Method("ERM", "erm", published="erm")
IRM: Final = Method("IRM", "irm", published="irm")
VREX: Final = Method("V-REx", "vrex", published="vrex")
FISHR: Final = Method("Fishr", "fishr", published="fishr")
HGP: Final = Method("HGP", "hgp", published="hgp")
_DIAGONAL: Final = Method("Exact diagonal", "diagonal")
FULL: Final = Method("Full Hessian", "full")
GRADIENT: Final = Method("Gradient only (α = 0)", "gradient", published="gradient")

IMBALANCED: Final[dict[str, Imbalance]] = {
    "imbalanced 95/5, as the paper says": "paper",
    "imbalanced as the released code builds it": "released",
}
"""Both readings of the imbalanced data, by title."""

VERSIONS: Final[dict[str, Imbalance | None]] = {"balanced": None, **IMBALANCED}
"""All versions of the data, by title."""

_RELEASED_PROBES: Final[dict[Imbalance | None, int]] = {None: 150, "paper": 200, "released": 200}
"""Probes of the released scripts; the text says 100."""

_PAPER_PROBES: Final = 100


def hutchinson(imbalance: Imbalance | None) -> Method:
    """Hutchinson with the probes of the released script."""
    probes = _RELEASED_PROBES[imbalance]
    title = f"Hutchinson, {probes} probes (released code)"
    return Method(title, "hutchinson", {"probes": probes}, "hutchinson")


def _expected(imbalance: Imbalance | None) -> Method:
    """The expectation of the released Hutchinson penalty."""
    return Method("Hutchinson, expected", "expected", {"probes": _RELEASED_PROBES[imbalance]})


def on_features(method: Method) -> Method:
    """The same algorithm where hyper-parameters are drawn: a row without options of its own."""
    return Method(find_algorithm(method.algorithm).title, method.algorithm)


def comparison(imbalance: Imbalance | None) -> tuple[Method, ...]:
    """The methods of Tables 2 and 3, and our variants."""
    printed = Method(
        f"Hutchinson, {_PAPER_PROBES} probes (paper)",
        "hutchinson",
        {"probes": _PAPER_PROBES},
        "hutchinson",
    )
    return (
        ERM,
        IRM,
        VREX,
        FISHR,
        HGP,
        hutchinson(imbalance),
        printed,
        _expected(imbalance),
        _DIAGONAL,
        FULL,
    )


def published_six(imbalance: Imbalance | None = None) -> tuple[Method, ...]:
    """The six methods of the paper's Colored MNIST experiments."""
    return (ERM, IRM, VREX, FISHR, HGP, hutchinson(imbalance))
