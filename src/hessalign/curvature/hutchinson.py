r"""Hutchinson's estimate of a Hessian diagonal (eq. 19), vectorised over probes.

Indices: e domain, p parameter of the head, m probe.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hessalign._errors import InputError
from hessalign._shapes import Float
from hessalign.curvature.autograd import AutogradHead
from hessalign.curvature.fused import is_traced
from hessalign.curvature.linear import LinearHead

HeadStatistics = LinearHead | AutogradHead
"""Both backends provide risk, gradient, hessian, diagonal, hgp and hvp."""

_PROBE_ELEMENTS = 1 << 25
"""Elements of the probes held in memory at once; more probes are drawn in several rounds."""


def _rademacher(shape: tuple[int, ...], seed: int, device: torch.device) -> Float[Tensor, ...]:
    """Independent random signs.

    Returns:
        A tensor of +1 and −1, each with probability one half.

    Example:
        >>> _rademacher((1000,), 0, torch.device("cpu")).square().mean()
        tensor(1.)
    """
    count = math.prod(shape)
    # Whole random bytes, a bit for each sign: several times faster than drawing signs one by one,
    # and the same on every device.
    random_bytes = np.frombuffer(np.random.default_rng(seed).bytes(-(-count // 8)), np.uint8)
    coins = torch.from_numpy(np.unpackbits(random_bytes, count=count)).to(device)
    return coins.to(torch.float32).mul_(2).sub_(1).view(shape)


def hutchinson_diagonal(
    statistics: HeadStatistics,
    probes: int,
    *,
    shared: bool = False,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "e p"]:
    r"""Estimate of every domain's Hessian diagonal from random probes (eq. 19).

    $$\hat D_e = \frac1m \sum_{i=1}^m r_i \odot (H_e r_i)$$

    It is unbiased, and its squared error is off(H)/m in expectation, with off(H) the sum of the
    squared off-diagonal entries of H. The exact diagonal costs less: `statistics.diagonal`.

    Args:
        statistics: Either backend.
        probes: The number m of probes; the paper uses 100.
        shared: Use the same probes for all domains instead of independent ones.
        generator: Source of randomness; torch's global one if None.

    Returns:
        One estimate per domain, differentiable in features and logits.

    Example:
        >>> from hessalign.curvature import linear_head
        >>> z, domain = torch.ones(4, 1), torch.tensor([0, 0, 1, 1])
        >>> head = linear_head(z, torch.zeros(4), None, domain, loss="binary", bias=False)
        >>> hutchinson_diagonal(head, 3)  # 1×1 Hessians: the estimate is exact
        tensor([[0.2500],
                [0.2500]], dtype=torch.float64)
    """
    domains = 1 if shared else len(statistics.domains)
    return _sum_over_probes(statistics, domains, probes, generator) / probes


def pooled_diagonal(
    statistics: HeadStatistics, probes: int, *, generator: torch.Generator | None = None
) -> Float[Tensor, " p"]:
    """Estimate of the mean loss's Hessian diagonal, to which the released code compares domains."""
    return _sum_over_probes(statistics, 1, probes, generator).mean(0) / probes


def _sum_over_probes(
    statistics: HeadStatistics, domains: int, probes: int, generator: torch.Generator | None
) -> Float[Tensor, "e p"]:
    """Sum of r ∘ (H_e r) over probes for each of so many domains, or one for all."""
    if probes < 1:
        raise InputError(f"Expected at least 1 probe, got {probes}.")
    if is_traced(statistics.domains.ids):  # a graph draws from the generator of the device
        signs = torch.randint(
            2, (probes, domains, statistics.num_parameters), device=statistics.domains.ids.device
        )
        return statistics.probed_diagonal((2 * signs - 1).to(torch.float32))
    source = torch.device("cpu") if generator is None else generator.device
    seed = int(torch.randint(2**62, (), generator=generator, device=source))
    axes, device = (domains, statistics.num_parameters), statistics.domains.ids.device

    def one_round(count: int, seed: int) -> Tensor:
        return statistics.probed_diagonal(_rademacher((count, *axes), seed, device))

    per_round = max(1, _PROBE_ELEMENTS // (axes[0] * axes[1]))
    if probes <= per_round:
        return one_round(probes, seed)
    # Several rounds: redraw the probes in the backward pass rather than keep them all. The first
    # round is kept, and with it whatever the statistics compute once and for all.
    total = one_round(per_round, seed)
    for index, start in enumerate(range(per_round, probes, per_round), 1):
        count = min(per_round, probes - start)
        total = total + checkpoint(one_round, count, seed + index, use_reentrant=False)
    return total
