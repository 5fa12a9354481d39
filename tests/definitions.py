"""Every variant of Hessian dispersion, written from its definition with dense Hessians."""

import torch
from tests import oracles


def expected_extra(hessians, probes, *, shared, pooled, detach=False):
    """What sampling adds to the dispersion of the exact diagonals, in expectation."""
    mean = hessians.mean(0)
    if shared:
        extra = torch.stack([oracles.off(H - mean) for H in hessians]).mean()
    elif pooled:
        of_mean = oracles.off(mean.detach() if detach else mean)
        extra = torch.stack([oracles.off(H) + of_mean for H in hessians]).mean()
    else:
        count = len(hessians)
        extra = (count - 1) / count * torch.stack([oracles.off(H) for H in hessians]).mean()
    return extra / probes


def hessian_term(
    kind, batch, options, *, pooled=False, detach=False, probes=1, shared=False, signs=()
):
    """(1/E) Σ_e ‖v_e − t‖² for the variant named; `signs` are the probes that were drawn."""
    hessians = oracles.dense_hessian(batch, **options)
    diagonals = hessians.diagonal(dim1=1, dim2=2)

    def constant(target):
        return target.detach() if detach else target

    if kind == "full":
        return oracles.dispersion(hessians)
    if kind == "diagonal":
        return oracles.dispersion(diagonals)
    if kind == "product":
        gradients = oracles.gradient(batch, **options)
        products = torch.einsum("epq,eq->ep", hessians, gradients)
        target = products.mean(0)
        if pooled:
            target = hessians.mean(0) @ gradients.mean(0)
        return oracles.deviation(products, constant(target))
    if kind == "sampled":
        functions, origin = oracles.risks(batch, **options)
        estimates = oracles.hutchinson(functions, origin, signs[0])
        target = estimates.mean(0)
        if pooled and not shared:
            mean = oracles.mean_function(functions)
            target = oracles.hutchinson([mean], origin, signs[1])[0]
        return oracles.deviation(estimates, constant(target))
    exact = oracles.deviation(diagonals, constant(diagonals.mean(0)))
    return exact + expected_extra(hessians, probes, shared=shared, pooled=pooled, detach=detach)
