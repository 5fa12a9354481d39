r"""The head at which domains are compared: the caller's, or one fitted here; and how good it is.

Indices: e domain, n sample, k output, d feature (with the constant of the bias).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, final

import torch
from torch import Tensor, nn

from hessalign._errors import InputError
from hessalign._shapes import Float
from hessalign.curvature import LinearHead, linear_head
from hessalign.curvature.losses import Binary, HeadLoss
from hessalign.diagnosis.draw import Draw
from hessalign.diagnosis.penalised_fit import (
    PLAIN,
    fix_features,
    penalised_fit,
    typical_gradient,
)
from hessalign.heads import fit_head
from hessalign.heads.inputs import head_matrix

AT_OPTIMUM: Final = 1e-3
"""Gradient norm up to which a head counts as optimal, as a share of single samples' gradients."""


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
    """The head of a diagnosis, with its statistics on the samples drawn.

    Args:
        draw: The samples.
        loss: The loss of the head.
        head: The head to look at; None to fit one.
        l2: The weight of the L2 term of a fit.
        trained_on: Positions of the domains a given head was trained on; all by default.

    Returns:
        The report, and the head's statistics.

    Raises:
        InputError: If the head does not suit the samples, or there is no best head to be fitted.
    """
    everyone = range(len(draw.domain_names))
    chosen = list(everyone if trained_on is None else trained_on)
    if not chosen or any(e not in everyone for e in chosen):
        raise InputError(
            f"Expected trained_on to hold positions of domains, 0 to {everyone[-1]}, got {chosen}."
        )
    rows = torch.isin(draw.domain, torch.tensor(chosen))
    outputs = num_outputs(draw, loss)
    if head is None:
        parameters, bias = _fitted(draw, rows, loss, outputs, l2), True
    else:
        parameters, bias = head_matrix(head, draw.z.shape[1])
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
    weight = l2 if head is None else 0.0
    one = torch.zeros(int(rows.sum()), dtype=torch.long)
    data = fix_features(draw.z[rows], draw.y[rows], one, loss, len(parameters), bias=bias)
    objective, gradient, _ = data.objective(parameters, PLAIN, weight)
    norm = float(gradient.norm())
    relative = norm / typical_gradient(data)
    best = None
    if head is not None:
        best = penalised_fit(data, l2 or 1e-6, start=parameters).risk
    wide = draw.z.double() @ parameters[:, : draw.z.shape[1]].T
    logits = wide + parameters[:, -1] if bias else wide
    statistics = linear_head(draw.z, logits, draw.y, draw.domain, loss=loss, bias=bias)
    right = predicted(statistics.logits, loss) == draw.y
    accuracy = torch.stack([part.double().mean() for part in right.split(draw.sizes)])
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
        relative <= AT_OPTIMUM,
        best,
        _how(head is None, l2, int(rows.sum())),
    )
    return report, statistics


def num_outputs(draw: Draw, loss: HeadLoss) -> int:
    """Outputs that a head for these samples has.

    Args:
        draw: The samples.
        loss: The loss of the head.

    Returns:
        One for a single logit, else the number of classes.
    """
    return 1 if isinstance(loss, Binary) else max(2, len(draw.class_names))


def predicted(logits: Float[Tensor, "n k"], loss: HeadLoss) -> Tensor:
    """The class that a head's outputs stand for.

    Args:
        logits: The outputs.
        loss: The loss of the head.

    Returns:
        One class index per sample.
    """
    return (logits[:, 0] > 0).long() if isinstance(loss, Binary) else logits.argmax(1)


def _fitted(draw: Draw, rows: Tensor, loss: HeadLoss, outputs: int, l2: float) -> Tensor:
    if l2 == 0:  # whether a minimum exists is for Newton's method to find out
        return fit_head(draw.z[rows], draw.y[rows], loss, 0.0, outputs=outputs).parameters
    one = torch.zeros(int(rows.sum()), dtype=torch.long)
    return penalised_fit(
        fix_features(draw.z[rows], draw.y[rows], one, loss, outputs), l2
    ).parameters


def _how(fitted: bool, l2: float, samples: int) -> str:
    if fitted and l2 == 0:
        made = f"fitted to {samples:,} samples by Newton's method, without an L2 term"
    elif fitted:
        made = f"fitted to {samples:,} samples by L-BFGS with L2 weight {l2:g}"
    else:
        made = f"given; its gradient is that of the mean loss of {samples:,} samples, no L2 term"
    return (
        f"The head was {made}. Gradient norms are relative to the mean gradient norm of single "
        f"samples at a head of zeros; up to {AT_OPTIMUM:g} counts as the optimum. Loss and "
        "accuracy are those on the samples drawn."
    )
