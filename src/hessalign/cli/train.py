"""`hessalign train`: one algorithm on one data set, with restarts."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from hessalign._errors import ConfigurationError, InputError, attempt, check_name
from hessalign._numbers import check_count
from hessalign._plugins import entry_point_names, is_path
from hessalign.bench.algorithms import find_algorithm
from hessalign.bench.data import DATASETS, find_dataset
from hessalign.bench.data.catalog import COLORED_MNIST, split_options, with_options
from hessalign.bench.data.heart import HEART
from hessalign.bench.data.hugging_face import DATA_DIR, HUGGING_FACE
from hessalign.bench.data.source import ENTRY_POINTS
from hessalign.bench.runs import Job, Run, plan_job, train_job
from hessalign.bench.runs.averaging import AVERAGED
from hessalign.bench.runs.computing import COMPUTING_KEYS, Computing, take_computing
from hessalign.bench.runs.irm import Irm
from hessalign.bench.runs.job import parse_words, read_file
from hessalign.bench.runs.plan import Plan, lone_domain_warning, plan_warnings
from hessalign.bench.runs.processes import taking_part
from hessalign.bench.runs.records import run_progress
from hessalign.bench.runs.trackers import named_trackers, tracking
from hessalign.paper.accuracies import accuracy_table
from hessalign.paper.published import TABLE_2, TABLE_3, measured
from hessalign.report.progress import warn
from hessalign.report.tables import markdown_table

_ALIAS: Final = "colored_mnist"  # what users may call Colored MNIST as the paper trains on it
_DEFAULT_ALGORITHM: Final = {COLORED_MNIST: "hutchinson"}
"""What is trained where nothing is asked for; elsewhere plain training."""

_TARGET: Final = "2"
"""The domain of Colored MNIST that is tested on where nothing else is asked for."""

_OFFICIAL: Final = "official"
"""For --test-domains: those that the official split of a data set does not train on."""

_FLAGS: Final = (
    "dataset", "algorithm", "seed", "data_dir", "test_domains", "hparams_seed", "steps",
)  # fmt: skip
"""Flags that are keys of a file and of words too."""


@taking_part()
def run(options: argparse.Namespace) -> None:
    """Train, with other processes if there are some, and print the final accuracies."""
    options.continues = options.output is not None
    check_count(options.restarts, "--restarts")
    entries = {} if options.config is None else read_file(options.config)
    flags = {key: getattr(options, key) for key in _FLAGS}
    entries |= {key: value for key, value in flags.items() if value is not None}
    entries |= parse_words(options.entries)
    if "dataset" in entries:
        columns = {"label": options.label, "domain": options.domain}
        entries["dataset"] = with_options(str(entries["dataset"]), **columns)
    trackers = named_trackers(options.track, options.tensorboard)
    job, computing = _make_job(entries, options.output)
    runs: list[Run] = []
    saved = ""
    for trial in range(job.trial_seed, job.trial_seed + options.restarts):
        plan = plan_job(dataclasses.replace(job, trial_seed=trial))
        if not runs or not isinstance(plan.protocol, Irm):
            sys.stdout.write(_describe(plan) + "\n")
        if not runs:
            lone = lone_domain_warning([job], {job.dataset: len(plan.inner)})
            for note in filter(None, (lone, *plan_warnings(plan))):
                warn(note)
        folder = options.output and options.output / _folder_name(plan)
        saved += f"Saved in {folder}\n" if folder else ""
        show = run_progress(f"{plan.info.name} #{trial}", plan.steps)
        with tracking(trackers, plan, show) as report:
            runs.append(
                train_job(
                    plan.job,
                    folder,
                    evaluate="all",
                    keep_model=True,
                    computing=computing,
                    report=report,
                    warn=warn,
                )
            )
    sys.stdout.write(f"{_accuracies(runs)}\n{saved}")


def _make_job(entries: Mapping[str, object], output: Path | None) -> tuple[Job, Computing]:
    """The job of the first trial, checked as a whole; what is no flag is a hyper-parameter."""
    problems: list[str] = []
    computing, rest = attempt(problems, take_computing, entries) or (
        Computing(),
        {key: value for key, value in entries.items() if key not in COMPUTING_KEYS},
    )
    dataset = str(rest.pop("dataset", _ALIAS))
    dataset = COLORED_MNIST if dataset == _ALIAS else dataset
    data_dir, test = rest.pop("data_dir", None), rest.pop("test_domains", None)
    algorithm = rest.pop("algorithm", _DEFAULT_ALGORITHM.get(dataset, "erm"))
    if dataset == COLORED_MNIST:
        data_dir, test = "", _TARGET if test is None else test
    else:
        if data_dir is None and _needs_no_folder(dataset):
            data_dir = DATA_DIR if dataset.startswith(HUGGING_FACE) else ""
        elif data_dir is None:
            check_name("data set", split_options(dataset)[0], DATASETS)
    data = None if data_dir is None else attempt(problems, find_dataset, dataset, str(data_dir))
    if test in (None, _OFFICIAL) and data is not None and data.official_tests:
        test = list(data.official_tests)
    if dataset != COLORED_MNIST:
        flags = {"--data-dir": data_dir, "--test-domains": test, "--output": output}
        if missing := ", ".join(flag for flag, value in flags.items() if value is None):
            problems.append(f"Expected {missing} for the data set {dataset!r}, got none.")
    first = attempt(problems, _whole, "seed", rest.pop("seed", 0))
    draw = attempt(problems, _whole, "hparams_seed", rest.pop("hparams_seed", 0))
    steps = rest.pop("steps", None)
    updates = None if steps is None else attempt(problems, _whole, "steps", steps)
    nested = rest.pop("options", None)  # those of the algorithm
    if isinstance(nested, Mapping | None):
        rest |= nested or {}
    else:
        problems.append(f"Expected options as a mapping of names to values, got {nested!r}.")
    info = attempt(problems, find_algorithm, algorithm)
    if data is None:
        raise ConfigurationError(problems)
    words = test if isinstance(test, list) else str(test).split(",") if test is not None else []
    found = [attempt(problems, data.domain_index, str(word).strip()) for word in words]
    job = Job(
        dataset,
        str(algorithm) if info is None else info.recorded,
        tuple(sorted({number for number in found if number is not None})) or (0,),
        hparams_seed=draw or 0,
        trial_seed=first or 0,
        data_dir=str(data_dir),
        steps=updates,
        hparams=json.dumps(rest, sort_keys=True, default=str) if rest else None,
    )
    attempt(problems, plan_job, job)
    if problems:
        raise ConfigurationError(problems)
    return job, computing


def _needs_no_folder(dataset: str) -> bool:
    """Whether a data set ships, is made by a function of the user or a package, or from a hub."""
    offered = is_path(dataset) or dataset in (HEART, *entry_point_names(ENTRY_POINTS))
    return offered or dataset.startswith(HUGGING_FACE)


def _whole(key: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputError(f"Expected {key} as a whole number, got {value!r}.")
    return value


def _folder_name(plan: Plan) -> str:
    """DomainBed's, but for Colored MNIST, whose runs differ in algorithm and seed only, mostly."""
    if isinstance(plan.protocol, Irm):
        return f"{plan.info.name.replace(':', '-')}-seed{plan.job.trial_seed}"
    return plan.job.folder


def _describe(plan: Plan) -> str:
    """What is going to be trained, as YAML; that of Colored MNIST can be given back."""
    import yaml

    job, names = plan.job, plan.data.domain_names
    entries: dict[str, object] = {"dataset": job.dataset, "algorithm": plan.info.name}
    if isinstance(plan.protocol, Irm):
        given = json.loads(job.hparams or "{}")
        ours = dataclasses.asdict(plan.options)
        for key in plan.options.loop_options:  # last what all protocols have
            ours[key] = ours.pop(key)
        own = {key: value for key, value in given.items() if key not in ours}
        entries |= {"seed": job.trial_seed, "steps": plan.steps, **ours, "options": own}
    else:
        entries |= {
            "train": [names[domain] for domain in plan.sources],
            "test": [names[domain] for domain in job.test_domains],
            "trial": job.trial_seed,
            "steps": plan.steps,
            "hyper-parameters": dict(plan.values),
        }
    text: str = yaml.safe_dump(entries, sort_keys=False, allow_unicode=True)
    return text


def _accuracies(runs: list[Run]) -> str:
    """Final accuracies: the paper's beside ours, or one row per domain, as a Markdown table."""
    plan = runs[0].plan
    kinds = {"": ""} if plan.options.average is None else {"": "", AVERAGED: "averaged: "}
    if isinstance(plan.protocol, Irm):
        table = accuracy_table(runs, TABLE_2 if plan.options.imbalance is None else TABLE_3)
        if AVERAGED not in kinds:
            return table
        train, test = (
            measured([100 * run.final[f"{AVERAGED}{part}_accuracy"] for run in runs])
            for part in ("train", "test")
        )
        return f"{table}\naveraged: train {train}, OOD test {test}"
    rows = []
    for number, name in enumerate(plan.data.domain_names):
        role = "test" if number in plan.job.test_domains else "train"
        share = [len(run.plan.outer[number]) / len(run.plan.data.domains[number]) for run in runs]
        cells: list[str] = []
        for kind in kinds:
            inner, outer = (
                [100 * run.final[f"{kind}env{number}_{part}_acc"] for run in runs]
                for part in ("in", "out")
            )
            parts = zip(share, inner, outer, strict=True)
            mixed = [of * out + (1 - of) * inside if of else inside for of, inside, out in parts]
            cells += [str(measured(each)) for each in (inner, outer, mixed)]
        rows.append([name, role, *cells])
    parts_told = ("larger part", "held out", "all")
    columns = [f"{said}{part}" for said in kinds.values() for part in parts_told]
    return markdown_table(["domain", "role", *columns], rows, text_columns=2)
