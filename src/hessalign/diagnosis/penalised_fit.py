r"""Fit a head to fixed features, plainly or with aligned Hessians and gradients.

$$\frac1E \sum_e L_e(\Theta) + \frac\lambda2 \|\Theta\|^2 + \alpha\, \frac1E \sum_e \|H_e - \bar
H\|^2 + \beta\, \frac1E \sum_e \|g_e - \bar g\|^2$$

The L2 term is over all parameters, which Theorem 1 needs, or spares the biases, as those of
`AlignedClassifier` and `fit_aligned_head` do.

With features fixed, a dispersion is a quadratic form in what depends on the head: with s the rows
of left factors (curvature S, or error r) it is ⟨s, M s⟩, where M = w ∘ ⟨right, right'⟩ is known
before the fit starts. Value and slope 2 M s cost one matrix product. That is what the many fits of
a diagnosis need; `hessalign.heads.fit_aligned_head` fits a single head with every option.

Indices: e domain, n sample, k output, d feature (with the constant of the bias), l left component.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, final

import torch
from torch import Tensor

from hessalign._shapes import Float, Int
from hessalign.curvature.domains import Domains, make_domains
from hessalign.curvature.losses import HeadLoss
from hessalign.heads.lbfgs import minimise_head

FULL_COMPONENTS: Final = 256
"""Curvatures with more components than this are aligned on their diagonal only."""

CLOSE: Final = 1e-6
"""Gradient norm to reach, as a share of the mean gradient norm of single samples at zero."""

NEAR: Final = 1e-4
"""The same where a head is only to be tested: accuracies do not change any more."""

PRECISE: Final = 1 << 19
"""Up to this many numbers features are multiplied in float64."""

MAX_STEPS: Final = 200
MEMORY: Final = 10

Kind = Literal["full", "diagonal"]


@final
@dataclass(frozen=True)
class Weights:
    """The weights of the two penalties.

    Attributes:
        alpha: Of the Hessian dispersion.
        beta: Of the gradient dispersion.
    """

    alpha: float = 0.0
    beta: float = 0.0


PLAIN: Final = Weights()


@final
@dataclass(frozen=True, eq=False)
class HeadFit:
    """A fitted head.

    Attributes:
        parameters: One row per output, weights before bias.
        risk: The mean of the domains' risks, without L2 term and penalties.
        gradient_norm: Of the whole objective where the fit stopped.
        steps: Steps of L-BFGS.
    """

    parameters: Float[Tensor, "k d"]
    risk: float
    gradient_norm: float
    steps: int


@final
@dataclass(frozen=True, eq=False)
class _Form:
    """A quadratic form over samples: a symmetric matrix M, or A where M = A Aᵀ."""

    matrix: Float[Tensor, "n a"]
    factored: bool

    def apply(self, rows: Float[Tensor, "n l"]) -> Float[Tensor, "n l"]:
        """The product M s."""
        return self.matrix @ (self.matrix.T @ rows if self.factored else rows)


@final
@dataclass(frozen=True, eq=False)
class FixedFeatures:
    """Samples of one or more domains with what a penalised fit needs to know about them.

    Attributes:
        z: Features, with a constant last if the head has a bias; float64, or float32 if many.
        y: Labels.
        domains: The grouping, contiguous.
        loss: The loss of the head.
        outputs: Outputs of the head.
        free_bias: Whether the L2 term spares the last column of the head.
    """

    z: Float[Tensor, "n d"]
    y: Int[Tensor, " n"]
    domains: Domains
    loss: HeadLoss
    outputs: int
    free_bias: bool

    @cached_property
    def kind(self) -> Kind:
        """Whether whole curvatures are aligned, or their diagonals."""
        probe = torch.zeros(1, self.outputs, dtype=torch.float64)
        size = self.loss.curvature(self.loss.predict(probe), probe, None).size
        return "full" if size <= FULL_COMPONENTS else "diagonal"

    @cached_property
    def _gradient_form(self) -> _Form:
        return self._form(self.z, 1)

    @cached_property
    def _hessian_form(self) -> _Form:
        return self._form(self.z.square(), 1) if self.kind == "diagonal" else self._form(self.z, 2)

    def _form(self, right: Float[Tensor, "n d"], power: int) -> _Form:
        """The form w ∘ ⟨right, right'⟩ᵖ, factored where that has fewer numbers."""
        deviating = self.domains.centring / math.sqrt(len(self.domains))
        width = right.shape[1]
        columns = width if power == 1 else width * (width + 1) // 2
        if 2 * len(deviating) * columns > len(right):
            products = (right @ right.T).double()
            return _Form(deviating.T @ deviating * products**power, factored=False)
        right = right.double()
        if power == 2:
            above, beside = torch.triu_indices(width, width)
            twice = torch.where(above == beside, 1.0, 2.0).double().sqrt()
            right = right[:, above] * right[:, beside] * twice
        factor = (deviating.T.unsqueeze(2) * right.unsqueeze(1)).flatten(1)
        return _Form(factor, factored=True)

    @torch.enable_grad()
    def objective(
        self, theta: Float[Tensor, "k d"], weights: Weights, l2: float
    ) -> tuple[float, Float[Tensor, "k d"], tuple[float, float, float]]:
        """The objective, its gradient, and risk and dispersions apart.

        Args:
            theta: A head.
            weights: The penalties' weights.
            l2: The weight of the L2 term.

        Returns:
            Value, gradient, and the parts (risk, Hessian dispersion, gradient dispersion); a
            dispersion whose weight is 0 is not computed and 0.
        """
        logits = (self.z @ theta.T.to(self.z.dtype)).double().requires_grad_()
        sizes = torch.tensor(self.domains.sizes, dtype=torch.float64)
        share = (1 / sizes / len(sizes)).repeat_interleave(sizes.long())
        risk = (self.loss.values(logits, self.y) * share).sum()
        prediction = self.loss.predict(logits)
        bent = straight = 0.0
        slopes: list[tuple[Tensor, Tensor]] = [(risk, torch.ones_like(risk))]
        if weights.alpha > 0:
            curvature = self.loss.curvature(prediction, logits, self.y)
            rows = curvature.rows() if self.kind == "full" else curvature.diagonal()
            bent = self._add(rows, self._hessian_form, weights.alpha, slopes)
        if weights.beta > 0:
            error = self.loss.error(prediction, logits, self.y)
            straight = self._add(error, self._gradient_form, weights.beta, slopes)
        outputs, directions = zip(*slopes, strict=True)
        (slope,) = torch.autograd.grad(outputs, logits, directions)
        held = theta.clone()
        if self.free_bias:
            held[:, -1] = 0
        gradient = (slope.T.to(self.z.dtype) @ self.z).double() + l2 * held
        parts = float(risk.detach()), bent, straight
        ridge = l2 / 2 * float(held.square().sum())
        value = parts[0] + ridge + weights.alpha * bent + weights.beta * straight
        return value, gradient, parts

    @staticmethod
    def _add(
        rows: Tensor, form: _Form, weight: float, slopes: list[tuple[Tensor, Tensor]]
    ) -> float:
        pulled = form.apply(rows.detach())
        slopes.append((rows, 2 * weight * pulled))
        return float((rows.detach() * pulled).sum())


def fix_features(
    z: Float[Tensor, "n d"],
    y: Int[Tensor, " n"],
    domain: Int[Tensor, " n"],
    loss: HeadLoss,
    outputs: int,
    *,
    bias: bool = True,
    free_bias: bool = False,
) -> FixedFeatures:
    """Arrange samples for fits.

    Args:
        z: Features.
        y: Labels.
        domain: The domain of each sample.
        loss: The loss of the head.
        outputs: Outputs of the head.
        bias: Whether the head has a bias.
        free_bias: Whether the L2 term of a fit spares the bias.

    Returns:
        The samples, ready to be fitted.
    """
    domains = make_domains(domain)
    wide = domains.arrange(z)
    wide = wide.double() if z.numel() <= PRECISE else wide.float()
    if bias:
        wide = torch.cat([wide, torch.ones_like(wide[:, :1])], dim=1)
    free = bias and free_bias
    return FixedFeatures(wide, domains.arrange(y), domains, loss, outputs, free)


def penalised_fit(
    data: FixedFeatures,
    l2: float,
    weights: Weights = PLAIN,
    start: Float[Tensor, "k d"] | None = None,
    accuracy: float = CLOSE,
) -> HeadFit:
    """Minimise the penalised risk by L-BFGS on all samples given.

    Args:
        data: The samples.
        l2: The weight of the L2 term.
        weights: The penalties' weights.
        start: Where to start; zero by default.
        accuracy: Gradient norm to reach, as a share of the mean one of single samples at zero.

    Returns:
        The fit; `gradient_norm` says how far it came.

    Example:
        >>> from hessalign.curvature import make_loss
        >>> z, y = torch.tensor([[-1.0], [1.0], [-1.0], [1.0]]), torch.tensor([0, 1, 0, 1])
        >>> data = fix_features(z, y, torch.tensor([0, 0, 1, 1]), make_loss("binary"), 1)
        >>> fit = penalised_fit(data, 0.1)
        >>> bool(fit.parameters[0, 0] > 0.5), fit.gradient_norm < 1e-5
        (True, True)
    """
    shape = (data.outputs, data.z.shape[1])
    goal = accuracy * typical_gradient(data)
    rounding = 1e-13 if data.z.dtype == torch.float64 else 1e-9
    found = minimise_head(
        lambda theta: data.objective(theta, weights, l2)[:2],
        torch.zeros(shape, dtype=torch.float64) if start is None else start,
        slope=goal / (shape[0] * shape[1]) ** 0.5,  # of a component, so that the norm is the goal
        still=max(rounding, 1e-5 * accuracy),
        steps=MAX_STEPS,
        memory=MEMORY,
    )
    _, gradient, (risk, _, _) = data.objective(found.parameters, weights, l2)
    return HeadFit(found.parameters, risk, float(gradient.norm()), found.steps)


def dispersions(data: FixedFeatures, theta: Float[Tensor, "k d"]) -> tuple[float, float]:
    """Hessian and gradient dispersion of a head; 0 for a single domain.

    Args:
        data: The samples.
        theta: The head.

    Returns:
        Both.
    """
    if len(data.domains) < 2:
        return 0.0, 0.0
    _, _, (_, hessian, gradient) = data.objective(theta, Weights(1.0, 1.0), 0.0)
    return hessian, gradient


def typical_gradient(data: FixedFeatures) -> float:
    """The mean gradient norm of single samples at a head of zeros, which sets the scale.

    Args:
        data: The samples.

    Returns:
        The mean of ‖r‖·‖z̃‖.
    """
    zero = torch.zeros(len(data.z), data.outputs, dtype=torch.float64)
    error = data.loss.error(data.loss.predict(zero), zero, data.y)
    return float((error.norm(dim=1) * data.z.double().norm(dim=1)).mean())
