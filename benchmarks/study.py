"""Is curvature worth aligning once alignment cannot be cheated? `python -m benchmarks.study DATA`.

By the protocol of docs/study-protocol.md: runs that are missing are done, seed by seed, then tables
are made of those there are.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

from benchmarks.output import write_result
from hessalign.alignment.penalties import alignment_dispersions
from hessalign.bench.algorithms import find_algorithm
from hessalign.bench.data import DomainDataset, DomainSamples
from hessalign.bench.data.shifts import make_shifted_data
from hessalign.bench.runs import Job, Run, load_run
from hessalign.bench.runs.irm import irm_job
from hessalign.bench.runs.run import trained_head
from hessalign.bench.sweep import LocalLauncher, SerialLauncher
from hessalign.bench.sweep.progress import SweepProgress
from hessalign.curvature import linear_head
from hessalign.paper.changed_images import profile
from hessalign.paper.experiment import FinishedRun, cached_runs, have_done
from hessalign.report.tables import markdown_table

SEEDS = range(5)
CHOOSING = (0, 1)
"""The seeds by whose runs κ is chosen; the others are run with what was chosen."""

STRENGTHS = (1.0, 10.0, 100.0, 1000.0)
RIDGE = 0.1
LONGER = 3
BEFORE_JUMP = 1000.0
"""What the penalty's weight is divided by before the jump, on Colored MNIST."""

CRITICAL = 2.78
"""Standard errors of a mean of five that a difference must have: t with four degrees, 95 %."""

ERM = "ERM"
METHODS: dict[str, tuple[str, dict[str, object]]] = {
    ERM: ("erm", {}),
    "gradient only": ("gradient", {}),
    "HGP": ("hgp", {}),
    "full Hessian": ("full", {}),
    "Hutchinson": ("hutchinson", {}),
    "CMA": ("cma", {}),
    "relative": ("full", {"metric": "relative"}),
    "whitened": ("full", {"metric": "whitened", "ridge": RIDGE}),
    "exact": ("full", {"metric": "exact", "ridge": RIDGE}),
    "Newton decrement": ("gradient", {"metric": "exact", "ridge": RIDGE}),
    "whitened, by class": ("full", {"metric": "whitened", "ridge": RIDGE, "conditional": True}),
    "exact, by class": ("full", {"metric": "exact", "ridge": RIDGE, "conditional": True}),
    "exact, unbiased": ("full", {"metric": "exact", "ridge": RIDGE, "unbiased": True}),
}
"""Algorithm and options by title."""

FOLLOWED = (ERM, "gradient only", "full Hessian", "relative", "whitened", "exact")
"""The methods that are also trained for `LONGER` times the steps."""


def correlation(seed: int) -> DomainDataset:
    """Two domains with a shortcut, and two to test on: it is always right, or always wrong."""
    data = make_shifted_data("correlation", seed, samples=1000)
    x, y = data.target.x, data.target.y
    generator = torch.Generator().manual_seed(seed + 1)
    domains = [DomainSamples(each.name, each.x, each.y) for each in data.source]
    for name, sign in (("agree", 1), ("oppose", -1)):
        shortcut = torch.randn(len(y), 5, generator=generator) / 2 + sign * (2 * y - 1).unsqueeze(1)
        domains.append(DomainSamples(name, torch.cat([x[:, :5], shortcut], dim=1), y))
    return DomainDataset("correlation", ("0", "1"), tuple(domains))


def __getattr__(name: str) -> Callable[[], DomainDataset]:
    """`correlation_7`: the data of seed 7, as a data set that jobs can name."""
    kind, _, seed = name.rpartition("_")
    if kind != "correlation" or not seed.isdigit():
        raise AttributeError(name)
    return partial(correlation, int(seed))


def synthetic_job(algorithm: str, seed: int, steps: int, values: Mapping[str, object]) -> Job:
    """A run on the synthetic data of a seed."""
    fixed = {"hidden": 16, "batch_size": 200, "lr": 0.01, "weight_decay": 0.0}
    return _job(
        f"benchmarks.study:correlation_{seed}", (2, 3), fixed, algorithm, seed, steps, values
    )


def _job(
    dataset: str,
    tested: tuple[int, ...],
    fixed: Mapping[str, object],
    algorithm: str,
    seed: int,
    steps: int,
    values: Mapping[str, object],
    data_dir: str = "data",
) -> Job:
    """A run by DomainBed's protocol, whose initial network depends on the seed alone."""
    given = json.dumps({**fixed, "initial_seed": seed, **values}, sort_keys=True)
    recorded = find_algorithm(algorithm).recorded
    return Job(dataset, recorded, tested, 0, seed, data_dir, steps=steps, hparams=given)


def mnist_job(
    imbalance: str | None, algorithm: str, seed: int, steps: int, values: Mapping[str, object]
) -> Job:
    """A run on Colored MNIST; the penalty's weight is low until the jump."""
    size = {"train_images": 10_000, "width": 32, "evaluate_every": 100, "imbalance": imbalance}
    weights = {name: values[name] / BEFORE_JUMP for name in ("alpha", "beta") if name in values}
    jump = {"penalty_weight": BEFORE_JUMP} if weights else {}
    return irm_job(algorithm, seed, {**size, **jump, "steps": steps, **values, **weights})


@dataclass(frozen=True)
class Data:
    """What is trained on: a function that makes jobs, the steps, the samples of a batch."""

    job: Callable[[str, int, int, Mapping[str, object]], Job]
    steps: int
    batch: int | None
    shortcut: bool = True
    methods: Sequence[str] = tuple(METHODS)

    @property
    def rule(self) -> str:
        """The rule by which κ is chosen for longer runs."""
        return "strongest" if self.shortcut else "accuracy"


def _rows(dataset: str, domain: int, hidden: int, data_dir: str, methods: Sequence[str]) -> Data:
    """Three of four domains of a table of features."""
    job = partial(_job, dataset, (domain,), {"hidden": hidden}, data_dir=data_dir)
    return Data(job, 301, 32, shortcut=False, methods=methods)


def find_data(name: str, data_dir: str) -> dict[str, Data]:
    """What the name of some data stands for, by title.

    Args:
        name: One of `NAMES`.
        data_dir: The folder of feature banks.

    Returns:
        One, or one for each domain that is left out.
    """
    if name == "synthetic":
        return {name: Data(synthetic_job, 400, 200)}
    if name in {"balanced", "imbalanced"}:
        imbalance = "paper" if name == "imbalanced" else None
        return {name: Data(partial(mnist_job, imbalance), 501, None)}
    small = [title for title in METHODS if METHODS[title][1].get("metric") != "exact"]
    bank, hidden, methods = {
        "pacs": ("PACS@efficientnet_lite0", 128, small),  # its head has 903 parameters
        "heart": (HEART, 16, list(METHODS)),
    }[name]
    return {
        f"{name}, domain {e} unseen": _rows(bank, e, hidden, data_dir, methods) for e in range(4)
    }


HEART = "hessalign.bench.data.heart:load_heart"
NAMES = ("synthetic", "balanced", "imbalanced", "pacs", "heart")


def train_missing(jobs: Sequence[Job], folder: Path, at_once: int) -> None:
    """Have the runs done that are not in a folder, with a display, so many at a time."""
    launcher = SerialLauncher() if at_once == 1 else LocalLauncher(at_once)
    have_done(jobs, folder, launcher, lambda before, to: SweepProgress(before, to, sys.stderr))


@dataclass
class Study:
    """The runs of one data set in a folder."""

    data: Data
    folder: Path
    jobs: int = 1
    units: dict[str, dict[str, float]] = field(default_factory=dict)

    def job(self, title: str, seed: int, strength: float, longer: int = 1) -> Job:
        """The job of a method, κ and number of steps."""
        algorithm, options = METHODS[title]
        weights = {
            key: float(f"{strength * unit:.1e}") for key, unit in self.units.get(title, {}).items()
        }
        return self.data.job(algorithm, seed, longer * self.data.steps, {**options, **weights})

    def do(self, jobs: Iterable[Job]) -> None:
        """Have done what is not."""
        train_missing(list(dict.fromkeys(jobs)), self.folder, self.jobs)

    def measure_units(self) -> None:
        """α and β with which either term is the risk of ERM, by method."""
        job = self.job(ERM, 0, 1.0)
        self.do([job])
        run = load_run(self.folder / job.folder, Path(job.data_dir) if job.data_dir else None)
        trained = trained_head(run, self.data.batch)
        rows = torch.tensor([int(e) in trained.sources for e in trained.domain])
        given = (trained.z[rows], trained.logits[rows], trained.y[rows], trained.domain[rows])
        for title in self.data.methods:
            algorithm, options = METHODS[title]
            if title != ERM:
                info = find_algorithm(algorithm)
                plain = {key: value for key, value in options.items() if key != "unbiased"}
                config = info.configure(
                    {**info.released, **plain} if trained.loss == "binary" else plain
                )
                self.units[title] = _units(
                    linear_head(*given, loss=trained.loss, bias=config.bias), config
                )

    def runs(self, title: str, strength: float, longer: int = 1) -> list[FinishedRun]:
        """Those of the seeds that are there."""
        return cached_runs(self.folder, [self.job(title, seed, strength, longer) for seed in SEEDS])


def _units(head: Any, config: Any) -> dict[str, float]:
    """The weights with which either term of an alignment penalty is the risk."""
    reading = config.reading
    with torch.no_grad():
        hessian, gradient = alignment_dispersions(
            head,
            config.hessian,
            metric=config.metric,
            ridge=config.ridge,
            conditional=config.conditional,
            probes=reading.probes,
            target=reading.target,
            generator=torch.Generator().manual_seed(0),
        )
        risk, scale = float(head.risk.mean()), reading.scale(len(head.domains))
    outputs = head.logits.shape[1] if config.over_outputs else 1
    units = {"beta": risk / (scale * float(gradient))}
    if config.hessian is not None:
        units["alpha"] = risk * outputs**2 / (scale * float(hessian))
    return units


def measure(study: Study, run: FinishedRun) -> dict[str, float]:
    """What counts of a run, in percent."""
    metrics, tested = run.final, run.job.test_domains
    sources = [e for e in range(10) if f"env{e}_out_acc" in metrics and e not in tested]
    found = {"held out": fmean(metrics[f"env{e}_out_acc"] for e in sources)}
    if not study.data.shortcut:
        (unseen,) = tested
        sizes = (0.8, 0.2)  # of the two parts
        parts = (metrics[f"env{unseen}_{part}_acc"] for part in ("in", "out"))
        found["unseen"] = sum(size * part for size, part in zip(sizes, parts, strict=True))
        return {name: 100 * value for name, value in found.items()}
    if "test_accuracy" in metrics:  # Colored MNIST
        whole: Run = load_run(run.folder)
        ends = profile(whole)
        found["reversed"] = metrics["test_accuracy"]
        agree, oppose = ends["agree"] / 100, ends["oppose"] / 100
    else:
        agree, oppose = (
            0.8 * metrics[f"env{e}_in_acc"] + 0.2 * metrics[f"env{e}_out_acc"] for e in tested
        )
        found["reversed"] = 0.1 * agree + 0.9 * oppose
    found |= {"at 0": (agree + oppose) / 2, "slope": (agree - oppose) / 2}
    return {name: 100 * value for name, value in found.items()}


def strengths(title: str) -> tuple[float, ...]:
    """The values of κ of a method; ERM has none, and one row."""
    return STRENGTHS[: 1 if title == ERM else None]


Table = dict[str, dict[float, dict[int, dict[str, float]]]]
"""What was measured, by method, κ and seed."""


def table(study: Study, longer: int = 1) -> Table:
    """All runs that are there."""
    found: Table = {}
    for title in study.data.methods:
        for strength in strengths(title):
            runs = study.runs(title, strength, longer)
            if runs:
                by_seed = {run.job.trial_seed: measure(study, run) for run in runs}
                found.setdefault(title, {})[strength] = by_seed
    return found


def mean(values: Mapping[int, Mapping[str, float]], name: str) -> float:
    """The mean over seeds."""
    return fmean(each[name] for each in values.values())


def choose(found: Table, title: str, rule: str, constant: float) -> float:
    """κ by one of the rules of the protocol, from held-out parts of training domains alone."""

    def held_out_of(title: str) -> dict[float, float]:
        by_seed = {
            strength: {seed: each for seed, each in values.items() if seed in CHOOSING}
            for strength, values in found[title].items()
        }
        return {strength: mean(each, "held out") for strength, each in by_seed.items() if each}

    held_out = held_out_of(title)
    if rule == "accuracy":
        return max(held_out, key=lambda strength: held_out[strength])
    (erm,) = held_out_of(ERM).values()
    enough = [each for each, value in held_out.items() if value >= (erm + constant) / 2]
    return max(enough, default=min(held_out))


def paired(ours: Mapping[int, Any], others: Mapping[int, Any], name: str) -> str:
    """Mean and standard error of the differences seed by seed; a star if it stands out."""
    both = [seed for seed in ours if seed in others]
    differences = [ours[seed][name] - others[seed][name] for seed in both]
    if len(both) < 2:
        return "–"
    middle, error = fmean(differences), stdev(differences) / sqrt(len(both))
    star = "*" if len(both) == len(SEEDS) and abs(middle) > CRITICAL * error else ""
    return f"{middle:+.1f} ± {error:.1f}{star}"


Chosen = dict[str, tuple[str, dict[int, dict[str, float]]]]
"""By method what was chosen, as it is shown, and what its runs measured, by seed."""


def chosen_runs(found: Table, rule: str, constant: float) -> Chosen:
    """Of every method the runs with the κ that a rule chooses."""
    chosen: Chosen = {}
    for title in found:
        strength = choose(found, title, rule, constant)
        chosen[title] = ("–" if title == ERM else f"{strength:g}", found[title][strength])
    return chosen


def over_domains(each: Sequence[Chosen]) -> Chosen:
    """Means over the domains left out that have all methods, of the seeds that all of them have."""
    each = [chosen for chosen in each if len(chosen) == max(map(len, each))]
    found: Chosen = {}
    for title in each[0]:
        parts = [chosen[title] for chosen in each]
        seeds = [seed for seed in SEEDS if all(seed in values for _, values in parts)]
        means = {
            seed: {
                name: fmean(values[seed][name] for _, values in parts) for name in parts[0][1][seed]
            }
            for seed in seeds
        }
        found[title] = (" ".join(shown for shown, _ in parts), means)
    return found


def describe(chosen: Chosen, shortcut: bool) -> str:
    """A Markdown table of the chosen runs of all methods."""
    names = ["held out", "at 0", "slope", "reversed"] if shortcut else ["held out", "unseen"]
    judged = names[1]
    header = ["method", "κ", "seeds", *names, f"{judged}, less ERM", "less gradient only"]
    rows = []
    for title, (kappa, values) in chosen.items():
        cells = []
        for name in names:
            spread = stdev(each[name] for each in values.values()) if len(values) > 1 else 0.0
            cells.append(f"{mean(values, name):.1f} ± {spread:.1f}")
        others = [
            paired(values, chosen[other][1], judged) if other in chosen else "–"
            for other in (ERM, "gradient only")
        ]
        rows.append([title, kappa, str(len(values)), *cells, *others])
    return markdown_table(header, rows)


def _constant(study: Study) -> float:
    """Accuracy of the best constant prediction on the training domains, in percent."""
    job = study.job(ERM, 0, 1.0)
    run = load_run(study.folder / job.folder, Path(job.data_dir) if job.data_dir else None)
    labels = torch.cat([run.plan.data.domains[e].labels for e in run.plan.sources])
    return 100 * float(torch.bincount(labels).max()) / len(labels)


RULES = ("accuracy", "strongest")


def run_study(study: Study, *, only_report: bool) -> Iterator[tuple[int, Table]]:
    """Do the runs of one data set and give what was measured, after the factor of steps."""
    study.measure_units()
    constant = _constant(study)
    methods = study.data.methods
    grid = [
        study.job(title, seed, strength)
        for seed in CHOOSING
        for title in methods
        for strength in strengths(title)
    ]
    if not only_report:
        study.do(grid)
    found = table(study)
    if not only_report:
        study.do(
            study.job(title, seed, strength)
            for seed in SEEDS
            for title in methods
            for strength in {choose(found, title, rule, constant) for rule in RULES}
        )
    found = table(study)
    yield 1, found
    followed = [title for title in FOLLOWED if title in found]
    if not only_report:
        study.do(
            study.job(title, seed, choose(found, title, study.data.rule, constant), LONGER)
            for seed in SEEDS
            for title in followed
        )
    yield LONGER, table(study, LONGER)


def main(arguments: Sequence[str] | None = None) -> None:
    """Do the runs, write the report.

    Args:
        arguments: Those of the command line.
    """
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.study")
    parser.add_argument("data", choices=NAMES)
    parser.add_argument("--data-dir", default="outputs/features", help="folder of feature banks")
    parser.add_argument("--cache", type=Path, default=Path("outputs/study"), metavar="DIR")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--finished", action="store_true", help="report on what is there")
    parser.add_argument("--output", type=Path, default=Path("results/study"), metavar="DIR")
    options = parser.parse_args(arguments)
    texts, record = [f"# The study: {options.data}"], {}
    texts.append(
        f"Made by `python -m benchmarks.study {options.data}`; see docs/study-protocol.md. "
        "Percent, mean ± standard deviation over seeds; differences are paired by seed, ± standard "
        f"error, with a star from {CRITICAL} of them on if all five seeds are there."
    )
    together: dict[str, list[Chosen]] = {}
    for title, data in find_data(options.data, options.data_dir).items():
        study = Study(data, options.cache, options.jobs)
        for factor, found in run_study(study, only_report=options.finished):
            steps, constant = data.steps * factor, _constant(study)
            record[f"{title}, {steps} steps"] = found
            for rule in RULES if ERM in found and factor == 1 else [data.rule][: len(found)]:
                chosen = chosen_runs(found, rule, constant)
                how = f"{steps} steps, κ by {rule}"
                together.setdefault(how, []).append(chosen)
                texts += [f"## {title}: {how}", describe(chosen, data.shortcut)]
    for how, each in together.items():
        if len(each) > 1:
            means = describe(over_domains(each), shortcut=False)
            texts += [f"## {options.data}, mean over the domains left out: {how}", means]
    record["strengths"] = STRENGTHS
    write_result(options.output, options.data, record, "\n\n".join(texts))


if __name__ == "__main__":
    main()
