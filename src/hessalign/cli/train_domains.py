"""`hessalign train --dataset NAME`: the DomainBed protocol on a data set of any kind."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Final

from hessalign._errors import ConfigurationError, InputError, attempt
from hessalign.bench.algorithms import find_algorithm
from hessalign.bench.algorithms.search import common_space
from hessalign.bench.data import DomainDataset, find_dataset
from hessalign.bench.runs import Record
from hessalign.bench.runs.domain_run import DomainRun, checked_plan, describe_untrained, train_job
from hessalign.bench.runs.job import Job
from hessalign.bench.runs.job_plan import MODEL_KEYS, PRESET, JobPlan, lone_domain_warning
from hessalign.report.tables import markdown_table, mean_and_std

Report = Callable[[str, int], Callable[[Record], None]]
"""Makes the display of a run from its title and its number of steps."""

FLAGS: Final = ("data_dir", "test_domains", "hparams_seed", "steps")
"""Flags of the verb that only these runs have."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of these runs.

    Args:
        parser: The parser of the verb.
    """
    group = parser.add_argument_group("for data sets other than colored_mnist")
    add = group.add_argument
    add("--data-dir", metavar="DIR", help="where data sets are: folders of images, files of arrays")
    add("--test-domains", metavar="D,…", help="names or numbers of the domains not trained on")
    add("--hparams-seed", type=int, metavar="N", help="a draw of hyper-parameters; 0: defaults")
    add("--steps", type=int, metavar="N", help="updates; 5001 unless given, as in DomainBed")


def keys() -> str:
    """The keys of these runs, for people.

    Returns:
        Sentences.
    """
    common = ", ".join(common_space("big"))
    return (
        f"Keys for other data sets: {common}; of the network: {', '.join(MODEL_KEYS)}; {PRESET}, "
        "whose ranges draws are made from; and the options of the algorithm."
    )


def run(
    entries: Mapping[str, object],
    restarts: int,
    output: Path | None,
    make_report: Report,
    warn: Callable[[str], None],
) -> None:
    """Train, show progress, and print the accuracy of every domain.

    Args:
        entries: Flags and `key=value` words; those that are not flags override hyper-parameters.
        restarts: Trials, each with a split of its own.
        output: Where runs are kept.
        make_report: Makes the display of a run.
        warn: Tells the user something that is not an error.
    """
    runs = []
    jobs = make_jobs(entries, restarts, output)
    assert output is not None
    for job in jobs:
        plan = checked_plan(job)
        sys.stdout.write(describe(plan))
        if job is jobs[0]:
            lone = lone_domain_warning([job], {job.dataset: len(plan.inner)})
            for note in (describe_untrained(plan), lone):
                if note is not None:
                    warn(note)
        show = make_report(f"{job.algorithm} #{job.trial_seed}", plan.steps)
        runs.append(
            train_job(
                job,
                output / job.folder,
                evaluate="all",
                keep_model=True,
                report=summarised(plan, show),
                warn=warn,
            )
        )
    sys.stdout.write(accuracy_by_domain(runs) + "\n")
    for each in runs:
        sys.stdout.write(f"Saved in {output / each.plan.job.folder}\n")


def make_jobs(entries: Mapping[str, object], restarts: int, output: Path | None) -> list[Job]:
    """The jobs that are asked for, checked as a whole.

    Args:
        entries: Flags and `key=value` words; those that are not flags override hyper-parameters.
        restarts: Trials.
        output: Where runs are kept.

    Returns:
        One job for each trial.

    Raises:
        ConfigurationError: With everything that is wrong.
    """
    rest = dict(entries)
    dataset, data_dir = str(rest.pop("dataset")), rest.pop("data_dir", None)
    test, trial = rest.pop("test_domains", None), rest.pop("seed", 0)
    algorithm, hparams_seed = str(rest.pop("algorithm", "erm")), rest.pop("hparams_seed", 0)
    steps = rest.pop("steps", None)
    missing = [
        flag
        for flag, value in (
            ("--data-dir", data_dir), ("--test-domains", test), ("--output", output),
        )
        if value is None
    ]  # fmt: skip
    problems: list[str] = []
    if missing:
        problems.append(f"Expected {', '.join(missing)} for the data set {dataset!r}, got none.")
    first = attempt(problems, _whole, "seed", trial)
    draw = attempt(problems, _whole, "hparams_seed", hparams_seed)
    updates = None if steps is None else attempt(problems, _whole, "steps", steps)
    info = attempt(problems, find_algorithm, algorithm)
    data = None if data_dir is None else attempt(problems, find_dataset, dataset, str(data_dir))
    if data is None:
        raise ConfigurationError(problems)
    domains = None if test is None else attempt(problems, parse_domains, test, data)
    job = Job(
        dataset,
        algorithm if info is None else info.recorded,
        domains or (0,),
        hparams_seed=draw or 0,
        trial_seed=first or 0,
        data_dir=str(data_dir),
        steps=updates,
        hparams=json.dumps(rest, sort_keys=True, default=str) if rest else None,
    )
    attempt(problems, checked_plan, job)
    if problems:
        raise ConfigurationError(problems)
    return [
        dataclasses.replace(job, trial_seed=trial_seed)
        for trial_seed in range(job.trial_seed, job.trial_seed + restarts)
    ]


def _whole(key: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputError(f"Expected {key} as a whole number, got {value!r}.")
    return value


def parse_domains(named: object, data: DomainDataset) -> tuple[int, ...]:
    """Test domains as they are named on the command line or in a file.

    Args:
        named: Names or numbers: a list, or separated by commas.
        data: The data set.

    Returns:
        Numbers, ascending.

    Raises:
        ConfigurationError: With everything that names no domain.
    """
    words = named if isinstance(named, list) else str(named).split(",")
    problems: list[str] = []
    found = [attempt(problems, data.domain_index, str(word).strip()) for word in words]
    if problems:
        raise ConfigurationError(problems)
    return tuple(sorted({number for number in found if number is not None}))


def describe(plan: JobPlan) -> str:
    """What is going to be trained.

    Args:
        plan: The run.

    Returns:
        Lines of `key: value`.
    """
    import yaml

    names = plan.data.domain_names
    entries = {
        "dataset": plan.job.dataset,
        "algorithm": find_algorithm(plan.job.algorithm).name,
        "train": [names[domain] for domain in plan.sources],
        "test": [names[domain] for domain in plan.job.test_domains],
        "trial": plan.job.trial_seed,
        "steps": plan.steps,
        "hyper-parameters": dict(plan.hyper.values),
    }
    text: str = yaml.safe_dump(entries, sort_keys=False)
    return text + "\n"


def summarised(plan: JobPlan, show: Callable[[Record], None]) -> Callable[[Record], None]:
    """A display that sees means over domains instead of all accuracies.

    Args:
        plan: The run.
        show: The display.

    Returns:
        What to call with every record.
    """

    def report(record: Record) -> None:
        validation = fmean(record.metrics[f"env{d}_out_acc"] for d in plan.sources)
        test = fmean(record.metrics[f"env{d}_in_acc"] for d in plan.job.test_domains)
        metrics = {"validation_accuracy": validation, "test_accuracy": test}
        show(Record(record.step, record.seconds, record.terms, metrics))

    return report


def accuracy_by_domain(runs: list[DomainRun]) -> str:
    """Final accuracies, one row per domain.

    Args:
        runs: Trials of one job.

    Returns:
        A Markdown table.
    """
    plan = runs[0].plan
    rows = []
    for number, name in enumerate(plan.data.domain_names):
        role = "test" if number in plan.job.test_domains else "train"
        cells = [
            mean_and_std([run.records[-1].metrics[f"env{number}_{part}_acc"] for run in runs])
            for part in ("in", "out")
        ]
        rows.append([name, role, *cells])
    return markdown_table(["domain", "role", "80 % part", "held out"], rows, text_columns=2)
