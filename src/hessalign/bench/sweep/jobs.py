"""The jobs of a sweep, in DomainBed's order, checked before any is begun, and their folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from itertools import product
from pathlib import Path

from hessalign._errors import ConfigurationError, InputError, Warn, attempt
from hessalign._files import make_folder, write_atomically
from hessalign.bench.algorithms import find_algorithm
from hessalign.bench.data import PRESETS, find_dataset
from hessalign.bench.data.catalog import catalog_entry, split_options
from hessalign.bench.data.samples import HOLDOUT_FRACTION, domain_index
from hessalign.bench.runs.job import Job, read_file
from hessalign.bench.runs.plan import Plan, lone_domain_warning, plan_job, plan_warnings
from hessalign.bench.sweep.execution import SPECIFICATION
from hessalign.bench.sweep.specification import SweepSpec, make_specification
from hessalign.report.tables import grouped


def held_out_sets(
    domains: int, *, pairs: bool = True, test_domains: Collection[int] | None = None
) -> list[tuple[int, ...]]:
    """Which domains to leave out of training: each alone, and every pair.

    Args:
        domains: Number of domains of the data set.
        pairs: Whether to include pairs, which only leave-one-out selection needs.
        test_domains: The domains to test on; all of them if None. Pairs of these with others stay.

    Returns:
        Sets of indices, in DomainBed's order.

    Raises:
        InputError: If no training domain would remain.

    Example:
        >>> held_out_sets(3)
        [(0,), (0, 1), (0, 2), (1,), (1, 2), (2,)]
        >>> held_out_sets(3, pairs=False)
        [(0,), (1,), (2,)]
        >>> held_out_sets(3, test_domains=[2])
        [(0, 2), (1, 2), (2,)]
    """
    least = 3 if pairs else 2
    if domains < least:
        raise InputError(
            f"Expected {least} or more domains so that one remains to train on, got {domains}."
            + " Leave out the pairs." * (domains == 2)
        )
    tested = range(domains) if test_domains is None else test_domains
    return [
        held_out
        for first in range(domains)
        for held_out in ((first,), *((first, each) for each in range(first + 1, domains) if pairs))
        if any(domain in tested for domain in held_out)
    ]


def list_jobs(
    domains: Mapping[str, int],
    algorithms: Sequence[str],
    *,
    data_dir: str,
    n_hparams: int = 20,
    n_trials: int = 3,
    pairs: bool = True,
    test_domains: Mapping[str, Collection[int]] | None = None,
    first_hparams_seed: int = 0,
    holdout_fraction: float = HOLDOUT_FRACTION,
    task: str = "domain_generalization",
    steps: int | None = None,
    hparams: str | None = None,
) -> list[Job]:
    """All jobs of a sweep on data sets with so many domains, in DomainBed's order.

    Hyper-parameter seeds go from `first_hparams_seed` to below `n_hparams`. Pairs of domains are
    left out for leave-one-out selection. All domains are tested on where `test_domains` names none;
    what is None is the data set's own.

    Returns:
        The jobs.

    Raises:
        InputError: If there would be none.

    Example:
        >>> len(list_jobs({"PACS": 4}, ["ERM"], data_dir="data"))
        600
    """
    if not domains or not algorithms or n_trials < 1 or n_hparams <= first_hparams_seed:
        raise InputError(
            "Expected one or more data sets, algorithms, trials and hyper-parameter seeds, got "
            f"data sets {list(domains)}, algorithms {list(algorithms)}, {n_trials} trials, seeds "
            f"from {first_hparams_seed} to below {n_hparams}."
        )
    return [
        Job(
            dataset=dataset,
            algorithm=algorithm,
            test_domains=held_out,
            hparams_seed=hparams_seed,
            trial_seed=trial_seed,
            data_dir=data_dir,
            holdout_fraction=holdout_fraction,
            task=task,
            steps=steps,
            hparams=hparams,
        )
        for trial_seed, (dataset, count), algorithm in product(
            range(n_trials), domains.items(), algorithms
        )
        for held_out, hparams_seed in product(
            held_out_sets(count, pairs=pairs, test_domains=(test_domains or {}).get(dataset)),
            range(first_hparams_seed, n_hparams),
        )
    ]


def sweep_jobs(spec: SweepSpec, *, without_data: bool = False) -> list[Job]:
    """All jobs of a sweep, the first trial first; the catalog may stand in for data not there."""
    problems: list[str] = []
    counts: dict[str, int] = {}
    chosen: dict[str, list[int]] = {}
    for dataset in spec.datasets:
        names = attempt(problems, _domain_names, dataset, str(spec.place), without_data)
        if names is None:
            continue
        counts[dataset] = len(names)
        least = 3 if spec.needs_pairs else 2
        if len(names) < least:
            purpose = " for leave-one-out" if spec.needs_pairs else ""
            problems.append(
                f"Expected {least} or more domains in {dataset}{purpose}, found {names}."
            )
        wanted = spec.test_domains.get(dataset, range(len(names)))
        found = [attempt(problems, domain_index, dataset, names, domain) for domain in wanted]
        if found:
            chosen[dataset] = [domain for domain in found if domain is not None]
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


def open_sweep(folder: Path, spec: SweepSpec, *, keep: bool = False) -> Path:
    """Make the folder of a sweep, or continue the one that is there.

    Algorithms, data sets, test domains, draws and trials may be added to a sweep or left out; what
    all of its runs share may not change, since a table would mix them. For runs beside its own,
    `keep` leaves the specification of a sweep that is there as it is.

    Returns:
        The folder as an absolute path.

    Raises:
        InputError: If it belongs to a sweep with another protocol.
        PermissionError: If it cannot be written to.
    """
    folder = folder.absolute()
    path = folder / SPECIFICATION
    text = dataclasses.replace(spec, data_folder=str(spec.place)).to_yaml().encode()
    if path.exists():
        theirs, ours = make_specification(read_file(path)).protocol, spec.protocol
        differences = [
            f"{key} is {theirs[key]!r} there and {ours[key]!r} here"
            for key in ours
            if theirs[key] != ours[key]
        ]
        if differences:
            raise InputError(
                f"{folder} belongs to a sweep with another protocol: {'; '.join(differences)}. "
                "Choose another folder with --output, or remove that one."
            )
    try:
        make_folder(folder)
        if not path.exists() or (path.read_bytes() != text and not keep):
            write_atomically(path, text)
    except OSError as error:
        raise PermissionError(
            f"Expected a folder for the sweep that can be written to, got {folder}: "
            f"{error.strerror}. Choose another with --output."
        ) from error
    return folder


def _domain_names(dataset: str, data_dir: str, without_data: bool = False) -> tuple[str, ...]:
    """The domains of a data set; the catalog may stand in for one that is not there."""
    try:
        return find_dataset(dataset, data_dir).domain_names
    except FileNotFoundError:
        entry = catalog_entry(dataset)
        if entry is None or not without_data or split_options(dataset)[1]:
            raise  # options may make other domains
        return PRESETS[entry.name].domains if entry.name in PRESETS else entry.domains


def check_jobs(
    jobs: Sequence[Job],
    warn: Warn = lambda message: None,
    data_dir: Path | None = None,
) -> list[Plan]:
    """Refuse, with all that is wrong, what makes every run of an algorithm fail; a plan of each."""
    problems: list[str] = []
    cells = grouped(jobs, lambda job: (job.dataset, job.algorithm)).values()
    found = [attempt(problems, plan_job, group[0], data_dir) for group in cells]
    if problems:
        raise ConfigurationError(problems)
    plans = [plan for plan in found if plan is not None]
    counts = {plan.job.dataset: len(plan.data.domains) for plan in plans}
    notes = [note for plan in plans for note in plan_warnings(plan)]
    for note in filter(None, dict.fromkeys([*notes, lone_domain_warning(jobs, counts)])):
        warn(note)
    return plans
