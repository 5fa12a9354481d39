"""What an experiment of the paper consists of: runs, and what they are made into."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar, final

from hessalign._errors import InputError
from hessalign._files import write_atomically
from hessalign.bench.runs import ColoredMnistConfig, Run
from hessalign.bench.runs.entries import make_configuration
from hessalign.bench.runs.provenance import describe_software
from hessalign.paper.feature_sweep import FeatureSweep

FIGURE_FORMATS = ("png", "svg")

Item = TypeVar("Item")
Display = Callable[[str, str], Callable[[int, int], None]]
"""From what is going on and what is counted: shows how many are done, and of how many."""

SETTLED: Final[Mapping[str, str]] = {
    "algorithm": "the rows of an experiment are its methods",
    "options": "each row has its own; name an option of all methods as KEY=VALUE",
    "imbalance": "an experiment has its version of the data",
    "seed": "restarts have seeds of their own, from --seed on",
    "hessian_distance": "the figures need it, so all runs measure it",
}
"""Entries of a configuration that an experiment decides, and why."""


@final
@dataclass(frozen=True)
class Options:
    """How to reproduce.

    Attributes:
        restarts: Runs of each configuration, with seeds `seed`, `seed + 1`, …
        seed: The first seed.
        jobs: Processes at once, one thread each.
        overrides: Entries of the configuration that differ from the published protocol.
        sweep: A sweep on a feature bank, for what is shown on one beside Colored MNIST.
        written: Where results of other experiments are, from which tables of accuracies take rows
            whose runs are not all there; None takes none.
        display: Makes the display of long measurements on finished runs.
    """

    restarts: int = 10
    seed: int = 0
    jobs: int = 1
    overrides: Mapping[str, object] = field(default_factory=dict)
    sweep: FeatureSweep | None = None
    written: Path | None = None
    display: Display = lambda title, unit: lambda done, total: None

    def __post_init__(self) -> None:
        for name in ("restarts", "jobs"):
            if getattr(self, name) < 1:
                raise InputError(f"Expected {name} of 1 or more, got {getattr(self, name)}.")
        for name, reason in SETTLED.items():
            if name in self.overrides:
                raise InputError(f"Expected no entry {name!r}: {reason}.")

    @property
    def seeds(self) -> range:
        """The seeds of the restarts."""
        return range(self.seed, self.seed + self.restarts)

    def counted(self, items: Sequence[Item], title: str, unit: str) -> Iterator[Item]:
        """Things to go through one by one, with a display of how far it is.

        Args:
            items: The things.
            title: What is done to them.
            unit: What they are.

        Yields:
            The things.
        """
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

    def configs(self, options: Options, imbalance: str | None) -> list[ColoredMnistConfig]:
        """The runs of this row.

        Args:
            options: How many, and from which seed.
            imbalance: Which version of the data.

        Returns:
            One configuration per restart.
        """
        entries = {"evaluate_every": 10, **options.overrides, "hessian_distance": True}
        first = make_configuration(
            {
                **entries,
                "algorithm": self.algorithm,
                "options": dict(self.options),
                "imbalance": imbalance,
            }
        )
        return [dataclasses.replace(first, seed=seed) for seed in options.seeds]


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


Finished = Callable[[Method, str | None], Sequence[Run]]
"""Gives the finished runs of a row."""


@final
@dataclass(frozen=True)
class Experiment:
    """One table or figure of the paper.

    Attributes:
        name: How it is called on the command line.
        title: What it shows.
        rows: Its methods, each with the version of the data it runs on.
        present: Makes the report from finished runs.
    """

    name: str
    title: str
    rows: tuple[tuple[Method, str | None], ...]
    present: Callable[[Finished, Options], Report]


def write_report(name: str, title: str, report: Report, command: str, folder: Path) -> Path:
    """Save a report: Markdown, JSON and figures.

    Args:
        name: Name of the experiment that was reproduced.
        title: What it shows.
        report: What came out.
        command: The command that makes it.
        folder: Where results go; the experiment gets a folder of its own.

    Returns:
        The Markdown page.
    """
    target = folder / name
    target.mkdir(parents=True, exist_ok=True)
    pictures = []
    for figure, draw in report.figures.items():
        for suffix in FIGURE_FORMATS:
            draw(target / f"{figure}.{suffix}")
        pictures.append(f"![{title}]({figure}.{FIGURE_FORMATS[0]})")
    page = "\n\n".join([f"# {title}", f"Made by `{command}`.", report.text, *pictures])
    content = {"experiment": name, "command": command, "software": describe_software()}
    text = json.dumps({**content, **report.data}, indent=1, ensure_ascii=False)
    write_atomically(target / f"{name}.json", (text + "\n").encode())
    path = target / f"{name}.md"
    write_atomically(path, (page + "\n").encode())
    return path
