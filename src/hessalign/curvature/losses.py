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

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.func import grad, vjp, vmap
from torch.nn import functional

from hessalign._errors import InputError, InputTypeError, check_name
from hessalign._numbers import check_count, check_number
from hessalign._shapes import Bool, Float, Int
from hessalign.curvature.activations import ACTIVATIONS, Activation, Elementwise, make_activation
from hessalign.curvature.factors import (
    DenseCurvature,
    DiagonalCurvature,
    LogitCurvature,
    ScaledCurvature,
    SoftmaxCurvature,
)


def _check_shape(y: Tensor, logits: Tensor) -> None:
    if y.shape != logits.shape and not (logits.shape[1] == 1 and y.shape == logits.shape[:1]):
        raise InputError(
            f"Expected y with one value per logit, shape {list(logits.shape)}, got {list(y.shape)}."
        )


def _check_class_weight(weight: Tensor) -> None:
    if not isinstance(weight, Tensor) or not weight.is_floating_point():
        found = weight.dtype if isinstance(weight, Tensor) else type(weight).__name__
        raise InputTypeError(
            f"Expected class_weight as a floating-point tensor, got {found}. Use torch.tensor with "
            "dtype=torch.float."
        )
    if weight.ndim != 1:
        raise InputError(
            f"Expected class_weight as one number per class, got shape {list(weight.shape)}."
        )
    if not bool((weight.isfinite() & (weight >= 0)).all()):
        raise InputError("Expected finite class weights of 0 or more, found others.")


@final
@dataclass(frozen=True, eq=False)
class CrossEntropy:
    r"""Softmax cross-entropy, ℓ = −log p_y with p = softmax(a) (eq. 22, 23).

    With the options, as in torch: ℓ = −Σ_c t_c log p_c, t the target (one-hot, or given as
    probabilities), smoothed, times the class weights. Error and curvature are then s p − t and
    s (diag(p) − p pᵀ) with s = Σ_c t_c, and a mean over samples with labels is one weighted by the
    class weights of their labels.

    Attributes:
        class_weight: A weight for each class.
        label_smoothing: The share ε of the target that is spread evenly over the classes.
        ignore_index: A label whose samples do not count.

    Example:
        >>> loss = CrossEntropy(label_smoothing=0.1)
        >>> loss.error(torch.tensor([[0.5, 0.5]]), torch.zeros(1, 2), torch.tensor([0]))
        tensor([[-0.4500,  0.4500]])
    """

    class_weight: Tensor | None = None
    label_smoothing: float = 0.0
    ignore_index: int | None = None

    name = "cross_entropy"

    def __post_init__(self) -> None:
        check_number(self.label_smoothing, "label_smoothing", 0, 1)
        if self.ignore_index is not None:
            check_count(self.ignore_index, "ignore_index", least=None)
        if self.class_weight is not None:
            _check_class_weight(self.class_weight)

    @property
    def plain(self) -> bool:
        """Whether it has no options."""
        return self.class_weight is None and not self.label_smoothing and self.ignore_index is None

    def check_logits(self, logits: Float[Tensor, "n k"]) -> None:
        """At least two classes, and as many as there are weights."""
        if logits.shape[1] < 2:
            raise InputError(
                "Expected logits for at least 2 classes, got 1 column, on which softmax is "
                'constant. For a single logit use loss="binary".'
            )
        if self.class_weight is not None and len(self.class_weight) != logits.shape[1]:
            raise InputError(
                f"Expected {logits.shape[1]} class weights, one per column of logits, got "
                f"{len(self.class_weight)}."
            )

    def check_targets(self, y: Tensor, logits: Float[Tensor, "n k"], *, values: bool) -> None:
        """Class indices in 0 … C−1, or a probability for each class."""
        classes = logits.shape[1]
        if y.is_floating_point() and y.shape == logits.shape:
            if values and not bool((y.isfinite() & (y >= 0)).all()):
                raise InputError("Expected soft targets y of 0 or more, found others.")
            if self.ignore_index is not None:
                raise InputError("Expected class labels with ignore_index, got soft targets y.")
            return
        if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
            raise InputTypeError(
                f"Expected integer class labels y, got dtype {y.dtype}. Use y.long() if the "
                'values are class indices, or loss="squared" for regression. Soft targets have the '
                f"shape of the logits, {list(logits.shape)}."
            )
        if y.shape != logits.shape[:1]:
            raise InputError(
                f"Expected one label per row of logits, shape [{len(logits)}], got {list(y.shape)}."
            )
        if not values:
            return
        counted = y if self.ignore_index is None else y[y != self.ignore_index]
        if not len(counted):
            raise InputError(f"Expected labels other than {self.ignore_index}, which is ignored.")
        low, high = (int(bound) for bound in counted.aminmax())
        if low < 0 or high >= classes:
            remedy = " Use ignore_index for labels that do not count." if low < 0 else ""
            raise InputError(
                f"Expected labels from 0 to {classes - 1} (logits have {classes} columns), "
                f"found labels from {low} to {high}.{remedy}"
            )

    def _labels(self, y: Tensor) -> tuple[Int[Tensor, " n"], Bool[Tensor, " n"]]:
        """The labels with 0 for those that do not count, and which ones count."""
        labels = y.long()
        if self.ignore_index is None:
            return labels, torch.ones_like(labels, dtype=torch.bool)
        counts = labels != self.ignore_index
        return torch.where(counts, labels, 0), counts

    def _target(self, logits: Float[Tensor, "n k"], y: Tensor) -> Float[Tensor, "n k"]:
        """What −log p is weighed with, t."""
        spread = self.label_smoothing / logits.shape[1]
        if y.is_floating_point():
            target = (1 - self.label_smoothing) * y.to(logits.dtype) + spread
        else:
            labels, counts = self._labels(y)
            ones = counts.to(logits.dtype).unsqueeze(1)
            target = torch.zeros_like(logits).scatter(1, labels.unsqueeze(1), ones)
            target = (1 - self.label_smoothing) * target + spread * ones
        return target if self.class_weight is None else target * self.class_weight.to(target)

    def share(self, y: Tensor) -> Float[Tensor, " n"] | None:
        """What each sample counts in a mean, its class weight; None if they all count 1."""
        if y.is_floating_point() or (self.class_weight is None and self.ignore_index is None):
            return None
        labels, counts = self._labels(y)
        if self.class_weight is None:
            return counts.to(torch.get_default_dtype())
        return self.class_weight.to(y.device)[labels] * counts

    def values(self, logits: Float[Tensor, "n k"], y: Tensor) -> Float[Tensor, " n"]:
        """−Σ_c t_c log p_c."""
        if self.plain and not y.is_floating_point():
            return functional.cross_entropy(logits, y.long(), reduction="none")
        return -(self._target(logits, y) * logits.log_softmax(1)).sum(1)

    def predict(self, logits: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
        """Probabilities p = softmax(a)."""
        return logits.softmax(1)

    def error(
        self, prediction: Float[Tensor, "n k"], logits: Float[Tensor, "n k"], y: Tensor
    ) -> Float[Tensor, "n k"]:
        """The error p − y with y one-hot (eq. 12), in general s p − t."""
        if self.plain and not y.is_floating_point():
            classes = y.long().unsqueeze(1)
            return prediction.scatter_add(1, classes, prediction.new_full(classes.shape, -1))
        target = self._target(logits, y)
        return target.sum(1, keepdim=True) * prediction - target

    def curvature(
        self, prediction: Float[Tensor, "n k"], logits: Float[Tensor, "n k"], y: Tensor | None
    ) -> LogitCurvature:
        """S = diag(p) − p pᵀ (eq. 14), times s where that is not 1 by the kind of the targets."""
        curvature = SoftmaxCurvature(prediction)
        options = self.class_weight is not None or self.ignore_index is not None
        if y is None and options:
            raise InputError(
                "Expected targets y: the curvature of cross-entropy with class_weight or "
                "ignore_index depends on them."
            )
        if y is None or not (options or y.is_floating_point()):
            return curvature
        return ScaledCurvature(curvature, self._target(logits, y).sum(1, keepdim=True))


@final
@dataclass(frozen=True)
class Binary:
    r"""Binary cross-entropy of independent logits, ℓ = Σ_k log(1 + e^{a_k}) − y_k a_k.

    Attributes:
        several: Any number of logits, each with a target of its own ("multilabel"), not one.
    """

    several: bool = False

    @property
    def name(self) -> str:
        """How it is called."""
        return "multilabel" if self.several else "binary"

    def check_logits(self, logits: Float[Tensor, "n k"]) -> None:
        """A single logit, unless several are meant."""
        if logits.shape[1] != 1 and not self.several:
            raise InputError(
                f"Expected a single logit per sample, got {logits.shape[1]} columns. For several "
                'classes use loss="cross_entropy", for labels that do not exclude each other '
                'loss="multilabel".'
            )

    def check_targets(self, y: Tensor, logits: Float[Tensor, "n k"], *, values: bool) -> None:
        """Targets between 0 and 1 of any dtype."""
        _check_shape(y, logits)
        if not values:
            return
        low, high = float(y.min()), float(y.max())
        if not (low >= 0 and high <= 1):
            raise InputError(f"Expected labels from 0 to 1, found labels from {low:g} to {high:g}.")

    def share(self, y: Tensor) -> None:
        """All samples count 1 in a mean."""

    def values(self, logits: Float[Tensor, "n k"], y: Tensor) -> Float[Tensor, " n"]:
        """Σ_k log(1 + e^{a_k}) − y_k a_k."""
        targets = y.reshape(logits.shape).to(logits.dtype)
        values = functional.binary_cross_entropy_with_logits(logits, targets, reduction="none")
        return values.sum(1) if self.several else values.squeeze(1)

    def predict(self, logits: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
        """Probabilities p = sigmoid(a)."""
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


_PerSample = Callable[[Tensor, Tensor], Tensor]
"""From the logits of one sample and its target to its loss, a scalar."""


@final
@dataclass(frozen=True)
class OwnLoss:
    r"""Any twice differentiable loss of a sample's logits, by `torch.func`.

    Attributes:
        function: From one sample's logits, a vector, and its target to the loss, a scalar, in
            operations of torch. The head is linear; what comes after it, such as the exponential
            of a Poisson model or the thresholds of an ordinal one, is part of the function.

    Example:
        >>> poisson = OwnLoss(lambda a, y: a.exp().sum() - y * a.sum())
        >>> logits, y = torch.zeros(1, 1), torch.tensor([3.0])
        >>> poisson.error(logits, logits, y), poisson.curvature(logits, logits, y).matrix()
        (tensor([[-2.]]), tensor([[[1.]]]))
    """

    function: _PerSample

    name = "own"

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise InputTypeError(
                "Expected a loss as a name, a loss object or a function of one sample's logits and "
                f"target, got {type(self.function).__name__}."
            )

    def check_logits(self, logits: Float[Tensor, "n k"]) -> None:
        """Any number of outputs will do."""

    def check_targets(self, y: Tensor, logits: Float[Tensor, "n k"], *, values: bool) -> None:
        """A loss for each sample that is a scalar."""
        try:
            found = self.values(logits[:1].detach(), y[:1])
        except Exception as error:
            raise InputError(
                "Expected a loss that takes the logits of one sample and its target and is made of "
                f"operations of torch; given {list(logits.shape[1:])} logits it fails: {error}"
            ) from error
        if found.shape != (1,):
            raise InputError(
                "Expected a loss that gives a scalar for the logits and the target of one sample, "
                f"got shape {list(found.shape[1:])}."
            )

    def share(self, y: Tensor) -> None:
        """All samples count 1 in a mean."""

    def values(self, logits: Float[Tensor, "n k"], y: Tensor) -> Float[Tensor, " n"]:
        """The function, sample by sample."""
        values: Tensor = vmap(self.function)(logits, y)
        return values

    def predict(self, logits: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
        """The logits themselves: what they mean is the function's affair."""
        return logits

    def error(
        self, prediction: Float[Tensor, "n k"], logits: Float[Tensor, "n k"], y: Tensor
    ) -> Float[Tensor, "n k"]:
        """The gradient of the function."""
        error: Tensor = grad(lambda a: self.values(a, y).sum())(logits)
        return error

    def curvature(
        self, prediction: Float[Tensor, "n k"], logits: Float[Tensor, "n k"], y: Tensor | None
    ) -> DenseCurvature:
        """The Hessian of the function."""
        if y is None:
            raise InputError("Expected targets y: the curvature of a loss of one's own needs them.")
        # Samples innermost, so that the function sees what it does in `values`: it may, for
        # example, take elements by the target's value.
        pull = vjp(lambda a: self.error(a, a, y), logits)[1]
        outputs = logits.shape[1]
        basis = torch.eye(outputs, dtype=logits.dtype, device=logits.device).unsqueeze(1)
        rows: Tensor = vmap(lambda v: pull(v)[0])(basis.expand(-1, len(logits), -1))
        return DenseCurvature(rows.transpose(0, 1))


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

    def check_targets(self, y: Tensor, logits: Float[Tensor, "n k"], *, values: bool) -> None:
        """Finite targets, one per output."""
        if not y.is_floating_point():
            raise InputTypeError(
                f"Expected floating-point targets y for squared error, got dtype {y.dtype}. "
                'Use y.float(), or loss="cross_entropy" for class labels.'
            )
        _check_shape(y, logits)
        if values and not bool(y.isfinite().all()):
            raise InputError("Expected finite targets y, found NaN or infinity.")

    def share(self, y: Tensor) -> None:
        """All samples count 1 in a mean."""

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


HeadLoss = CrossEntropy | Binary | Squared | OwnLoss
LossLike = str | HeadLoss | _PerSample
"""What names a loss; see `make_loss`."""

_NAMED = {loss.name: loss for loss in (CrossEntropy(), Binary(), Binary(several=True))}
LABEL_LOSSES = ("cross_entropy", "binary", "squared")
"""Of samples with one label each, by name."""
LOSSES = (*LABEL_LOSSES, "multilabel")


def make_loss(loss: LossLike, activation: str | Elementwise | Activation = "identity") -> HeadLoss:
    """A head loss from its name.

    Args:
        loss: "cross_entropy", "binary", "squared", "multilabel"; a loss object, which is returned
            as it is; or a function of one sample's logits and target, see `OwnLoss`.
        activation: For "squared" only: a name, or any twice differentiable elementwise function.

    Returns:
        The loss. An unknown name raises an UnknownNameError.

    Raises:
        InputError: If an activation is given to a loss that has its own, or class weights to a
            function that takes means.

    Example:
        >>> make_loss("squared", activation="tanh").name
        'squared'
    """
    if loss == Squared.name:
        return Squared(make_activation(activation))
    if activation != "identity":
        raise InputError(
            f"Expected no activation with loss={loss!r}, which has its own; activation= goes "
            'with loss="squared".'
        )
    if isinstance(loss, str):
        check_name("loss", loss, LOSSES)
        return _NAMED[loss]
    if isinstance(loss, nn.CrossEntropyLoss) and loss.weight is not None:
        raise InputError(
            "Expected hessalign.CrossEntropy(class_weight=...) for class weights, got "
            "torch.nn.CrossEntropyLoss, whose mean over one sample divides by the weight again."
        )
    return loss if isinstance(loss, HeadLoss) else OwnLoss(loss)


_LEAST_SHARE = 1e-30
"""Instead of 0, to divide by; a sample that has slopes but no share has a huge variance."""


def by_share(
    squares: Float[Tensor, "n l"], share: Float[Tensor, " n"] | None
) -> Float[Tensor, "n l"]:
    """Squares of samples' slopes divided by their shares of a mean; 0 where both are 0."""
    if share is None:
        return squares
    return squares / share.to(squares.dtype).clamp(min=_LEAST_SHARE).unsqueeze(1)


def check_label_loss(loss: HeadLoss, y: Tensor) -> None:
    """Raise unless a loss is a plain one of one label or value per sample.

    Fits of heads, and what is said of them by their Hessians, know no other.

    Raises:
        InputError: If it has options, targets that are probabilities, or is one of one's own.
    """
    found = None
    if isinstance(loss, OwnLoss):
        found = "a function"
    elif isinstance(loss, Binary) and loss.several:
        found = 'loss="multilabel"'
    elif isinstance(loss, CrossEntropy) and not loss.plain:
        found = "CrossEntropy with options"
    elif isinstance(loss, CrossEntropy) and y.is_floating_point() and y.ndim == 2:
        found = "soft targets y"
    if found is not None:
        raise InputError(
            'Expected loss="cross_entropy", "binary" or "squared" with one target per sample for '
            f"the fit of a head, got {found}. HessianAlignment, linear_head and the distances take "
            "it; a head is fitted to it by descending linear_head(...).risk."
        )
