"""float32 features near alignment, where domains differ by little more than rounding errors.

The reference is the float64 derivative of the same float32 numbers, by `torch.func`. A domain is
compared with a slightly disturbed copy of itself, the disturbance chosen so that the dispersion is
a given fraction of the squared norm, from one half down to 1e-8.
"""

import functools

import numpy as np
import pytest
import torch
from tests import oracles
from tests.cases import Batch

from hessalign.alignment import HessianAlignment, dispersion, distances, inner_products
from hessalign.alignment.quantities import quantity_dispersion
from hessalign.curvature import gram, linear_head, products

TOLERANCE = 1e-3
HEADS = {
    "softmax": ("cross_entropy", 5, 12),
    "softmax-12": ("cross_entropy", 12, 3),
    "binary": ("binary", 1, 32),
}
"""Loss, outputs and features; twelve classes are past what is written out for inner products."""

QUANTITIES = ("hessian", "hessian_diagonal", "gradient", "hessian_gradient")


def make_batch(head, samples, disturbance, seed=0):
    """Two domains with features as after a ReLU: common samples plus noise, or unrelated ones."""
    _, outputs, features = HEADS[head]
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(samples // 2, features, generator=generator).relu()
    noise = torch.randn(samples // 2, features, generator=generator)
    weight = torch.randn(outputs, features, generator=generator) / features**0.5
    other = 2 * noise.relu() if disturbance is None else z + disturbance * noise
    z = torch.cat([z, other])
    y = torch.randint(max(outputs, 2), (samples // 2,), generator=generator).repeat(2)
    domain = torch.arange(2).repeat_interleave(samples // 2)
    return Batch(z, z @ weight.T, y, domain)


def exact(batch, head, quantity):
    """Dispersion and its slopes in float64, with its ratio to the mean squared norm."""
    inputs = [x.double().requires_grad_() for x in (batch.z, batch.logits)]
    values = oracles.quantity(
        quantity, batch._replace(z=inputs[0], logits=inputs[1]), loss=HEADS[head][0]
    )
    value = oracles.dispersion(values)
    norm = values.detach().flatten(1).square().sum(1).mean()
    return value.item(), torch.autograd.grad(value, inputs), (value.detach() / norm).item()


@functools.cache
def near(head, samples, quantity, ratio):
    """A batch whose dispersion is about `ratio` of the squared norm, and the exact answer."""
    if ratio == "far":
        batch = make_batch(head, samples, None)
        return batch, exact(batch, head, quantity)
    disturbance = 1e-2
    for _ in range(12):
        batch = make_batch(head, samples, disturbance)
        answer = exact(batch, head, quantity)
        if 0.5 < answer[2] / ratio < 2:
            return batch, answer
        # The ratio grows as the square of the disturbance, or as its fourth power.
        disturbance *= (ratio / answer[2]) ** (1 / 3)
    raise AssertionError(f"no disturbance gives the ratio {ratio}, the last gave {answer[2]}")


def measured(batch, head, quantity, evaluation):
    """Dispersion and slopes, directly and from the inner products."""
    inputs = [x.clone().requires_grad_() for x in batch.inputs]
    statistics = linear_head(*inputs, batch.y, batch.domain, loss=HEADS[head][0])
    for value in (
        quantity_dispersion(statistics, quantity, evaluation),
        dispersion(inner_products(statistics, quantity, evaluation)),
    ):
        yield value.item(), torch.autograd.grad(value, inputs, retain_graph=True)


def check(head, samples, quantity, evaluation, ratio):
    batch, (value, slopes, _) = near(head, samples, quantity, ratio)
    for found, found_slopes in measured(batch, head, quantity, evaluation):
        assert found == pytest.approx(value, rel=TOLERANCE)
        for ours, theirs in zip(found_slopes, slopes, strict=True):
            assert ours.dtype == torch.float32
            assert (ours - theirs).norm() <= TOLERANCE * theirs.norm()


@pytest.mark.pairwise
@pytest.mark.parametrize("ratio", ["far", 1e-2, 1e-4, 1e-6, 1e-8])
@pytest.mark.parametrize("evaluation", ["primal", "dual"])
@pytest.mark.parametrize("samples", [32, 600])
@pytest.mark.parametrize("quantity", QUANTITIES)
@pytest.mark.parametrize("head", HEADS)
def test_dispersion_and_slopes(head, quantity, samples, evaluation, ratio):
    check(head, samples, quantity, evaluation, ratio)


@pytest.mark.pairwise
@pytest.mark.parametrize(
    ("samples", "evaluation", "ratio"),
    [
        (2200, "primal", 1e-8),
        (4000, "primal", "far"),
        (4000, "primal", 1e-4),
        (4000, "primal", 1e-8),
        (4000, "dual", 1e-8),
    ],
)
@pytest.mark.parametrize("quantity", QUANTITIES)
@pytest.mark.parametrize("head", HEADS)
def test_many_samples(head, quantity, samples, evaluation, ratio):
    check(head, samples, quantity, evaluation, ratio)


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [1e-4, 1e-8])
@pytest.mark.parametrize("head", HEADS)
def test_second_moments_of_so_many_samples_that_they_are_multiplied_in_float32(head, ratio):
    samples = 18_000
    assert samples // 2 > products._FEW_SAMPLES
    check(head, samples, "hessian", "primal", ratio)


@pytest.mark.parametrize("features", [12, 64])
def test_products_far_nearer_to_alignment(features, monkeypatch):
    """Two thousand samples per domain, whose gradients agree to seven digits.

    What a framework makes of the slopes in the logits, the sum over samples that is the slope in
    the head's weights, is another matter: a float32 sum of the exact slopes is off by some percent
    here.
    """
    monkeypatch.setitem(HEADS, "wide", ("cross_entropy", 5, features))
    batch = make_batch("wide", 4000, 1e-5)
    value, slopes, ratio = exact(batch, "wide", "hessian_gradient")
    assert ratio < 1e-11
    for evaluation in ("auto", "primal"):
        for found, found_slopes in measured(batch, "wide", "hessian_gradient", evaluation):
            assert found == pytest.approx(value, rel=1e-4)
            for ours, theirs in zip(found_slopes, slopes, strict=True):
                assert (ours - theirs).norm() <= 1e-6 * theirs.norm()


@pytest.mark.parametrize("offset", [0, 30, 300])
@pytest.mark.parametrize("evaluation", ["primal", "dual"])
@pytest.mark.parametrize("quantity", ["gradient", "hessian_diagonal", "hessian"])
def test_few_samples_of_features_far_from_zero(quantity, evaluation, offset):
    """Two samples per domain: no rounding error of one is averaged out by others."""
    generator = torch.Generator().manual_seed(0)
    common = torch.randn(2, 3, generator=generator)
    z = offset + torch.cat([common, common + 3e-5 * torch.randn(2, 3, generator=generator)])
    logits = torch.randn(2, 5, generator=generator).repeat(2, 1)
    logits[2:] += 3e-5 * torch.randn(2, 5, generator=generator)
    batch = Batch(z, logits, torch.tensor([1, 4, 1, 4]), torch.tensor([0, 0, 1, 1]))
    value, slopes, ratio = exact(batch, "softmax", quantity)
    assert ratio < 1e-9
    for found, found_slopes in measured(batch, "softmax", quantity, evaluation):
        assert found == pytest.approx(value, rel=TOLERANCE)
        for ours, theirs in zip(found_slopes, slopes, strict=True):
            assert (ours - theirs).norm() <= TOLERANCE * theirs.norm()


def extended_binary(z, logits, y, quantity):
    """One domain's gradient, diagonal or Hessian of a binary head, in extended precision."""
    z = np.concatenate([z, np.ones_like(z[:, :1])], axis=1)
    p = 1 / (1 + np.exp(-logits))
    if quantity == "gradient":
        return ((p - y)[:, None] * z).mean(0)
    if quantity == "hessian_diagonal":
        return ((p * (1 - p))[:, None] * z * z).mean(0)
    return ((p * (1 - p))[:, None, None] * z[:, :, None] * z[:, None, :]).mean(0)


@pytest.mark.skipif(np.finfo(np.longdouble).eps > 1e-18, reason="no extended precision here")
@pytest.mark.parametrize("disturbance", [1e-3, 1e-7, 1e-11])
@pytest.mark.parametrize("quantity", ["gradient", "hessian_diagonal", "hessian"])
def test_primal_subtracts_the_means_before_it_squares(quantity, disturbance):
    """A dispersion of 1e-22 of the squared norm keeps four digits in float64."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(50, 6, generator=generator, dtype=torch.float64)
    z = torch.cat([z, z + disturbance * torch.randn(50, 6, generator=generator).double()])
    logits = z @ torch.randn(6, generator=generator, dtype=torch.float64)
    y = torch.randint(2, (50,), generator=generator).repeat(2)
    domain = torch.arange(2).repeat_interleave(50)
    exact = [
        extended_binary(
            *(x[domain == e].numpy().astype(np.longdouble) for x in (z, logits, y)), quantity
        )
        for e in (0, 1)
    ]
    distance = np.sqrt(((exact[0] - exact[1]) ** 2).sum())
    head = linear_head(z, logits, y, domain, loss="binary")
    value = quantity_dispersion(head, quantity, "primal")
    assert value.item() == pytest.approx(float(distance**2) / 4, rel=1e-4)
    found = distances(inner_products(head, quantity, "primal", centred=True))
    assert found[0, 1].item() == pytest.approx(float(distance), rel=1e-4)


def test_float32_alone_would_not_do():
    """The plain float32 computation of the same thing is wrong by far more than the tolerance."""
    batch, (value, _, _) = near("binary", 600, "hessian", 1e-8)
    plain = oracles.dense_hessian(batch, loss="binary").flatten(1)
    inner = plain @ plain.T
    assert abs(dispersion(inner).item() / value - 1) > 10 * TOLERANCE


@pytest.mark.parametrize("margin", [0, 10, 20])
@pytest.mark.parametrize("field", ["hvp", "hgp", "gradient", "diagonal", "hessian"])
def test_fields_of_confident_predictions(field, margin):
    """Where p is nearly one-hot, S = diag(p) − p pᵀ is tiny, a difference of numbers near 1."""
    batch = make_batch("softmax", 32, None)
    confident = batch.logits + margin * torch.nn.functional.one_hot(batch.y, 5)
    low, high = (
        linear_head(batch.z.to(dtype), confident.to(dtype), batch.y, batch.domain)
        for dtype in (torch.float32, torch.float64)
    )
    vectors = torch.randn(3, 1, high.num_parameters, dtype=torch.float64)
    if field == "hvp":
        found, expected = low.hvp(vectors), torch.einsum("epq,moq->mep", high.hessian, vectors)
    elif field == "hgp":
        expected = torch.einsum("epq,eq->ep", high.hessian, high.gradient)
        found = low.hgp
    else:
        found, expected = getattr(low, field), getattr(high, field)
    assert (found - expected).norm() <= TOLERANCE * expected.norm()


@pytest.mark.parametrize("ratio", [1e-2, 1e-8])
@pytest.mark.parametrize("classes", [7, 40])
@pytest.mark.parametrize("features", [300, 2048])
def test_wide_heads(features, classes, ratio):
    """As many features as networks have; the reference is the same sum in float64."""
    generator = torch.Generator().manual_seed(0)
    common = torch.randn(32, features, generator=generator).relu()
    weight = torch.randn(classes, features, generator=generator) / features**0.5
    noise = [torch.randn(32, features, generator=generator) for _ in range(3)]
    z = torch.cat([common + ratio**0.5 * each for each in noise])
    y = torch.randint(classes, (32,), generator=generator).repeat(3)
    domain = torch.arange(3).repeat_interleave(32)
    logits = z @ weight.T
    found, expected = (
        (
            terms := HessianAlignment(1.0, 1.0)(*inputs, y, domain),
            torch.autograd.grad(terms.hessian, inputs, retain_graph=True),
            torch.autograd.grad(terms.gradient, inputs),
        )
        for inputs in (
            [x.to(dtype).requires_grad_() for x in (z, logits)]
            for dtype in (torch.float32, torch.float64)
        )
    )
    for name in ("hessian", "gradient"):
        value, wanted = getattr(found[0], name).item(), getattr(expected[0], name).item()
        assert value == pytest.approx(wanted, rel=1e-5)
    for ours, theirs in zip((*found[1], *found[2]), (*expected[1], *expected[2]), strict=True):
        assert (ours - theirs).norm() <= TOLERANCE * theirs.norm()


def test_float64_products_only_where_domains_nearly_agree(monkeypatch):
    """Products in the features' precision serve far from alignment, and are made again near it."""
    made = []
    plain = gram.multiply

    def spy(z, bias, dtype):
        made.append(dtype)
        return plain(z, bias, dtype)

    monkeypatch.setattr(gram, "multiply", spy)
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(40, 600, generator=generator).relu()
    logits = torch.randn(40, 5, generator=generator)
    domain = torch.arange(2).repeat_interleave(20)
    twice = torch.cat([z[:20], z[:20] + 1e-5]), torch.cat([logits[:20], logits[:20] + 1e-5])
    rough, exact = torch.float32, torch.float64
    for (features, outputs), expected in (((z, logits), [rough]), (twice, [rough, exact])):
        made.clear()
        head = linear_head(features, outputs, None, domain)
        quantity_dispersion(head, "hessian", "dual")
        assert made == expected
