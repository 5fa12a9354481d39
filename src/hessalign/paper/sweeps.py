"""What an experiment on DomainBed consists of: sweeps, at one of two sizes.

`full` is the published protocol: fine-tuned networks on images, 5,001 steps, 20 draws of
hyper-parameters and 3 trials. `small` runs the same protocol on a bank of frozen features, in 301
steps and with 8 draws, once with a linear head and once with a hidden layer: minutes on a laptop,
and not comparable with the published numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

from hessalign._errors import InputError
from hessalign._names import check_name
from hessalign.bench.algorithms import ALGORITHMS, find_algorithm
from hessalign.bench.algorithms.registry import DOMAINBED, FIDELITY
from hessalign.bench.data.catalog import DEFAULT_STEPS
from hessalign.bench.data.files import ARRAYS
from hessalign.bench.runs.records import DONE
from hessalign.bench.sweep import Job, SweepSpec, make_specification, sweep_jobs
from hessalign.bench.sweep.selection import Run, read_run
from hessalign.bench.sweep.selection.collection import check_protocols, finished_runs
from hessalign.bench.sweep.specification import DEFAULT_PRESET
from hessalign.paper.cache import Part
from hessalign.paper.experiment import Options
from hessalign.paper.published import DATASETS

_SWEEPS: Final = Path("outputs/sweeps")
"""Where sweeps are kept whose folder is not named."""

_DEFAULT_BACKBONE: Final = "resnet50"
"""What images are trained with where nothing else is asked for: DomainBed's."""

_AUGMENTED: Final = "augment_validation"
"""Whether held-out images are changed at random too."""

_PUBLISHED: Final[Mapping[str, object]] = {FIDELITY: DOMAINBED, _AUGMENTED: True}
"""Overrides by which a run follows DomainBed's code where the default is another."""

_OWN: Final = ("backbone", "hidden", "alpha", "beta", *_PUBLISHED)
"""Overrides by which experiments say what they compare; some are told apart."""


@final
@dataclass(frozen=True, eq=False)
class Head:
    """What is trained.

    Attributes:
        name: For the name of its sweep.
        title: For people.
        overrides: The hyper-parameters that ask for it.
    """

    name: str
    title: str
    overrides: Mapping[str, object] = field(default_factory=dict)


@final
@dataclass(frozen=True, eq=False)
class _Scale:
    """A size.

    Attributes:
        name: How it is called on the command line.
        text: What it is, in a sentence.
        draws: Choices of hyper-parameters; the first is the defaults.
        trials: How many trials.
        steps: Steps of training; None for the data set's own.
        data_dir: Where data sets are looked for where nothing else is said.
        heads: What is trained; each is a sweep of its own.
        algorithms: Which algorithms; empty for those of the published table.
        features: Whether the data sets are feature banks.
    """

    name: str
    text: str
    draws: int
    trials: int
    steps: int | None
    data_dir: str
    heads: tuple[Head, ...]
    algorithms: tuple[str, ...] = ()
    features: bool = False


_FULL: Final = _Scale(
    "full",
    "the published protocol: networks fine-tuned on images, 20 draws, 3 trials, 5,001 steps",
    draws=20,
    trials=3,
    steps=None,
    data_dir="data",
    heads=(Head("", "fine-tuned network", _PUBLISHED),),
)
_SMALL: Final = _Scale(
    "small",
    "the same protocol on the feature banks that are there: 8 draws, 3 trials, 301 steps",
    draws=8,
    trials=3,
    steps=301,
    data_dir="outputs/features",
    heads=(Head("linear", "linear head"), Head("hidden", "hidden layer of 128", {"hidden": 128})),
    algorithms=(
        "erm", "coral", "vrex", "irm", "fishr", "groupdro", "mixup", "hgp", "hutchinson", "full",
        "gradient", "diagonal",
    ),
    features=True,
)  # fmt: skip

_SCALES: Final[Mapping[str, _Scale]] = {each.name: each for each in (_FULL, _SMALL)}
"""The sizes by name."""


@final
@dataclass(frozen=True, eq=False)
class Sweep:
    """One sweep of an experiment.

    Attributes:
        head: What is trained.
        setting: What tells it from the other sweeps of that head.
        spec: The sweep.
        folder: Its folder.
    """

    head: Head
    setting: str
    spec: SweepSpec
    folder: Path

    def part(self, jobs: Sequence[Job]) -> Part:
        """Its jobs with where they are kept."""
        return Part(jobs, self.folder, self.spec)


@final
@dataclass(frozen=True, eq=False)
class Results:
    """What there is of a sweep.

    Attributes:
        sweep: The sweep.
        jobs: All of its jobs.
        runs: The finished runs.
    """

    sweep: Sweep
    jobs: Sequence[Job]
    runs: Sequence[Run]

    @property
    def missing(self) -> dict[str, tuple[int, int]]:
        """Finished runs and all runs, of the algorithms that are not complete."""
        total = Counter(find_algorithm(job.algorithm).name for job in self.jobs)
        done = Counter(find_algorithm(run.key.algorithm).name for run in self.runs)
        return {name: (done[name], all_) for name, all_ in total.items() if done[name] < all_}

    def lacking(self) -> list[str]:
        """Nothing, or a paragraph on which algorithms are not complete yet."""
        if not self.missing:
            return []
        counts = [
            f"{find_algorithm(name).title} {done} of {total}"
            for name, (done, total) in self.missing.items()
        ]
        return [f"Not all runs are finished (*, not compared): {', '.join(counts)}."]


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
    backbones = sorted({name.partition("@")[2] for name in found})
    chosen = [each for each in backbones if backbone in (None, each)]
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


def departures(spec: SweepSpec, draws: int | None = None) -> list[str]:
    """In what a sweep departs from the published protocol.

    Args:
        spec: The sweep.
        draws: Published draws of hyper-parameters; None for those of the full size.

    Returns:
        Phrases; none if its numbers can be compared with the published ones.

    Example:
        >>> departures(SweepSpec(("PACS@resnet18",), ("erm",), draws=8))
        ['frozen features of resnet18 instead of a fine-tuned resnet50', '8 draws instead of 20']
    """
    found = []
    backbones = sorted({name.partition("@")[2] for name in spec.datasets} - {""})
    if backbones:
        found.append(
            f"frozen features of {', '.join(backbones)} instead of a fine-tuned {_DEFAULT_BACKBONE}"
        )
    elif "backbone" in spec.overrides:
        found.append(f"{spec.overrides['backbone']} instead of {_DEFAULT_BACKBONE}")
    wanted = {"draws": draws or _FULL.draws, "trials": _FULL.trials, "steps": DEFAULT_STEPS}
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


def describe_departures(found: Sequence[str]) -> list[str]:
    """Nothing, or a paragraph that numbers cannot be compared with the published ones."""
    if not found:
        return []
    return [
        f"**Not the published protocol:** {'; '.join(found)}. So no number here reproduces or "
        "contradicts a published one; those are shown for orientation, and the order of the "
        "methods is what can be compared."
    ]


def head_specs(
    options: Options, entries: Mapping[str, Any], selections: Sequence[str]
) -> dict[Head, SweepSpec]:
    """The sweep of each head, as the size says and the user changes it."""
    scale = find_scale(options.scale)
    data_dir = scale.data_dir if options.data_dir is None else options.data_dir
    values: dict[str, Any] = {
        "data_dir": data_dir,
        "draws": scale.draws,
        "trials": scale.trials,
        "steps": scale.steps,
        "selections": list(selections),
        **entries,
        **options.entries,
    }
    if scale.features and "datasets" not in options.entries:
        values["datasets"] = list(_find_banks(data_dir, options.backbone, entries["datasets"]))
    specs = {}
    for head in scale.heads:
        overrides = {**head.overrides, **dict(values.get("overrides") or {})}
        if not scale.features and options.backbone not in (None, _DEFAULT_BACKBONE):
            overrides["backbone"] = options.backbone
        specs[head] = make_specification({**values, "overrides": overrides})
    return specs


def sweep_folders(options: Options, specs: Mapping[Head, SweepSpec]) -> list[tuple[Head, Path]]:
    """Which folder holds the sweep of which head.

    Args:
        options: How to reproduce. Folders it names that have runs are known by them, others by a
            name that ends in that of a head; the rest is for the heads that are left, in their
            order. Heads without a folder are left out.
        specs: The sweep of each head.

    Returns:
        Heads with their folders; all heads under default names if no folder is named.

    Raises:
        InputError: If there are more folders than heads, or two for one head.
    """
    if not options.sweeps:
        return [(head, _default_folder(options.scale, head)) for head in specs]
    found: dict[Head, Path] = {}
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
    found |= dict(zip(free, fresh, strict=False))
    return [(head, found[head]) for head in specs if head in found]


def _head_of(folder: Path, specs: Mapping[Head, SweepSpec]) -> Head | None:
    for head, spec in specs.items():
        jobs = sweep_jobs(spec, without_data=True)
        if any((folder / job.folder).is_dir() for job in jobs):
            return head
    return next((head for head in specs if head.name and folder.name.endswith(head.name)), None)


def _default_folder(scale: str, head: Head) -> Path:
    """Where the sweep of a head is kept if nothing else is said."""
    return _SWEEPS / "-".join(filter(None, (scale, head.name)))


def read_sweep(sweep: Sweep, jobs: Sequence[Job]) -> Results:
    """The finished runs of a sweep, and no others that its folder may hold."""
    found: list[Run] = []
    for job in jobs:
        folder = sweep.folder / job.folder
        if (folder / DONE).exists():
            run, _ = read_run(folder)
            found += [] if run is None else [run]
    runs, _ = finished_runs(found)
    check_protocols(runs)
    return Results(sweep, jobs, runs)
