r"""Hessian and gradient alignment (Hemati et al., 2023): HGP, Hutchinson, and the exact variants.

All minimise

$$\frac1E \sum_e L_e + w \left(\alpha \frac1E \sum_e \|Q_e - t\|^2
+ \beta \frac1E \sum_e \|g_e - \bar g\|^2\right)$$

and differ in the quantity Q that stands for the Hessian: see `hessalign.alignment.penalties`.
The weight w follows a schedule of the training loop.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, final, get_args

import torch

from hessalign._names import UnknownNameError
from hessalign.algorithms.objective import ObjectiveTerms
from hessalign.alignment import gradient_dispersion, hessian_dispersion
from hessalign.alignment.penalties import HESSIAN_KINDS, MEAN, POOLED, HessianKind, Target
from hessalign.curvature import HeadStatistics

Fidelity = Literal["paper", "released"]


@final
@dataclass(frozen=True)
class AlignmentConfig:
    """Weights and variant of the penalty.

    Attributes:
        alpha: Weight of the Hessian term, relative to the scheduled weight.
        beta: Weight of the gradient term, relative to the scheduled weight.
        hessian: What stands for the Hessian; None leaves the gradient term alone.
        probes: Probes per domain, for "sampled" and "expected".
        shared_probes: The same probes for all domains.
        fidelity: "paper" for eq. 17 and 20 as printed. "released" for the authors' Colored MNIST
            scripts: sums over domains instead of means, and targets taken from the mean loss.
    """

    alpha: float = 1.0
    beta: float = 1.0
    hessian: HessianKind | None = "full"
    probes: int = 150
    shared_probes: bool = False
    fidelity: Fidelity = "paper"

    def __post_init__(self) -> None:
        for name, weight in (("alpha", self.alpha), ("beta", self.beta)):
            if not (isinstance(weight, int | float) and math.isfinite(weight) and weight >= 0):
                raise ValueError(
                    f"Expected {name} as a finite number of 0 or more, got {weight!r}."
                )
        if self.hessian is not None and self.hessian not in HESSIAN_KINDS:
            raise UnknownNameError("hessian kind", self.hessian, (*HESSIAN_KINDS, None))
        if not (isinstance(self.probes, int) and self.probes >= 1):
            raise ValueError(
                f"Expected probes as a whole number of 1 or more, got {self.probes!r}."
            )
        if not isinstance(self.shared_probes, bool):
            raise ValueError(f"Expected shared_probes true or false, got {self.shared_probes!r}.")
        if self.fidelity not in get_args(Fidelity):
            raise UnknownNameError("fidelity", self.fidelity, get_args(Fidelity))


@final
class Alignment:
    """The penalty as a training objective.

    Args:
        config: Weights and variant.
        generator: Source of the probes, for "sampled".
    """

    def __init__(self, config: AlignmentConfig, generator: torch.Generator | None = None) -> None:
        self.config = config
        self.generator = generator
        self.target: Target = MEAN if config.fidelity == "paper" else POOLED

    def __call__(self, statistics: HeadStatistics) -> ObjectiveTerms:
        """Risk and penalty.

        Args:
            statistics: Statistics of the head on one batch.

        Returns:
            The terms; parts "hessian" and "gradient" are dispersions before α and β.
        """
        config = self.config
        scale = len(statistics.domains) if config.fidelity == "released" else 1
        parts = {}
        if config.hessian is not None and config.alpha > 0:
            parts["hessian"] = scale * hessian_dispersion(
                statistics,
                config.hessian,
                probes=config.probes,
                shared_probes=config.shared_probes,
                generator=self.generator,
                target=self.target,
            )
        if config.beta > 0:
            parts["gradient"] = scale * gradient_dispersion(statistics)
        weights = {"hessian": config.alpha, "gradient": config.beta}
        penalty = sum(
            (weights[name] * part for name, part in parts.items()), statistics.risk.new_zeros(())
        )
        return ObjectiveTerms(statistics.risk.mean(), penalty, parts)
