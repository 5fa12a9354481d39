r"""Theorem 1: what Hessians and gradients at the source's minimiser say about the transfer measure.

Indices: n sample, k output, d feature (with the constant of the bias), p = (k, d) parameter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, final, get_args

import torch
from torch import Tensor

from hessalign._errors import InputError, check_name
from hessalign._numbers import check_positive
from hessalign._shapes import Float
from hessalign.curvature import make_loss
from hessalign.curvature.domains import DomainLike
from hessalign.curvature.losses import CrossEntropy, Squared
from hessalign.heads.fit import Convexity, FittedHead, StrongConvexity, fit_domain
from hessalign.heads.measure import TransferMeasure
from hessalign.heads.samples import HeadSamples, Point, make_samples
from hessalign.heads.whitening import make_whitening

# The largest third central moment of a variable with values in an interval of length 1.
_LARGEST_SKEWNESS = 1 / (6 * math.sqrt(3))

Metric = Literal["euclidean", "source"]
_FLAT = 1e-7  # a root of an eigenvalue this much smaller than the largest is rounding
_FARTHEST = 1e12  # a radius that is as good as none
_HALVINGS = 100
_LARGEST_POWER = 700.0  # of e in float64


@final
@dataclass(frozen=True, eq=False)
class TransferBound:
    r"""The bound of Theorem 1, part by part; derived in the documentation under "Transfer".

    With the metric "source" lengths are those of H_S, the source's Hessian at its minimiser:
    ‖θ‖² = θᵀ H_S θ for heads, gᵀ H_S⁻¹ g for gradients.

    Attributes:
        tolerance: The excess risk δ_S that defines the minimal set of the source.
        strong_convexity: μ of the source's risk, and where it comes from.
        radius: δ = √(2 δ_S / μ): every head of the minimal set is this close to the minimiser.
            (With an allowance for the gradient that the fit left, see `source.gradient_norm`.)
        hessian_distance: The spectral norm ‖H_T − H_S‖₂ at the source's minimiser.
        gradient_distance: ‖g_T − g_S‖ there; 0 if the minimisers are the same.
        hessian_term: ½ δ² ‖H_T − H_S‖₂.
        gradient_term: δ ‖g_T − g_S‖.
        target_term: How far the source's minimiser can be above the best target risk in the
            minimal set; 0 if the minimisers are the same.
        remainder: A bound of what the quadratic expansion neglects inside the radius, from the
            largest third derivative the loss can have; 0 for squared error.
        measured_remainder: What the expansion neglects at the maximiser of a transfer measure,
            if one was given.
        source: The source's minimiser.
        metric: "euclidean"; or "source": μ is then 1, `hessian_distance` the largest eigenvalue of
            H_S^{−1/2} (H_T − H_S) H_S^{−1/2}, `hessian_term` δ_S times it, if it is positive. The
            other terms are those of the radius √(2 δ_S), which the set has where the risk is
            quadratic; `radius` is one that holds anywhere, and the remainder has what it adds.
    """

    tolerance: float
    strong_convexity: StrongConvexity
    radius: float
    hessian_distance: float
    gradient_distance: float
    hessian_term: float
    gradient_term: float
    target_term: float
    remainder: float
    measured_remainder: float | None
    source: FittedHead
    metric: Metric = "euclidean"

    @property
    def value(self) -> float:
        """The bound up to third order: the Hessian, gradient and target terms."""
        return self.hessian_term + self.gradient_term + self.target_term

    @property
    def guaranteed(self) -> float:
        """The bound with its remainder: no transfer measure is above it, if μ holds everywhere."""
        return self.value + self.remainder


def transfer_bound(
    z: Float[Tensor, "n d"],
    y: Tensor,
    domain: DomainLike,
    *,
    source: int,
    target: int,
    tolerance: float,
    l2: float,
    loss: str = "cross_entropy",
    bias: bool = True,
    outputs: int | None = None,
    strong_convexity: Convexity = "auto",
    measure: TransferMeasure | None = None,
    metric: Metric = "euclidean",
) -> TransferBound:
    r"""An upper bound of the transfer measure from derivatives at the source's minimiser.

    $$T_\Gamma(S \| T) \le \tfrac12 \delta^2 \|H_T - H_S\|_2 + \delta \|g_T - g_S\|
    + \text{target term} + \text{remainder}, \qquad \delta = \sqrt{2 \delta_S / \mu}$$

    If both domains have the same minimiser, only the first term and the remainder are left:
    Theorem 1, with the radius corrected (see the errata).

    These terms have the units of the features: multiplied by a number they say something else of
    the same predictors. With metric="source" they do not,

    $$T_\Gamma(S \| T) \le \delta_S \lambda_{\max}^+\big(H_S^{-1/2} (H_T - H_S) H_S^{-1/2}\big)
    + \sqrt{2 \delta_S} \, \|g_T - g_S\|_{H_S^{-1}} + \text{target term} + \text{remainder}$$

    is the same after any invertible linear change of the features, if the L2 term is changed with
    them or there is none.

    Args:
        z: Features that enter the head.
        y: Targets.
        domain: The domain of each sample, any integers; or what `domain_layout` takes or gives.
        source: Id of the source domain S.
        target: Id of the target domain T.
        tolerance: The excess risk δ_S.
        l2: The weight λ of the L2 term λ/2 ‖θ‖² over all parameters, in both risks.
        loss: "cross_entropy", "binary" or "squared" (without activation: the risk must be convex).
        bias: Whether the head has a bias.
        outputs: Outputs of the head; by default what the targets of both domains need.
        strong_convexity: Where μ comes from. "l2" is its weight, which holds everywhere; "hessian"
            the smallest eigenvalue at the minimiser, larger but local unless the error is squared;
            "auto" the eigenvalue for squared error or without L2 term, else the weight.
        measure: A transfer measure of the same problem, to measure the remainder at its maximiser.
        metric: "euclidean", or "source" for lengths in the source's Hessian, which must be positive
            definite and fit into memory; `strong_convexity` says nothing then.

    Returns:
        The bound with all its parts. An unknown origin of μ, or a μ of zero, raise an InputError.

    Example:
        >>> z = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
        >>> y, domain = torch.zeros(2, dtype=torch.float64), torch.tensor([0, 1])
        >>> bound = transfer_bound(z, y, domain, source=0, target=1, tolerance=0.1, l2=0.0,
        ...                        loss="squared", bias=False)
        >>> round(bound.value, 6), bound.remainder  # equal to the transfer measure
        (0.3, 0.0)
    """
    check_name("strong_convexity", strong_convexity, get_args(Convexity))
    check_name("metric", metric, get_args(Metric))
    check_positive(tolerance, "tolerance")
    data = make_samples(z, y, domain, make_loss(loss), outputs=outputs, bias=bias, l2=l2)
    data, (s, t) = data.to(torch.float64), data.positions(source, target)
    fitted = fit_domain(data, s)
    if metric == "source":
        bound = _source_bound(data, s, t, fitted, tolerance)
    else:
        third = largest_third_derivative(data, s) + largest_third_derivative(data, t)
        bound = bound_at(data, s, t, fitted, tolerance, third, strong_convexity)
    if measure is None:
        return bound
    centre = fitted.parameters.flatten()
    return replace(bound, measured_remainder=_measured_remainder(data, s, t, centre, measure))


def bound_at(
    data: HeadSamples,
    s: int,
    t: int,
    fitted: FittedHead,
    tolerance: float,
    third_derivatives: float,
    strong_convexity: Convexity = "auto",
    accuracy: float = 0.0,
) -> TransferBound:
    """The bound for one pair of domains without measured remainder; a μ of 0 is an InputError."""
    # What is left of the minimiser's gradient widens the radius; `third_derivatives` is the sum of
    # `largest_third_derivative` of both domains, `accuracy` that of the spectral norm.
    mu = fitted.strong_convexity(strong_convexity)
    if not mu.value > 0:
        raise InputError(
            f"Expected a strongly convex risk, found μ = 0 from {mu.origin!r} at l2={data.l2:g}: "
            "the minimal set of the source is not bounded. Use l2 > 0."
        )
    centre = fitted.parameters.flatten()
    gradients = [data.risk_and_gradient(centre.unsqueeze(0), e)[1][0] for e in (s, t)]
    slope = float(gradients[1].norm())
    difference = float((gradients[1] - gradients[0]).norm())
    distance = data.hessian_difference(centre, t, s).spectral_norm(accuracy)
    rest = fitted.gradient_norm
    radius = (rest + math.sqrt(rest**2 + 2 * mu.value * tolerance)) / mu.value
    return TransferBound(
        tolerance,
        mu,
        radius,
        distance,
        difference,
        radius**2 * distance / 2,
        radius * difference,
        _descent(slope, radius, _target_convexity(data, t)),
        radius**3 / 6 * third_derivatives,
        None,
        fitted,
    )


def _target_convexity(data: HeadSamples, t: int) -> float:
    """A constant of strong convexity of the target's risk that holds for all heads."""
    if isinstance(data.loss, Squared):
        return make_whitening(data, data.features.new_zeros(data.num_parameters), t).smallest
    return data.l2


def _descent(slope: float, radius: float, mu: float) -> float:
    """The largest descent r ‖g‖ − μ r²/2 within the radius."""
    best = radius if slope >= mu * radius else slope / mu
    return best * slope - mu * best**2 / 2


def _source_bound(
    data: HeadSamples, s: int, t: int, fitted: FittedHead, tolerance: float
) -> TransferBound:
    """The bound in the metric of the source's Hessian; derived under "The source's own metric"."""
    centre = fitted.parameters.flatten()
    identity = torch.eye(data.num_parameters, dtype=torch.float64, device=centre.device)
    hessians = [data.domain_statistics(centre, e).hessian[0] + data.l2 * identity for e in (s, t)]
    factor, failed = torch.linalg.cholesky_ex(hessians[0])
    if bool(failed) or not float(factor.diagonal().min()) > _FLAT * float(factor.diagonal().max()):
        raise InputError(
            f"Expected a source with a positive definite Hessian, found a flat direction at "
            f"l2={data.l2:g}: heads that differ along it are all minimal. Use l2 > 0."
        )
    root = torch.linalg.solve_triangular(factor, identity, upper=False)  # of the inverse
    spectrum = torch.linalg.eigvalsh(root @ hessians[1] @ root.T)
    gradients = [root @ data.risk_and_gradient(centre.unsqueeze(0), e)[1][0] for e in (s, t)]
    rest, slope = (float(each.norm()) for each in gradients)
    difference = float((gradients[1] - gradients[0]).norm())
    largest, above = float(spectrum[-1]), max(0.0, float(spectrum[-1]) - 1)
    mu = data.l2 * float(torch.linalg.eigvalsh(root @ root.T)[0])
    if isinstance(data.loss, Squared):
        mu = float(spectrum[0].clamp_min(0))
    bends = [_bends(data, e, root) for e in (s, t)]
    radius = _certain_radius(tolerance, bends[0][0], rest)

    def terms(r: float) -> tuple[float, float, float]:
        return r**2 / 2 * above, r * difference, _descent(slope, r, mu)

    usual, remainder = terms(math.sqrt(2 * tolerance)), math.inf
    if math.isfinite(radius):
        remainder = sum(terms(radius)) - sum(usual)
        remainder += _neglected(radius, *bends[0], 1.0, upwards=False)
        remainder += _neglected(radius, *bends[1], largest, upwards=True)
    return TransferBound(
        tolerance,
        StrongConvexity(1.0, "hessian", isinstance(data.loss, Squared)),
        radius,
        float(spectrum[-1]) - 1,
        difference,
        *usual,
        remainder,
        None,
        fitted,
        "source",
    )


def _bends(data: HeadSamples, e: int, root: Float[Tensor, "p p"]) -> tuple[float, float]:
    r"""How the curvature of a domain's risk changes along a unit direction of the metric.

    With $w_n$ the widest that the logits of a sample can be moved apart by it: the largest $w_n$,
    of which the third derivative is at most as many times the second; and a bound of the third
    derivative itself, as `largest_third_derivative`.

    Returns:
        Both; 0 for squared error.
    """
    if isinstance(data.loss, Squared):
        return 0.0, 0.0
    z, _ = data.parts[e]
    moved = torch.einsum("pkd,nd->npk", root.unflatten(1, data.shape), z)
    inner = moved.mT @ moved
    own = inner.diagonal(dim1=1, dim2=2)
    several = isinstance(data.loss, CrossEntropy)
    squares = own.unsqueeze(1) + own.unsqueeze(2) - 2 * inner if several else own.unsqueeze(2)
    width = squares.flatten(1).amax(1).clamp_min(0).sqrt()
    moments = torch.kron(torch.eye(data.outputs).to(z), z.T @ (z * width.unsqueeze(1)) / len(z))
    third = float(torch.linalg.eigvalsh(root @ moments @ root.T)[-1])
    return float(width.max()), _LARGEST_SKEWNESS * (2 if several else 1) * third


def _certain_radius(tolerance: float, bend: float, slope: float) -> float:
    r"""The radius outside of which the risk is above the tolerance, for all heads.

    Where the third derivative along a direction is at most R times the second, the risk rises by at
    least $(e^{-R r} + R r - 1) / R^2$ over a distance r (Bach, 2010), less the slope that is left.

    Returns:
        The radius; infinite if there is none.
    """
    if bend == 0:
        return slope + math.sqrt(slope**2 + 2 * tolerance)

    def excess(r: float) -> float:
        return (math.expm1(-bend * r) + bend * r) / bend**2 - slope * r - tolerance

    low, high = 0.0, math.sqrt(2 * tolerance)
    while excess(high) < 0:
        low, high = high, 2 * high
        if high > _FARTHEST:
            return math.inf
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) < 0 else (low, middle)
    return high


def _neglected(r: float, bend: float, third: float, curvature: float, *, upwards: bool) -> float:
    """How far a risk can be above, or below, its quadratic expansion at a distance r."""
    if bend == 0:
        return 0.0
    a = bend * r
    if upwards and a > _LARGEST_POWER:
        return third * r**3 / 6
    by_share = math.expm1(a) - a - a**2 / 2 if upwards else a**2 / 2 - math.expm1(-a) - a
    return min(third * r**3 / 6, curvature * max(0.0, by_share) / bend**2)


def largest_third_derivative(data: HeadSamples, e: int) -> float:
    r"""A bound of the third derivative of one domain's risk along any unit direction, anywhere.

    Along V the logits of a sample move by $u = V\tilde z$. The third derivative of softmax
    cross-entropy is the third central moment of $u_k$ under the probabilities, at most
    $w^3/(6\sqrt3)$ if the $u_k$ lie in an interval of length w, and
    $w \le \sqrt2 \|V\tilde z\|$. For a single logit $w = |u|$. The mean of
    $\|V\tilde z\|^3 \le \|\tilde z\| \|V\tilde z\|^2$ is at most the largest eigenvalue of the mean
    of $\|\tilde z\| \tilde z \tilde z^\top$.

    Returns:
        The bound; 0 for squared error, infinite with an activation, for which none is known.
    """
    if isinstance(data.loss, Squared):
        return 0.0 if data.convex else math.inf
    z, _ = data.parts[e]
    moments = z.T @ (z * z.norm(dim=1, keepdim=True)) / len(z)
    width = math.sqrt(2) if isinstance(data.loss, CrossEntropy) else 1.0
    return _LARGEST_SKEWNESS * width**3 * float(torch.linalg.eigvalsh(moments)[-1])


def _measured_remainder(
    data: HeadSamples, s: int, t: int, centre: Point, measure: TransferMeasure
) -> float:
    r"""What the quadratic expansion of L_T − L_S around the centre misses at the maximiser."""
    if tuple(measure.maximiser.shape) != data.shape:
        raise InputError(
            f"Expected the transfer measure of the same problem, with a head of shape "
            f"{list(data.shape)}, got {list(measure.maximiser.shape)}."
        )
    move = (measure.maximiser.flatten() - centre).unsqueeze(0)
    pair = torch.tensor([[t, s]], device=centre.device)
    before, slope = data.gap(centre.unsqueeze(0), pair)
    after, _ = data.gap(centre + move, pair)
    bend = data.hessian_difference(centre, t, s)(move)
    return float(after - before - (slope * move).sum() - (bend * move).sum() / 2)
