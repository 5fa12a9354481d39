"""Synthetic shifts: the invariant predictor holds everywhere, plain training fails."""

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from hessalign.bench.data import make_shifted_data

SHIFTS = ["correlation", "diversity", "label"]


def fit(domains):
    """Logistic regression on all domains together."""
    x = torch.cat([d.x for d in domains]).double()
    y = torch.cat([d.y for d in domains]).double()
    theta = torch.zeros(x.shape[1] + 1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([theta], max_iter=100)

    def closure():
        optimizer.zero_grad()
        loss = binary_cross_entropy_with_logits(x @ theta[:-1] + theta[-1], y)
        loss = loss + 1e-3 * theta.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return theta.detach()


def accuracy(theta, domain):
    predicted = domain.x.double() @ theta[:-1] + theta[-1] > 0
    return float((predicted.long() == domain.y).double().mean())


@pytest.mark.parametrize("domains", [2, 5])
@pytest.mark.parametrize("shift", SHIFTS)
def test_plain_training_fails_where_the_invariant_predictor_does_not(shift, domains):
    data = make_shifted_data(shift, 0, samples=2000, domains=domains)
    assert len(data.source) == domains
    for domain in (*data.source, data.target):
        # Φ(1) = 0.841 by construction; the tolerance is four standard errors.
        assert data.invariant_accuracy(domain) == pytest.approx(0.8413, abs=0.033)
    pooled = fit(data.source)
    assert min(accuracy(pooled, domain) for domain in data.source) > 0.8
    # Under diversity shift the target's direction is random and may lie near one of the sources'.
    gap = 0.05 if shift == "diversity" else 0.2
    assert accuracy(pooled, data.target) < 0.8413 - gap


@pytest.mark.parametrize("shift", SHIFTS)
def test_without_strength_the_target_is_one_of_them(shift):
    data = make_shifted_data(shift, 0, samples=3000, strength=0.0)
    pooled = fit(data.source)
    inside = sum(accuracy(pooled, domain) for domain in data.source) / len(data.source)
    assert accuracy(pooled, data.target) == pytest.approx(inside, abs=0.03)


def test_label_shift_changes_only_the_frequency_of_classes():
    data = make_shifted_data("label", 1, samples=4000)
    first, last = data.source
    assert float(first.y.float().mean()) == pytest.approx(0.95, abs=0.02)
    assert float(last.y.float().mean()) == pytest.approx(0.75, abs=0.03)
    assert float(data.target.y.float().mean()) == pytest.approx(0.1, abs=0.02)
    means = [d.x[d.y == 1].mean(0) for d in (first, last)]
    assert torch.allclose(means[0], means[1], atol=0.12)


def test_the_seed_determines_everything():
    first, again, other = (make_shifted_data("diversity", seed, samples=9) for seed in (3, 3, 4))
    assert torch.equal(first.target.x, again.target.x)
    assert torch.equal(first.weights, again.weights)
    assert not torch.equal(first.target.x, other.target.x)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"shift": "corelation"}, r"Unknown shift 'corelation'.*Did you mean 'correlation'"),
        ({"samples": 0}, "Expected samples of 1 or more, got 0"),
        ({"domains": 0}, "Expected domains of 1 or more, got 0"),
        ({"strength": 1.5}, r"Expected strength from 0 to 1, got 1\.5"),
    ],
)
def test_mistakes_are_named(arguments, text):
    with pytest.raises(ValueError, match=text):
        make_shifted_data(**{"shift": "label", "seed": 0, **arguments})
