r"""What a fit ends with, whichever: the head, what it attains, and what is left of the slope.

Indices: k output, d feature (with the constant of the bias).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

from torch import Tensor

from hessalign._shapes import Float

Convexity = Literal["auto", "l2", "hessian"]
"""Where a constant of strong convexity comes from."""


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
