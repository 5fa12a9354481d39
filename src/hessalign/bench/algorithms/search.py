"""Hyper-parameters: where they are drawn from, and what a run of the DomainBed protocol gets.

Each hyper-parameter has a source of randomness of its own, seeded with its name, so that adding one
changes no other. Hyper-parameter seed 0 stands for the defaults.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, get_args

import numpy as np

from hessalign._errors import InputError, check_name
from hessalign._protocol import seed_hash as seed_hash
from hessalign.bench.algorithms.options import (
    FEATURES_LR,
    Choice,
    Distribution,
    Fixed,
    Hyper,
    Power,
    Uniform,
    Value,
)
from hessalign.bench.data.catalog import DEFAULT_STEPS, Family

if TYPE_CHECKING:
    from hessalign.bench.algorithms.registry import AlgorithmInfo

Preset = Literal["domainbed-2022", "hgp-2023"]
"""DomainBed's ranges at the commit the paper's code started from (Mixup's are the corrected ones),
or those of the paper's code: larger batches, one value for Mixup, large weights for Hutchinson."""


_TIMES: Final = (
    "anneal_steps",
    "irm_anneal_steps",
    "ib_anneal_steps",
    "burn_in_steps",
    "probe_steps",
    "sma_start",
    "transfer_start",
)
"""Options that say at which step something sets in."""

_FEATURES_RATE: Final = 20.0
"""The default learning rate on frozen features, over that on large images."""


def draw(space: Mapping[str, Distribution], hparams_seed: int, trial_seed: int) -> dict[str, Value]:
    """Random hyper-parameters by name, for seeds from 1; those of one seed differ between trials.

    Returns:
        A value by name.

    Raises:
        InputError: If the seed is not positive.

    Example:
        >>> draw({"lr": Power(10, -5, -3.5)}, hparams_seed=1, trial_seed=0)
        {'lr': 2.7028930742148706e-05}
    """
    if hparams_seed < 1:
        raise InputError(
            f"Expected a hparams_seed of 1 or more, got {hparams_seed}; 0 stands for the defaults, "
            "see hyper_parameters."
        )
    seed = seed_hash(hparams_seed, trial_seed)
    return {
        name: distribution.draw(np.random.RandomState(seed_hash(seed, name)))
        for name, distribution in space.items()
    }


def hyper_parameters(
    space: Mapping[str, Hyper], hparams_seed: int, trial_seed: int
) -> dict[str, Value]:
    """Hyper-parameters of a run: the defaults for seed 0, else a draw.

    Returns:
        A value by name.

    Example:
        >>> space = {"lr": Hyper(5e-5, Power(10, -5, -3.5))}
        >>> hyper_parameters(space, 0, 0), hyper_parameters(space, 1, 0)
        ({'lr': 5e-05}, {'lr': 2.7028930742148706e-05})
    """
    if hparams_seed == 0:
        return {name: hyper.default for name, hyper in space.items()}
    return draw({name: hyper.search for name, hyper in space.items()}, hparams_seed, trial_seed)


def common_space(
    family: Family, algorithm: str = "ERM", preset: Preset = "domainbed-2022"
) -> dict[str, Hyper]:
    """The hyper-parameters that every algorithm has.

    Args:
        family: The kind of data set.
        algorithm: Whose; ARM and RDM have batch sizes of their own, except on small images, and
            ADRMX learning rates, except on features.
        preset: Whose ranges; "hgp-2023" draws batches of 2⁴ samples or more instead of 2³.

    Returns:
        Hyper-parameters by name. An unknown family or preset is refused.

    Example:
        >>> common_space("big")["batch_size"]
        Hyper(default=32, search=Power(base=2, low=3, high=5.5, integer=True))
    """
    check_name("family of data sets", family, get_args(Family))
    check_name("preset", preset, get_args(Preset))
    return {
        "data_augmentation": Hyper(True, Fixed(True)),
        "resnet18": Hyper(False, Fixed(False)),
        "resnet_dropout": Hyper(0.0, Choice((0.0, 0.1, 0.5))),
        "class_balanced": Hyper(False, Fixed(False)),
        "nonlinear_classifier": Hyper(False, Fixed(False)),
        "lr": _learning_rate(family, algorithm),
        "weight_decay": Hyper(0.0, Fixed(0.0) if family == "small" else Power(10, -6, -2)),
        "batch_size": _batch_size(family, algorithm, 4 if preset == "hgp-2023" else 3),
    }


def _learning_rate(family: Family, algorithm: str) -> Hyper:
    if family == "features":  # ours, since only a small network is trained
        return Hyper(1e-3, FEATURES_LR)
    if algorithm.lower() == "adrmx":
        values = (5e-4, 1e-3, 2e-3, 3e-3) if family == "small" else (2e-5, 3e-5, 4e-5, 5e-5)
        return Hyper(3e-3 if family == "small" else 3e-5, Choice(values))
    if family == "small":
        return Hyper(1e-3, Power(10, -4.5, -2.5))
    return Hyper(5e-5, Power(10, -5, -3.5))


def _batch_size(family: Family, algorithm: str, lowest: int) -> Hyper:
    if family == "small":
        return Hyper(64, Power(2, lowest, 9, integer=True))
    if algorithm.lower() == "arm":
        return Hyper(8, Fixed(8))
    if algorithm.lower() == "rdm":
        return Hyper(88, Uniform(70, 100, integer=True))
    return Hyper(32, Power(2, lowest, 5 if family == "DomainNet" else 5.5, integer=True))


class _RunHyperParameters(NamedTuple):
    """What a run is trained with."""

    values: Mapping[str, Value | None]  # all, under DomainBed's names: what records show
    options: Mapping[str, Value | None]  # those of the algorithm, under our names


def search_space(
    info: AlgorithmInfo, family: Family, preset: Preset
) -> dict[str, tuple[str, Distribution]]:
    """Where options are drawn from, after DomainBed's name, or their own if it has none."""
    released = info.search_released if preset == "hgp-2023" else {}
    special = {"small": info.search_small, "features": info.search_features}
    space = {**info.search, **released, **special.get(family, {})}
    return {
        option: each if isinstance(each, tuple) else (option, each)
        for option, each in space.items()
    }


def run_hyper_parameters(
    info: AlgorithmInfo,
    family: Family,
    hparams_seed: int,
    trial_seed: int,
    *,
    preset: Preset = "domainbed-2022",
    dataset: str = "",
    steps: int = DEFAULT_STEPS,
    overrides: Mapping[str, Value | None] | None = None,
    model_keys: tuple[str, ...] = (),
) -> _RunHyperParameters:
    """Draw the hyper-parameters of a run.

    Ranges for when something sets in (`_TIMES`) were made for 5,001 steps, learning rates from then
    on for those of large images. On frozen features, where runs are shorter and rates higher, it is
    after the same share of the run, with the same share of the rate; elsewhere as DomainBed draws
    it. Some ranges of an algorithm are those of a data set, by its name.

    Overrides are set instead of drawn. They have DomainBed's names, the options' own names, or one
    of `model_keys`, which the network is told; every algorithm takes `fidelity="domainbed"`.

    Returns:
        The hyper-parameters.

    Raises:
        InputError: If an override is none of these, or if drawing by class is asked for.
    """
    space, names = common_space(family, info.recorded, preset), {}
    for option, (name, distribution) in search_space(info, family, preset).items():
        space[name] = Hyper(getattr(info.config, option), distribution)
        names[option] = name
    space |= info.by_dataset.get(dataset, {})
    drawn: dict[str, Value | None] = {**hyper_parameters(space, hparams_seed, trial_seed)}
    for time in _TIMES if family == "features" else ():
        if time in names:
            late = float(drawn[names[time]] or 0)
            drawn[names[time]] = round(late * steps / DEFAULT_STEPS)
    if family == "features" and (rate := names.get("late_lr")):
        drawn[rate] = float(drawn[rate] or 0) * _FEATURES_RATE
    fields = [each.name for each in dataclasses.fields(info.config)]
    options: dict[str, Value | None] = {}
    overrides = overrides or {}
    for key, value in overrides.items():
        if info.is_already(key, value):
            continue
        name = key if key in drawn else names.get(key, key)
        check_name(f"hyper-parameter of {info.recorded}", name, [*drawn, *fields, *model_keys])
        if name not in drawn and name in fields:
            options[name] = value
        drawn[name] = value
    options |= {option: drawn[name] for option, name in names.items() if drawn[name] is not None}
    values = {
        name: value for name, value in drawn.items() if value is not None or name in overrides
    }
    if values["class_balanced"]:
        raise InputError("Expected class_balanced as false: drawing by class is not offered.")
    return _RunHyperParameters(values, options)
