"""Checks of what a caller hands in."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hessalign._shapes import Float
from hessalign.transfer.head_data import HeadData


def check_positive(value: float, name: str) -> None:
    """A finite number above zero.

    Args:
        value: What should be one.
        name: Its name for the message.

    Raises:
        ValueError: If it is not.
    """
    if not 0 < value < float("inf"):
        raise ValueError(f"Expected a positive, finite {name}, got {value}.")


def check_several(ids: Sequence[int]) -> None:
    """At least two domains.

    Args:
        ids: The domains there are.

    Raises:
        ValueError: If there is only one.
    """
    if len(ids) < 2:
        raise ValueError(
            f"Expected samples of at least 2 domains, got only domain {ids[0]}: a gap is between "
            "two. Check the argument domain."
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
        ValueError: If there is only one domain, no domain of that id, or both are the same.
    """
    check_several(data.ids)
    for role, wanted in (("source", source), ("target", target)):
        if wanted not in data.ids:
            found = ", ".join(map(str, data.ids))
            raise ValueError(f"Expected the {role} to be one of the domains {found}, got {wanted}.")
    if source == target:
        raise ValueError(
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
        ValueError: If there is none, or one is not positive and finite.
    """
    if isinstance(delta, Tensor):
        delta = delta.flatten().tolist()
    radii = [float(delta)] if isinstance(delta, int | float) else [float(value) for value in delta]
    if not radii:
        raise ValueError("Expected at least one delta, got none.")
    for radius in radii:
        check_positive(radius, "delta")
    return tuple(sorted(set(radii)))


def head_matrix(head: Tensor | nn.Linear, features: int) -> tuple[Float[Tensor, "k d"], bool]:
    """The parameters of a head as one matrix, and whether they include a bias.

    Args:
        head: A linear layer, or its matrix: one row per output, weights before bias.
        features: Features d that enter it.

    Returns:
        The matrix in float64, and whether its last column is a bias.

    Raises:
        TypeError: If the head is neither.
        ValueError: If its width does not suit the features, or a parameter is not finite.

    Example:
        >>> head_matrix(nn.Linear(3, 2, bias=False), 3)[1], head_matrix(torch.zeros(2, 4), 3)[1]
        (False, True)
    """
    if isinstance(head, nn.Linear):
        parts = [head.weight] if head.bias is None else [head.weight, head.bias.unsqueeze(1)]
        head = torch.cat(parts, dim=1)
    if not isinstance(head, Tensor) or not head.is_floating_point():
        found = head.dtype if isinstance(head, Tensor) else type(head).__name__
        raise TypeError(f"Expected the head as a torch.nn.Linear or its matrix, got {found}.")
    matrix = head.detach().double()
    if matrix.ndim != 2 or matrix.shape[1] not in {features, features + 1}:
        raise ValueError(
            f"Expected a head of shape [outputs, {features}], or [outputs, {features + 1}] with "
            f"its bias in the last column, to match z; got {list(matrix.shape)}."
        )
    if not bool(matrix.isfinite().all()):
        raise ValueError("Expected finite parameters of the head, found NaN or infinity.")
    return matrix, matrix.shape[1] == features + 1
