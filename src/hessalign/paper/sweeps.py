"""The sweeps that experiments are made of, or take trained heads from.

An experiment on DomainBed consists of sweeps at one of two sizes. `full` is the published protocol:
fine-tuned networks on images, 5,001 steps, 20 draws of hyper-parameters and 3 trials. `small` runs
the same protocol on a bank of frozen features, in 301 steps and with 8 draws, once with a linear
head and once with a hidden layer: minutes on a laptop, and not comparable with the published
numbers.

Others measure the trained heads that model selection takes from a sweep on a feature bank. A sweep
keeps no models, so the selected runs are trained again in the cache, which gives the same
parameters. They are selected by their accuracy on the held-out parts of the training domains at
the last step, since that is the model which is kept. Hyper-parameter seed 0 takes no part: it
stands for DomainBed's defaults, weights that were chosen for whole networks and do next to nothing
here.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

from hessalign._errors import InputError, check_name
from hessalign.bench.algorithms import ALGORITHMS, find_algorithm
from hessalign.bench.algorithms.registry import DOMAINBED, FIDELITY
from hessalign.bench.data.catalog import DEFAULT_STEPS
from hessalign.bench.data.files import ARRAYS
from hessalign.bench.runs.job import Job, job_from
from hessalign.bench.runs.records import DONE, RESULTS
from hessalign.bench.runs.run_folder import CONFIG, read_config
from hessalign.bench.sweep import SweepSpec, make_specification, sweep_jobs
from hessalign.bench.sweep.selection import Candidate, Run, choose, read_run, training_domain
from hessalign.bench.sweep.selection.collection import check_protocols, finished_runs
from hessalign.bench.sweep.specification import DEFAULT_PRESET
from hessalign.paper.experiment import FinishedRun, Options, cached_runs, have_done
from hessalign.paper.published import DATASETS

_SWEEPS: Final = Path("outputs/sweeps")  # where sweeps are kept whose folder is not named
_DEFAULT_BACKBONE: Final = "resnet50"
"""What images are trained with where nothing else is asked for: DomainBed's."""

_AUGMENTED: Final = "augment_validation"  # whether held-out images are changed at random too
_PUBLISHED: Final[Mapping[str, object]] = {FIDELITY: DOMAINBED, _AUGMENTED: True}
"""Overrides by which a run follows DomainBed's code where the default is another."""

_OWN: Final = ("backbone", "hidden", "alpha", "beta", *_PUBLISHED)
"""Overrides by which experiments say what they compare; some are told apart."""


@final
@dataclass(frozen=True, eq=False)
class _Head:
    """What is trained: its name in that of the sweep, and the hyper-parameters that ask for it."""

    name: str
    title: str
    overrides: Mapping[str, object] = field(default_factory=dict)


@final
@dataclass(frozen=True, eq=False)
class _Scale:
    """A size: the keys of its sweeps, and what is trained, each in a sweep of its own."""

    entries: Mapping[str, Any]
    heads: tuple[_Head, ...]
    algorithms: tuple[str, ...] = ()  # empty for those of the published table
    features: bool = False  # whether the data sets are feature banks


_DRAWS: Final = 20
_TRIALS: Final = 3
_SCALES: Final[Mapping[str, _Scale]] = {
    "full": _Scale(
        {"data_dir": "data", "draws": _DRAWS, "trials": _TRIALS},
        (_Head("", "fine-tuned network", _PUBLISHED),),
    ),
    "small": _Scale(
        {"data_dir": "outputs/features", "draws": 8, "trials": _TRIALS, "steps": 301},
        (_Head("linear", "linear head"), _Head("hidden", "hidden layer of 128", {"hidden": 128})),
        (
            *("erm", "coral", "vrex", "irm", "fishr", "groupdro", "mixup"),
            *("hgp", "hutchinson", "full", "gradient", "diagonal"),
        ),
        features=True,
    ),
}


@final
@dataclass(frozen=True, eq=False)
class Sweep:
    """One sweep of an experiment; the setting tells it from the others of its head."""

    head: _Head
    setting: str
    spec: SweepSpec
    folder: Path
    jobs: Sequence[Job] = ()
    runs: Sequence[Run] = ()  # the finished ones, once they are read

    @property
    def missing(self) -> dict[str, tuple[int, int]]:
        """Finished runs and all runs, of the algorithms that are not complete."""
        total = Counter(find_algorithm(job.algorithm).name for job in self.jobs)
        done = Counter(find_algorithm(run.key.algorithm).name for run in self.runs)
        return {name: (done[name], all_) for name, all_ in total.items() if done[name] < all_}

    def lacking(self) -> list[str]:
        """Nothing, or a paragraph on which algorithms are not complete yet."""
        counts = [
            f"{find_algorithm(name).title} {done} of {total}"
            for name, (done, total) in self.missing.items()
        ]
        text = f"Not all runs are finished (*, not compared): {', '.join(counts)}."
        return [text] if counts else []


def find_scale(name: str) -> _Scale:
    """A size by name; an unknown name raises an UnknownNameError."""
    check_name("scale", name, _SCALES)
    return _SCALES[name]


def _find_banks(
    data_dir: str, backbone: str | None, datasets: Sequence[str] = DATASETS
) -> tuple[str, ...]:
    """The feature banks of some data sets that are in a folder."""
    found = {
        path.stem
        for path in Path(data_dir).glob("*@*")
        if path.suffix in ARRAYS and path.stem.partition("@")[0] in datasets
    }
    backbones = {name.partition("@")[2] for name in found}
    chosen = sorted(each for each in backbones if backbone in (None, each))
    if not chosen:
        wanted = f"DATASET@{backbone or 'BACKBONE'}{ARRAYS[-1]}"
        raise InputError(
            f"Expected feature banks named {wanted} in {data_dir}, with DATASET one of "
            f"{', '.join(datasets)}; found {', '.join(sorted(found)) or 'none'}. Make them with "
            "`hessalign features extract`, or name their folder with --data-dir."
        )
    if len(chosen) > 1:
        raise InputError(
            f"Expected the features of one backbone, found in {data_dir} those of "
            f"{', '.join(chosen)}. Choose one with --backbone."
        )
    return tuple(name for each in datasets if (name := f"{each}@{chosen[0]}") in found)


def departures(spec: SweepSpec, draws: int = _DRAWS) -> list[str]:
    """In what a sweep departs from the published protocol."""
    found = []
    backbones = sorted({name.partition("@")[2] for name in spec.datasets} - {""})
    if backbones:
        found.append(
            f"frozen features of {', '.join(backbones)} instead of a fine-tuned {_DEFAULT_BACKBONE}"
        )
    elif "backbone" in spec.overrides:
        found.append(f"{spec.overrides['backbone']} instead of {_DEFAULT_BACKBONE}")
    wanted = {"draws": draws, "trials": _TRIALS, "steps": DEFAULT_STEPS}
    actual = {"draws": spec.draws, "trials": spec.trials, "steps": spec.steps or DEFAULT_STEPS}
    found += [
        f"{actual[name]:,} {name} instead of {wanted[name]:,}"
        for name in wanted
        if actual[name] != wanted[name]
    ]
    deviating = [name for name in spec.algorithms if ALGORITHMS[name].deviates]
    if deviating and spec.overrides.get(FIDELITY) != DOMAINBED:
        titles = ", ".join(ALGORITHMS[name].title for name in deviating)
        found.append(f"by their papers where DomainBed's code deviates: {titles}")
    if not backbones and not spec.overrides.get(_AUGMENTED):
        found.append("validated on images as they are, not augmented ones")
    if spec.preset != DEFAULT_PRESET:
        found.append(f"preset {spec.preset}")
    found += [f"{name} = {value}" for name, value in spec.overrides.items() if name not in _OWN]
    return found


def disclaimer(found: Sequence[str]) -> list[str]:
    """Nothing, or a paragraph that numbers cannot be compared with the published ones."""
    text = (
        f"**Not the published protocol:** {'; '.join(found)}. So no number here reproduces or "
        "contradicts a published one; those are shown for orientation, and the order of the "
        "methods is what can be compared."
    )
    return [text] if found else []


def head_sweeps(options: Options, entries: Mapping[str, Any], selection: str) -> list[Sweep]:
    """The sweep of each head that has a folder, as the size says and the user changes it."""
    scale = find_scale(options.scale)
    values = {**scale.entries, "selections": [selection], **entries}
    if options.data_dir is not None:
        values["data_dir"] = options.data_dir
    if scale.features and "datasets" not in options.entries:
        banks = _find_banks(values["data_dir"], options.backbone, entries["datasets"])
        values["datasets"] = list(banks)
    values |= options.entries
    specs = {}
    for head in scale.heads:
        overrides = {**head.overrides, **dict(values.get("overrides") or {})}
        if not scale.features and options.backbone not in (None, _DEFAULT_BACKBONE):
            overrides["backbone"] = options.backbone
        specs[head] = make_specification({**values, "overrides": overrides})
    folders = _sweep_folders(options, specs)
    return [Sweep(head, "", spec, folders[head]) for head, spec in specs.items() if head in folders]


def _sweep_folders(options: Options, specs: Mapping[_Head, SweepSpec]) -> dict[_Head, Path]:
    """Which folder holds the sweep of which head; default names if no folder is named."""
    if not options.sweeps:
        names = {head: "-".join(filter(None, (options.scale, head.name))) for head in specs}
        return {head: _SWEEPS / name for head, name in names.items()}
    # Folders that have runs are known by them, others by a name that ends in that of a head; the
    # rest is for the heads that are left, in their order. Heads without a folder are left out.
    found: dict[_Head, Path] = {}
    fresh = []
    for folder in options.sweeps:
        head = _head_of(folder, specs)
        if head is None:
            fresh.append(folder)
        elif head in found:
            raise InputError(
                f"Expected one sweep with a {head.title}, got {found[head]} and {folder}."
            )
        else:
            found[head] = folder
    free = [head for head in specs if head not in found]
    if len(fresh) > len(free):
        titles = ", ".join(head.title for head in specs)
        raise InputError(
            f"Expected a folder for each of: {titles}; got {', '.join(map(str, options.sweeps))}."
        )
    return found | dict(zip(free, fresh, strict=False))


def _head_of(folder: Path, specs: Mapping[_Head, SweepSpec]) -> _Head | None:
    for head, spec in specs.items():
        jobs = sweep_jobs(spec, without_data=True)
        if any((folder / job.folder).is_dir() for job in jobs):
            return head
    return next((head for head in specs if head.name and folder.name.endswith(head.name)), None)


def read_sweep(sweep: Sweep) -> Sweep:
    """A sweep with the finished runs of its jobs, and no others that its folder may hold."""
    folders = [sweep.folder / job.folder for job in sweep.jobs]
    found = [read_run(folder)[0] for folder in folders if (folder / DONE).exists()]
    runs, _ = finished_runs([run for run in found if run is not None])
    check_protocols(runs)
    return dataclasses.replace(sweep, runs=runs)


REFERENCE: Final = "erm"  # what the others are compared with
_DEFAULT_BANK: Final = "PACS@efficientnet_lite0"
_SHARED: Final = ("steps", "hparams", "holdout_fraction", "task")
"""What all jobs of a sweep must have in common."""


def swept_bank(options: Options) -> str | None:
    """The feature bank whose sweep an experiment reports on beside Colored MNIST, if any."""
    if not options.sweeps and options.data_dir is None:
        return None
    if not options.sweeps or options.data_dir is None:
        found, missing = ("--sweep", "--data-dir") if options.sweeps else ("--data-dir", "--sweep")
        raise InputError(f"Expected {missing} beside {found}, got none.")
    if len(options.sweeps) > 1:
        raise InputError(f"Expected one --sweep, got {len(options.sweeps)}.")
    return options.dataset or _DEFAULT_BANK


@final
@dataclass(frozen=True)
class _Selected:
    """What model selection knows of the job that it chose, among draws of hyper-parameters."""

    trial: int
    test_domain: int
    hparams_seed: int
    validation: float
    test: float
    draws: int


def select_jobs(options: Options, algorithms: Sequence[str]) -> dict[str, dict[Job, _Selected]]:
    """For each algorithm, trial and test domain the best draw of hyper-parameters."""
    recorded = {find_algorithm(name).recorded: name for name in (REFERENCE, *algorithms)}
    runs = _sweep_runs(options, recorded)
    present = {job.algorithm for job in runs}
    reference = [job for job in runs if recorded[job.algorithm] == REFERENCE]
    # What the sweep does not have at all gets the same draws as the reference, trained here.
    absent = [title for title in recorded if title not in present]
    jobs = [dataclasses.replace(job, algorithm=title) for title in absent for job in reference]
    runs |= {job: _read(run.folder) for job, run in train_all(options, jobs).items()}
    return {name: _select(runs, find_algorithm(name).recorded) for name in algorithms}


def _sweep_runs(options: Options, algorithms: Container[str]) -> dict[Job, Run]:
    """The complete runs on a bank with one test domain and drawn hyper-parameters."""
    found: dict[Job, Run] = {}
    bank, (folder,), data_dir = swept_bank(options), options.sweeps, str(options.data_dir)
    for path in sorted(folder.glob(f"*/{DONE}")):
        if not (path.parent / CONFIG).exists():
            continue
        job = job_from(read_config(path.parent))
        fits = job.dataset == bank and len(job.test_domains) == 1 and job.hparams_seed > 0
        if fits and job.algorithm in algorithms:
            found[dataclasses.replace(job, data_dir=data_dir)] = _read(path.parent)
    if not any(job.algorithm == find_algorithm(REFERENCE).recorded for job in found):
        raise InputError(
            f"Expected complete runs of ERM on {bank} with one test domain and drawn "
            f"hyper-parameters in {folder}, found none. Give the sweep's folder with --sweep "
            "and its data set with --dataset."
        )
    for name in _SHARED:
        values = {getattr(job, name) for job in found}
        if len(values) > 1:
            texts = ", ".join(sorted(map(str, values)))
            raise InputError(
                f"Expected runs with the same {name} in {folder}, found {texts}. Keep each "
                "protocol in a sweep of its own."
            )
    return found


def _select(runs: Mapping[Job, Run], algorithm: str) -> dict[Job, _Selected]:
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
    found = {}
    for place, pairs in sorted(candidates.items()):
        best = choose(candidate for _, candidate in pairs)
        job = next(job for job, candidate in pairs if candidate is best)
        found[job] = _Selected(*place, job.hparams_seed, best.validation, best.test, len(pairs))
    return found


def draw_range(counts: Iterable[int]) -> str:
    """How many draws jobs were selected among, as a range."""
    found = sorted(set(counts)) or [0]
    return " to ".join(map(str, sorted({found[0], found[-1]})))


def twin(job: Job) -> Job:
    """The reference with the same hyper-parameters, drawn by name from its seeds, and split."""
    return dataclasses.replace(job, algorithm=find_algorithm(REFERENCE).recorded)


def second_start(job: Job) -> Job:
    """The reference once more from another start: CORAL with weight 0, a seed of its own."""
    overrides = json.loads(job.hparams) if job.hparams else {}
    hparams = json.dumps({**overrides, "penalty_weight": 0.0}, sort_keys=True)
    return dataclasses.replace(job, algorithm=find_algorithm("coral").recorded, hparams=hparams)


def train_all(options: Options, jobs: Iterable[Job]) -> dict[Job, FinishedRun]:
    """Train jobs, unless only what is there is wanted; the complete ones by job."""
    needed = list(dict.fromkeys(jobs))
    if options.launcher is not None:
        have_done(needed, options.cache, options.launcher, options.progress)
    return {run.job: run for run in cached_runs(options.cache, needed)}


def _read(folder: Path) -> Run:
    run, _ = read_run(folder)
    if run is None:
        raise InputError(f"Expected records in {folder / RESULTS}, found none.")
    return run
