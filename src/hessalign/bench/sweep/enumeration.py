"""The jobs that a specification asks for, checked against the data before any is begun."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from hessalign._errors import MENDABLE, ConfigurationError, attempt, describe_error
from hessalign._names import UnknownNameError
from hessalign.bench.algorithms import find_algorithm
from hessalign.bench.data import PRESETS, find_dataset
from hessalign.bench.data.catalog import catalog_entry
from hessalign.bench.data.samples import domain_index
from hessalign.bench.runs.job import Job
from hessalign.bench.runs.planning import describe_untrained, plan_job
from hessalign.bench.sweep.jobs import list_jobs
from hessalign.bench.sweep.specification import SweepSpec


def sweep_jobs(spec: SweepSpec, *, without_data: bool = False) -> list[Job]:
    """All jobs of a sweep.

    Args:
        spec: The specification.
        without_data: Whether the catalog may stand in for data sets that are not there.

    Returns:
        The jobs, the first trial first.

    Raises:
        ConfigurationError: With everything that does not fit the data.
    """
    problems: list[str] = []
    counts: dict[str, int] = {}
    chosen: dict[str, list[int]] = {}
    for dataset in spec.datasets:
        try:
            names = domain_names(dataset, str(spec.place), without_data=without_data)
        except MENDABLE as error:
            problems.append(describe_error(error))
            continue
        counts[dataset] = len(names)
        least = 3 if spec.needs_pairs else 2
        if len(names) < least:
            purpose = " for leave-one-out" if spec.needs_pairs else ""
            problems.append(
                f"Expected {least} or more domains in {dataset}{purpose}, found {names}."
            )
        for domain in spec.test_domains.get(dataset, range(len(names))):
            try:
                chosen.setdefault(dataset, []).append(domain_index(dataset, names, domain))
            except UnknownNameError as error:
                problems.append(str(error))
    if problems:
        raise ConfigurationError(problems)
    return list_jobs(
        counts,
        [find_algorithm(name).recorded for name in spec.algorithms],
        data_dir=spec.data_dir,
        n_hparams=spec.draws,
        n_trials=spec.trials,
        pairs=spec.needs_pairs,
        test_domains=chosen,
        steps=spec.steps,
        hparams=spec.hparams,
    )


def domain_names(dataset: str, data_dir: str, *, without_data: bool = False) -> tuple[str, ...]:
    """The domains of a data set.

    Args:
        dataset: Its name.
        data_dir: The folder that holds it.
        without_data: Whether the catalog may stand in for it.

    Returns:
        Their names in their order.

    Raises:
        FileNotFoundError: If the data set is not there.
    """
    try:
        return find_dataset(dataset, data_dir).domain_names
    except FileNotFoundError:
        entry = catalog_entry(dataset)
        if entry is None or not without_data:
            raise
        return PRESETS[entry.name].domains if entry.name in PRESETS else entry.domains


def first_jobs(jobs: Iterable[Job]) -> dict[tuple[str, str], Job]:
    """One job for each data set and algorithm.

    Args:
        jobs: The jobs.

    Returns:
        The first by data set and algorithm.
    """
    found: dict[tuple[str, str], Job] = {}
    for job in jobs:
        found.setdefault((job.dataset, job.algorithm), job)
    return found


def check_jobs(
    jobs: Iterable[Job],
    warn: Callable[[str], None] = lambda message: None,
    data_dir: Path | None = None,
) -> None:
    """Find what would make all runs of an algorithm fail, such as an unknown hyper-parameter.

    Args:
        jobs: The jobs.
        warn: Called with what the user should know but need not act on.
        data_dir: The folder that holds the data sets, if it is not where the jobs say.

    Raises:
        ConfigurationError: With everything that is wrong.
    """
    problems: list[str] = []
    plans = [attempt(problems, plan_job, job, data_dir) for job in first_jobs(jobs).values()]
    if problems:
        raise ConfigurationError(problems)
    notes = {describe_untrained(plan): None for plan in plans if plan is not None}
    for note in filter(None, notes):
        warn(note)
