r"""What an aligned head minimises: the domains' risks, an L2 term, and two dispersions.

Indices: e domain, n sample, k output, d feature (with the constant of the bias).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from hessalign._shapes import Float
from hessalign.alignment import HessianAlignment, gradient_dispersion, hessian_dispersion
from hessalign.curvature.domains import Domains
from hessalign.curvature.linear import LinearHead, arranged_head
from hessalign.curvature.losses import HeadLoss


@final
@dataclass(frozen=True, eq=False)
class AlignedTerms:
    """The terms of the objective at one head, each a differentiable scalar.

    Attributes:
        value: risk + λ/2 ‖W‖² + α · hessian + β · gradient.
        risk: The mean over domains of their mean losses.
        hessian: Dispersion of the Hessians, before α; 0 where it is not asked for.
        gradient: Dispersion of the gradients, before β.
    """

    value: Float[Tensor, ""]
    risk: Float[Tensor, ""]
    hessian: Float[Tensor, ""]
    gradient: Float[Tensor, ""]


@final
@dataclass(frozen=True, eq=False)
class AlignedObjective:
    """The objective of `fit_aligned_head`, for samples that are checked and arranged.

    Attributes:
        features: The features z̃, domains contiguous, with a constant last if there is a bias.
        targets: The targets.
        domains: The grouping of the samples.
        loss: The loss of the head.
        outputs: Outputs k of the head.
        bias: Whether the last feature is the constant of the bias, which the L2 term spares.
        align: The weights α and β, and what stands for the Hessian.
        l2: The weight λ of the L2 term.
        seed: Determines the probes of a sampled Hessian, the same ones in every evaluation.
    """

    features: Float[Tensor, "n d"]
    targets: Tensor
    domains: Domains
    loss: HeadLoss
    outputs: int
    bias: bool
    align: HessianAlignment
    l2: float
    seed: int

    def statistics(self, head: Float[Tensor, "k d"]) -> LinearHead:
        """Closed-form derivatives of every domain's mean loss at a head.

        Args:
            head: One row per output, weights before bias.

        Returns:
            The statistics, lazily computed.
        """
        z, logits = self.features, self.features @ head.T
        return arranged_head(z, logits, self.targets, self.domains, self.loss, bias=False)

    def terms(self, head: Float[Tensor, "k d"]) -> AlignedTerms:
        """All terms at a head, those without weight too.

        Args:
            head: One row per output, weights before bias.

        Returns:
            The terms, in float64.
        """
        return self._terms(head, hessian=self.align.hessian is not None, gradient=True)

    def value_and_gradient(self, head: Float[Tensor, "k d"]) -> tuple[float, Float[Tensor, "k d"]]:
        """The objective and its gradient, as an optimiser wants them.

        Args:
            head: One row per output, weights before bias.

        Returns:
            The value, and the derivative in each parameter.
        """
        head = head.detach().requires_grad_()
        alpha, beta = self.align.alpha, self.align.beta
        hessian = alpha > 0 and self.align.hessian is not None
        value = self._terms(head, hessian=hessian, gradient=beta > 0).value
        (slope,) = torch.autograd.grad(value, head)
        return float(value.detach()), slope

    def _terms(self, head: Tensor, *, hessian: bool, gradient: bool) -> AlignedTerms:
        align, several = self.align, len(self.domains) > 1
        statistics = self.statistics(head)
        of_hessians = of_gradients = statistics.logits.new_zeros(())
        if several and hessian and align.hessian is not None:
            of_hessians = hessian_dispersion(
                statistics,
                align.hessian,
                probes=align.reading.probes,
                generator=torch.Generator().manual_seed(self.seed),
            )
        if several and gradient:
            of_gradients = gradient_dispersion(statistics)
        risk = statistics.risk.mean()
        weights = head[:, :-1] if self.bias else head
        penalty = align.alpha * of_hessians + align.beta * of_gradients
        value = risk + self.l2 / 2 * weights.square().sum() + penalty
        return AlignedTerms(value, risk, of_hessians, of_gradients)
