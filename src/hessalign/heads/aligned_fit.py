r"""The head on fixed features that fits every domain and has the same derivatives in all of them.

Indices: e domain, n sample, k output, d feature (with the constant of the bias).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hessalign._numbers import check_count, check_positive
from hessalign._shapes import Float, Int
from hessalign.alignment import HessianAlignment
from hessalign.alignment.penalties import HessianKind
from hessalign.curvature import make_loss
from hessalign.curvature.losses import HeadLoss, Squared
from hessalign.heads.aligned_objective import PLAIN, AlignedObjective, Weights
from hessalign.heads.fit import FittedHead
from hessalign.heads.samples import make_samples

TOLERANCE = 1e-6
"""Largest slope left, as a share of the mean gradient norm of single samples at zero."""

_ROUNDING = {torch.float32: 1e-9, torch.float64: 1e-14}
"""Share of the objective by which a step lowers it or not: that much is rounding."""

MAX_STEPS = 1000
_MEMORY = 20
"""Past steps from which L-BFGS models the curvature."""


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
) -> FittedHead:
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
    HessianAlignment(alpha, beta, hessian, probes=probes)  # checks these
    check_count(max_steps, "max_steps")
    check_positive(tolerance, "tolerance")
    samples = make_samples(
        z, y, domain, make_loss(loss), outputs=outputs, bias=bias, l2=l2, free_bias=True
    )
    objective = AlignedObjective(samples.to(torch.float64), hessian, probes, seed)
    return minimise(objective, Weights(alpha, beta), tolerance=tolerance, max_steps=max_steps)


def minimise(
    objective: AlignedObjective,
    weights: Weights = PLAIN,
    *,
    start: Float[Tensor, "k d"] | None = None,
    tolerance: float = TOLERANCE,
    still: float = 0.0,
    max_steps: int = MAX_STEPS,
) -> FittedHead:
    """Minimise by SciPy's L-BFGS, in float64 or as precisely as the features are.

    Args:
        objective: What to minimise.
        weights: Of its penalties.
        start: Where to start; zero by default.
        tolerance: The slope to reach, as in `fit_aligned_head`.
        still: A step that lowers the objective by a smaller share than this ends the search, too.
        max_steps: Steps, at most.

    Returns:
        The head; a local minimum if it has converged.

    Example:
        >>> z, y = torch.tensor([[-1.0], [1.0], [-1.0], [1.0]]), torch.tensor([0, 1, 0, 1])
        >>> samples = make_samples(z, y, torch.tensor([0, 0, 1, 1]), make_loss("binary"), l2=0.1)
        >>> fitted = minimise(AlignedObjective(samples))
        >>> bool(fitted.parameters[0, 0] > 0.5), fitted.gradient_norm < 1e-5
        (True, True)
    """
    from scipy.optimize import minimize

    samples = objective.samples
    goal, device = tolerance * samples.typical_gradient, samples.features.device

    def flat(point: np.ndarray) -> tuple[float, np.ndarray]:
        head = torch.from_numpy(point.copy()).view(samples.shape).to(device)
        value, gradient = objective.value_and_gradient(head, weights)
        return value, gradient.flatten().cpu().numpy()

    zero = np.zeros(samples.num_parameters)
    found = minimize(
        flat,
        zero if start is None else start.double().flatten().cpu().numpy(),
        jac=True,
        method="L-BFGS-B",
        options={
            "maxiter": max_steps,
            "maxfun": 20 * max_steps,
            "gtol": goal,
            "ftol": max(_ROUNDING[samples.features.dtype], still),
            "maxcor": _MEMORY,
        },
    )
    head = torch.from_numpy(found.x).view(samples.shape).to(device)
    terms, slope = objective.terms(head), float(np.abs(found.jac).max())
    penalty = weights.alpha * terms.hessian + weights.beta * terms.gradient
    ridge = samples.l2 / 2 * float(samples.held(head.view(1, -1)).square().sum())
    return FittedHead(
        parameters=head,
        value=terms.loss + ridge + penalty,
        risk=terms.loss + ridge,
        loss=terms.loss,
        hessian=terms.hessian,
        gradient=terms.gradient,
        gradient_norm=float(np.linalg.norm(found.jac)),
        slope=slope,
        steps=int(found.nit),
        converged=slope <= goal or bool(found.success),
        l2=samples.l2,
        smallest_eigenvalue=0.0,
        quadratic=isinstance(samples.loss, Squared) and samples.convex,
    )
