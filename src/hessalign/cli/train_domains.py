"""`hessalign train --dataset NAME`: the DomainBed protocol on a data set of any kind."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Final

from hessalign._errors import InputError
from hessalign.algorithms import find_algorithm
from hessalign.data import DomainDataset, find_dataset
from hessalign.report.tables import markdown_table, mean_and_std
from hessalign.training import Record
from hessalign.training.domain_run import DomainRun, checked_plan, train_job
from hessalign.training.job import Job
from hessalign.training.job_plan import JobPlan

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

    Raises:
        InputError: If something is missing.
        KeyboardInterrupt: Passed on, after saying how to continue.
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
    if missing or output is None:
        raise InputError(f"Expected {', '.join(missing)} for the data set {dataset!r}, got none.")
    data = find_dataset(dataset, str(data_dir))
    runs = []
    first = _whole("seed", trial)
    for trial_seed in range(first, first + restarts):
        job = Job(
            dataset,
            find_algorithm(algorithm).recorded,
            parse_domains(test, data),
            hparams_seed=_whole("hparams_seed", hparams_seed),
            trial_seed=trial_seed,
            data_dir=str(data_dir),
            steps=None if steps is None else _whole("steps", steps),
            hparams=json.dumps(rest, sort_keys=True, default=str) if rest else None,
        )
        plan = checked_plan(job)
        sys.stdout.write(describe(plan))
        show = make_report(f"{job.algorithm} #{trial_seed}", plan.steps)
        try:
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
        except KeyboardInterrupt:
            warn(f"Saved in {output / job.folder}. Run the same command again to continue.")
            raise
    sys.stdout.write(accuracy_by_domain(runs) + "\n")
    for each in runs:
        sys.stdout.write(f"Saved in {output / each.plan.job.folder}\n")


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
    """
    words = named if isinstance(named, list) else str(named).split(",")
    return tuple(sorted({data.domain_index(str(word).strip()) for word in words}))


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
