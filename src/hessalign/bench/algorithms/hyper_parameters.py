"""The hyper-parameters of a run of the DomainBed protocol: drawn, then overridden."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

from hessalign._errors import InputError
from hessalign._names import UnknownNameError
from hessalign.bench.algorithms.registry import DOMAINBED, FIDELITY, AlgorithmInfo
from hessalign.bench.algorithms.search import (
    Hyper,
    Preset,
    SearchSpace,
    Value,
    common_space,
    hyper_parameters,
)
from hessalign.bench.data.catalog import DEFAULT_STEPS, Family

ANNEALED: Final = "anneal_steps"
"""The option that says when a penalty sets in."""


@final
@dataclass(frozen=True)
class RunHyperParameters:
    """What a run is trained with.

    Attributes:
        values: All of them, under DomainBed's names: what records show.
        options: Those that are options of the algorithm, under our names.
    """

    values: Mapping[str, Value | None]
    options: Mapping[str, Value | None]

    def number(self, name: str, default: float = 0.0) -> float:
        """A value that has to be a number.

        Args:
            name: DomainBed's name.
            default: The value if there is none of that name.

        Returns:
            The number.

        Raises:
            InputError: If it is something else.
        """
        value = self.values.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"Expected {name} as a number, got {value!r}.")
        return value

    def whole(self, name: str, default: int = 0, *, least: int = 0) -> int:
        """A value that has to be a whole number.

        Args:
            name: DomainBed's name.
            default: The value if there is none of that name.
            least: The smallest that makes sense.

        Returns:
            The number.

        Raises:
            InputError: If it is something else.
        """
        value = self.number(name, default)
        if not float(value).is_integer() or value < least:
            raise InputError(f"Expected {name} as a whole number of {least} or more, got {value}.")
        return int(value)

    def truth(self, name: str, default: bool = False) -> bool:
        """A value that has to be true or false.

        Args:
            name: DomainBed's name.
            default: The value if there is none of that name.

        Returns:
            The value.

        Raises:
            InputError: If it is something else.
        """
        value = self.values.get(name, default)
        if not isinstance(value, bool):
            raise InputError(f"Expected {name} as true or false, got {value!r}.")
        return value


def search_space(info: AlgorithmInfo, family: Family, preset: Preset) -> SearchSpace:
    """Where the options of an algorithm are drawn from.

    Args:
        info: The algorithm.
        family: The kind of data set.
        preset: Whose ranges; those for frozen features are ours in any case.

    Returns:
        DomainBed's name and a distribution by option.
    """
    released = info.search_released if preset == "hgp-2023" else {}
    special = {"small": info.search_small, "features": info.search_features}
    return {**info.search, **released, **special.get(family, {})}


def run_hyper_parameters(
    info: AlgorithmInfo,
    family: Family,
    hparams_seed: int,
    trial_seed: int,
    *,
    preset: Preset = "domainbed-2022",
    steps: int = DEFAULT_STEPS,
    overrides: Mapping[str, Value | None] | None = None,
    model_keys: tuple[str, ...] = (),
) -> RunHyperParameters:
    """Draw the hyper-parameters of a run.

    Ranges for when a penalty sets in were made for 5,001 steps. On frozen features, where runs are
    shorter, it sets in after the same share of the run; elsewhere it is left as DomainBed draws it.

    Args:
        info: The algorithm.
        family: The kind of data set.
        hparams_seed: Which draw; 0 for the defaults.
        trial_seed: Which trial.
        preset: Whose ranges.
        steps: Steps of the run.
        overrides: Values that are set instead of drawn, under DomainBed's names, the options' own
            names, or one of `model_keys`. `fidelity="domainbed"` may be asked of every algorithm.
        model_keys: What the network has to be told.

    Returns:
        The hyper-parameters.

    Raises:
        UnknownNameError: If an override is none of these.
        InputError: If drawing by class is asked for.

    Example:
        >>> from hessalign.bench.algorithms import ALGORITHMS
        >>> found = run_hyper_parameters(ALGORITHMS["vrex"], "big", 0, 0, overrides={"lr": 0.1})
        >>> found.values["lr"], found.values["vrex_lambda"], found.options["penalty_weight"]
        (0.1, 10.0, 10.0)
    """
    own = search_space(info, family, preset)
    drawn: dict[str, Value | None] = dict(
        hyper_parameters(
            common_space(family, info.recorded, preset)
            | {
                name: Hyper(getattr(info.config, option), distribution)
                for option, (name, distribution) in own.items()
            },
            hparams_seed,
            trial_seed,
        )
    )
    names = {option: name for option, (name, _) in own.items()}
    if family == "features" and ANNEALED in names:
        drawn[names[ANNEALED]] = round(float(drawn[names[ANNEALED]] or 0) * steps / DEFAULT_STEPS)
    fields = [each.name for each in dataclasses.fields(info.config)]
    options: dict[str, Value | None] = {}
    overrides = overrides or {}
    for key, value in overrides.items():
        if (key, value) == (FIDELITY, DOMAINBED) and not info.deviates:
            continue  # it is what DomainBed has already
        if key in drawn:
            drawn[key] = value
        elif key in names:
            drawn[names[key]] = value
        elif key in fields:
            options[key] = drawn[key] = value
        elif key in model_keys:
            drawn[key] = value
        else:
            known = [*drawn, *fields, *model_keys]
            raise UnknownNameError(f"hyper-parameter of {info.recorded}", key, known)
    options |= {option: drawn[name] for option, name in names.items() if drawn[name] is not None}
    values = {
        name: value for name, value in drawn.items() if value is not None or name in overrides
    }
    if values["class_balanced"]:
        raise InputError("Expected class_balanced as false: drawing by class is not offered.")
    return RunHyperParameters(values, options)
