r"""Hessian and gradient alignment (Hemati et al., 2023): HGP, Hutchinson, and the exact variants.

All minimise

$$\frac1E \sum_e L_e + w \left(\alpha \frac1E \sum_e \|Q_e - t\|^2
+ \beta \frac1E \sum_e \|g_e - \bar g\|^2\right)$$

and differ in the quantity Q that stands for the Hessian: see `hessalign.alignment.penalties`. What
the target t is, and whether domains are averaged, is a matter of the fidelity: see
`hessalign.alignment.fidelity`.
The weight w follows a schedule of the training loop.

The exact variants align by the closed form of the head's Hessian, as CMA did first (Chen et al.,
UAI 2025, arXiv 2506.07378; without bias, and divided by C²); what is ours is to evaluate the
distances without forming it, and the expectation of the sampled estimate.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

from hessalign._errors import InputError
from hessalign.alignment import gradient_dispersion, hessian_dispersion
from hessalign.alignment.fidelity import Fidelity, Reading, make_reading
from hessalign.alignment.penalties import HessianKind
from hessalign.bench.algorithms.kinds import AbstractObjective, PenaltySchedule
from hessalign.bench.algorithms.options import Count, NonNegative, Options
from hessalign.bench.algorithms.search import Power, SearchSpace
from hessalign.bench.algorithms.step import ObjectiveTerms, Step


@final
@dataclass(frozen=True)
class AlignmentConfig(Options):
    """Weights and variant of the penalty.

    Attributes:
        alpha: Weight of the Hessian term, relative to the scheduled weight.
        beta: Weight of the gradient term, relative to the scheduled weight.
        hessian: What stands for the Hessian; None leaves the gradient term alone.
        probes: Probes per domain, for "sampled" and "expected"; None for those of the fidelity.
        shared_probes: The same probes for all domains.
        fidelity: "paper" for eq. 17 and 20 as printed, with 100 probes. "domainbed" for the
            authors' code on DomainBed: means, targets from the mean loss that are constants in
            backpropagation, 300 probes. "released" for their Colored MNIST scripts: sums over
            domains instead of means, targets from the mean loss, 150 probes.
    """

    alpha: NonNegative = 1.0
    beta: NonNegative = 1.0
    hessian: HessianKind | None = "full"
    probes: Count | None = None
    shared_probes: bool = False
    fidelity: Fidelity = "paper"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beta == 0 and (self.alpha == 0 or self.hessian is None):
            raise InputError(
                "Expected something to align, but the weights of both terms are 0: raise alpha or "
                "beta, or use the algorithm 'erm'."
            )

    @property
    def reading(self) -> Reading:
        """What the fidelity says, with the probes asked for."""
        return make_reading(self.fidelity, self.probes)

    def settled(self) -> AlignmentConfig:
        """The same configuration, with the number of probes that its fidelity stands for."""
        return dataclasses.replace(self, probes=self.reading.probes)

    @property
    def schedule(self) -> PenaltySchedule:
        """No annealing: α and β are the weights."""
        return PenaltySchedule()


# Bounds in the paper's order; a draw depends on it.
PRODUCT_SEARCH: Final[SearchSpace] = {
    "alpha": ("penalty_alpha", Power(10, -3, -5)),
    "beta": ("penalty_beta", Power(10, -1, -3)),
}
"""For HGP, in the paper and in its code."""

DIAGONAL_SEARCH: Final[SearchSpace] = {
    "alpha": ("penalty_alpha", Power(10, -1, -3)),
    "beta": ("penalty_beta", Power(10, -2, -4)),
}
"""For Hutchinson, in the paper; taken for the exact variants too."""

RELEASED_SEARCH: Final[SearchSpace] = {
    "alpha": ("penalty_alpha", Power(10, 4, 1)),
    "beta": ("penalty_beta", Power(10, 6, 2)),
}
"""For Hutchinson, in the code published with the paper."""

GRADIENT_SEARCH: Final[SearchSpace] = {"beta": PRODUCT_SEARCH["beta"]}
"""For the gradient term alone: that of HGP."""


def _features_search(low: float, high: float) -> SearchSpace:
    beta = ("penalty_beta", Power(10, -2.5, 1.5))
    return {"alpha": ("penalty_alpha", Power(10, low, high)), "beta": beta}


FEATURES_SEARCH: Final[Mapping[HessianKind, SearchSpace]] = {
    "product": _features_search(-4.5, -0.5),
    "sampled": _features_search(-4, 0),
    "expected": _features_search(-4, 0),
    "diagonal": _features_search(-3, 1),
    "full": _features_search(-5, -1),
}
"""For frozen features, where the published ranges do nothing: a penalty has the units of the head.

One rule for all, from a plainly trained head on PACS features (EfficientNet-Lite0, mean over ten
batches of its last step): from where the term is a hundredth of the risk to a hundred times it.
"""

FEATURES_GRADIENT_SEARCH: Final[SearchSpace] = {"beta": FEATURES_SEARCH["full"]["beta"]}
"""Likewise for the gradient term alone."""


@final
class Alignment(AbstractObjective):
    """The penalty as a training objective."""

    config: AlignmentConfig = AlignmentConfig()

    def terms(self, step: Step) -> ObjectiveTerms:
        """Risk and penalty."""
        config, statistics = self.config, step.statistics
        reading = config.reading
        scale = reading.scale(len(statistics.domains))
        parts = {}
        if config.hessian is not None and config.alpha > 0:
            parts["hessian"] = scale * hessian_dispersion(
                statistics,
                config.hessian,
                probes=reading.probes,
                shared_probes=config.shared_probes,
                generator=self.generator,
                target=reading.target,
            )
        if config.beta > 0:
            parts["gradient"] = scale * gradient_dispersion(statistics)
        weights = {"hessian": config.alpha, "gradient": config.beta}
        penalty = sum(
            (weights[name] * part for name, part in parts.items()), statistics.risk.new_zeros(())
        )
        return ObjectiveTerms(statistics.risk.mean(), penalty, parts)
