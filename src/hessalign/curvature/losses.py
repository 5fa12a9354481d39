r"""Losses of a head: value, error and curvature as functions of the logits.

The error is the first derivative in the logits, r = ∂ℓ/∂a; the curvature is the second,
S = ∂²ℓ/∂a². With them every derivative in the parameters of a linear head is a mean of products
with the features (Propositions 1 and 2 of Hemati et al., 2023).

Every loss has the same methods: `check_logits` and `check_targets` raise an error about what does
not suit it, `values` gives the loss of each sample, `predict` what the loss makes of the logits,
`error` and `curvature` its derivatives in them. Those take the prediction, so that it is computed
once; what a loss has no use for it ignores.

Indices: n sample, k or c output of the head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn import functional

from hessalign._errors import InputError, InputTypeError
from hessalign._names import UnknownNameError
from hessalign._shapes import Float
from hessalign.curvature.activations import ACTIVATIONS, Activation, Elementwise, make_activation
from hessalign.curvature.factors import DiagonalCurvature, SoftmaxCurvature


def _check_shape(y: Tensor, logits: Tensor) -> None:
    if y.shape != logits.shape and not (logits.shape[1] == 1 and y.shape == logits.shape[:1]):
        raise InputError(
            f"Expected y with one value per logit, shape {list(logits.shape)}, got {list(y.shape)}."
        )


@final
@dataclass(frozen=True)
class CrossEntropy:
    r"""Softmax cross-entropy, ℓ = −log p_y with p = softmax(a) (eq. 22, 23)."""

    name = "cross_entropy"

    def check_logits(self, logits: Float[Tensor, "n k"]) -> None:
        """At least two classes."""
        if logits.shape[1] < 2:
            raise InputError(
                "Expected logits for at least 2 classes, got 1 column, on which softmax is "
                'constant. For a single logit use loss="binary".'
            )

    def check_targets(self, y: Tensor, logits: Float[Tensor, "n k"]) -> None:
        """Class indices in 0 … C−1."""
        classes = logits.shape[1]
        if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
            raise InputTypeError(
                f"Expected integer class labels y, got dtype {y.dtype}. Use y.long() if the "
                'values are class indices, or loss="squared" for regression.'
            )
        if y.shape != logits.shape[:1]:
            raise InputError(
                f"Expected one label per row of logits, shape [{len(logits)}], got {list(y.shape)}."
            )
        low, high = int(y.min()), int(y.max())
        if low < 0 or high >= classes:
            raise InputError(
                f"Expected labels from 0 to {classes - 1} (logits have {classes} columns), "
                f"found labels from {low} to {high}."
            )

    def values(self, logits: Float[Tensor, "n k"], y: Tensor) -> Float[Tensor, " n"]:
        """−log p_y."""
        return functional.cross_entropy(logits, y.long(), reduction="none")

    def predict(self, logits: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
        """Probabilities p = softmax(a)."""
        return logits.softmax(1)

    def error(
        self, prediction: Float[Tensor, "n k"], logits: Float[Tensor, "n k"], y: Tensor
    ) -> Float[Tensor, "n k"]:
        """The error p − y with y one-hot (eq. 12)."""
        classes = y.long().unsqueeze(1)
        return prediction.scatter_add(1, classes, prediction.new_full(classes.shape, -1))

    def curvature(
        self, prediction: Float[Tensor, "n k"], logits: Float[Tensor, "n k"], y: Tensor | None
    ) -> SoftmaxCurvature:
        """S = diag(p) − p pᵀ (eq. 14); the targets do not enter."""
        return SoftmaxCurvature(prediction)


@final
@dataclass(frozen=True)
class Binary:
    r"""Binary cross-entropy of one logit, ℓ = log(1 + eᵃ) − y a, p = sigmoid(a)."""

    name = "binary"

    def check_logits(self, logits: Float[Tensor, "n k"]) -> None:
        """A single logit."""
        if logits.shape[1] != 1:
            raise InputError(
                f"Expected a single logit per sample, got {logits.shape[1]} columns. For several "
                'classes use loss="cross_entropy".'
            )

    def check_targets(self, y: Tensor, logits: Float[Tensor, "n k"]) -> None:
        """Targets between 0 and 1 of any dtype."""
        _check_shape(y, logits)
        low, high = float(y.min()), float(y.max())
        if not (low >= 0 and high <= 1):
            raise InputError(f"Expected labels from 0 to 1, found labels from {low:g} to {high:g}.")

    def values(self, logits: Float[Tensor, "n k"], y: Tensor) -> Float[Tensor, " n"]:
        """log(1 + eᵃ) − y a."""
        a = logits.squeeze(1)
        return functional.binary_cross_entropy_with_logits(
            a, y.reshape(a.shape).to(a.dtype), reduction="none"
        )

    def predict(self, logits: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
        """Probability p = sigmoid(a)."""
        return logits.sigmoid()

    def error(
        self, prediction: Float[Tensor, "n k"], logits: Float[Tensor, "n k"], y: Tensor
    ) -> Float[Tensor, "n k"]:
        """The error p − y."""
        return prediction - y.reshape(logits.shape).to(logits.dtype)

    def curvature(
        self, prediction: Float[Tensor, "n k"], logits: Float[Tensor, "n k"], y: Tensor | None
    ) -> DiagonalCurvature:
        """S = p(1 − p); the targets do not enter."""
        return DiagonalCurvature(prediction * (-logits).sigmoid())


@final
@dataclass(frozen=True)
class Squared:
    r"""Squared error with an elementwise activation, ℓ = ½ Σ_k (σ(a_k) − y_k)² (eq. 41).

    Attributes:
        activation: The function σ with its derivatives.
    """

    activation: Activation = ACTIVATIONS["identity"]

    name = "squared"

    def check_logits(self, logits: Float[Tensor, "n k"]) -> None:
        """Any number of outputs will do."""

    def check_targets(self, y: Tensor, logits: Float[Tensor, "n k"]) -> None:
        """Finite targets, one per output."""
        if not y.is_floating_point():
            raise InputTypeError(
                f"Expected floating-point targets y for squared error, got dtype {y.dtype}. "
                'Use y.float(), or loss="cross_entropy" for class labels.'
            )
        _check_shape(y, logits)
        if not bool(y.isfinite().all()):
            raise InputError("Expected finite targets y, found NaN or infinity.")

    def _residual(self, prediction: Tensor, y: Tensor) -> Tensor:
        return prediction - y.reshape(prediction.shape).to(prediction.dtype)

    def values(self, logits: Float[Tensor, "n k"], y: Tensor) -> Float[Tensor, " n"]:
        """½ Σ_k (ŷ_k − y_k)²."""
        return self._residual(self.predict(logits), y).square().sum(1) / 2

    def predict(self, logits: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
        """Outputs ŷ = σ(a)."""
        return self.activation.value(logits)

    def error(
        self, prediction: Float[Tensor, "n k"], logits: Float[Tensor, "n k"], y: Tensor
    ) -> Float[Tensor, "n k"]:
        """(ŷ − y) σ'(a) (eq. 34)."""
        return self._residual(prediction, y) * self.activation.first(logits)

    def curvature(
        self, prediction: Float[Tensor, "n k"], logits: Float[Tensor, "n k"], y: Tensor | None
    ) -> DiagonalCurvature:
        """σ'(a)² + (ŷ − y) σ''(a) (eq. 36); only the identity can do without targets."""
        first = self.activation.first(logits)
        if self.activation is ACTIVATIONS["identity"]:
            return DiagonalCurvature(first.square())
        if y is None:
            raise InputError(
                f"Expected targets y: the curvature of squared error with activation "
                f"{self.activation.name!r} depends on them."
            )
        second = self.activation.second(logits)
        return DiagonalCurvature(first.square() + self._residual(prediction, y) * second)


HeadLoss = CrossEntropy | Binary | Squared
LOSSES = (CrossEntropy.name, Binary.name, Squared.name)


def make_loss(
    loss: str | HeadLoss, activation: str | Elementwise | Activation = "identity"
) -> HeadLoss:
    """A head loss from its name.

    Args:
        loss: "cross_entropy", "binary", "squared", or a loss object, which is returned as it is.
        activation: For "squared" only: a name, or any twice differentiable elementwise function.

    Returns:
        The loss.

    Raises:
        UnknownNameError: If the name is unknown.
        InputError: If an activation is given to a loss that has its own.

    Example:
        >>> make_loss("squared", activation="tanh").name
        'squared'
    """
    if not isinstance(loss, str):
        return loss
    if loss == Squared.name:
        return Squared(make_activation(activation))
    if loss not in LOSSES:
        raise UnknownNameError("loss", loss, LOSSES)
    if activation != "identity":
        raise InputError(
            f"Expected no activation with loss={loss!r}, which has its own; activation= goes "
            'with loss="squared".'
        )
    return CrossEntropy() if loss == CrossEntropy.name else Binary()
