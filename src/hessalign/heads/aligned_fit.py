r"""The head on fixed features that fits every domain and has the same derivatives in all of them.

Indices: e domain, n sample, k output, d feature (with the constant of the bias).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from hessalign._numbers import check_count, check_positive
from hessalign._shapes import Float, Int
from hessalign.alignment import HessianAlignment
from hessalign.alignment.penalties import HessianKind
from hessalign.curvature import make_loss
from hessalign.curvature.domains import make_domains
from hessalign.curvature.losses import HeadLoss
from hessalign.heads.aligned_objective import AlignedObjective
from hessalign.heads.inputs import make_head_data
from hessalign.heads.lbfgs import minimise_head

TOLERANCE = 1e-6
"""Largest slope left, as a share of the mean gradient norm of single samples at zero."""

ROUNDING = 1e-14
"""A step that lowers the objective by a smaller share than this ends the search: it is rounding."""

MAX_STEPS = 1000
MEMORY = 20
"""Past steps from which L-BFGS models the curvature."""


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

    Example:
        >>> z, y = torch.tensor([[0.0], [1.0], [2.0], [3.0]]), torch.tensor([0.0, 2.0, 1.0, 3.0])
        >>> domain = torch.tensor([0, 0, 1, 1])
        >>> plain = fit_aligned_head(z, y, domain, loss="squared", l2=0.0)
        >>> aligned = fit_aligned_head(z, y, domain, loss="squared", l2=0.0, beta=1e4)
        >>> round(plain.gradient, 4), round(aligned.gradient, 4)
        (0.2925, 0.0)
    """
    align = HessianAlignment(alpha, beta, hessian, probes=probes)
    check_count(max_steps, "max_steps")
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
    z = objective.features
    zero = z.new_zeros(objective.outputs, z.shape[1])
    typical = float((objective.statistics(zero).error.norm(dim=1) * z.norm(dim=1)).mean())
    goal = tolerance * typical
    found = minimise_head(
        objective.value_and_gradient,
        zero,
        slope=goal,
        still=ROUNDING,
        steps=max_steps,
        memory=MEMORY,
    )
    with torch.no_grad():
        terms = objective.terms(found.parameters)
    return AlignedHead(
        found.parameters,
        float(terms.value),
        float(terms.risk),
        float(terms.hessian),
        float(terms.gradient),
        found.slope,
        found.steps,
        found.slope <= goal or found.settled,
    )
