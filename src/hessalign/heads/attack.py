r"""The worst gap between domains near a trained head: the attack behind Figure 2.

Indices: e domain, q ordered pair, b radius, k output, d feature (with the constant of the bias),
p = (k, d) parameter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final, get_args

import numpy as np
import torch
from torch import Tensor, nn

from hessalign._errors import InputError, check_name
from hessalign._numbers import check_count, check_positive
from hessalign._shapes import Float
from hessalign.curvature import make_loss
from hessalign.curvature.activations import Activation, Elementwise
from hessalign.curvature.domains import DomainLike
from hessalign.curvature.inputs import check_features
from hessalign.curvature.losses import HeadLoss
from hessalign.heads.ascent import Ball
from hessalign.heads.gaps import Gaps, exact_attack, make_gaps, proved
from hessalign.heads.samples import (
    HeadSamples,
    Point,
    Points,
    check_several,
    head_matrix,
    make_samples,
)

Mode = Literal["exact", "published"]


@final
@dataclass(frozen=True)
class PublishedAttack:
    """Settings of the published attack; the defaults are those for image data sets.

    Attributes:
        learning_rate: Of Adam (5e-5 for image data sets, 1e-3 for MNIST).
        batch_size: Samples of each domain per step.
        epochs: Each has int(smallest domain / batch size + 1) steps.
    """

    learning_rate: float = 5e-5
    batch_size: int = 32
    epochs: int = 10

    def __post_init__(self) -> None:
        check_positive(self.learning_rate, "learning_rate")
        for name in ("batch_size", "epochs"):
            check_count(getattr(self, name), name)

    def steps(self, data: HeadSamples) -> int:
        """Steps in all."""
        return self.epochs * int(min(data.domains.sizes) / self.batch_size + 1)

    def reach(self, data: HeadSamples) -> float:
        """About how far Adam can get, learning rate · steps · √p; larger radii do not bind."""
        return self.learning_rate * self.steps(data) * math.sqrt(data.num_parameters)


@final
@dataclass(frozen=True, eq=False)
class Attack:
    r"""The attack at one radius.

    Attributes:
        delta: The radius δ.
        gap: The largest $L_i(\theta) - L_j(\theta)$ found, on all samples.
        pair: Ids of the domains i and j.
        head: The head θ that attains it, one row per output, weights before bias.
        distance: ‖θ − θ*‖.
        limit: What no head within the radius can exceed, by proof, whichever the pair; infinite
            where nothing is known. There are proofs for heads with few parameters and losses
            without an activation.
        predicted: Theorem 1's bound of the gap of this pair to second order,
            $L_i - L_j + \delta\|g_i - g_j\| + ½\delta^2\|H_i - H_j\|_2$ at θ*.
        losses: The loss of each domain of the evaluation data at θ.
        accuracy: Their accuracy; None for regression.
    """

    delta: float
    gap: float
    pair: tuple[int, int]
    head: Float[Tensor, "k d"]
    distance: float
    limit: float
    predicted: float
    losses: Float[Tensor, " e"]
    accuracy: Float[Tensor, " e"] | None

    @property
    def certified(self) -> bool:
        """Whether the gap is proved to be the largest within the radius, to 1 in 10,000.

        If not, it is what the head proves: a lower bound, reached by the best of many starts.
        """
        return proved(self.gap, self.limit)


@final
@dataclass(frozen=True, eq=False)
class WorstCaseGap:
    """A head attacked at several radii.

    Attributes:
        mode: "exact" or "published".
        attacks: One per radius, ascending.
        ids: The domains of the evaluation data, in the order of `losses` and `accuracy`.
        gap: The largest gap of the head itself.
        gradient_norm: The gradient norm of the head's mean risk over domains, L2 term not
            included. The head need not be at its optimum, but where this is large, the gap grows
            because the head can still be trained, not because the domains differ.
        losses: The losses of the head itself on the evaluation data.
        accuracy: Its accuracy there; None for regression.
        reach: About how far the published attack can move, learning rate · steps · √p; a larger
            radius makes no difference to it. None for the exact attack.
    """

    mode: Mode
    attacks: tuple[Attack, ...]
    ids: tuple[int, ...]
    gap: float
    gradient_norm: float
    losses: Float[Tensor, " e"]
    accuracy: Float[Tensor, " e"] | None
    reach: float | None


def worst_case_gap(
    z: Float[Tensor, "n d"],
    y: Tensor,
    domain: DomainLike,
    head: Tensor | nn.Linear,
    delta: float | Sequence[float] | Tensor,
    *,
    mode: Mode = "exact",
    loss: str = "cross_entropy",
    activation: str | Elementwise | Activation = "identity",
    evaluation: tuple[Tensor, Tensor, Tensor] | None = None,
    published: PublishedAttack | None = None,
    restarts: int | None = None,
    generator: torch.Generator | None = None,
) -> WorstCaseGap:
    r"""Move a head within a radius so that the losses of two domains differ as much as possible.

    $$\max_{i,j} \max_{\|\theta - \theta^*\| \le \delta} L_i(\theta) - L_j(\theta)$$

    with features fixed and θ the weights and biases of the head together. "published" is the attack
    of Zhang et al. (2021) as their code runs it. "exact" ascends every ordered pair on all samples
    from many starts, one of them the published result, so it is never below it; and as each
    radius starts from the last, the gap never falls as the radius grows. The maximum of a gap is
    not a convex problem: whether what was found is proved to be the largest, `certified` says.

    Args:
        z: Features that enter the head.
        y: Targets.
        domain: The domain of each sample, any integers, or what `domain_layout` takes or gives; at
            least two domains.
        head: The head θ*, a linear layer or its matrix with one row per output, weights before
            bias. Whether there is a bias follows from its width.
        delta: The radius δ, or several.
        mode: "exact" or "published".
        loss: "cross_entropy", "binary" or "squared".
        activation: The activation of a head with squared error.
        evaluation: Features, targets and domains on which the attacked heads are evaluated, for
            example held-out samples or further domains; by default the samples above.
        published: Settings of the published attack.
        restarts: How often the exact attack draws random starts for the pairs that may have the
            largest gap: 24 for each, and 96 if an activation makes the losses themselves
            non-convex; by default twice, and 6 times then. More restarts never find less. Where the
            maximum is certified, there are none.
        generator: Draws minibatches and starts; by default one with seed 0.

    Returns:
        Gap, pair, head and evaluation for each radius, and whether the gap is certified. An unknown
        mode raises an UnknownNameError.

    Example:
        >>> z = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
        >>> y, domain = torch.zeros(2, dtype=torch.float64), torch.tensor([3, 5])
        >>> result = worst_case_gap(z, y, domain, torch.zeros(1, 1), [0.5, 1.0], loss="squared")
        >>> [(round(attack.gap, 6), attack.pair) for attack in result.attacks]
        [(0.375, (5, 3)), (1.5, (5, 3))]
    """
    check_name("mode", mode, get_args(Mode))
    radii, settings = _check_deltas(delta), published or PublishedAttack()
    if restarts is not None:
        check_count(restarts, "restarts", least=0)
    head_loss = make_loss(loss, activation)
    data, matrix = _prepare((z, y, domain), head, head_loss)
    check_several(data.ids)
    centre = matrix.flatten()
    judged = data if evaluation is None else _prepare(evaluation, head, head_loss)[0]
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    wide = data.to(torch.float64)
    gaps = make_gaps(wide, centre)
    moved = _published_attack(data, centre, radii, settings, generator).double() - centre
    reached = torch.stack(
        [Ball(r).retract(m.unsqueeze(0))[0] for r, m in zip(radii, moved, strict=True)]
    )
    heads = (centre + reached).unsqueeze(1).expand(-1, len(gaps.pairs), -1)
    found = torch.stack([wide.gap(points, gaps.pairs)[0] for points in heads])
    if mode == "exact":
        heads, found = exact_attack(data, radii, gaps, centre + reached, restarts, generator)
    wide_judged = judged.to(torch.float64)
    attacks = [
        _attack(wide_judged, gaps, radius, points, values)
        for radius, points, values in zip(radii, heads, found, strict=True)
    ]
    every = range(len(data.ids))
    slopes = [wide.risk_and_gradient(centre.unsqueeze(0), e)[1] for e in every]
    return WorstCaseGap(
        mode,
        tuple(attacks),
        judged.ids,
        float(gaps.gap.max()),
        float(torch.cat(slopes).mean(0).norm()),
        _losses(wide_judged, centre),
        wide_judged.accuracy(centre),
        settings.reach(data) if mode == "published" else None,
    )


def _check_deltas(delta: float | Sequence[float] | Tensor) -> tuple[float, ...]:
    """Radii, one or several: ascending, each once."""
    values = delta.tolist() if isinstance(delta, Tensor) else delta
    radii = np.asarray(values, dtype=object).ravel().tolist()
    if not radii:
        raise InputError("Expected at least one delta, got none.")
    for radius in radii:
        check_positive(radius, "delta")
    return tuple(sorted({float(radius) for radius in radii}))


def _prepare(
    samples: tuple[Tensor, Tensor, DomainLike], head: Tensor | nn.Linear, loss: HeadLoss
) -> tuple[HeadSamples, Float[Tensor, "k d"]]:
    """Samples as the given head sees them, and its parameters."""
    z, y, domain = samples
    check_features(z)
    matrix, bias = head_matrix(head, z.shape[1])
    data = make_samples(z, y, domain, loss, outputs=len(matrix), bias=bias)
    return data, matrix.to(z.device)


def _published_attack(
    data: HeadSamples,
    centre: Point,
    radii: tuple[float, ...],
    settings: PublishedAttack,
    generator: torch.Generator,
) -> Points:
    """The head for each radius that Adam gets to, on minibatches of the domains."""
    # This is what the code of Zhang et al. (2021) does, used by Hemati et al. (2023) for Figure 2.
    # Every radius is attacked from the centre with the same minibatches; each step descends
    # min_e L_e − max_e L_e and is projected on ‖θ − θ*‖ ≤ δ. Adam moves a parameter by about its
    # learning rate, so a radius beyond lr · steps · √p is never reached, and the result then says
    # more about the optimiser than about the head.
    dtype = data.features.dtype
    origin = centre.to(dtype)
    points = origin.repeat(len(radii), 1)
    limits = torch.tensor(radii, dtype=dtype, device=origin.device).unsqueeze(1)
    optimiser = torch.optim.Adam([points], lr=settings.learning_rate)
    for _ in range(settings.steps(data)):
        batch = data.batch(settings.batch_size, generator)
        every = [batch.risk_and_gradient(points, e) for e in range(len(data.ids))]
        risks = torch.stack([risk for risk, _ in every])
        slopes = torch.stack([slope for _, slope in every])
        rows = torch.arange(len(radii), device=origin.device)
        points.grad = slopes[risks.argmin(0), rows] - slopes[risks.argmax(0), rows]
        optimiser.step()
        move = points - origin
        distance = move.norm(dim=1, keepdim=True)
        points.copy_(torch.where(distance > limits, origin + limits / distance * move, points))
    return points.detach()


def _attack(
    judged: HeadSamples,
    gaps: Gaps,
    radius: float,
    points: Float[Tensor, "q p"],
    found: Float[Tensor, " q"],
) -> Attack:
    worst = int(found.argmax())
    point, (i, j) = points[worst], gaps.pairs[worst].tolist()
    return Attack(
        radius,
        float(found[worst]),
        (gaps.data.ids[i], gaps.data.ids[j]),
        point.view(judged.shape),
        float((point - gaps.centre).norm()),
        float(gaps.limits(radius, points).max()),
        float(gaps.predicted(radius)[worst]),
        _losses(judged, point),
        judged.accuracy(point),
    )


def _losses(data: HeadSamples, point: Point) -> Float[Tensor, " e"]:
    return torch.cat([data.risk(point.unsqueeze(0), e) for e in range(len(data.ids))])
