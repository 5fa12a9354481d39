"""What "agrees" means throughout the tests: 1e-10 of the largest element, in values and slopes."""

import torch


def assert_agrees(actual, expected, tolerance=1e-10):
    """Same shape, and no element further off than `tolerance` of the largest."""
    assert actual.shape == expected.shape, f"{list(actual.shape)} is not {list(expected.shape)}"
    assert bool(actual.isfinite().all()), "not finite"
    error = (actual.detach() - expected.detach()).abs().max().item()
    scale = max(expected.detach().abs().max().item(), 1e-2)
    assert error <= tolerance * scale, f"error {error:.2e} at scale {scale:.2e}"


def slopes(scalar, inputs):
    """Derivatives of a scalar, zero where it does not depend on an input."""
    if not scalar.requires_grad:
        return [torch.zeros_like(x) for x in inputs]
    found = torch.autograd.grad(scalar, inputs, retain_graph=True, allow_unused=True)
    return [
        torch.zeros_like(x) if slope is None else slope
        for x, slope in zip(inputs, found, strict=True)
    ]


def assert_same_slopes(actual, expected, inputs, tolerance=1e-10):
    """The same derivatives, of a random mixture of the elements if there are several."""
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(expected.shape, generator=generator, dtype=expected.dtype)
    pairs = zip(
        slopes((weights * actual).sum(), inputs),
        slopes((weights * expected).sum(), inputs),
        strict=True,
    )
    for ours, theirs in pairs:
        assert_agrees(ours, theirs, tolerance)
