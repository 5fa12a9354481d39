r"""Moments: means over a domain of left_n ⊗ right_n, and their inner products between domains.

The inner product of two moments can be computed in two ways.

- *primal*: form the means, then multiply. Cost n·|left|·|right|.
- *dual*: never form them. $\langle M_e, M_f\rangle$ is the mean over pairs of samples, one from
  each domain, of ⟨left_n, left_m⟩·⟨right_n, right_m⟩. Cost n²·(|left| + |right|), with |left| and
  |right| replaced by what an inner product costs: for a Hessian that is 3C + d instead of
  C²·d².

Indices: e and f domain, n and m sample.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, final, get_args

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hessalign._names import UnknownNameError
from hessalign._shapes import Float
from hessalign.alignment.comparison import dispersion
from hessalign.curvature.domains import Domains
from hessalign.curvature.factors import LeftFactor, Linear, Outer, RightFactor

Evaluation = Literal["auto", "primal", "dual"]

PAIR_ELEMENTS = 1 << 19
"""Pairs of samples whose inner products are held at once: 4 MiB for each matrix over pairs."""

PAIR_COST = 256
"""Price of what is done elementwise to the inner products of one pair, in multiplications."""

MEAN_COST = 32
"""Price of keeping and multiplying one component of one domain's mean, in multiplications."""


def check_evaluation(evaluation: str) -> None:
    """Refuse an unknown evaluation.

    Args:
        evaluation: What should be "auto", "primal" or "dual".

    Raises:
        UnknownNameError: If it is not.
    """
    if evaluation not in get_args(Evaluation):
        raise UnknownNameError("evaluation", evaluation, get_args(Evaluation))


@final
@dataclass(frozen=True, eq=False)
class Moment:
    """The mean over each domain of left ⊗ right.

    Attributes:
        left: The small factor.
        right: The factor made of features.
        domains: The grouping of the samples.
    """

    left: LeftFactor
    right: RightFactor
    domains: Domains

    def cheaper(self) -> Literal["primal", "dual"]:
        """The evaluation that needs fewer multiplications."""
        samples = sum(self.domains.sizes)
        components = self.left.size * self.right.size
        primal = (samples + MEAN_COST * len(self.domains)) * components
        dual = samples**2 * (self.left.dual_size + self.right.dual_size + PAIR_COST)
        return "primal" if primal <= dual else "dual"

    def inner(self, evaluation: Evaluation = "auto") -> Float[Tensor, "e e"]:
        """Inner products between the moments of all pairs of domains.

        Args:
            evaluation: "primal", "dual", or "auto" for the cheaper one.

        Returns:
            The Gram matrix of the domains, in float64.
        """
        return self._primal() if self._chosen(evaluation) == "primal" else self._dual()

    def dispersion(self, evaluation: Evaluation = "auto") -> Float[Tensor, ""]:
        r"""Mean squared distance of the domains' moments to their mean.

        The dual form is a single sum over pairs of samples, $\sum_{nm} w_{nm}
        \langle\text{left}_n, \text{left}_m\rangle \langle\text{right}_n, \text{right}_m\rangle$.

        Args:
            evaluation: "primal", "dual", or "auto" for the cheaper one.

        Returns:
            The dispersion, in float64.
        """
        if self._chosen(evaluation) == "primal":
            return dispersion(self._primal())
        deviating = self.domains.deviating
        if isinstance(self.right, Linear | Outer) and self._pairs_fit():
            return self.right.pair_sum(self.left.inner(slice(None)), deviating.T @ deviating)
        return self._over_pairs(
            lambda block, products: (products * (deviating[:, block].T @ deviating)).sum()
        )

    def _chosen(self, evaluation: Evaluation) -> Literal["primal", "dual"]:
        check_evaluation(evaluation)
        return self.cheaper() if evaluation == "auto" else evaluation

    def _primal(self) -> Float[Tensor, "e e"]:
        return self.right.mean_inner(self.left.rows(), self.domains.sizes)

    def _dual(self) -> Float[Tensor, "e e"]:
        averaging = self.domains.averaging
        return self._over_pairs(
            lambda block, products: averaging[:, block] @ products @ averaging.T
        )

    def _pairs_fit(self) -> bool:
        """Whether the inner products of all pairs can be held at once."""
        return sum(self.domains.sizes) ** 2 <= PAIR_ELEMENTS

    def _over_pairs(self, reduced: Callable[[slice, Tensor], Tensor]) -> Tensor:
        """Sum over blocks of samples of what is made of their inner products with all samples."""
        samples = sum(self.domains.sizes)

        def pairs(block: slice) -> Tensor:
            return reduced(block, self.left.inner(block) * self.right.inner(block))

        if self._pairs_fit():
            return pairs(slice(None))
        rows = max(1, PAIR_ELEMENTS // samples)
        # Too many pairs to hold: go block by block, and again in the backward pass.
        parts: list[Tensor] = [
            checkpoint(pairs, slice(start, start + rows), use_reentrant=False)
            for start in range(0, samples, rows)
        ]
        return torch.stack(parts).sum(0)
