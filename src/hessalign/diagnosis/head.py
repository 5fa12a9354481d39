r"""The head at which domains are compared: the caller's, or one fitted here; and how good it is.

Indices: e domain, n sample, k output, d feature (with the constant of the bias).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, final

import torch
from torch import Tensor, nn

from hessalign._errors import InputError
from hessalign._shapes import Float
from hessalign.curvature import LinearHead, linear_head
from hessalign.curvature.losses import HeadLoss
from hessalign.diagnosis.draw import Draw, explain
from hessalign.heads.aligned_objective import PLAIN, AlignedObjective, Weights
from hessalign.heads.fit import FittedHead, fit_head, minimise
from hessalign.heads.samples import head_matrix, predicted

# Gradient norm that a fit reaches, as a share of the mean gradient norm of single samples.
_CLOSE: Final = 1e-6
_MAX_STEPS: Final = 200  # of a fit; what it reaches by then is close enough to compare domains
# Gradient norm up to which a head counts as optimal, as a share of single samples' gradients.
_AT_OPTIMUM: Final = 1e-3


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
    if head is None:
        parameters, bias, weight = _fitted(draw, rows, loss, l2), True, l2
    else:
        parameters, bias = _given(draw, loss, head)
        weight = 0.0
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
    weights: Weights = PLAIN,
    start: Float[Tensor, "k d"] | None = None,
    accuracy: float = _CLOSE,
) -> FittedHead:
    """Fit a head until its gradient norm is that share of single samples', in a few steps."""
    return minimise(
        objective,
        weights,
        start=start,
        tolerance=accuracy / objective.samples.num_parameters**0.5,
        still=1e-5 * accuracy,
        max_steps=_MAX_STEPS,
    )


def linear_logits(z: Float[Tensor, "n d"], head: FittedHead) -> Float[Tensor, "n k"]:
    """What a fitted head with a bias says, multiplied in the precision of the features."""
    theta = head.parameters.to(z.dtype)
    return (z @ theta[:, :-1].T + theta[:, -1]).double()


def _fitted(draw: Draw, rows: Tensor, loss: HeadLoss, l2: float) -> Float[Tensor, "k d"]:
    if l2 == 0:  # whether a minimum exists is for Newton's method to find out
        outputs = draw.outputs(loss)
        return fit_head(draw.z[rows], draw.y[rows], loss, 0.0, outputs=outputs).parameters
    return quick_fit(AlignedObjective(draw.samples(rows, loss, l2, pooled=True))).parameters


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
