"""Checks of what a caller hands in, so that mistakes are named before any maths runs.

Types and shapes are always checked. Values can be looked at only by waiting for the device that has
them; `reads_values` says when that is done.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hessalign._errors import InputError, InputTypeError
from hessalign._numbers import check_size, largest
from hessalign._shapes import Float, Int
from hessalign.curvature.domains import DomainLike, Domains, domain_layout, make_domains
from hessalign.curvature.fused import is_traced
from hessalign.curvature.losses import HeadLoss


def reads_values(z: Tensor, checks: bool | None = None) -> bool:
    """Whether values are looked at: on the CPU, elsewhere if asked for, never if there are none."""
    if not isinstance(z, Tensor) or is_traced(z):
        return False
    return z.device.type == "cpu" if checks is None else checks


def check_dense(value: object, name: str) -> None:
    """Raise an InputTypeError for a tensor that does not hold its values one by one."""
    if isinstance(value, Tensor) and value.layout is not torch.strided:
        raise InputTypeError(
            f"Expected {name} as a dense tensor, got {value.layout}. Use to_dense()."
        )


def _check_floating(value: Tensor, what: str, name: str) -> None:
    """Raise an InputTypeError unless an argument is a dense tensor of floating-point numbers."""
    check_dense(value, what)
    if not isinstance(value, Tensor) or not value.is_floating_point():
        found = found_and_remedy(value, name, "float")
        raise InputTypeError(f"Expected floating-point {what}, got {found}")


def check_features(z: Tensor, *, values: bool = True) -> None:
    """Raise unless features are a non-empty floating-point matrix of finite numbers."""
    _check_floating(z, "features z", "z")
    if z.ndim != 2:
        raise InputError(
            f"Expected features z of shape [n, d], got {list(z.shape)}. Flatten what comes after "
            "the first axis."
        )
    if len(z) == 0:
        raise InputError("Expected at least one sample, got none: every domain is empty.")
    # A small norm proves all at the price of one pass; else each element is looked at.
    if values and not torch.linalg.vector_norm(z.detach()).item() <= largest(z.dtype):
        check_finite(z, "features z")
        check_size(z, "features z")


def check_logits(logits: Tensor, samples: int, *, values: bool = True) -> Float[Tensor, "n k"]:
    """The logits as a matrix; raise unless they are one row of finite numbers per sample."""
    _check_floating(logits, "logits", "logits")
    if logits.ndim not in {1, 2} or len(logits) != samples:
        raise InputError(
            f"Expected logits of shape [{samples}, classes], one row per row of z, "
            f"got {list(logits.shape)}."
        )
    if values:
        check_finite(logits, "logits")
    return logits.unsqueeze(1) if logits.ndim == 1 else logits


def check_domain(domain: object, samples: int) -> None:
    """Raise unless domain ids are one integer per sample."""
    check_dense(domain, "domain")
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


def read_domains(domain: DomainLike, z: Tensor) -> Domains:
    """The grouping of the samples, from ids, sizes or a layout; raise unless there is one each."""
    samples = len(z)
    if not isinstance(domain, Tensor) and isinstance(domain, Domains | tuple):
        layout = domain_layout(domain, z.device)
        if sum(layout.sizes) != samples:
            raise InputError(
                f"Expected domains of {samples} samples in all, one per row of z, got sizes "
                f"{layout.sizes}, which are {sum(layout.sizes)}."
            )
        return layout
    check_domain(domain, samples)
    assert isinstance(domain, Tensor)
    if is_traced(domain):
        raise InputError(
            "Expected the domains of a graph to be known before it runs, got ids, whose values "
            "decide what is computed. Use layout = hessalign.domain_layout(domain) outside, or the "
            "sizes of contiguous domains, and pass that as domain."
        )
    return make_domains(domain)


def domain_ids(domain: DomainLike, z: Tensor) -> Int[Tensor, " n"]:
    """The domain of each sample, whatever says it."""
    if isinstance(domain, Tensor):
        check_domain(domain, len(z))
        return domain.to(z.device, torch.int64)
    layout = read_domains(domain, z)
    sizes = torch.tensor(layout.sizes, device=z.device)
    ids = layout.ids.to(torch.int64).repeat_interleave(sizes, output_size=len(z))
    return ids if layout.order is None else torch.empty_like(ids).index_copy_(0, layout.order, ids)


def check_targets(
    y: Tensor | None, logits: Float[Tensor, "n k"], loss: HeadLoss, *, values: bool = True
) -> None:
    """Raise unless targets (None where only curvature is wanted) and logits suit the loss."""
    loss.check_logits(logits)
    if y is None:
        return
    check_is_tensor(y)
    if y.ndim == 0 or len(y) != len(logits):
        raise InputError(
            f"Expected one target y per row of z, {len(logits)} in all, got shape {list(y.shape)}."
        )
    loss.check_targets(y, logits, values=values)


def check_weight(weight: Tensor | None, samples: int, *, values: bool = True) -> None:
    """Raise unless weights are one finite number of 0 or more per sample."""
    if weight is None:
        return
    _check_floating(weight, "weights of samples", "weight")
    if weight.shape != (samples,):
        raise InputError(
            f"Expected one weight per row of z, shape [{samples}], got {list(weight.shape)}."
        )
    if values:
        check_finite(weight, "weights")
        if bool((weight < 0).any()):
            raise InputError(f"Expected weights of 0 or more, found {float(weight.min()):g}.")


def check_counted(weight: Float[Tensor, "n 1"] | None, *, values: bool = True) -> None:
    """Raise unless a sample counts in each domain, given what each counts."""
    if weight is not None and values and not bool(weight.isfinite().all()):
        raise InputError(
            "Expected a sample that counts in each domain, found a domain whose weights are all 0 "
            "or whose labels are all ignored. Leave it out of the batch."
        )


def check_is_tensor(y: Tensor) -> None:
    """Raise an InputTypeError unless targets are a tensor of real numbers."""
    if not isinstance(y, Tensor) or y.is_complex():
        raise InputTypeError(f"Expected y as a tensor, got {found_and_remedy(y, 'y', 'long')}")
    check_dense(y, "y")


def found_and_remedy(value: object, name: str, method: str) -> str:
    """What an argument of the wrong type is, and how to convert it, to end a message with."""
    if isinstance(value, Tensor):
        return f"{value.dtype}. Use {name}.{method}()."
    return f"{type(value).__name__}. Use torch.as_tensor({name})."


def check_finite(values: Tensor, what: str) -> None:
    """Raise if a tensor, one row per sample, holds NaN or infinity, saying how many and where."""
    # A finite sum proves that every element is finite, at the price of one pass and no copy; only
    # a sum that is not (which a mere overflow can cause) leads to the slower look at each element.
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
