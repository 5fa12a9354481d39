r"""What the closed forms are compared with.

The released procedure is written out as a loop over automatic differentiation, in the manner of the
paper's released DomainBed code: Rademacher probes for every domain and again for the mean loss,
each probe a Hessian-vector product that keeps its graph.

The plain forms are the same closed forms as ours, in the dozen lines that one would write for
oneself: the precision of the features, no checks, autograd's own backward pass.

Indices: e domain, n and m sample, d feature, c class.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations_with_replacement

import torch
from torch import Tensor, autograd, nn
from torch.nn import functional

from benchmarks.cases import Batch


def rademacher_like(tensor: Tensor, generator: torch.Generator | None) -> Tensor:
    """Independent random signs.

    Args:
        tensor: Gives the shape and dtype.
        generator: Source of randomness; torch's global one if None.

    Returns:
        +1 and −1, each with probability one half.
    """
    coins = torch.randint(0, 2, tensor.shape, generator=generator, dtype=tensor.dtype)
    return 2 * coins - 1


def sampled_curvature(
    risk: Tensor, parameters: tuple[Tensor, ...], probes: int, generator: torch.Generator | None
) -> tuple[tuple[Tensor, ...], list[Tensor]]:
    """Gradient and Hutchinson's estimate of the Hessian diagonal, by automatic differentiation.

    Args:
        risk: The loss.
        parameters: The parameters to differentiate in.
        probes: The number of probes, one Hessian-vector product each.
        generator: Source of the probes.

    Returns:
        Both in the shapes of the parameters, both with a graph.
    """
    gradient = autograd.grad(risk, parameters, create_graph=True)
    diagonal = [torch.zeros_like(parameter) for parameter in parameters]
    for _ in range(probes):
        signs = [rademacher_like(parameter, generator) for parameter in parameters]
        products = autograd.grad(gradient, parameters, grad_outputs=signs, create_graph=True)
        for total, sign, product in zip(diagonal, signs, products, strict=True):
            total += sign * product / probes
    return gradient, diagonal


def released_penalty(batch: Batch, probes: int, generator: torch.Generator | None = None) -> Tensor:
    r"""The released procedure: sampled Hessian diagonals and gradients, aligned across domains.

    $$\frac1E \sum_e \|\hat D_e - \hat D\|^2 + \|g_e - g\|^2$$

    with D̂ and g those of the mean of the domains' losses, treated as constants.

    Args:
        batch: Features and head.
        probes: Probes for each domain and for the mean loss; the released code uses 300.
        generator: Source of the probes: those of the mean loss first, then domain by domain.

    Returns:
        The penalty, differentiable in features and head.
    """
    risks = [
        functional.cross_entropy(functional.linear(z, *batch.parameters), y)
        for z, y in batch.per_domain()
    ]
    mean_risk = torch.stack(risks).mean()
    target = sampled_curvature(mean_risk, batch.parameters, probes, generator)
    goals = [value.detach() for values in target for value in values]
    penalty = torch.zeros(())
    for risk in risks:
        found = sampled_curvature(risk, batch.parameters, probes, generator)
        values = [value for values in found for value in values]
        for value, goal in zip(values, goals, strict=True):
            penalty = penalty + (value - goal).square().sum()
    return penalty / len(risks)


def cross_entropy(batch: Batch) -> Tensor:
    """The head's plain loss, the floor of the comparison.

    Args:
        batch: Features and head.

    Returns:
        The mean cross-entropy.
    """
    return functional.cross_entropy(functional.linear(batch.z, *batch.parameters), batch.y)


def linear_module(batch: Batch) -> nn.Linear:
    """The batch's head as a module.

    Args:
        batch: Features and head.

    Returns:
        A module with a copy of the parameters.
    """
    classes, features = batch.weight.shape
    module = nn.Linear(features, classes, dtype=batch.weight.dtype)
    module.load_state_dict({"weight": batch.weight.detach(), "bias": batch.bias.detach()})
    return module


def make_backpack_diagonals(batch: Batch) -> Callable[[], list[Tensor]]:
    """BackPACK's `DiagHessian`, domain by domain.

    It gives the exact diagonal during an ordinary backward pass, but without a graph: a penalty
    made of it cannot be differentiated.

    Args:
        batch: Features and head.

    Returns:
        A procedure that returns one diagonal per domain: weights, then biases.
    """
    from backpack import backpack, extend
    from backpack.extensions import DiagHessian

    head, loss = extend(linear_module(batch)), extend(nn.CrossEntropyLoss())
    parts = [(z.detach().requires_grad_(), y) for z, y in batch.per_domain()]

    def diagonals() -> list[Tensor]:
        result = []
        for z, y in parts:
            with backpack(DiagHessian()):
                loss(head(z), y).backward()
            result.append(torch.cat([head.weight.diag_h.flatten(), head.bias.diag_h]))
            head.weight.grad = head.bias.grad = z.grad = None
        return result

    return diagonals


def make_curvlinops_diagonals(batch: Batch, probes: int) -> Callable[[], list[Tensor]]:
    """Hutchinson's estimate with curvlinops, for each domain and for the mean loss.

    Its Hessian-vector products are vectorised over the probes and carry no graph: a penalty made of
    the estimates cannot be differentiated.

    Args:
        batch: Features and head.
        probes: Probes of each estimate.

    Returns:
        A procedure that returns one estimate per domain and one for the mean loss (all samples
        together, as domains are of equal size): weights, then biases.
    """
    from curvlinops import HessianLinearOperator, hutchinson_diag

    head, loss = linear_module(batch), nn.CrossEntropyLoss()
    parts = [(z.detach(), y) for z, y in batch.per_domain()]
    parts.append((batch.z.detach(), batch.y))

    def diagonals() -> list[Tensor]:
        result = []
        for z, y in parts:
            hessian = HessianLinearOperator(
                head,
                loss,
                list(head.parameters()),
                [(z, y)],
                check_deterministic=False,
                num_data=len(z),
            )
            result.append(hutchinson_diag(hessian, probes))
        return result

    return diagonals


def pair_weights(
    sizes: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    r"""The constants of the plain forms, matrices over pairs of samples.

    Args:
        sizes: Samples of each domain, which are contiguous.
        dtype: Their precision.

    Returns:
        The weights whose sum over pairs is a dispersion, $\frac1E \sum_e c_{en} c_{em}$ with
        c the deviation of the domains' means; and the means over a sample's own domain.

    Example:
        >>> dispersing, within = pair_weights((1, 2))
        >>> within
        tensor([[1.0000, 0.0000, 0.0000],
                [0.0000, 0.5000, 0.5000],
                [0.0000, 0.5000, 0.5000]])
        >>> values = torch.tensor([4.0, 1.0, 3.0])  # means 4 and 2, each 1 away from 3
        >>> values @ dispersing @ values
        tensor(1.)
    """
    averaging = torch.block_diag(*(torch.full((1, n), 1 / n, dtype=dtype) for n in sizes))
    within = torch.block_diag(*(torch.full((n, n), 1 / n, dtype=dtype) for n in sizes))
    centring = averaging - averaging.mean(0)
    return centring.T @ centring / len(sizes), within


def plain_full(z: Tensor, logits: Tensor, y: Tensor, dispersing: Tensor) -> Tensor:
    r"""Dispersion of Hessians and of gradients in plain operations.

    $$\sum_{nm} w_{nm} \left(\mathrm{tr}(S_n S_m) K_{nm}^2 + r_n^\top r_m K_{nm}\right)$$

    Args:
        z: Features.
        logits: Logits.
        y: Class indices.
        dispersing: The weights w of pairs; see `pair_weights`.

    Returns:
        Their sum.
    """
    gram = z @ z.T + 1
    p = logits.softmax(1)
    overlap, squares = p @ p.T, p.square()
    curvature = overlap - squares @ p.T - p @ squares.T + overlap.square()
    error = p - functional.one_hot(y, p.shape[1])
    return (dispersing * (curvature * gram.square() + (error @ error.T) * gram)).sum()


def plain_product(
    z: Tensor, logits: Tensor, y: Tensor, dispersing: Tensor, within: Tensor
) -> Tensor:
    r"""Dispersion of Hessian-gradient products and of gradients in plain operations.

    $$\sum_{nm} w_{nm} \left(v_n^\top v_m + r_n^\top r_m\right) K_{nm}, \quad
    v_n = S_n \sum_{m \in e(n)} \tfrac{1}{n_e} K_{nm} r_m$$

    Args:
        z: Features.
        logits: Logits.
        y: Class indices.
        dispersing: The weights w of pairs; see `pair_weights`.
        within: The weights of means over a sample's own domain.

    Returns:
        Their sum.
    """
    gram = z @ z.T + 1
    p = logits.softmax(1)
    error = p - functional.one_hot(y, p.shape[1])
    scaled = p * ((within * gram) @ error)
    product = scaled - p * scaled.sum(1, keepdim=True)
    return (dispersing * (product @ product.T + error @ error.T) * gram).sum()


def cma_penalty(batch: Batch) -> Tensor:
    r"""The Hessian term of CMA (Chen et al., UAI 2025), by the algorithm it is published with.

    $$\frac{1}{2 E^2 C^2} \sum_{ef} \|H_e - H_f\|^2, \quad \langle H_e, H_f\rangle =
    \operatorname{mean}_{nm} \mathrm{tr}(S_n S_m)\, \mathrm{tr}(z_n z_n^\top z_m z_m^\top)$$

    for the weights of the head without its bias. The matrices are formed for every sample and
    multiplied for every pair; of two domains each pair of samples is taken once.

    Args:
        batch: Features and head.

    Returns:
        The penalty, differentiable in features and weights.
    """
    domains, classes = len(batch.sizes), len(batch.weight)
    outer, curvature = [], []
    for z in batch.z:
        p = functional.linear(z, batch.weight).softmax(0)
        outer.append(torch.outer(z, z))
        curvature.append(torch.diag(p) - torch.outer(p, p))
    members = torch.arange(len(outer)).split(batch.sizes)
    total = torch.zeros((), dtype=batch.z.dtype)
    for e, f in combinations_with_replacement(range(domains), 2):
        traces = [
            torch.trace(curvature[n] @ curvature[m]) * torch.trace(outer[n] @ outer[m])
            for n in members[e].tolist()
            for m in members[f].tolist()
        ]
        # ‖H_e‖² is in the distances to all other domains, ⟨H_e, H_f⟩ in two of them.
        weight = domains - 1 if e == f else -2
        total = total + weight * torch.stack(traces).mean()
    return total / (domains**2 * classes**2)
