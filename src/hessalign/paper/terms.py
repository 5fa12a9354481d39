"""Table 6: which of the two terms helps, on PACS with sketch as the test domain; what is run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from hessalign.bench.sweep import SweepSpec
from hessalign.paper.scales import Head, find_scale
from hessalign.paper.sweep_experiment import Part, SweepOptions, head_specs, sweep_folders

WEIGHT: Final = 1e-5
"""The published α and β."""

SELECTION: Final = "training-domain"
"""Of steps and, where there are several draws, of weights; the paper does not say."""

PUBLISHED: Final = "hutchinson"
"""The algorithm of the published ablation."""

ALGORITHMS: Final = (PUBLISHED, "diagonal", "full")
TERMS: Final = ("both", "gradient", "hessian")


@final
@dataclass(frozen=True)
class Weights:
    """How the terms are weighed.

    Attributes:
        name: For the names of sweeps.
        title: For people.
        values: α and β that are set; without any they are drawn.
    """

    name: str
    title: str
    values: Mapping[str, float]

    def setting(self, terms: str) -> str:
        """What the sweep of some of the terms is called.

        Args:
            terms: "both", "gradient" or "hessian".

        Returns:
            Its name.
        """
        return f"{self.name} {terms}"

    def overrides(self, terms: str) -> dict[str, float]:
        """The hyper-parameters that ask for some of the terms.

        Args:
            terms: "both", "gradient" or "hessian".

        Returns:
            Values by name.

        Example:
            >>> SEARCHED.overrides("gradient"), AS_PUBLISHED.overrides("hessian")
            ({'alpha': 0.0}, {'alpha': 1e-05, 'beta': 0.0})
        """
        absent = {"gradient": {"alpha": 0.0}, "hessian": {"beta": 0.0}}
        return {**self.values, **absent.get(terms, {})}


AS_PUBLISHED: Final = Weights(
    "published", "α = β = 1e-5, as published", {"alpha": WEIGHT, "beta": WEIGHT}
)
SEARCHED: Final = Weights(
    "searched",
    "α and β by default or drawn from the ranges for features, chosen by training domains",
    {},
)


def make_parts(options: SweepOptions) -> list[Part]:
    """The sweeps: one for each choice of terms and weights.

    At the small size weights are also drawn from ranges in which they matter, since those that were
    published carry the units of another network. The sweep with both terms drawn has the runs of
    Table 7, and its folder; those of the others are named after it.

    Args:
        options: How to reproduce.

    Returns:
        The sweeps.
    """
    scale = find_scale(options.scale)
    entries = {
        "datasets": ["PACS"],
        "algorithms": ["erm", *(ALGORITHMS if scale.features else (PUBLISHED,))],
        "test_domains": ["sketch"],
    }
    specs = head_specs(options, entries, [SELECTION])
    parts = []
    for head, folder in sweep_folders(options, specs):
        base = specs[head] if scale.features else dataclasses.replace(specs[head], draws=1)
        parts.append(Part(head, SEARCHED.setting("both"), base, folder))
        if not scale.features:  # of the sweep as it is, ERM alone is wanted
            spec = dataclasses.replace(base, algorithms=("erm",))
            parts[-1] = dataclasses.replace(parts[-1], spec=spec)
        choices = [(AS_PUBLISHED, terms) for terms in TERMS]
        if scale.features:
            choices += [(SEARCHED, "gradient"), (SEARCHED, "hessian")]
        parts += [_variant(head, base, folder, weights, terms) for weights, terms in choices]
    return parts


def _variant(head: Head, base: SweepSpec, folder: Path, weights: Weights, terms: str) -> Part:
    wanted = [name for name in base.algorithms if name != "erm"]
    if terms == "gradient":
        wanted = [name for name in wanted if name == PUBLISHED]
    spec = dataclasses.replace(
        base,
        algorithms=tuple(wanted),
        draws=base.draws if weights is SEARCHED else 1,
        overrides={**base.overrides, **weights.overrides(terms)},
    )
    name = f"{folder.name}-{weights.name}-{terms}"
    return Part(head, weights.setting(terms), spec, folder.with_name(name))
