r"""What the closed forms are compared with.

The released procedure is written out as a loop over automatic differentiation, in the manner of the
paper's released DomainBed code: Rademacher probes for every domain and again for the mean loss,
each probe a Hessian-vector product that keeps its graph.

Indices: e domain, n sample, d feature, c class.
"""

from __future__ import annotations

from collections.abc import Callable

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
