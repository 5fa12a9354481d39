r"""The head on fixed features that fits every domain and has the same derivatives in all of them.

Indices: e domain, n sample, k output, d feature (with the constant of the bias), p = (k, d)
parameter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from hessalign._shapes import Float, Int
from hessalign.alignment import HessianAlignment, gradient_dispersion, hessian_dispersion
from hessalign.alignment.penalties import HessianKind
from hessalign.curvature import make_loss
from hessalign.curvature.domains import Domains, make_domains
from hessalign.curvature.linear import arranged_head
from hessalign.curvature.losses import HeadLoss
from hessalign.transfer.inputs import check_positive, make_head_data

TOLERANCE = 1e-6
"""Largest slope left, as a share of the mean gradient norm of single samples at zero."""

ROUNDING = 1e-14
"""A step that lowers the objective by a smaller share than this ends the search: it is rounding."""

MAX_STEPS = 1000
MEMORY = 20
"""Past steps from which L-BFGS models the curvature."""


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
    """What an aligned head minimises; build it with `make_objective`.

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

    def terms(self, head: Float[Tensor, "k d"]) -> AlignedTerms:
        """All terms at a head, those without weight too.

        Args:
            head: One row per output, weights before bias.

        Returns:
            The terms, in float64.
        """
        return self._terms(head, hessian=self.align.hessian is not None, gradient=True)

    def value_and_gradient(self, point: np.ndarray) -> tuple[float, np.ndarray]:
        """The objective and its gradient, as an optimiser wants them.

        Args:
            point: The parameters, flat.

        Returns:
            The value, and the derivative in each parameter.
        """
        start = torch.from_numpy(point.copy()).to(self.features.device)
        head = start.view(self.outputs, -1).requires_grad_()
        alpha, beta = self.align.alpha, self.align.beta
        hessian = alpha > 0 and self.align.hessian is not None
        value = self._terms(head, hessian=hessian, gradient=beta > 0).value
        (slope,) = torch.autograd.grad(value, head)
        return float(value.detach()), slope.flatten().cpu().numpy()

    def _terms(self, head: Tensor, *, hessian: bool, gradient: bool) -> AlignedTerms:
        align, several = self.align, len(self.domains) > 1
        statistics = arranged_head(
            self.features,
            self.features @ head.T,
            self.targets,
            self.domains,
            self.loss,
            bias=False,
        )
        of_hessians = of_gradients = statistics.logits.new_zeros(())
        if several and hessian and align.hessian is not None:
            of_hessians = hessian_dispersion(
                statistics,
                align.hessian,
                probes=align.probes,
                generator=torch.Generator().manual_seed(self.seed),
            )
        if several and gradient:
            of_gradients = gradient_dispersion(statistics)
        risk = statistics.risk.mean()
        weights = head[:, :-1] if self.bias else head
        penalty = align.alpha * of_hessians + align.beta * of_gradients
        value = risk + self.l2 / 2 * weights.square().sum() + penalty
        return AlignedTerms(value, risk, of_hessians, of_gradients)


@final
@dataclass(frozen=True, eq=False)
class AlignedHead:
    """A head that minimises an `AlignedObjective`, at least locally.

    Attributes:
        parameters: The head, one row per output, weights before bias.
        value: The objective.
        risk: The mean over domains of their mean losses.
        hessian: Dispersion of the Hessians, before α.
        gradient: Dispersion of the gradients, before β.
        slope: The largest derivative of the objective that is left.
        steps: Steps of the optimiser.
        converged: Whether the slope is as small as asked for, or as rounding allows.
    """

    parameters: Float[Tensor, "k d"]
    value: float
    risk: float
    hessian: float
    gradient: float
    slope: float
    steps: int
    converged: bool


def fit_aligned_head(
    z: Float[Tensor, "n d"],
    y: Tensor,
    domain: Int[Tensor, " n"],
    *,
    alpha: float = 0.0,
    beta: float = 0.0,
    hessian: HessianKind | None = "full",
    loss: str | HeadLoss = "cross_entropy",
    l2: float = 1e-2,
    bias: bool = True,
    outputs: int | None = None,
    probes: int = 100,
    seed: int = 0,
    max_steps: int = MAX_STEPS,
    tolerance: float = TOLERANCE,
) -> AlignedHead:
    r"""Fit a head to several domains and align its Hessians and gradients between them.

    $$\frac1E \sum_e L_e(\Theta) + \frac\lambda2 \|W\|^2
    + \alpha \frac1E \sum_e \|H_e - \bar H\|^2 + \beta \frac1E \sum_e \|g_e - \bar g\|^2$$

    with the mean loss $L_e$ of domain e, so that domains count the same whatever their sizes, and
    the weights W of $\Theta$ without the biases. It is minimised by L-BFGS from the zero head, on
    all samples in float64, so the result is determined by the data. With α = β = 0 it is a convex
    problem; otherwise the result is a local minimum.

    Args:
        z: Features that enter the head.
        y: Targets.
        domain: The domain of each sample, any integers.
        alpha: Weight α of the Hessian term.
        beta: Weight β of the gradient term.
        hessian: What stands for the Hessian, as in `HessianAlignment`.
        loss: "cross_entropy", "binary" or "squared".
        l2: The weight λ of the L2 term over the weights; biases are free.
        bias: Whether the head has a bias.
        outputs: Outputs of the head; by default what the targets need.
        probes: Probes per domain for "sampled" and "expected".
        seed: Determines the probes of "sampled", the same ones in every evaluation.
        max_steps: Steps of the optimiser, at most.
        tolerance: The slope to reach, as a share of the mean gradient norm of single samples at
            zero.

    Returns:
        The head, its terms, and whether the optimiser converged.

    Raises:
        ValueError: If no step is allowed.

    Example:
        >>> z, y = torch.tensor([[0.0], [1.0], [2.0], [3.0]]), torch.tensor([0.0, 2.0, 1.0, 3.0])
        >>> domain = torch.tensor([0, 0, 1, 1])
        >>> plain = fit_aligned_head(z, y, domain, loss="squared", l2=0.0)
        >>> aligned = fit_aligned_head(z, y, domain, loss="squared", l2=0.0, beta=1e4)
        >>> round(plain.gradient, 4), round(aligned.gradient, 4)
        (0.2925, 0.0)
    """
    align = HessianAlignment(alpha, beta, hessian, probes=probes)
    if max_steps < 1:
        raise ValueError(f"Expected max_steps of 1 or more, got {max_steps}.")
    check_positive(tolerance, "tolerance")
    data = make_head_data(z, y, domain, make_loss(loss), outputs=outputs, bias=bias, l2=l2)
    data = data.to(torch.float64)
    objective = AlignedObjective(
        torch.cat(data.features),
        torch.cat(data.targets),
        make_domains(torch.sort(domain).values),
        data.loss,
        data.outputs,
        bias,
        align,
        l2,
        seed,
    )
    return minimise(objective, max_steps=max_steps, tolerance=tolerance)


def minimise(objective: AlignedObjective, *, max_steps: int, tolerance: float) -> AlignedHead:
    """Minimise from the zero head by L-BFGS.

    Args:
        objective: What to minimise.
        max_steps: Steps, at most.
        tolerance: The slope to reach, as in `fit_aligned_head`.

    Returns:
        The head.
    """
    from scipy.optimize import minimize

    z = objective.features
    at_zero = arranged_head(
        z,
        z.new_zeros(len(z), objective.outputs),
        objective.targets,
        objective.domains,
        objective.loss,
        bias=False,
    )
    typical = float((at_zero.error.norm(dim=1) * z.norm(dim=1)).mean())
    goal = tolerance * typical
    found = minimize(
        objective.value_and_gradient,
        np.zeros(objective.outputs * z.shape[1]),
        jac=True,
        method="L-BFGS-B",
        options={
            "maxiter": max_steps,
            "maxfun": 20 * max_steps,
            "gtol": goal,
            "ftol": ROUNDING,
            "maxcor": MEMORY,
        },
    )
    head = torch.from_numpy(found.x).to(z.device).view(objective.outputs, -1)
    with torch.no_grad():
        terms = objective.terms(head)
    slope = float(np.abs(found.jac).max())
    return AlignedHead(
        head,
        float(terms.value),
        float(terms.risk),
        float(terms.hessian),
        float(terms.gradient),
        slope,
        int(found.nit),
        slope <= goal or bool(found.success),
    )
