"""The penalty can be differentiated twice: its slopes have slopes, for every kind and evaluation.

Second derivatives are needed by gradient penalties, meta-learning and second-order optimisers. The
reference are central differences of the first derivatives, in float64.
"""

import pytest
import torch
from torch import nn
from torch.autograd import gradgradcheck

import hessalign as ha
from hessalign.alignment import moments

KINDS = ("full", "diagonal", "sampled", "expected", "product", None)
LOSSES = {
    "cross_entropy": (5, "identity"),
    "cross_entropy, many classes": (15, "identity"),
    "binary": (1, "identity"),
    "squared": (2, "identity"),
    "squared, tanh": (2, "tanh"),
    "squared, own activation": (2, lambda a: torch.sin(a) + a),
}
"""Outputs and activation; of fifteen classes the curvature is no longer written out."""

SIZES = {"equal": (8, 8, 8), "unequal": (13, 3, 8)}


def make_batch(loss, sizes, features, seed=0):
    outputs, activation = LOSSES[loss]
    name = loss.split(",")[0]
    samples = sum(sizes)
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    domain = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    z, weight = draw(samples, features).relu(), draw(outputs, features) / features**0.5
    if name == "squared":
        y = draw(samples, outputs)
    else:
        y = torch.randint(max(2, outputs), (samples,), generator=generator)
    options = {"loss": name, "activation": activation}
    return z, weight, y, domain, options


def make_penalty(kind, evaluation, y, domain, options, *, bias=False, fidelity="paper"):
    def penalty(z, weight):
        align = ha.HessianAlignment(
            alpha=1.0,
            beta=0.5,
            hessian=kind,
            evaluation=evaluation,
            bias=bias,
            probes=3,
            generator=torch.Generator().manual_seed(7),
            fidelity=fidelity,
            **options,
        )
        return align(z, z @ weight.T, y, domain).penalty

    return penalty


def slopes(penalty, inputs, *, create_graph=False):
    return torch.autograd.grad(penalty(*inputs), inputs, create_graph=create_graph)


def check(penalty, inputs, step=1e-5):
    """Second derivatives along a direction, against differences of first derivatives."""
    generator = torch.Generator().manual_seed(3)
    inputs = [x.clone().requires_grad_() for x in inputs]
    directions = [torch.randn(x.shape, generator=generator, dtype=x.dtype) for x in inputs]
    first = slopes(penalty, inputs, create_graph=True)
    along = sum((slope * u).sum() for slope, u in zip(first, directions, strict=True))
    second = torch.autograd.grad(along, inputs)

    def moved(sign):
        with torch.no_grad():
            points = [x + sign * step * u for x, u in zip(inputs, directions, strict=True)]
        return slopes(penalty, [x.requires_grad_() for x in points])

    for found, up, down in zip(second, moved(1), moved(-1), strict=True):
        expected = (up - down) / (2 * step)
        assert expected.norm() > 0
        assert (found - expected).norm() <= 1e-6 * expected.norm()


@pytest.mark.pairwise
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("evaluation", ["primal", "dual", "auto"])
@pytest.mark.parametrize("kind", KINDS)
def test_second_derivatives(kind, evaluation, loss):
    z, weight, y, domain, options = make_batch(loss, SIZES["equal"], features=32)
    check(make_penalty(kind, evaluation, y, domain, options), (z, weight))


@pytest.mark.pairwise
@pytest.mark.parametrize("loss", ["cross_entropy", "cross_entropy, many classes", "binary"])
@pytest.mark.parametrize("evaluation", ["primal", "dual"])
@pytest.mark.parametrize("kind", KINDS)
def test_with_bias_unequal_domains_and_the_routes_of_large_shapes(
    kind, evaluation, loss, route, monkeypatch
):
    if route == "large":  # pairs of samples block by block, too
        monkeypatch.setattr(moments, "PAIR_ELEMENTS", 100)
    z, weight, y, domain, options = make_batch(loss, SIZES["unequal"], features=6)
    check(make_penalty(kind, evaluation, y, domain, options, bias=True), (z, weight))


@pytest.mark.parametrize("kind", ["sampled", "expected", "product"])
def test_targets_of_the_released_code(kind):
    """Those of the mean loss; detached ones have no slopes that differences could show."""
    z, weight, y, domain, options = make_batch("cross_entropy", SIZES["equal"], features=6)
    check(make_penalty(kind, "auto", y, domain, options, fidelity="released"), (z, weight))


@pytest.mark.parametrize("evaluation", ["primal", "dual"])
@pytest.mark.parametrize("kind", ["full", "product", "expected"])
def test_gradgradcheck_of_the_module(kind, evaluation):
    z, weight, y, domain, options = make_batch("cross_entropy", (3, 2), features=2)
    penalty = make_penalty(kind, evaluation, y, domain, options, bias=True)
    assert gradgradcheck(penalty, (z.requires_grad_(), weight.requires_grad_()))


@pytest.mark.parametrize("kind", KINDS)
def test_heads_by_automatic_differentiation(kind):
    z, _, y, domain, _ = make_batch("cross_entropy", (4, 4), features=3)
    torch.manual_seed(0)
    head = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 5)).double()

    def penalty(z):
        align = ha.HessianAlignment(
            1.0, 0.5, kind, probes=2, generator=torch.Generator().manual_seed(7)
        )
        return align(z, head(z), y, domain, head=head).penalty

    check(penalty, (z,))


def test_distances_too():
    z, weight, _, domain, _ = make_batch("cross_entropy, many classes", SIZES["equal"], features=32)
    for evaluation in ("primal", "dual"):
        check(
            lambda z, weight, e=evaluation: ha.hessian_distance(
                z, z @ weight.T, domain, evaluation=e
            ).sum(),
            (z, weight),
        )
