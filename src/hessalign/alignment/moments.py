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

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, final, get_args

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hessalign._errors import InputError, check_name
from hessalign._shapes import Float
from hessalign.alignment.comparison import dispersion
from hessalign.curvature.domains import PAIR_ELEMENTS, Domains
from hessalign.curvature.factors import (
    OVERHEAD,
    Cost,
    LeftFactor,
    Linear,
    Outer,
    RightFactor,
    mean_inners,
    pair_term,
)
from hessalign.curvature.fused import is_traced
from hessalign.curvature.gram import MANY_FEATURES, pair_sums
from hessalign.curvature.linear import MOST_BYTES
from hessalign.curvature.softmax import Compared

Evaluation = Literal["auto", "primal", "dual"]

_PAIR_PRICES = (32.0, 0.16, 0.065)
"""Nanoseconds of one core for a pair of samples, forward and backward: for what is done to their
inner products elementwise, and for each multiplication in that of the left and of the right."""

_BLOCK_PRICES = (20.0, 0.25, 0.22)
"""The same where pairs are too many to hold: they stay in cache, but are computed twice."""

_NOT_WRITTEN_OUT_PRICE = 60.0
"""Added to the former for curvatures that are not written out."""

_SOFTMAX_PRICES: dict[Compared | None, tuple[float, ...]] = {
    "full": (4.7e5, 14.0, 0.39, 0.054, 13.0),
    "product": (4.1e5, 14.0, 0.31, 0.043, 10.0),
    None: (3.1e5, 6.1, 0.10, 0.057, 3.7),
}
"""Nanoseconds of one core for `softmax_sums` of nothing, forward and backward; for a pair of
samples; for each class and each feature of a pair; and for each logit."""

LARGE_MOMENT = 1_000
"""Components from which on graphs, where means are float64 throughout, take the dual form."""

MOST_SECONDS = 60.0
"""What takes longer on one core is not begun unless an evaluation is asked for by name."""


def softmax_cost(compared: Compared | None, samples: int, width: int, classes: int) -> float:
    """Nanoseconds of one core for `softmax_sums`, forward and backward."""
    begin, pair, per_class, per_feature, logit = _SOFTMAX_PRICES[compared]
    width = width if width >= MANY_FEATURES else 2 * width  # in float64
    price = pair + per_class * classes + per_feature * width
    return begin + samples**2 * price + samples * classes * logit


def check_evaluation(evaluation: str) -> None:
    """Raise an UnknownNameError if there is no such evaluation."""
    check_name("evaluation", evaluation, get_args(Evaluation))


@final
class TooCostlyError(InputError):
    """A comparison that would take minutes or gigabytes; it has not begun."""


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

    def cheaper(self, *, shared: bool = False) -> Literal["primal", "dual"]:
        """The evaluation that takes less time, of those that fit into memory."""
        if torch.compiler.is_compiling():
            return self._for_all_sizes(shared=shared)
        primal, dual = self.cost("primal"), self.cost("dual", shared=shared)
        fits = primal.memory <= MOST_BYTES
        return "primal" if fits and primal.time <= dual.time else "dual"

    def _for_all_sizes(self, *, shared: bool) -> Literal["primal", "dual"]:
        """A choice for graphs, which is the same for all batches that fit, so that one serves."""
        large = self.left.size * self.right.size > LARGE_MOMENT
        return "dual" if self._pairs_fit() and (shared or large) else "primal"

    def cost(self, evaluation: Literal["primal", "dual"], *, shared: bool = False) -> Cost:
        """What an evaluation will take, estimated from the shapes.

        Args:
            evaluation: "primal" or "dual".
            shared: Whether another moment of the same features needs their inner products anyway.

        Returns:
            Time and memory, forward and backward.
        """
        if evaluation == "primal":
            return self.right.mean_cost(self.left.size, len(self.domains))
        pairs = self._samples**2
        pair, left, right = _PAIR_PRICES if self._pairs_fit() else _BLOCK_PRICES
        if not self._pairs_fit() and self.left.dual_size < self.left.size:
            pair += _NOT_WRITTEN_OUT_PRICE
        multiplied = 0 if shared and self.right.power else self.right.dual_size
        price = pair + left * self.left.dual_size + right * multiplied
        begin = (0.7 if multiplied else 0.45) * OVERHEAD  # else the products are there
        return Cost(begin + pairs * price, 8 * 16 * min(pairs, PAIR_ELEMENTS))

    def inner(
        self, evaluation: Evaluation = "auto", *, centred: bool = False
    ) -> Float[Tensor, "e e"]:
        """Inner products between the moments of all pairs of domains.

        Args:
            evaluation: "primal", "dual", or "auto" for the cheaper one.
            centred: Of their deviations from the mean of the moments. Distances and dispersions
                that come from these do not subtract large numbers near alignment.

        Returns:
            The Gram matrix of the domains, in float64.
        """
        return inners([self], evaluation, [centred])[0]

    def dispersion(
        self, evaluation: Evaluation = "auto", *, unbiased: bool = False
    ) -> Float[Tensor, ""]:
        """Mean squared distance of the domains' moments to their mean; see `dispersions`."""
        return dispersions([self], evaluation, unbiased=unbiased)[0]

    def _dispersion(
        self, chosen: Literal["primal", "dual"], *, unbiased: bool
    ) -> Float[Tensor, ""]:
        weights = self.domains.weights
        if chosen == "dual" and unbiased and self._pairs_fit():
            pairs = weights.dispersing_unbiased
            return self._over_pairs(lambda block, products: (products * pairs).sum())
        if chosen == "primal":
            found = dispersion(self.inner("primal", centred=True))
        else:
            centring = weights.centring / math.sqrt(len(self.domains))
            found = self._over_pairs(
                lambda block, products: (products * (centring[:, block].mT @ centring)).sum()
            )
        return found - self.chance(chosen) if unbiased else found

    def chance(self, evaluation: Evaluation = "auto") -> Float[Tensor, ""]:
        r"""What independent draws of finite samples add to the dispersion on average.

        $$\frac{E-1}{E^2} \sum_e \frac{\overline{\|m\|^2}_e - \|M_e\|^2}{n_e - 1}$$

        The dispersion without it is $\frac{E-1}{E^2} \sum_e G_{ee} - \frac{1}{E^2} \sum_{e \ne f}
        G_{ef}$ with $G_{ee}$ a mean over pairs of different samples, which is unbiased.

        Returns:
            The share of chance; not a number if a domain has one sample.
        """
        squares = self.domains.weights.averaging @ self.squared_norms()
        norms = self.inner(evaluation).diagonal()
        count = len(self.domains)
        within = (squares - norms) / (self.domains.weights.counts - 1)
        return (count - 1) / count**2 * within.sum()

    def squared_norms(self) -> Float[Tensor, " n"]:
        """The squared norm of each sample's left ⊗ right, the product of those of its factors."""
        return self.left.rows().square().sum(1) * self.right.squared_norms()

    def _chosen(self, evaluation: Evaluation, *, shared: bool = False) -> Literal["primal", "dual"]:
        check_evaluation(evaluation)
        chosen = self.cheaper(shared=shared) if evaluation == "auto" else evaluation
        time, memory = self.cost(chosen, shared=shared)
        if memory > MOST_BYTES:
            raise self._refusal(f"{memory / 2**30:.0f} GiB", "take the dual evaluation")
        if evaluation == "auto" and time * 1e-9 > MOST_SECONDS:
            price = f"{time * 1e-9:.0f} s of one core each time"
            raise self._refusal(price, f'ask for evaluation="{chosen}" and wait')
        return chosen

    def _refusal(self, price: str, otherwise: str) -> TooCostlyError:
        components = f"{self.left.size:,} × {self.right.size:,}"
        return TooCostlyError(
            f"Expected a comparison of at most {MOST_SECONDS:.0f} s and {MOST_BYTES >> 30} GiB, "
            f"but that of {self._samples:,} samples with {components} derivatives would "
            f"take about {price}. Use fewer samples of each domain at a time, or fewer features; "
            f'align hessian="diagonal" or "product" instead of "full"; or {otherwise}.'
        )

    def _dual(self, *, centred: bool) -> Float[Tensor, "e e"]:
        means = self.domains.weights.centring if centred else self.domains.weights.averaging
        return self._over_pairs(lambda block, products: means[:, block] @ products @ means.T)

    def _pairs_fit(self) -> bool:
        """Whether the inner products of all pairs can be held at once."""
        return self._samples**2 <= PAIR_ELEMENTS

    @property
    def _samples(self) -> int:
        return self.domains.weights.averaging.shape[1]

    def _over_pairs(self, reduced: Callable[[slice, Tensor], Tensor]) -> Tensor:
        """Sum over blocks of samples of what is made of their inner products with all samples."""
        samples = self._samples

        def pairs(block: slice) -> Tensor:
            return reduced(block, self.left.inner(block) * self.right.inner(block))

        if self._pairs_fit() or is_traced():
            return pairs(slice(None))
        rows = max(1, PAIR_ELEMENTS // samples)
        # Too many pairs to hold: go block by block, and again in the backward pass.
        parts: list[Tensor] = [
            checkpoint(pairs, slice(start, start + rows), use_reentrant=False)
            for start in range(0, samples, rows)
        ]
        return torch.stack(parts).sum(0)


def inners(
    moments: Sequence[Moment], evaluation: Evaluation, centred: Sequence[bool]
) -> list[Float[Tensor, "e e"]]:
    """`Moment.inner` of each of several moments of a head, whose means are formed together."""
    chosen = [each._chosen(evaluation) for each in moments]
    primal = [index for index, how in enumerate(chosen) if how == "primal"]
    means = iter(_mean_inners(moments, primal, [centred[index] for index in primal]))
    return [
        next(means) if how == "primal" else each._dual(centred=deviations)
        for each, how, deviations in zip(moments, chosen, centred, strict=True)
    ]


def _mean_inners(
    moments: Sequence[Moment], which: Sequence[int], centred: Sequence[bool]
) -> list[Float[Tensor, "e e"]]:
    """Inner products between the means of some of the moments of a head."""
    factors = [(moments[index].left, moments[index].right) for index in which]
    return mean_inners(factors, moments[0].domains, centred)


def dispersions(
    moments: Sequence[Moment], evaluation: Evaluation = "auto", *, unbiased: bool = False
) -> list[Float[Tensor, ""]]:
    r"""Mean squared distance of the domains' moments to their mean, for several moments of a head.

    The dual form is a single sum over pairs of samples,
    $\sum_{nm} w_{nm} \langle\text{left}_n, \text{left}_m\rangle
    \langle\text{right}_n, \text{right}_m\rangle$; all moments must be of the same features.

    Args:
        moments: The moments, of the same samples.
        evaluation: "primal", "dual", or "auto" for the cheaper one of each.
        unbiased: Leave out pairs of one sample with itself: what finite samples add on average is
            not there. The result can be negative.

    Returns:
        The dispersions, in float64.
    """
    joint: list[int] = []
    means: list[int] = []
    found: dict[int, Tensor] = {}
    for index, each in enumerate(moments):
        chosen = each._chosen(evaluation, shared=bool(joint))
        if chosen == "dual" and each.right.power and each._pairs_fit():
            joint.append(index)
        elif chosen == "primal" and not unbiased:
            means.append(index)
        else:
            found[index] = each._dispersion(chosen, unbiased=unbiased)
    if joint:
        sums = _joint_sums([moments[index] for index in joint], unbiased=unbiased)
        found.update(zip(joint, sums, strict=True))
    if means:
        grams = _mean_inners(moments, means, [True] * len(means))
        found.update(zip(means, map(dispersion, grams), strict=True))
    return [found[index] for index in range(len(moments))]


def _joint_sums(moments: Sequence[Moment], *, unbiased: bool) -> tuple[Float[Tensor, ""], ...]:
    """The sums over pairs of moments whose right factors are powers of the same features."""
    weights, right = moments[0].domains.weights, moments[0].right
    assert isinstance(right, Linear | Outer)
    return pair_sums(
        weights.dispersing_unbiased if unbiased else weights.dispersing,
        [pair_term(each.left, 2 if isinstance(each.right, Outer) else 1) for each in moments],
        features=right.features.z,
        bias=right.bias,
        products=right.features.known(bias=right.bias),
    )
