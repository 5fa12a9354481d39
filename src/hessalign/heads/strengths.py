"""Aligned heads by strength: weights of the penalties in a unit that travels between data sets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import Tensor

from hessalign._shapes import Float
from hessalign.heads.aligned_objective import AbstractObjective, Weights
from hessalign.heads.fit import FittedHead, minimise


def plain_head(
    objective: AbstractObjective,
    *,
    start: Float[Tensor, "k d"] | None = None,
    tolerance: float,
    max_steps: int,
) -> FittedHead:
    """The minimum without penalties; of many samples it is first found for some of them."""
    if start is None and objective.small is not objective:
        # As precisely as so few samples say: beyond that, a head would follow their noise.
        rough = max(tolerance, objective.small.sampling)
        start = minimise(objective.small, tolerance=rough, max_steps=max_steps).parameters
    return minimise(objective, start=start, tolerance=tolerance, max_steps=max_steps)


def weights_of(strength: float | Weights, plain: FittedHead) -> Weights:
    r"""The weights with which each penalty at the plain head is that many times its loss.

    $$\alpha = s\, L / D_H, \qquad \beta = s\, L / D_g$$

    with the loss $L$ and the dispersions $D_H$, $D_g$ of Hessians and gradients at the plain head;
    0 where there is nothing to align.

    Args:
        strength: The strength s of both penalties, or one for each; 0 is plain training.
        plain: The plain head, with its terms.

    Returns:
        The weights.
    """
    alpha, beta = strength if isinstance(strength, Weights) else (strength, strength)
    return Weights(
        alpha * plain.loss / plain.hessian if plain.hessian > 0 else 0.0,
        beta * plain.loss / plain.gradient if plain.gradient > 0 else 0.0,
    )


def strength_path(
    objective: AbstractObjective,
    plain: FittedHead,
    strengths: Iterable[float | Weights],
    *,
    tolerance: float,
    still: float = 0.0,
    max_steps: int,
) -> Iterator[FittedHead]:
    """Heads of rising strengths, each started from the one before.

    Args:
        objective: What to minimise.
        plain: The plain head of the same objective.
        strengths: Strengths, the smallest first.
        tolerance: Slope to reach, as of `minimise`.
        still: Share of the objective below which a step ends a fit.
        max_steps: Steps of each fit, at most.

    Yields:
        One head per strength; the plain one for strength 0.
    """
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
