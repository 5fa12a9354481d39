"""Methods that align derivatives of the loss in the head: gradients, their variances, Hessians."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Literal, final

import torch
from torch import Tensor

from hessalign._errors import InputError
from hessalign.alignment.fidelity import Fidelity, Reading, make_reading
from hessalign.alignment.hessian_alignment import check_kind
from hessalign.alignment.metrics import RIDGE, Metric
from hessalign.alignment.penalties import HessianKind, alignment_dispersions
from hessalign.bench.algorithms.kinds import AbstractObjective, ObjectiveTerms, Setting, Step
from hessalign.bench.algorithms.options import (
    AnnealedOptions,
    Count,
    NonNegative,
    Options,
    Power,
    Range,
    SearchSpace,
    Uniform,
    Whole,
)


@dataclass(frozen=True)
class _FishrConfig(AnnealedOptions):
    before = 0.0
    penalty_weight: NonNegative = 1000.0
    anneal_steps: Whole = 1500
    # Share of the past in a moving average of the variances; 0 uses each batch alone.
    ema: Annotated[float, Range(0, 1, open_high=True)] = 0.95
    # "domainbed" for the mean over domains and over the parameters of the head: the authors' own
    # code on DomainBed, for which default and range of the weight were made. "paper" for the mean
    # over domains of the squared distance. "released" for the Colored MNIST scripts: the sum.
    fidelity: Literal["paper", "released", "domainbed"] = "domainbed"


@final
class Fishr(AbstractObjective):
    r"""Minimise the mean risk and the dispersion of gradient variances.

    Fishr aligns the variances of the gradients of single samples. With $g_n = r_n \otimes \tilde
    z_n$ the gradient of one sample's loss in the head,

    $$v_e = \text{mean}_{n \in e}\; (g_n - g_e)^2, \qquad \frac1E \sum_e \|v_e - \bar v\|^2$$

    with squares taken per parameter. In closed form $v_e = \text{mean}\, r_n^2 \otimes \tilde z_n^2
    - g_e^2$, so single samples' gradients are never formed.
    """

    aligns = "error×feature, squared"
    reference = "Ramé et al., 2022"
    config: _FishrConfig = _FishrConfig()
    search: ClassVar[SearchSpace] = {
        "penalty_weight": ("lambda", Power(10, 1, 4)),
        "anneal_steps": ("penalty_anneal_iters", Uniform(0, 5000, integer=True)),
        "ema": ("ema", Uniform(0.90, 0.99)),
    }
    released: ClassVar[Mapping[str, object]] = {"fidelity": "released", "ema": 0.0}
    average: Tensor

    def __init__(self, config: _FishrConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        parameters = sum(p.numel() for p in self.network.head.parameters())
        shape = (setting.domains, parameters if config.ema else 0)
        self.register_buffer("average", torch.zeros(shape, dtype=torch.float64))

    def terms(self, step: Step) -> ObjectiveTerms:
        """Risk and penalty."""
        variances, ema = step.statistics.gradient_variance, self.config.ema
        if ema:  # a moving average over steps, from zero on, differentiable in this batch alone
            average = ema * self.average + (1 - ema) * variances
            self.average = average.detach()
            # As in the method's own code, so that the gradient of the variances does not depend
            # on the share of the past.
            variances = average / (1 - ema)
        domains, parameters = variances.shape
        scale = {"paper": 1.0, "released": float(domains), "domainbed": 1 / parameters}
        dispersion = (variances - variances.mean(0)).square().sum(1).mean()
        penalty = scale[self.config.fidelity] * dispersion
        return ObjectiveTerms(step.statistics.risk.mean(), penalty)


@final
@dataclass(frozen=True)
class AlignmentConfig(Options):
    """Weights and variant of the penalty; without annealing, since α and β are the weights."""

    alpha: NonNegative = 1.0  # of the Hessian term
    beta: NonNegative = 1.0  # of the gradient term
    hessian: HessianKind | None = "full"  # None leaves the gradient term alone
    # Per domain, for "sampled" and "expected"; None for those of the fidelity.
    probes: Count | None = None
    shared_probes: bool = False
    # How Hessians and gradients are measured, with which ridge, by class or not, and without what
    # finite samples add or not: see `hessalign.alignment.metrics`.
    metric: Metric = "euclidean"
    ridge: Annotated[float, Range(0, open_low=True)] = RIDGE
    conditional: bool = False
    unbiased: bool = False
    # Whether derivatives in the bias of a linear head count.
    bias: bool = True
    # Whether the Hessian term is divided by the square of the number of the head's outputs.
    over_outputs: bool = False
    # "paper" for eq. 17 and 20 as printed, with 100 probes. "domainbed" for the authors' code on
    # DomainBed: means, targets from the mean loss that are constants in backpropagation, 300
    # probes. "released" for their Colored MNIST scripts: sums over domains instead of means,
    # targets from the mean loss, 150 probes.
    fidelity: Fidelity = "paper"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beta == 0 and (self.alpha == 0 or self.hessian is None):
            raise InputError(
                "Expected something to align, but the weights of both terms are 0: raise alpha or "
                "beta, or use the algorithm 'erm'."
            )
        check_kind(self.hessian, self.metric, unbiased=self.unbiased)

    @property
    def reading(self) -> Reading:
        """What the fidelity says, with the probes asked for."""
        return make_reading(self.fidelity, self.probes)

    def settled(self) -> AlignmentConfig:
        """The same configuration, with the number of probes that its fidelity stands for."""
        return dataclasses.replace(self, probes=self.reading.probes)


def _space(alpha: Power | None, beta: Power) -> SearchSpace:
    gradient: SearchSpace = {"beta": ("penalty_beta", beta)}
    return gradient if alpha is None else {"alpha": ("penalty_alpha", alpha), **gradient}


# Bounds in the paper's order; a draw depends on it.
_DIAGONAL: Final = _space(Power(10, -1, -3), Power(10, -2, -4))

SEARCH: Final[Mapping[HessianKind | None, SearchSpace]] = {
    None: _space(None, Power(10, -1, -3)),
    "product": _space(Power(10, -3, -5), Power(10, -1, -3)),
    "sampled": _DIAGONAL,
    "expected": _DIAGONAL,
    "diagonal": _DIAGONAL,
    "full": _DIAGONAL,
}
"""The paper's for HGP and Hutchinson, taken for the gradient alone and for the exact variants."""

RELEASED_SEARCH: Final[Mapping[HessianKind | None, SearchSpace]] = {
    "sampled": _space(Power(10, 4, 1), Power(10, 6, 2))
}
"""What the code published with the paper has instead: for HGP the paper's."""

CMA_SEARCH: Final = _space(Power(10, 1, 4), Power(10, 1, 4))
"""What CMA's code on DomainBed has for both of its weights."""

_FEATURES_BETA: Final = Power(10, -2.5, 1.5)

FEATURES_SEARCH: Final[Mapping[HessianKind | None, SearchSpace]] = {
    None: _space(None, _FEATURES_BETA),
    "product": _space(Power(10, -4.5, -0.5), _FEATURES_BETA),
    "sampled": _space(Power(10, -4, 0), _FEATURES_BETA),
    "expected": _space(Power(10, -4, 0), _FEATURES_BETA),
    "diagonal": _space(Power(10, -3, 1), _FEATURES_BETA),
    "full": _space(Power(10, -5, -1), _FEATURES_BETA),
}
"""For frozen features, where the published ranges do nothing: a penalty has the units of the head.

One rule for all, from a plainly trained head on PACS features (EfficientNet-Lite0, mean over ten
batches of its last step): from where the term is a hundredth of the risk to a hundred times it.
"""

CMA_FEATURES_SEARCH: Final = _space(Power(10, -3.5, 0.5), _FEATURES_BETA)
"""As that of the full Hessian, whose term CMA divides by 7² for PACS."""


@final
class Alignment(AbstractObjective):
    r"""The penalty as a training objective.

    Hessian and gradient alignment (Hemati et al., 2023), HGP, Hutchinson and the exact variants,
    all minimise

    $$\frac1E \sum_e L_e + w \left(\alpha \frac1E \sum_e \|Q_e - t\|^2
    + \beta \frac1E \sum_e \|g_e - \bar g\|^2\right)$$

    and differ in the quantity Q that stands for the Hessian: see `hessalign.alignment.penalties`.
    What the target t is, and whether domains are averaged, is a matter of the fidelity: see
    `hessalign.alignment.fidelity`. The weight w follows a schedule of the training loop.

    The exact variants align by the closed form of the head's Hessian, as CMA did first (Chen et
    al., UAI 2025, arXiv 2506.07378); what is ours is to evaluate the distances without forming it,
    and the expectation of the sampled estimate.

    CMA itself is the full Hessian of a linear head's weights without its bias, its term divided by
    C² for C outputs of the head, as in its authors' code on DomainBed; heads that are not linear,
    which it does not have, count with all their parameters. Both weights are drawn from 10^U(1, 4)
    there; the default is the middle of this range, as that of the code is not known to us.
    """

    config: AlignmentConfig = AlignmentConfig()
    # On Colored MNIST the schedule alone weighs the penalty.
    released: ClassVar[Mapping[str, object]] = {"alpha": 1.0, "beta": 1.0}

    def terms(self, step: Step) -> ObjectiveTerms:
        """Risk and penalty."""
        config = self.config
        statistics = step.statistics if config.bias else step.weight_statistics
        reading = config.reading
        scale = reading.scale(len(statistics.domains))
        kind = config.hessian if config.alpha > 0 else None
        hessian, gradient = alignment_dispersions(
            statistics,
            kind,
            metric=config.metric,
            ridge=config.ridge,
            conditional=config.conditional,
            unbiased=config.unbiased,
            probes=reading.probes,
            shared_probes=config.shared_probes,
            generator=self.generator,
            target=reading.target,
        )
        parts, penalty = {}, statistics.risk.new_zeros(())
        if kind is not None:
            outputs = statistics.logits.shape[1] if config.over_outputs else 1
            parts["hessian"] = scale * hessian / outputs**2
            penalty = penalty + config.alpha * parts["hessian"]
        if config.beta > 0:
            parts["gradient"] = scale * gradient
            penalty = penalty + config.beta * parts["gradient"]
        return ObjectiveTerms(statistics.risk.mean(), penalty, parts)
