"""Head, spectral distances, losses across domains, and bounds."""

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from tests.diagnosis_data import alike, shifted
from torch.nn.functional import cross_entropy

import hessalign as ha
from hessalign.diagnosis import diagnose
from hessalign.diagnosis.draw import draw_samples
from hessalign.diagnosis.heads import _rank_correlation
from hessalign.diagnosis.text import render_diagnosis_json


@pytest.fixture(scope="module")
def found():
    z, y, domain = shifted("correlation", samples=400)
    return diagnose(z, y, domain, domain_names=["a", "b", "c", "target"]), (z, y, domain)


def test_the_fitted_head_is_at_its_optimum(found):
    head = found[0].head
    assert head.origin == "fitted"
    assert head.at_optimum
    assert head.relative < 1e-4
    assert head.best is None


def test_a_head_that_is_not_at_its_optimum_is_measured_and_said():
    z, y, domain = shifted("diversity", samples=100)
    z, layer = z.double(), torch.nn.Linear(10, 2).double()
    report = diagnose(z, y, domain, head=layer, trained_on=[0, 1])
    sources = domain < 2
    logits = layer(z[sources])
    loss = cross_entropy(logits, y[sources])
    gradients = torch.autograd.grad(loss, [layer.weight, layer.bias])
    norm = float(torch.cat([g.flatten() for g in gradients]).norm())
    assert report.head.gradient_norm == pytest.approx(norm, rel=1e-6)
    assert report.head.objective == pytest.approx(float(loss.detach()))
    assert report.head.domains == ("0", "1")
    assert not report.head.at_optimum
    assert report.head.best < report.head.objective
    assert any("not at the best of its own" in note for note in report.notes)
    wanted = ha.hessian_distance(z, layer(z).detach(), domain)
    torch.testing.assert_close(report.distances.hessian.measured, wanted)


def test_spectral_distances_are_those_of_the_public_function(found):
    report, (z, _, domain) = found
    scaled = (z - z.mean(0)) / z.std(0, correction=0)
    theta = report.head.parameters
    logits = scaled.double() @ theta[:, :-1].T + theta[:, -1]
    wanted = ha.hessian_distance(scaled, logits, domain, norm="spectral")
    for entry in report.spectral.distances:
        assert entry.measured == pytest.approx(float(wanted[entry.pair]), rel=1e-4)
        assert entry.low <= entry.measured
        assert entry.low <= entry.high


def test_equal_domains_have_spectral_distances_of_noise_only():
    told = 0
    for seed in range(10):
        z, y, domain = alike(2, 200, 4, seed=seed)
        (entry,) = diagnose(z, y, domain).spectral.distances
        told += entry.low > 0
        assert entry.measured == pytest.approx(entry.noise, rel=1.0)
    assert told <= 2


def test_losses_across_domains_and_their_correlation(found):
    report, _ = found
    crossing = report.crossing
    assert crossing.regret.diagonal().abs().max() == 0
    assert (crossing.regret[:3, 3] > 0.2).all()
    upper = np.triu_indices(4, 1)
    distance = report.distances.hessian.measured.numpy()[upper]
    regret = ((crossing.regret + crossing.regret.T) / 2).numpy()[upper]
    assert crossing.correlation == pytest.approx(spearmanr(distance, regret).statistic)
    assert crossing.low <= crossing.correlation <= crossing.high
    # 4 domains have 24 orders.
    assert crossing.p_value * 24 == pytest.approx(round(crossing.p_value * 24))
    assert crossing.p_value >= 1 / 24


@pytest.mark.parametrize("ties", [False, True])
def test_rank_correlation_is_spearmans(ties):
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(2, 30))
    if ties:
        first, second = first.round(), second.round()
    assert _rank_correlation(first, second) == pytest.approx(spearmanr(first, second).statistic)
    assert _rank_correlation(np.ones(4), second[:4]) is None
    assert _rank_correlation(np.array([np.nan, 1.0]), second[:2]) is None


def test_bounds_are_those_of_theorem_1():
    z, y, domain = shifted("diversity", domains=2, samples=40)
    report = diagnose(z, y, domain, l2=0.1, tolerance=0.02)
    draw = draw_samples(z, y, domain)
    half = draw.half
    for entry in report.bounds.pairs:
        wanted = ha.transfer_bound(
            draw.z[half],
            draw.y[half],
            draw.domain[half],
            source=entry.source,
            target=entry.target,
            tolerance=0.02,
            l2=0.1,
        )
        assert entry.value == pytest.approx(wanted.value, rel=1e-3)
        assert entry.remainder == pytest.approx(wanted.remainder, rel=1e-3)
        assert entry.hessian_term == pytest.approx(wanted.hessian_term, rel=1e-3)
    assert len(report.bounds.pairs) == 6


def test_the_verdict_names_the_site_that_fails(found):
    assert found[0].verdict.holds == "no"
    assert "at “target” a model of the other sites is right in" in found[0].verdict.headline


def test_seeds_determine_everything():
    z, y, domain = shifted("label", domains=1, samples=60)
    first, second, other = (diagnose(z, y, domain, samples=30, seed=seed) for seed in (1, 1, 2))
    torch.testing.assert_close(first.distances.hessian.low, second.distances.hessian.low)
    assert first.transfer == second.transfer
    assert first.remedies == second.remedies
    assert not torch.equal(first.distances.hessian.measured, other.distances.hessian.measured)


@pytest.mark.slow
def test_sizes_of_contiguous_sites_stand_for_ids():
    z, y, domain = alike(3, 20, 2, classes=2)
    by_ids, by_sizes = (diagnose(z, y, each, l2=0.1) for each in (domain, (20, 20, 20)))
    assert render_diagnosis_json(by_ids) == render_diagnosis_json(by_sizes)
