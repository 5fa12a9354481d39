"""What a caller hands in, checked and arranged."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from hessalign._errors import InputError, InputTypeError
from hessalign._numbers import check_count, check_positive, number, shown
from hessalign._shapes import Float, Int
from hessalign.curvature.domains import make_domains
from hessalign.curvature.inputs import (
    check_domain,
    check_features,
    check_is_tensor,
    check_targets,
)
from hessalign.curvature.losses import Binary, CrossEntropy, HeadLoss
from hessalign.heads.head_data import HeadData


def make_head_data(
    z: Float[Tensor, "n d"],
    y: Tensor,
    domain: Int[Tensor, " n"],
    loss: HeadLoss,
    *,
    outputs: int | None = None,
    bias: bool = True,
    l2: float = 0.0,
) -> HeadData:
    """Check samples and arrange them by domain.

    Args:
        z: Features that enter the head.
        y: Targets.
        domain: The domain of each sample, any integers.
        loss: The loss of the head.
        outputs: Outputs of the head; by default what the targets need.
        bias: Whether the head has a bias.
        l2: The weight of the L2 term.

    Returns:
        The data, domains ordered by id.

    Example:
        >>> z, y, domain = torch.ones(3, 2), torch.tensor([0, 2, 1]), torch.tensor([7, 3, 7])
        >>> data = make_head_data(z, y, domain, CrossEntropy())
        >>> data.ids, data.shape
        ((3, 7), (3, 3))
    """
    check_features(z)
    check_domain(domain, len(z))
    check_is_tensor(y)
    check_l2(l2)
    if outputs is not None:
        check_count(outputs, "outputs")
    count = needed_outputs(y, loss) if outputs is None else outputs
    check_targets(y, z.new_zeros(len(z), count), loss)
    domains = make_domains(domain)
    z = domains.arrange(z.detach() if z.dtype == torch.float64 else z.detach().float())
    y = domains.arrange(y.detach())
    if bias:
        z = torch.cat([z, torch.ones_like(z[:, :1])], dim=1)
    ids = tuple(domains.ids.tolist())
    return HeadData(ids, z.split(domains.sizes), y.split(domains.sizes), loss, count, l2)


def check_l2(l2: object) -> None:
    """The weight of an L2 term.

    Args:
        l2: What should be one.

    Raises:
        InputError: If it is negative, not finite, or no number.
    """
    if not 0 <= number(l2) < float("inf"):
        raise InputError(f"Expected an L2 weight of 0 or more, got {shown(l2)}")


def needed_outputs(y: Tensor, loss: HeadLoss) -> int:
    """Outputs a head needs for these targets.

    Args:
        y: The targets.
        loss: The loss of the head.

    Returns:
        One for binary labels, the number of classes up to the largest label (at least 2) for
        cross-entropy, the columns of the targets for squared error.
    """
    if isinstance(loss, Binary) or y.numel() == 0:
        return 1
    if isinstance(loss, CrossEntropy):
        return max(2, int(y.max()) + 1)
    return y.shape[1] if y.ndim == 2 else 1


def check_several(ids: Sequence[object]) -> None:
    """At least two domains.

    Args:
        ids: The domains there are, by number or name.

    Raises:
        InputError: If there is only one.
    """
    if len(ids) < 2:
        raise InputError(
            f"Expected samples of at least 2 domains, got only domain {ids[0]}: a gap is between "
            "two. Check which domain each sample is given."
        )


def source_and_target(data: HeadData, source: int, target: int) -> tuple[HeadData, int, int]:
    """Two of the domains.

    Args:
        data: The samples of all domains.
        source: The id of one domain.
        target: The id of another.

    Returns:
        The samples in float64, and the positions of the two domains.

    Raises:
        InputError: If there is only one domain, no domain of that id, or both are the same.
    """
    check_several(data.ids)
    for role, wanted in (("source", source), ("target", target)):
        if wanted not in data.ids:
            found = ", ".join(map(str, data.ids))
            raise InputError(f"Expected the {role} to be one of the domains {found}, got {wanted}.")
    if source == target:
        raise InputError(
            f"Expected two different domains as source and target, got {source} for both."
        )
    return data.to(torch.float64), data.ids.index(source), data.ids.index(target)


def check_deltas(delta: float | Sequence[float] | Tensor) -> tuple[float, ...]:
    """Radii, one or several.

    Args:
        delta: A positive number or several.

    Returns:
        The radii, ascending, each once.

    Raises:
        InputError: If there is none, or one is not positive and finite.
    """
    values = delta.tolist() if isinstance(delta, Tensor) else delta
    radii = np.asarray(values, dtype=object).ravel().tolist()
    if not radii:
        raise InputError("Expected at least one delta, got none.")
    for radius in radii:
        check_positive(radius, "delta")
    return tuple(sorted({float(radius) for radius in radii}))


def head_matrix(head: Tensor | nn.Linear, features: int) -> tuple[Float[Tensor, "k d"], bool]:
    """The parameters of a head as one matrix, and whether they include a bias.

    Args:
        head: A linear layer, or its matrix: one row per output, weights before bias.
        features: Features d that enter it.

    Returns:
        The matrix in float64, and whether its last column is a bias. A layer says so itself; a
        matrix has one if it is wider than the features by one.

    Raises:
        InputTypeError: If the head is neither.
        InputError: If its width does not suit the features, or a parameter is not finite.

    Example:
        >>> head_matrix(nn.Linear(3, 2, bias=False), 3)[1], head_matrix(torch.zeros(2, 4), 3)[1]
        (False, True)
    """
    if isinstance(head, nn.Linear):
        if head.in_features != features:
            raise InputError(
                f"Expected a head for the {features} features of z, got one for "
                f"{head.in_features}. Use the layer that follows z."
            )
        parts = [head.weight] if head.bias is None else [head.weight, head.bias.unsqueeze(1)]
        head = torch.cat(parts, dim=1)
    if not isinstance(head, Tensor) or not head.is_floating_point():
        found = head.dtype if isinstance(head, Tensor) else type(head).__name__
        raise InputTypeError(f"Expected the head as a torch.nn.Linear or its matrix, got {found}.")
    matrix = head.detach().double()
    if matrix.ndim != 2 or matrix.shape[1] not in {features, features + 1}:
        raise InputError(
            f"Expected a head of shape [outputs, {features}], or [outputs, {features + 1}] with "
            f"its bias in the last column, to match z; got {list(matrix.shape)}."
        )
    if not bool(matrix.isfinite().all()):
        raise InputError("Expected finite parameters of the head, found NaN or infinity.")
    return matrix, matrix.shape[1] == features + 1
