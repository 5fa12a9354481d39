"""One holder of a head's samples: its risks, gaps and statistics are those of the definition."""

import pytest
import torch
from tests import oracles
from tests.transfer_problems import classification, regression

from hessalign import domain_layout
from hessalign.curvature import make_loss
from hessalign.heads.samples import make_samples

LOSSES = ("cross_entropy", "binary", "squared")


def samples_of(loss, **options):
    problem = regression(0) if loss == "squared" else classification(0, loss)
    return problem, make_samples(*problem.arguments, make_loss(loss), **options)


def expected_risk(problem, theta, e, l2, bias, free):
    rows = problem.domain == e
    logits = oracles.augmented(problem.z[rows], bias) @ theta.T
    held = theta[:, :-1] if bias and free else theta
    losses = oracles.losses(logits, problem.y[rows], problem.loss)
    return losses.mean() + l2 / 2 * held.square().sum()


@pytest.mark.parametrize("free", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("loss", LOSSES)
def test_risk_and_gradient_of_several_heads(loss, bias, free):
    problem, samples = samples_of(loss, bias=bias, l2=0.3, free_bias=free)
    points = torch.randn(3, samples.num_parameters, dtype=torch.float64)
    risks, gradients = samples.risk_and_gradient(points, 1)
    for point, risk, gradient in zip(points, risks, gradients, strict=True):
        theta = point.view(samples.shape).clone().requires_grad_()
        expected = expected_risk(problem, theta, 1, 0.3, bias, free)
        (slope,) = torch.autograd.grad(expected, theta)
        assert float(risk) == pytest.approx(float(expected.detach()))
        assert torch.allclose(gradient, slope.flatten())
    assert torch.equal(samples.risk(points, 1), risks)


def test_gaps_are_differences_of_risks():
    _, samples = samples_of("cross_entropy", l2=0.3)
    points = torch.randn(2, samples.num_parameters, dtype=torch.float64)
    pairs = torch.tensor([[0, 1], [1, 0]])
    first, second = (samples.risk_and_gradient(points, e) for e in (0, 1))
    values, gradients = samples.gap(points, pairs)
    signs = torch.tensor([1, -1])
    assert torch.allclose(values, signs * (first[0] - second[0]))
    assert torch.allclose(gradients, signs.unsqueeze(1) * (first[1] - second[1]))


@pytest.mark.parametrize("loss", LOSSES)
def test_statistics_of_all_domains_and_of_one(loss):
    problem, samples = samples_of(loss)
    point = torch.randn(samples.num_parameters, dtype=torch.float64)
    logits = samples.features @ point.view(samples.shape).T
    together = samples.statistics(logits)
    for e in range(2):
        alone = samples.domain_statistics(point, e)
        assert torch.allclose(together.gradient[e], alone.gradient[0])
        assert torch.allclose(together.hessian[e], alone.hessian[0])
        risk = samples.risk(point.unsqueeze(0), e)
        assert float(alone.risk) == pytest.approx(float(risk))
    assert problem.z.shape[1] + 1 == samples.shape[1]


def test_domains_in_any_order_are_arranged_and_batches_keep_them():
    z, y = torch.arange(12.0).view(6, 2), torch.tensor([0, 1, 0, 1, 0, 1])
    samples = make_samples(z, y, torch.tensor([5, 2, 5, 2, 5, 5]), make_loss("cross_entropy"))
    assert samples.ids == (2, 5)
    assert [len(features) for features, _ in samples.parts] == [2, 4]
    batch = samples.batch(50, torch.Generator().manual_seed(0))
    assert batch.ids == (2, 5)
    for (features, targets), rows in zip(batch.parts, ([1, 3], [0, 2, 4, 5]), strict=True):
        drawn = (features[:, 0] / 2).long()
        assert len(features) == 50
        assert drawn.unique().tolist() == rows
        assert torch.equal(targets, y[drawn])


@pytest.mark.parametrize("grouped", [domain_layout, lambda ids: tuple(ids.bincount().tolist())])
def test_layouts_and_sizes_stand_for_ids(grouped):
    problem, by_ids = samples_of("cross_entropy")
    z, y, ids = (each[problem.domain.argsort(stable=True)] for each in problem.arguments)
    samples = make_samples(z, y, grouped(ids), make_loss("cross_entropy"))
    assert (samples.ids, samples.domains.sizes) == (by_ids.ids, by_ids.domains.sizes)
    assert torch.equal(samples.features, by_ids.features)
    mixed = make_samples(*problem.arguments[:2], domain_layout(problem.domain), samples.loss)
    assert torch.equal(mixed.targets, by_ids.targets)
    with pytest.raises(ValueError, match=r"domains of \d+ samples in all, one per row of z"):
        make_samples(z[1:], y[1:], grouped(ids), samples.loss)


def test_one_domain_unless_told_otherwise():
    samples = make_samples(torch.ones(3, 2), torch.tensor([0, 1, 1]), None, make_loss("binary"))
    assert samples.ids == (0,)
    # At zero each error is ½, and each z̃ = (1, 1, 1).
    assert samples.typical_gradient == pytest.approx(3**0.5 / 2)
    assert samples.accuracy(torch.tensor([1.0, 0.0, 0.0])).tolist() == [pytest.approx(2 / 3)]


def test_precision_follows_from_the_features_or_is_asked_for():
    samples = make_samples(torch.ones(3, 2).half(), torch.zeros(3), None, make_loss("squared"))
    assert samples.features.dtype == torch.float32
    assert samples.to(torch.float64).features.dtype == torch.float64
    assert samples.to(torch.float32) is samples
    assert samples.accuracy(torch.zeros(3)) is None


def test_logits_that_overflow_are_named():
    _, samples = samples_of("cross_entropy")
    huge = torch.full((samples.num_parameters,), 1e308, dtype=torch.float64)
    with pytest.raises(ValueError, match="Expected finite logits"):
        samples.domain_statistics(huge, 0)
