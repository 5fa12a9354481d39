r"""Heads that fit: the best of one domain by Newton's method, aligned ones of several by L-BFGS.

Aligned ones also by their strength: weights of the penalties in a unit that travels between data.

Indices: e domain, n sample, k output, d feature (with the constant of the bias).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
import torch
from torch import Tensor

from hessalign._errors import InputError
from hessalign._numbers import check_count, check_positive
from hessalign._shapes import Float
from hessalign.alignment import HessianAlignment
from hessalign.alignment.penalties import HessianKind
from hessalign.curvature import make_loss
from hessalign.curvature.domains import DomainLike
from hessalign.curvature.losses import HeadLoss, Squared
from hessalign.curvature.operators import hessian_operator
from hessalign.heads.aligned_objective import PLAIN, AlignedObjective, Weights
from hessalign.heads.classifier_objective import ClassifierObjective
from hessalign.heads.samples import HeadSamples, make_samples
from hessalign.heads.whitening import Whitening, make_whitening

Objective = AlignedObjective | ClassifierObjective  # what aligned heads minimise
# Where a constant of strong convexity comes from.
Convexity = Literal["auto", "l2", "hessian"]
# Gradient norm to reach, as a share of the mean gradient norm of single samples at zero.
_NEWTON_TOLERANCE = 1e-10
_NEWTON_STEPS = 100
_SOLVED = 1e-3  # accuracy of the linear equations of a Newton step
# If Newton's step changes a logit by more than this where the gradient vanishes, there is no
# minimum: near one, the step vanishes with the gradient.
_STILL_MOVING = 0.05

# Largest slope left, as a share of the mean gradient norm of single samples at zero.
_TOLERANCE = 1e-6
MAX_STEPS = 1000
_MEMORY = 20  # past steps from which L-BFGS models the curvature


@final
@dataclass(frozen=True)
class StrongConvexity:
    """A constant μ with L ≥ tangent + μ/2 ‖Δ‖².

    Attributes:
        value: μ.
        origin: "l2" if it is the weight of the L2 term, "hessian" if it is the smallest eigenvalue
            of the Hessian at the minimiser, L2 term included.
        everywhere: Whether it holds for all heads, not just near the minimiser: true of the L2
            weight, and of the eigenvalue where the Hessian is constant (squared error).
    """

    value: float
    origin: Literal["l2", "hessian"]
    everywhere: bool


@final
@dataclass(frozen=True, eq=False)
class FittedHead:
    """A head that minimises an L2-regularised mean loss, plain or with alignment penalties.

    Attributes:
        parameters: The head, one row per output, weights before bias.
        value: The objective: the risk, and the penalties if there are any.
        risk: The loss plus the L2 term.
        loss: The mean loss; of several domains the mean over domains of their mean losses.
        hessian: Dispersion of the domains' Hessians, before its weight α; 0 for a single domain.
        gradient: Dispersion of their gradients, before its weight β; likewise.
        gradient_norm: What is left of the objective's gradient.
        slope: The largest derivative that is left.
        steps: Steps taken.
        converged: Whether the slope is as small as asked for, or as rounding allows.
        l2: The weight of the L2 term.
        smallest_eigenvalue: Of the risk's Hessian at the minimiser, L2 term included; 0 where it
            was not looked for, as `fit_aligned_head` does not.
        quadratic: Whether that Hessian is the same everywhere.
    """

    parameters: Float[Tensor, "k d"]
    value: float
    risk: float
    loss: float
    hessian: float
    gradient: float
    gradient_norm: float
    slope: float
    steps: int
    converged: bool
    l2: float
    smallest_eigenvalue: float
    quadratic: bool

    def strong_convexity(self, origin: Convexity = "auto") -> StrongConvexity:
        """The constant μ of strong convexity, and where it comes from.

        Args:
            origin: "l2", "hessian", or "auto": the eigenvalue where the Hessian is constant or
                there is no L2 term, else the L2 weight.

        Returns:
            The constant with its origin.
        """
        if origin == "auto":
            origin = "hessian" if self.quadratic or self.l2 == 0 else "l2"
        if origin == "l2":
            return StrongConvexity(self.l2, "l2", everywhere=True)
        return StrongConvexity(self.smallest_eigenvalue, "hessian", everywhere=self.quadratic)


def fit_head(
    z: Float[Tensor, "n d"],
    y: Tensor,
    loss: str | HeadLoss = "cross_entropy",
    l2: float = 1e-2,
    *,
    bias: bool = True,
    outputs: int | None = None,
) -> FittedHead:
    r"""The head that minimises the L2-regularised mean loss.

    $$\frac1n \sum_n \ell(\Theta\tilde z_n, y_n) + \frac\lambda2 \|\Theta\|^2$$

    Args:
        z: Features that enter the head.
        y: Targets.
        loss: "cross_entropy", "binary" or "squared" (without an activation, so that the problem
            is convex).
        l2: The weight λ of the L2 term over all parameters, biases included.
        bias: Whether the head has a bias.
        outputs: Outputs of the head; by default what the targets need.

    Returns:
        The minimiser with the gradient norm reached.

    Example:
        >>> z, y = torch.tensor([[1.0], [2.0]]), torch.tensor([2.0, 4.0])
        >>> fitted = fit_head(z, y, "squared", l2=0.0, bias=False)
        >>> round(float(fitted.parameters), 6), fitted.gradient_norm < 1e-9
        (2.0, True)
    """
    data = make_samples(z, y, None, make_loss(loss), outputs=outputs, bias=bias, l2=l2)
    return fit_domain(data.to(torch.float64), 0)


def fit_domain(data: HeadSamples, e: int) -> FittedHead:
    """The minimiser of one domain's risk, in float64; an InputError says why there is none."""
    if isinstance(data.loss, Squared) and not data.convex:
        raise InputError(
            f"Expected a loss that is convex in the head, got squared error with activation "
            f"{data.loss.activation.name!r}: its minimiser and strong convexity are not defined. "
            "Use the identity, or worst_case_gap, which needs neither."
        )
    z, _ = data.parts[e]
    point = z.new_zeros(data.num_parameters)
    start = data.domain_statistics(point, e)
    goal = _NEWTON_TOLERANCE * float((start.error.norm(dim=1) * z.norm(dim=1)).mean())
    metric = make_whitening(data, point, e)
    steps = 0
    risk, gradient = _at(data, point, e)
    while float(gradient.norm()) > goal:
        if steps == _NEWTON_STEPS:
            raise InputError(
                f"Expected to reach a minimum in {_NEWTON_STEPS} Newton steps, but the gradient "
                f"norm is still {float(gradient.norm()):.1e} at l2={data.l2:g}. {_remedy(data)}"
            )
        step = _newton_step(data, point, e, gradient, metric)
        moved = _line_search(data, e, point, step, risk, float(gradient @ step))
        if moved is None:
            break
        point, risk, gradient, steps = *moved, steps + 1
    if data.l2 == 0:
        step = _newton_step(data, point, e, gradient, metric)
        if float((z @ step.view(data.shape).T).abs().max()) > _STILL_MOVING:
            raise InputError(
                f"Expected data with a best head, but the loss keeps falling as the head grows "
                f"(norm {float(point.norm()):.1f}, risk {risk:.1e}). {_remedy(data)}"
            )
    return FittedHead(
        parameters=point.view(data.shape),
        value=risk,
        risk=risk,
        loss=risk - data.l2 / 2 * float(point.square().sum()),
        hessian=0.0,
        gradient=0.0,
        gradient_norm=float(gradient.norm()),
        slope=float(gradient.abs().max()),
        steps=steps,
        converged=True,
        l2=data.l2,
        smallest_eigenvalue=make_whitening(data, point, e).smallest,
        quadratic=isinstance(data.loss, Squared),
    )


def _at(data: HeadSamples, point: Tensor, e: int) -> tuple[float, Tensor]:
    risk, gradient = data.risk_and_gradient(point.unsqueeze(0), e)
    return float(risk), gradient[0]


def _line_search(
    data: HeadSamples, e: int, point: Tensor, step: Tensor, risk: float, slope: float
) -> tuple[Tensor, float, Tensor] | None:
    """The longest of the steps 1, 1/2, 1/4, … that lowers the risk; None if rounding is all."""
    length = 1.0
    while length > 1e-8:
        trial = point + length * step
        lower, gradient = _at(data, trial, e)
        if lower <= risk + 1e-4 * length * slope + 1e-15 * (1 + abs(risk)):
            return trial, lower, gradient
        length /= 2
    return None


def _newton_step(
    data: HeadSamples, point: Tensor, e: int, gradient: Tensor, metric: Whitening
) -> Tensor:
    """Solve (H + λ I) s = −g by conjugate gradients in whitened coordinates."""
    hessian = hessian_operator(data.domain_statistics(point, e)).shifted(data.l2)
    whitened = hessian.between(metric.parameters, metric.slopes)
    x = whitened.solve(-metric.slopes(gradient.unsqueeze(0))[0], _SOLVED)
    return metric.parameters(x.unsqueeze(0))[0]


def _remedy(data: HeadSamples) -> str:
    if data.l2 > 0:
        return "Scale the features to about unit size, or use a larger l2."
    return (
        "The classes are separable, or one is missing: without an L2 term no minimum exists. "
        "Use l2 > 0."
    )


def fit_aligned_head(
    z: Float[Tensor, "n d"],
    y: Tensor,
    domain: DomainLike,
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
    tolerance: float = _TOLERANCE,
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
        domain: The domain of each sample, any integers; or what `domain_layout` takes or gives.
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
    objective: Objective,
    weights: Weights = PLAIN,
    *,
    start: Float[Tensor, "k d"] | None = None,
    tolerance: float = _TOLERANCE,
    still: float = 0.0,
    max_steps: int = MAX_STEPS,
) -> FittedHead:
    """A local minimum by SciPy's L-BFGS from zero or a start, as precisely as the features are."""
    # Where the objective has a model of its curvature at the start, with factor F, the search is
    # for φ in Θ = start + c φ F⁻¹, c such that the first step is Newton's in the model.
    from scipy.optimize import minimize

    goal = tolerance * objective.typical_gradient
    begin = torch.zeros(objective.shape) if start is None else start
    begin = begin.to(objective.device, torch.float64)
    factor = None if start is None else objective.metric(begin, weights)
    last: Tensor | None = None
    there: tuple[float, Tensor]

    def at(head: Tensor) -> tuple[float, Tensor]:
        nonlocal last, there
        if last is None or not torch.equal(last, head):
            last, there = head, objective.value_and_gradient(head, weights)
        return there

    scale = 1.0
    if factor is not None:
        scale = max(float(_slopes(factor, at(begin)[1]).norm()), 1e-300)

    def head_at(point: np.ndarray) -> Tensor:
        moved = torch.from_numpy(point.copy()).view(begin.shape).to(begin.device)
        if factor is None:
            return moved
        found: Tensor = torch.linalg.solve_triangular(factor, moved, upper=False, left=False)
        return begin + scale * found

    def flat(point: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = at(head_at(point))
        slope = gradient if factor is None else scale * _slopes(factor, gradient)
        return value, slope.flatten().cpu().numpy()

    def stop(intermediate_result: Any) -> None:  # noqa: ANN401 - scipy has no types
        if float(at(head_at(intermediate_result.x))[1].abs().max()) <= goal:
            raise StopIteration

    first = begin if factor is None else torch.zeros_like(begin)
    options = {
        "maxiter": max_steps,
        "maxfun": 20 * max_steps,
        "gtol": goal if factor is None else 0.0,
        # A step that lowers the objective by a smaller share ends the search, too.
        "ftol": max(objective.rounding, still),
        "maxcor": _MEMORY,
    }
    steps, success = 0, True
    if factor is None or float(at(begin)[1].abs().max()) > goal:
        found = minimize(
            flat,
            first.flatten().cpu().numpy(),
            jac=True,
            method="L-BFGS-B",
            options=options,
            callback=None if factor is None else stop,
        )
        head, steps, success = head_at(found.x), int(found.nit), bool(found.success)
    else:
        head = begin
    slopes = at(head)[1]
    (loss, hessian, gradient), slope = objective.terms(head), float(slopes.abs().max())
    risk = loss + objective.ridge(head)
    return FittedHead(
        parameters=head,
        value=risk + weights.alpha * hessian + weights.beta * gradient,
        risk=risk,
        loss=loss,
        hessian=hessian,
        gradient=gradient,
        gradient_norm=float(slopes.norm()),
        slope=slope,
        steps=steps,
        converged=slope <= goal or success,
        l2=objective.l2,
        smallest_eigenvalue=0.0,
        quadratic=objective.quadratic,
    )


def _slopes(factor: Float[Tensor, "d d"], gradient: Float[Tensor, "k d"]) -> Float[Tensor, "k d"]:
    """The gradient in φ, G F⁻ᵀ."""
    found: Tensor = torch.linalg.solve_triangular(factor, gradient.mT, upper=False)
    return found.mT


def plain_head(
    objective: Objective,
    *,
    start: Float[Tensor, "k d"] | None = None,
    tolerance: float,
    max_steps: int,
) -> FittedHead:
    """The minimum without penalties; of many samples it is first found for some of them."""
    if start is None and isinstance(objective, ClassifierObjective):
        few = objective.small
        if few is not objective:
            # As precisely as so few samples say: beyond that, a head would follow their noise.
            rough = max(tolerance, few.sampling)
            start = minimise(few, tolerance=rough, max_steps=max_steps).parameters
    return minimise(objective, start=start, tolerance=tolerance, max_steps=max_steps)


def weights_of(strength: float | Weights, plain: FittedHead) -> Weights:
    r"""The weights with which each penalty at the plain head is that many times its loss.

    $$\alpha = s\, L / D_H, \qquad \beta = s\, L / D_g$$

    with the loss $L$ and the dispersions $D_H$, $D_g$ of Hessians and gradients at the plain head;
    0 where there is nothing to align.

    Returns:
        The weights for a strength s of both penalties, or one for each; 0 is plain training.
    """
    alpha, beta = strength if isinstance(strength, Weights) else (strength, strength)
    return Weights(
        alpha * plain.loss / plain.hessian if plain.hessian > 0 else 0.0,
        beta * plain.loss / plain.gradient if plain.gradient > 0 else 0.0,
    )


def strength_path(
    objective: Objective,
    plain: FittedHead,
    strengths: Iterable[float | Weights],
    *,
    tolerance: float,
    still: float = 0.0,
    max_steps: int,
) -> Iterator[FittedHead]:
    """Heads of rising strengths, each started from the one before; the plain one for strength 0."""
    start = plain
    for strength in strengths:
        weights = weights_of(strength, plain)
        if any(weights):
            start = minimise(
                objective,
                weights,
                start=start.parameters,
                tolerance=tolerance,
                still=still,
                max_steps=max_steps,
            )
        yield start
