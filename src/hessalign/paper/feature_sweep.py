"""Trained heads on a feature bank: the runs that model selection takes from a sweep.

A sweep keeps no models, so the selected runs are trained again in the cache, which gives the same
parameters. They are selected by their accuracy on the held-out parts of the training domains at
the last step, since that is the model which is kept. Hyper-parameter seed 0 takes no part: it
stands for DomainBed's defaults, weights that were chosen for whole networks and do next to nothing
here.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from hessalign._errors import InputError
from hessalign.bench.algorithms import find_algorithm
from hessalign.bench.runs.job import Job, job_from
from hessalign.bench.runs.records import DONE, RESULTS
from hessalign.bench.runs.run_folder import read_config
from hessalign.bench.sweep import Launcher
from hessalign.bench.sweep.selection import Candidate, choose, read_run, training_domain
from hessalign.bench.sweep.selection import Run as SweepRun
from hessalign.paper.cache import (
    FinishedRun,
    MakeProgress,
    Part,
    finished_runs,
    have_done,
    no_progress,
)
from hessalign.paper.experiment import Options

REFERENCE: Final = "erm"
_DEFAULT_BANK: Final = "PACS@efficientnet_lite0"
_SHARED: Final = ("steps", "hparams", "holdout_fraction", "task")
"""What all jobs of a sweep must have in common."""


@final
@dataclass(frozen=True)
class FeatureSweep:
    """A sweep on a feature bank, and where to keep what is trained beside it.

    Attributes:
        dataset: Name of the feature bank.
        data_dir: Where it is.
        folder: The sweep.
        cache: Where models are kept.
        launcher: What trains what is missing; None to report on what is there.
        progress: Makes the display.
    """

    dataset: str
    data_dir: str
    folder: Path
    cache: Path
    launcher: Launcher | None = None
    progress: MakeProgress = no_progress


def feature_sweep(options: Options) -> FeatureSweep | None:
    """The sweep on a feature bank that an experiment reports on beside Colored MNIST."""
    if not options.sweeps and options.data_dir is None:
        return None
    if not options.sweeps or options.data_dir is None:
        found, missing = ("--sweep", "--data-dir") if options.sweeps else ("--data-dir", "--sweep")
        raise InputError(f"Expected {missing} beside {found}, got none.")
    if len(options.sweeps) > 1:
        raise InputError(f"Expected one --sweep, got {len(options.sweeps)}.")
    return FeatureSweep(
        options.dataset or _DEFAULT_BANK,
        options.data_dir,
        options.sweeps[0],
        options.cache,
        options.launcher,
        options.progress,
    )


@final
@dataclass(frozen=True)
class Selected:
    """A job that model selection chose.

    Attributes:
        job: The job.
        validation: The accuracy it was chosen by.
        test: Its accuracy on the test domain.
        draws: Among how many draws of hyper-parameters.
    """

    job: Job
    validation: float
    test: float
    draws: int


def select_jobs(sweep: FeatureSweep, algorithms: Sequence[str]) -> dict[str, list[Selected]]:
    """For each algorithm, trial and test domain the best draw of hyper-parameters.

    An algorithm that the sweep does not have at all gets the same draws as the reference, trained
    here.

    Returns:
        By algorithm, those of each trial by test domain; an algorithm without runs has none.
    """
    recorded = {find_algorithm(name).recorded: name for name in (REFERENCE, *algorithms)}
    runs = _sweep_runs(sweep, recorded)
    present = {job.algorithm for job in runs}
    reference = [job for job in runs if recorded[job.algorithm] == REFERENCE]
    absent = [title for title in recorded if title not in present]
    jobs = [dataclasses.replace(job, algorithm=title) for title in absent for job in reference]
    runs |= {job: _read(run.folder) for job, run in train_all(sweep, jobs).items()}
    return {name: _select(runs, find_algorithm(name).recorded) for name in algorithms}


def _sweep_runs(sweep: FeatureSweep, algorithms: Iterable[str]) -> dict[Job, SweepRun]:
    """The complete runs of a sweep with one test domain and drawn hyper-parameters."""
    found: dict[Job, SweepRun] = {}
    wanted = set(algorithms)
    for path in sorted(sweep.folder.glob(f"*/{DONE}")):
        config = path.parent / "config.json"
        if not config.exists():
            continue
        job = job_from(read_config(path.parent))
        fits = job.dataset == sweep.dataset and len(job.test_domains) == 1 and job.hparams_seed > 0
        if fits and job.algorithm in wanted:
            found[dataclasses.replace(job, data_dir=sweep.data_dir)] = _read(path.parent)
    if not any(job.algorithm == find_algorithm(REFERENCE).recorded for job in found):
        raise InputError(
            f"Expected complete runs of ERM on {sweep.dataset} with one test domain and drawn "
            f"hyper-parameters in {sweep.folder}, found none. Give the sweep's folder with --sweep "
            "and its data set with --dataset."
        )
    for name in _SHARED:
        values = {getattr(job, name) for job in found}
        if len(values) > 1:
            texts = ", ".join(sorted(map(str, values)))
            raise InputError(
                f"Expected runs with the same {name} in {sweep.folder}, found {texts}. Keep each "
                "protocol in a sweep of its own."
            )
    return found


def _select(runs: Mapping[Job, SweepRun], algorithm: str) -> list[Selected]:
    """The best draw for each trial and test domain, judged by its last step; sorted by both."""
    candidates: dict[tuple[int, int], list[tuple[Job, Candidate]]] = {}
    for job, run in runs.items():
        if job.algorithm != algorithm:
            continue
        (test,) = job.test_domains
        last = dataclasses.replace(run, records=run.records[-1:])
        candidate = training_domain({job.test_domains: last}, test)
        if isinstance(candidate, Candidate):
            candidates.setdefault((job.trial_seed, test), []).append((job, candidate))
    selected = []
    for _, pairs in sorted(candidates.items()):
        best = choose(candidate for _, candidate in pairs)
        job = next(job for job, candidate in pairs if candidate is best)
        selected.append(Selected(job, best.validation, best.test, len(pairs)))
    return selected


def twin(job: Job) -> Job:
    """The reference with the same hyper-parameters, drawn by name from its seeds, and split."""
    return dataclasses.replace(job, algorithm=find_algorithm(REFERENCE).recorded)


def second_start(job: Job) -> Job:
    """The reference once more from another start: CORAL with weight 0, a seed of its own."""
    overrides = json.loads(job.hparams) if job.hparams else {}
    hparams = json.dumps({**overrides, "penalty_weight": 0.0}, sort_keys=True)
    return dataclasses.replace(job, algorithm=find_algorithm("coral").recorded, hparams=hparams)


def train_all(sweep: FeatureSweep, jobs: Iterable[Job]) -> dict[Job, FinishedRun]:
    """Train jobs, unless only what is there is wanted; the complete ones by job."""
    needed = list(dict.fromkeys(jobs))
    if sweep.launcher is not None:
        have_done(Part(needed, sweep.cache), sweep.launcher, sweep.progress)
    return {run.job: run for run in finished_runs(sweep.cache, needed)}


def _read(folder: Path) -> SweepRun:
    run, _ = read_run(folder)
    if run is None:
        raise InputError(f"Expected records in {folder / RESULTS}, found none.")
    return run
