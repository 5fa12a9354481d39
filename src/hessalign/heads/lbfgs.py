"""Minimise a smooth objective over the parameters of a head, by SciPy's L-BFGS in float64.

Indices: k output, d feature (with the constant of the bias).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from hessalign._shapes import Float

Objective = Callable[[Tensor], tuple[float, Tensor]]
"""Gives the value at a head, and the derivative in each of its parameters."""


@final
@dataclass(frozen=True, eq=False)
class Minimum:
    """Where a search ended.

    Attributes:
        parameters: The head, one row per output.
        slope: The largest derivative that is left.
        steps: Steps taken.
        settled: Whether the search ended by itself, rather than for want of steps.
    """

    parameters: Float[Tensor, "k d"]
    slope: float
    steps: int
    settled: bool


def minimise_head(
    objective: Objective,
    start: Float[Tensor, "k d"],
    *,
    slope: float,
    still: float,
    steps: int,
    memory: int,
) -> Minimum:
    """Search for a minimum.

    Args:
        objective: What to minimise; it is called with heads in float64.
        start: Where to start.
        slope: The search ends where no derivative is larger than this.
        still: It ends when a step lowers the objective by a smaller share than this, too.
        steps: Steps, at most.
        memory: Past steps from which the curvature is modelled.

    Returns:
        The end of the search, at least a local minimum if it has settled.

    Example:
        >>> square = lambda head: (float((head - 2).square().sum()), 2 * (head - 2))
        >>> limits = {"slope": 1e-6, "still": 0.0, "steps": 9, "memory": 5}
        >>> minimise_head(square, torch.zeros(1, 2), **limits).parameters
        tensor([[2., 2.]], dtype=torch.float64)
    """
    from scipy.optimize import minimize

    def flat(point: np.ndarray) -> tuple[float, np.ndarray]:
        head = torch.from_numpy(point.copy()).view(start.shape).to(start.device)
        value, gradient = objective(head)
        return value, gradient.flatten().cpu().numpy()

    found = minimize(
        flat,
        start.double().flatten().cpu().numpy(),
        jac=True,
        method="L-BFGS-B",
        options={
            "maxiter": steps,
            "maxfun": 20 * steps,
            "gtol": slope,
            "ftol": still,
            "maxcor": memory,
        },
    )
    head = torch.from_numpy(found.x).view(start.shape).to(start.device)
    return Minimum(head, float(np.abs(found.jac).max()), int(found.nit), bool(found.success))
