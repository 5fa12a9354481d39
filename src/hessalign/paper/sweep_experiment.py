"""What an experiment of the paper on DomainBed consists of: sweeps, and what they are made into."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

from hessalign._errors import InputError
from hessalign.bench.algorithms import find_algorithm
from hessalign.bench.sweep import Job, SweepSpec, make_specification, sweep_jobs
from hessalign.bench.sweep.selection import Run
from hessalign.paper.experiment import Report
from hessalign.paper.scales import DEFAULT_BACKBONE, Head, Scale, find_banks, find_scale

SWEEPS: Final = Path("outputs/sweeps")
"""Where sweeps are kept whose folder is not named."""


@final
@dataclass(frozen=True)
class SweepOptions:
    """How to reproduce.

    Attributes:
        scale: Name of the size.
        data_dir: The folder that holds the data sets; None for that of the size.
        backbone: What is fine-tuned, or whose features; None for ResNet-50, or for the backbone of
            the only banks there are.
        sweeps: Folders of sweeps, one for each head; see `sweep_folders`.
        entries: Keys of the sweeps that differ from what the size says.
    """

    scale: str = "full"
    data_dir: str | None = None
    backbone: str | None = None
    sweeps: tuple[Path, ...] = ()
    entries: Mapping[str, object] = field(default_factory=dict)


@final
@dataclass(frozen=True, eq=False)
class Part:
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


@final
@dataclass(frozen=True, eq=False)
class Results:
    """What there is of a sweep.

    Attributes:
        part: The sweep.
        jobs: All of its jobs.
        runs: The finished runs.
    """

    part: Part
    jobs: Sequence[Job]
    runs: Sequence[Run]

    @property
    def missing(self) -> dict[str, tuple[int, int]]:
        """Finished runs and all runs, of the algorithms that are not complete."""
        total = Counter(find_algorithm(job.algorithm).name for job in self.jobs)
        done = Counter(find_algorithm(run.key.algorithm).name for run in self.runs)
        return {name: (done[name], all_) for name, all_ in total.items() if done[name] < all_}

    def lacking(self) -> list[str]:
        """Say which algorithms are not complete yet.

        Returns:
            Nothing, or one paragraph.
        """
        if not self.missing:
            return []
        counts = [
            f"{find_algorithm(name).title} {done} of {total}"
            for name, (done, total) in self.missing.items()
        ]
        return [f"Not all runs are finished (*, not compared): {', '.join(counts)}."]


@final
@dataclass(frozen=True)
class SweepExperiment:
    """One table of the paper on DomainBed.

    Attributes:
        name: How it is called on the command line.
        title: What it shows.
        parts: Its sweeps.
        present: Makes the report from their results.
    """

    name: str
    title: str
    parts: Callable[[SweepOptions], Sequence[Part]]
    present: Callable[[Sequence[Results], SweepOptions], Report]


def head_specs(
    options: SweepOptions, entries: Mapping[str, Any], selections: Sequence[str]
) -> dict[Head, SweepSpec]:
    """The sweep of each head, as the size says and the user changes it.

    Args:
        options: How to reproduce.
        entries: What the experiment asks for.
        selections: Methods of model selection that it reads.

    Returns:
        Specifications by head.
    """
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
        values["datasets"] = list(find_banks(data_dir, options.backbone, entries["datasets"]))
    specs = {}
    for head in scale.heads:
        overrides = {**head.overrides, **dict(values.get("overrides") or {})}
        if not scale.features and options.backbone not in (None, DEFAULT_BACKBONE):
            overrides["backbone"] = options.backbone
        specs[head] = make_specification({**values, "overrides": overrides})
    return specs


def sweep_folders(
    options: SweepOptions, specs: Mapping[Head, SweepSpec]
) -> list[tuple[Head, Path]]:
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
    scale = find_scale(options.scale)
    if not options.sweeps:
        return [(head, default_folder(scale, head)) for head in specs]
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


def default_folder(scale: Scale, head: Head) -> Path:
    """Where the sweep of a head is kept if nothing else is said.

    Args:
        scale: The size.
        head: The head.

    Returns:
        Its folder.

    Example:
        >>> scale = find_scale("small")
        >>> print(default_folder(scale, scale.heads[0]).as_posix())
        outputs/sweeps/small-linear
    """
    return SWEEPS / "-".join(filter(None, (scale.name, head.name)))
