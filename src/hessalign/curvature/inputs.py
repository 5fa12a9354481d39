"""Checks of what a caller hands in, so that mistakes are named before any maths runs."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hessalign._errors import InputError, InputTypeError
from hessalign._numbers import check_size, largest
from hessalign._shapes import Float
from hessalign.curvature.losses import HeadLoss


def check_features(z: Tensor) -> None:
    """Raise unless features are a non-empty floating-point matrix of finite numbers."""
    if not isinstance(z, Tensor) or not z.is_floating_point():
        raise InputTypeError(
            f"Expected floating-point features z, got {found_and_remedy(z, 'z', 'float')}"
        )
    if z.ndim != 2:
        raise InputError(
            f"Expected features z of shape [n, d], got {list(z.shape)}. Flatten what comes after "
            "the first axis."
        )
    if len(z) == 0:
        raise InputError("Expected at least one sample, got none: every domain is empty.")
    # A small norm proves all at the price of one pass; else each element is looked at.
    if not torch.linalg.vector_norm(z.detach()).item() <= largest(z.dtype):
        check_finite(z, "features z")
        check_size(z, "features z")


def check_logits(logits: Tensor, samples: int) -> Float[Tensor, "n k"]:
    """The logits as a matrix; raise unless they are one row of finite numbers per sample."""
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        found = found_and_remedy(logits, "logits", "float")
        raise InputTypeError(f"Expected floating-point logits, got {found}")
    if logits.ndim not in {1, 2} or len(logits) != samples:
        raise InputError(
            f"Expected logits of shape [{samples}, classes], one row per row of z, "
            f"got {list(logits.shape)}."
        )
    check_finite(logits, "logits")
    return logits.unsqueeze(1) if logits.ndim == 1 else logits


def check_domain(domain: Tensor, samples: int) -> None:
    """Raise unless domain ids are one integer per sample."""
    if not isinstance(domain, Tensor) or (
        domain.is_floating_point() or domain.is_complex() or domain.dtype == torch.bool
    ):
        found = found_and_remedy(domain, "domain", "long")
        raise InputTypeError(
            f"Expected domain as an integer tensor, one id per sample, got {found}"
        )
    if domain.shape != (samples,):
        raise InputError(
            f"Expected one domain id per row of z, shape [{samples}], got {list(domain.shape)}."
        )


def check_targets(y: Tensor | None, logits: Float[Tensor, "n k"], loss: HeadLoss) -> None:
    """Raise unless targets (None where only curvature is wanted) and logits suit the loss."""
    loss.check_logits(logits)
    if y is None:
        return
    check_is_tensor(y)
    if y.ndim == 0 or len(y) != len(logits):
        raise InputError(
            f"Expected one target y per row of z, {len(logits)} in all, got shape {list(y.shape)}."
        )
    loss.check_targets(y, logits)


def check_is_tensor(y: Tensor) -> None:
    """Raise an InputTypeError unless targets are a tensor."""
    if not isinstance(y, Tensor):
        raise InputTypeError(f"Expected y as a tensor, got {found_and_remedy(y, 'y', 'long')}")


def found_and_remedy(value: object, name: str, method: str) -> str:
    """What an argument of the wrong type is, and how to convert it, to end a message with.

    Args:
        value: The argument.
        name: Its name.
        method: The method that gives a tensor the right type.

    Returns:
        Both, with full stops.

    Example:
        >>> found_and_remedy(torch.tensor(1), "z", "float"), found_and_remedy([1.0], "z", "float")
        ('torch.int64. Use z.float().', 'list. Use torch.as_tensor(z).')
    """
    if isinstance(value, Tensor):
        return f"{value.dtype}. Use {name}.{method}()."
    return f"{type(value).__name__}. Use torch.as_tensor({name})."


def check_finite(values: Tensor, what: str) -> None:
    """Raise if a tensor holds NaN or infinity, saying how many and where.

    A finite sum proves that every element is finite, at the price of one pass and no copy; only
    a sum that is not (which a mere overflow can cause) leads to the slower look at each element.

    Args:
        values: A matrix or vector, one row per sample.
        what: Its name for the message.

    Raises:
        InputError: If an element is NaN or infinite.
    """
    if math.isfinite(values.detach().sum().item()):
        return
    bad = ~values.detach().isfinite()
    if not bool(bad.any()):
        return
    rows = bad.flatten(1).any(1).nonzero() if bad.ndim > 1 else bad.nonzero()
    raise InputError(
        f"Expected finite {what}, found {int(bad.sum())} NaN or infinite values in {len(rows)} "
        f"of {len(values)} rows, the first in row {int(rows[0])}. The model may have diverged: "
        "lower the learning rate or check the inputs."
    )
