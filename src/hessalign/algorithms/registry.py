"""The table of algorithms: one row each, from which listings and the command line follow."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

import torch

from hessalign._names import UnknownNameError
from hessalign.algorithms.erm import Erm, ErmConfig
from hessalign.algorithms.fishr import Fishr, FishrConfig
from hessalign.algorithms.hessian import Alignment, AlignmentConfig
from hessalign.algorithms.irm import Irm, IrmConfig
from hessalign.algorithms.objective import Objective
from hessalign.algorithms.vrex import Vrex, VrexConfig

Config = ErmConfig | AlignmentConfig | IrmConfig | VrexConfig | FishrConfig


@final
@dataclass(frozen=True)
class AlgorithmInfo:
    """One row of the table.

    Attributes:
        name: How it is called on the command line and in results.
        title: How it is shown in tables and figures.
        config: Its default configuration.
        make: Builds the objective from a configuration and a source of randomness.
        aligns: What it aligns, in the words of Table 1.
        equation: Where the paper defines it.
        reference: Who proposed it.
        fidelities: Values of its option `fidelity`, if it has one; "paper" is the default.
    """

    name: str
    title: str
    config: Config
    make: Callable[[Any, torch.Generator], Objective]
    aligns: str
    equation: str
    reference: str
    fidelities: tuple[str, ...] = ()


def _deterministic(make: Callable[[Any], Objective]) -> Callable[[Any, torch.Generator], Objective]:
    return lambda config, _: make(config)


_HEMATI = "Hemati et al., 2023"
_HESSIAN = "error, error×feature, logit, logit×feature, logit×covariance"

_ROWS = (
    AlgorithmInfo(
        "erm", "ERM", ErmConfig(), _deterministic(Erm), "nothing", "eq. 1", "Vapnik, 1999"
    ),
    AlgorithmInfo(
        "irm",
        "IRM",
        IrmConfig(),
        _deterministic(Irm),
        "optimal scale of the logits",
        "eq. (IRMv1)",
        "Arjovsky et al., 2019",
        ("paper", "domainbed"),
    ),
    AlgorithmInfo(
        "vrex",
        "V-REx",
        VrexConfig(),
        _deterministic(Vrex),
        "loss",
        "V-REx",
        "Krueger et al., 2021",
        ("paper", "released"),
    ),
    AlgorithmInfo(
        "fishr",
        "Fishr",
        FishrConfig(),
        _deterministic(Fishr),
        "error, error×feature, squared",
        "Fishr",
        "Ramé et al., 2022",
        ("paper", "released"),
    ),
    AlgorithmInfo(
        "gradient",
        "Gradient only",
        AlignmentConfig(hessian=None),
        Alignment,
        "error, error×feature",
        "eq. 17 with α = 0",
        _HEMATI,
        ("paper", "released"),
    ),
    AlgorithmInfo(
        "hgp",
        "HGP",
        AlignmentConfig(hessian="product"),
        Alignment,
        "error, error×feature; the Hessian along the gradient",
        "eq. 17",
        _HEMATI,
        ("paper", "released"),
    ),
    AlgorithmInfo(
        "hutchinson",
        "Hutchinson",
        AlignmentConfig(hessian="sampled"),
        Alignment,
        "error, error×feature; the Hessian's diagonal, estimated",
        "eq. 20",
        _HEMATI,
        ("paper", "released"),
    ),
    AlgorithmInfo(
        "expected",
        "Hutchinson, expected",
        AlignmentConfig(hessian="expected"),
        Alignment,
        "as hutchinson, without sampling",
        "expectation of eq. 20",
        "this package",
        ("paper", "released"),
    ),
    AlgorithmInfo(
        "diagonal",
        "Exact diagonal",
        AlignmentConfig(hessian="diagonal"),
        Alignment,
        "error, error×feature; the Hessian's diagonal",
        "eq. 20 with the exact diagonal",
        "this package",
        ("paper", "released"),
    ),
    AlgorithmInfo(
        "full",
        "Full Hessian",
        AlignmentConfig(hessian="full"),
        Alignment,
        _HESSIAN,
        "section 3.1",
        "this package",
        ("paper", "released"),
    ),
)

ALGORITHMS: Mapping[str, AlgorithmInfo] = {row.name: row for row in _ROWS}
if len(ALGORITHMS) != len(_ROWS):
    raise RuntimeError("Two algorithms have the same name.")


def find_algorithm(name: str) -> AlgorithmInfo:
    """The row of an algorithm.

    Args:
        name: Its name.

    Returns:
        The row.

    Raises:
        UnknownNameError: If there is no such algorithm.
    """
    if name not in ALGORITHMS:
        raise UnknownNameError("algorithm", name, ALGORITHMS)
    return ALGORITHMS[name]


def make_objective(
    name: str, options: Mapping[str, object], generator: torch.Generator
) -> Objective:
    """Build an algorithm by name.

    Args:
        name: A name in `ALGORITHMS`.
        options: Fields of its configuration that differ from the default.
        generator: Source of whatever randomness it needs.

    Returns:
        The objective.

    Raises:
        UnknownNameError: If the algorithm has no such option.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> make_objective("hutchinson", {"probes": 100}, generator).config.probes
        100
    """
    info = find_algorithm(name)
    known = [field.name for field in dataclasses.fields(info.config)]
    for option in options:
        if option not in known:
            raise UnknownNameError(f"option of algorithm {name!r}", option, known)
    return info.make(dataclasses.replace(info.config, **options), generator)  # type: ignore[arg-type]
