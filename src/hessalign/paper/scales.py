"""The sizes at which the paper's DomainBed tables can be run: as published, and small.

`full` is the published protocol: fine-tuned networks on images, 5,001 steps, 20 draws of
hyper-parameters and 3 trials. `small` runs the same protocol on a bank of frozen features, in 301
steps and with 8 draws, once with a linear head and once with a hidden layer: minutes on a laptop,
and not comparable with the published numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, final

from hessalign._errors import InputError
from hessalign._names import check_name
from hessalign.bench.algorithms import ALGORITHMS
from hessalign.bench.algorithms.registry import DOMAINBED, FIDELITY
from hessalign.bench.data.arrays import SUFFIXES
from hessalign.bench.data.catalog import DEFAULT_STEPS
from hessalign.bench.runs.job_plan import AUGMENTED
from hessalign.bench.sweep import SweepSpec
from hessalign.bench.sweep.specification import DEFAULT_PRESET
from hessalign.paper.published_domainbed import DATASETS

DEFAULT_BACKBONE: Final = "resnet50"
"""What images are trained with where nothing else is asked for: DomainBed's."""

_PUBLISHED: Final[Mapping[str, object]] = {FIDELITY: DOMAINBED, AUGMENTED: True}
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
class Scale:
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


_FULL: Final = Scale(
    "full",
    "the published protocol: networks fine-tuned on images, 20 draws, 3 trials, 5,001 steps",
    draws=20,
    trials=3,
    steps=None,
    data_dir="data",
    heads=(Head("", "fine-tuned network", _PUBLISHED),),
)
_SMALL: Final = Scale(
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

SCALES: Final[Mapping[str, Scale]] = {each.name: each for each in (_FULL, _SMALL)}
"""The sizes by name."""


def find_scale(name: str) -> Scale:
    """A size by name.

    Args:
        name: Its name.

    Returns:
        The size; an unknown name raises an UnknownNameError.
    """
    check_name("scale", name, SCALES)
    return SCALES[name]


def find_banks(
    data_dir: str, backbone: str | None, datasets: Sequence[str] = DATASETS
) -> tuple[str, ...]:
    """The feature banks of some data sets that are in a folder.

    Args:
        data_dir: The folder.
        backbone: Whose features; None if the folder has those of one backbone only.
        datasets: Names of the data sets.

    Returns:
        Names of the form DATASET@BACKBONE, in the order of the data sets.

    Raises:
        InputError: If there are none, or it is not clear which are meant.
    """
    found = {
        path.stem
        for path in Path(data_dir).glob("*@*")
        if path.suffix in SUFFIXES and path.stem.partition("@")[0] in datasets
    }
    backbones = sorted({name.partition("@")[2] for name in found})
    chosen = [each for each in backbones if backbone in (None, each)]
    if not chosen:
        wanted = f"DATASET@{backbone or 'BACKBONE'}{SUFFIXES[-1]}"
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
            f"frozen features of {', '.join(backbones)} instead of a fine-tuned {DEFAULT_BACKBONE}"
        )
    elif "backbone" in spec.overrides:
        found.append(f"{spec.overrides['backbone']} instead of {DEFAULT_BACKBONE}")
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
    if not backbones and not spec.overrides.get(AUGMENTED):
        found.append("validated on images as they are, not augmented ones")
    if spec.preset != DEFAULT_PRESET:
        found.append(f"preset {spec.preset}")
    found += [f"{name} = {value}" for name, value in spec.overrides.items() if name not in _OWN]
    return found


def describe_departures(found: list[str]) -> list[str]:
    """Say that numbers cannot be compared with the published ones.

    Args:
        found: What `departures` gave.

    Returns:
        Nothing, or one paragraph.
    """
    if not found:
        return []
    return [
        f"**Not the published protocol:** {'; '.join(found)}. So no number here reproduces or "
        "contradicts a published one; those are shown for orientation, and the order of the "
        "methods is what can be compared."
    ]
