"""Heads at which domains are compared, given or fitted to all, and heads of single domains.

Indices: e domain, n sample, k output, d feature (with the bias), s source, t target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from math import factorial
from typing import Final, Literal, final

import numpy as np
import torch
from torch import Tensor, nn

from hessalign._errors import InputError
from hessalign._shapes import Float
from hessalign.alignment import squared_distances
from hessalign.curvature import LinearHead, linear_head
from hessalign.curvature.losses import HeadLoss
from hessalign.diagnosis.distances import EDGES, Groups
from hessalign.diagnosis.draw import Draw, explain
from hessalign.heads.aligned_objective import PLAIN, AlignedObjective
from hessalign.heads.bound import bound_at, largest_third_derivative
from hessalign.heads.fit import FittedHead, fit_head, minimise
from hessalign.heads.samples import head_matrix, predicted

# Gradient norm that a fit reaches, as a share of the mean gradient norm of single samples.
_CLOSE: Final = 1e-6
_MAX_STEPS: Final = 200  # of a fit; what it reaches by then is close enough to compare domains
# Gradient norm up to which a head counts as optimal, as a share of single samples' gradients.
_AT_OPTIMUM: Final = 1e-3
_ACCURACY: Final = 1e-3  # of the eigenvectors behind spectral norms
_PERMUTATIONS: Final = 5000  # orders of the domains that are tried, at most


@final
@dataclass(frozen=True, eq=False)
class HeadReport:
    """The head, and whether it is at its optimum.

    Attributes:
        origin: "given" or "fitted".
        parameters: One row per output, weights before bias.
        bias: Whether the last column is a bias.
        l2: The weight of the L2 term in the objective whose gradient is measured; 0 for a given
            head.
        domains: Names of the domains over which the objective is averaged.
        risk: Mean loss of each domain.
        accuracy: Share of right answers in each domain.
        objective: Mean loss over these domains' samples plus the L2 term.
        gradient_norm: Norm of the objective's gradient at the head.
        relative: That norm as a share of the mean gradient norm of single samples at a head of
            zeros.
        at_optimum: Whether the share is at most 0.001.
        best: The objective that a fit from this head reaches with the L2 weight of the diagnosis,
            without the L2 term; None for a fitted head.
        how: How it was computed.
    """

    origin: Literal["given", "fitted"]
    parameters: Float[Tensor, "k d"]
    bias: bool
    l2: float
    domains: tuple[str, ...]
    risk: Float[Tensor, " e"]
    accuracy: Float[Tensor, " e"]
    objective: float
    gradient_norm: float
    relative: float
    at_optimum: bool
    best: float | None
    how: str


def make_head(
    draw: Draw,
    loss: HeadLoss,
    head: nn.Linear | Tensor | None,
    l2: float,
    trained_on: Sequence[int] | None = None,
) -> tuple[HeadReport, LinearHead]:
    """The head of a diagnosis, given or fitted, with its statistics on the samples drawn."""
    everyone = range(len(draw.domain_names))
    chosen = list(everyone if trained_on is None else trained_on)
    if not chosen or any(e not in everyone for e in chosen):
        raise InputError(
            f"Expected trained_on to hold positions of domains, 0 to {everyone[-1]}, got {chosen}."
        )
    rows = torch.isin(draw.domain, torch.tensor(chosen))
    bias, weight = True, l2
    if head is not None:
        parameters, bias = _given(draw, loss, head)
        weight = 0.0
    elif l2 == 0:  # whether a minimum exists is for Newton's method to find out
        z, y, outputs = draw.z[rows], draw.y[rows], draw.outputs(loss)
        parameters = fit_head(z, y, loss, 0.0, outputs=outputs).parameters
    else:
        data = draw.samples(rows, loss, l2, pooled=True)
        parameters = quick_fit(AlignedObjective(data)).parameters
    data = draw.samples(rows, loss, weight, outputs=len(parameters), bias=bias, pooled=True)
    objective, gradient = AlignedObjective(data).value_and_gradient(parameters, PLAIN)
    norm = float(gradient.norm())
    relative = norm / data.typical_gradient
    best = None
    if head is not None:
        best = quick_fit(AlignedObjective(replace(data, l2=l2 or 1e-6)), start=parameters).loss
    wide = draw.z.double() @ parameters[:, : draw.z.shape[1]].T
    logits = wide + parameters[:, -1] if bias else wide
    statistics = linear_head(draw.z, logits, draw.y, draw.domain, loss=loss, bias=bias)
    right = predicted(statistics.logits, loss) == draw.y
    accuracy = torch.stack([part.double().mean() for part in right.split(draw.sizes)])
    count = f"{int(rows.sum()):,}"
    how = explain("head", fitted=head is None, l2=l2, samples=count, optimum=_AT_OPTIMUM)
    report = HeadReport(
        "fitted" if head is None else "given",
        parameters,
        bias,
        weight,
        tuple(draw.domain_names[e] for e in chosen),
        statistics.risk,
        accuracy,
        objective,
        norm,
        relative,
        relative <= _AT_OPTIMUM,
        best,
        how,
    )
    return report, statistics


def quick_fit(
    objective: AlignedObjective,
    start: Float[Tensor, "k d"] | None = None,
    accuracy: float = _CLOSE,
) -> FittedHead:
    """Fit a head until its gradient norm is that share of single samples', in a few steps."""
    return minimise(
        objective,
        start=start,
        tolerance=accuracy / objective.samples.num_parameters**0.5,
        still=1e-5 * accuracy,
        max_steps=_MAX_STEPS,
    )


def _given(
    draw: Draw, loss: HeadLoss, head: nn.Linear | Tensor
) -> tuple[Float[Tensor, "k d"], bool]:
    parameters, bias = head_matrix(head, draw.z.shape[1])
    outputs = draw.outputs(loss)
    if outputs == 1 and len(parameters) > 1:
        raise InputError(
            f'Expected a head with 1 output for loss="binary", got {len(parameters)}. Use '
            'loss="cross_entropy".'
        )
    if len(parameters) < outputs:
        raise InputError(
            f"Expected a head with {outputs} outputs for {len(draw.class_names)} classes, got "
            f"{len(parameters)}."
        )
    return parameters, bias


@final
@dataclass(frozen=True, eq=False)
class _SingleHeads:
    """Heads fitted to one domain each, on a random half of its samples."""

    domains: tuple[int, ...]
    fits: tuple[FittedHead, ...]
    losses: Float[Tensor, "n s"]  # of each head on each sample of the other halves, else 0


@final
@dataclass(frozen=True, eq=False)
class CrossingReport:
    """Whether the Hessian distance foretells how a domain's head does on another.

    Attributes:
        domains: Positions of the domains.
        loss: Loss of the head of domain s (row) on unseen samples of domain t (column).
        regret: That loss less that of t's own head on the same samples.
        correlation: Spearman's rank correlation over pairs of Hessian distance and regret (mean of
            both directions); None if one of them is constant.
        low: Lower end of the 95 % interval.
        high: Its upper end.
        p_value: How often domains in another order give a correlation as large.
        pairs: How many pairs there are.
        how: How it was computed.
    """

    domains: tuple[int, ...]
    loss: Float[Tensor, "s t"]
    regret: Float[Tensor, "s t"]
    correlation: float | None
    low: float | None
    high: float | None
    p_value: float | None
    pairs: int
    how: str


def fit_single_heads(draw: Draw, loss: HeadLoss, l2: float, domains: Sequence[int]) -> _SingleHeads:
    """Fit a head to a half of each domain, and apply it to the other halves of all."""
    seen, fits, losses = draw.half, [], []
    for e in domains:
        rows = seen & (draw.domain == e)
        fits.append(quick_fit(AlignedObjective(draw.samples(rows, loss, l2))))
        theta = fits[-1].parameters.to(draw.z.dtype)
        logits = (draw.z @ theta[:, :-1].T + theta[:, -1]).double()
        losses.append(torch.where(seen, 0, loss.values(logits, draw.y)))
    return _SingleHeads(tuple(domains), tuple(fits), torch.stack(losses, dim=1))


def crossing_report(
    draw: Draw, heads: _SingleHeads, inner: Float[Tensor, "g g"], groups: Groups, seed: int
) -> CrossingReport:
    """Compare Hessian distances, from inner products between groups, with losses across."""
    chosen = torch.tensor(heads.domains)
    size = groups.size
    unseen = torch.zeros_like(size).index_add_(0, draw.group, (~draw.half).double())
    sums = torch.zeros(len(size), len(heads.domains), dtype=torch.float64)
    sums.index_add_(0, draw.group, heads.losses)
    count = groups.num_domains

    def losses(weights: Tensor) -> Tensor:
        total = weights.new_zeros(count, sums.shape[1]).index_add_(
            0, groups.domain, weights.unsqueeze(1) * sums
        )
        mass = weights.new_zeros(count).index_add_(0, groups.domain, weights * unseen)
        return (total / mass.unsqueeze(1))[chosen].T

    def compare(gram: Tensor, loss: Tensor) -> tuple[Tensor, Tensor]:
        return squared_distances(gram)[chosen][:, chosen], loss - loss.diagonal()

    loss = losses(torch.ones_like(size))
    measured, regret = compare(groups.averaged(inner, groups.shares), loss)
    rho = _correlation(measured, regret)
    replicates = [
        _correlation(*compare(gram, losses(shares / groups.shares)))
        for gram, shares in zip(groups.replicates(inner), groups.weights, strict=True)
    ]
    sound = [value for value in replicates if value is not None]
    low = high = None
    if rho is not None and sound:
        low, high = np.quantile(sound, EDGES).tolist()
    pairs = len(chosen) * (len(chosen) - 1) // 2
    p_value, tried = _permuted(measured, regret, rho, seed)
    how = explain("crossing", replicates=len(groups.weights), tried=tried)
    return CrossingReport(heads.domains, loss, regret, rho, low, high, p_value, pairs, how)


def _correlation(distance: Tensor, regret: Tensor) -> float | None:
    """Spearman's rank correlation over pairs of domains, of means of both directions."""
    means = [((matrix + matrix.T) / 2).numpy() for matrix in (distance, regret)]
    pairs = np.triu_indices(len(distance), 1)
    return _rank_correlation(means[0][pairs], means[1][pairs])


def _rank_correlation(first: np.ndarray, second: np.ndarray) -> float | None:
    """Spearman's, ties at their mean rank; None if one of them is constant or not finite."""
    from scipy.stats import rankdata

    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        return None
    ranks = [rankdata(values) - (len(values) + 1) / 2 for values in (first, second)]
    sizes = [float(np.sqrt((rank**2).sum())) for rank in ranks]
    if min(sizes) == 0:
        return None
    return float(ranks[0] @ ranks[1]) / (sizes[0] * sizes[1])


def _permuted(
    distance: Tensor, regret: Tensor, rho: float | None, seed: int
) -> tuple[float | None, int]:
    """Mantel's test: how often domains in another order show as large a correlation."""
    if rho is None:
        return None, 0
    count = len(distance)
    if factorial(count) <= _PERMUTATIONS:
        orders = [list(order) for order in permutations(range(count))]
    else:
        generator = np.random.default_rng(seed)
        orders = [list(range(count))]
        orders += [generator.permutation(count).tolist() for _ in range(_PERMUTATIONS - 1)]
    values = [_correlation(distance[order][:, order], regret) for order in orders]
    hits = sum(value is not None and value >= rho - 1e-12 for value in values)
    return hits / len(orders), len(orders)


@final
@dataclass(frozen=True)
class PairBound:
    """The bound of the transfer measure from one domain to another.

    Attributes:
        source: Position of the source.
        target: Position of the target.
        value: The bound up to third order, the sum of the three terms.
        hessian_term: ½ δ² ‖H_T − H_S‖₂.
        gradient_term: δ ‖g_T − g_S‖.
        target_term: How far the source's head can be above the target's best within the radius.
        remainder: What higher orders can add at most.
    """

    source: int
    target: int
    value: float
    hessian_term: float
    gradient_term: float
    target_term: float
    remainder: float


@final
@dataclass(frozen=True)
class BoundReport:
    """Bounds of the transfer measure.

    Attributes:
        pairs: One entry per ordered pair.
        tolerance: The excess risk δ_S of a nearly optimal head of the source.
        radius: The radius δ = √(2 δ_S/μ) that follows, the largest of all sources.
        how: How they were computed.
    """

    pairs: tuple[PairBound, ...]
    tolerance: float
    radius: float
    how: str


def bound_report(
    draw: Draw, heads: _SingleHeads, loss: HeadLoss, l2: float, tolerance: float
) -> BoundReport:
    """Theorem 1 for all ordered pairs of some domains; the L2 weight is μ."""
    seen = draw.half & torch.isin(draw.domain, torch.tensor(heads.domains))
    data = draw.samples(seen, loss, l2).to(torch.float64)
    third = [largest_third_derivative(data, e) for e in range(len(heads.domains))]
    found, radius = [], 0.0
    for s, t in permutations(range(len(heads.fits)), 2):
        bends = third[s] + third[t]
        bound = bound_at(data, s, t, heads.fits[s], tolerance, bends, accuracy=_ACCURACY)
        radius = max(radius, bound.radius)
        terms = (bound.hessian_term, bound.gradient_term, bound.target_term, bound.remainder)
        found.append(PairBound(heads.domains[s], heads.domains[t], bound.value, *terms))
    how = explain("bounds", tolerance=tolerance, l2=l2)
    return BoundReport(tuple(found), tolerance, radius, how)
