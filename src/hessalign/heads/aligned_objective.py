r"""What an aligned head minimises: the domains' risks, an L2 term, and two dispersions.

$$\frac1E \sum_e L_e(\Theta) + \frac\lambda2 \|\Theta\|^2
+ \alpha \frac1E \sum_e \|H_e - \bar H\|^2 + \beta \frac1E \sum_e \|g_e - \bar g\|^2$$

With features fixed, a dispersion of means of left_n ⊗ right_n is a quadratic form ⟨s, M s⟩ in the
rows s of left factors, and M, made of the right factors, is known before a fit starts. Value and
slope 2 M s cost one product with M; what remains for automatic differentiation are the rows.

Indices: e domain, n sample, k output, d feature (with the constant of the bias), l left component,
c right component.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Final, NamedTuple, final

import torch
from torch import Tensor

from hessalign._shapes import Float
from hessalign.alignment import hessian_dispersion
from hessalign.alignment.penalties import HessianKind
from hessalign.curvature import LinearHead
from hessalign.curvature.domains import Domains
from hessalign.curvature.losses import Squared
from hessalign.curvature.products import domain_products, mean_outer
from hessalign.heads.samples import HeadSamples

FULL_COMPONENTS: Final = 256  # curvatures with more components than this are not written out
# Numbers of a form that are held, at most; beyond them the dispersion is evaluated anew.
_FORM_ELEMENTS: Final = 1 << 24


class Weights(NamedTuple):
    """The weights of the two penalties: α of the Hessian's dispersion, β of the gradient's."""

    alpha: float = 0.0
    beta: float = 0.0


PLAIN: Final = Weights()
_ROUNDING: Final = {torch.float32: 1e-9, torch.float64: 1e-14}

# The product M s of a form with rows [n, l].
_Form = Callable[[Tensor], Tensor]


def _by_means(
    right: Float[Tensor, "n c"], domains: Domains, rows: Float[Tensor, "n l"]
) -> Float[Tensor, "n l"]:
    """M s by the right factors, to the domains' means and back."""
    sizes = domains.sizes
    means = mean_outer(rows, right, domains)
    shares = len(sizes) * torch.tensor(sizes, dtype=means.dtype, device=means.device)
    deviations = (means - means.mean(0)) / shares.view(-1, 1, 1)
    return domain_products(right, deviations, domains)


def _linear_form(right: Float[Tensor, "n c"], domains: Domains) -> _Form:
    """The form for rows ⊗ right."""
    samples, width = right.shape
    if 2 * width > samples and samples**2 <= _FORM_ELEMENTS:
        return partial(torch.matmul, _pair_weights(domains) * (right @ right.T))
    return partial(_by_means, right, domains)


def _outer_form(z: Float[Tensor, "n d"], domains: Domains) -> _Form | None:
    """The form for rows ⊗ z̃z̃ᵀ; None if it would have too many numbers."""
    samples, width = z.shape
    columns = width * (width + 1) // 2
    if samples * min(samples, columns) > _FORM_ELEMENTS:
        return None
    if 2 * columns > samples:
        return partial(torch.matmul, _pair_weights(domains) * (z @ z.T).double().square())
    # Products of features, √2 times those off the diagonal: their inner products are (z̃·z̃')².
    above, beside = torch.triu_indices(width, width, device=z.device)
    twice = torch.where(above == beside, 1.0, 2.0).to(z.dtype).sqrt()
    return partial(_by_means, z[:, above] * z[:, beside] * twice, domains)


def _pair_weights(domains: Domains) -> Float[Tensor, "n n"]:
    """The weight w of each pair of samples in a dispersion, M = w ∘ ⟨right, right'⟩."""
    centring = domains.weights.centring
    return centring.T @ centring / len(domains)


class _Term(NamedTuple):
    """A term, and what it depends on the logits through, with its weighted slope there."""

    value: float
    weight: float
    through: Tensor
    slope: Tensor


@final
@dataclass(frozen=True, eq=False)
class AlignedObjective:
    """The objective for some samples; how much weight the penalties have is said at each call."""

    samples: HeadSamples
    kind: HessianKind | None = "full"
    probes: int = 100
    seed: int = 0

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs k, and parameters of each, the bias included."""
        return self.samples.shape

    @property
    def device(self) -> torch.device:
        """Where heads are evaluated: where the features are."""
        return self.samples.features.device

    @property
    def l2(self) -> float:
        """The weight of the L2 term."""
        return self.samples.l2

    @property
    def quadratic(self) -> bool:
        """Whether the risk's Hessian is the same everywhere: squared error without activation."""
        return isinstance(self.samples.loss, Squared) and self.samples.convex

    @property
    def rounding(self) -> float:
        """The share of the objective by which a step lowers it or not: that much is rounding."""
        return _ROUNDING[self.samples.features.dtype]

    @property
    def typical_gradient(self) -> float:
        """The mean gradient norm of single samples at a head of zeros, which sets the scale."""
        return self.samples.typical_gradient

    def ridge(self, head: Float[Tensor, "k d"]) -> float:
        """The L2 term, over all parameters, or all but the biases."""
        return self.l2 / 2 * float(self.samples.held(head.view(1, -1)).square().sum())

    def metric(self, head: Float[Tensor, "k d"], weights: Weights) -> None:
        """None: what remains is what closed forms do not reach."""

    @cached_property
    def _of_rows(self) -> _Form:
        """For errors ⊗ z̃, and products S G z̃ ⊗ z̃."""
        return _linear_form(self.samples.features, self.samples.domains)

    @cached_property
    def _of_diagonals(self) -> _Form:
        return _linear_form(self.samples.features.square(), self.samples.domains)

    @cached_property
    def _of_curvatures(self) -> _Form | None:
        return _outer_form(self.samples.features, self.samples.domains)

    @torch.enable_grad()
    def value_and_gradient(
        self, head: Float[Tensor, "k d"], weights: Weights
    ) -> tuple[float, Float[Tensor, "k d"]]:
        """The objective with weighted penalties, and its derivative in each parameter."""
        z, l2 = self.samples.features, self.samples.l2
        logits = self._logits(head).requires_grad_()
        found = self._terms(logits, weights)
        # The curvature of squared error is constant: nothing flows back through it.
        moving = [term for term in found.values() if term.through.requires_grad]
        (slope,) = torch.autograd.grad(
            [term.through for term in moving], logits, [term.slope for term in moving]
        )
        held = self.samples.held(head.reshape(1, -1)).view_as(head)
        value = sum(term.weight * term.value for term in found.values())
        gradient = (slope.T.to(z.dtype) @ z).double()
        return value + l2 / 2 * float(held.square().sum()), gradient + l2 * held

    @torch.no_grad()
    def terms(self, head: Float[Tensor, "k d"]) -> tuple[float, float, float]:
        """Mean loss, dispersion of Hessians and of gradients, 0 where not asked for, unweighted."""
        found = self._terms(self._logits(head), Weights(1.0, 1.0))
        values = {name: term.value for name, term in found.items()}
        return values["loss"], values.get("hessian", 0.0), values.get("gradient", 0.0)

    def _logits(self, head: Float[Tensor, "k d"]) -> Float[Tensor, "n k"]:
        z = self.samples.features
        return (z @ head.T.to(z.dtype)).double()

    def _terms(self, logits: Float[Tensor, "n k"], weights: Weights) -> dict[str, _Term]:
        """The loss, and the dispersions that have a weight."""
        statistics = self.samples.statistics(logits)
        found = {"loss": _direct(statistics.risk.mean(), 1.0)}
        several = len(self.samples.domains) > 1
        if several and weights.alpha > 0 and self.kind is not None:
            found["hessian"] = self._hessian(statistics, self.kind, weights.alpha)
        if several and weights.beta > 0:
            found["gradient"] = _by_form(statistics.error, self._of_rows, weights.beta)
        return found

    def _hessian(self, statistics: LinearHead, kind: HessianKind, weight: float) -> _Term:
        curvature = statistics.curvature
        if kind == "product":
            bent = curvature.apply(statistics.gradient_logits, slice(None))
            return _by_form(bent, self._of_rows, weight)
        if kind == "diagonal":
            return _by_form(curvature.diagonal(), self._of_diagonals, weight)
        if kind == "full" and curvature.size <= FULL_COMPONENTS and self._of_curvatures:
            return _by_form(curvature.rows(), self._of_curvatures, weight)
        generator = torch.Generator().manual_seed(self.seed)
        value = hessian_dispersion(statistics, kind, probes=self.probes, generator=generator)
        return _direct(value, weight)


def _direct(value: Float[Tensor, ""], weight: float) -> _Term:
    return _Term(float(value.detach()), weight, value, torch.full_like(value, weight))


def _by_form(rows: Float[Tensor, "n l"], form: _Form, weight: float) -> _Term:
    known = rows.detach()
    pulled = form(known)
    return _Term(float((known * pulled).sum()), weight, rows, 2 * weight * pulled)
