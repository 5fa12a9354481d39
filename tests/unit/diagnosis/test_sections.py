"""Head, spectral distances, losses across domains, bounds and domains held out."""

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from tests.diagnosis_data import alike, shifted
from torch.nn.functional import cross_entropy

import hessalign as ha
from hessalign.curvature import make_loss
from hessalign.diagnosis import diagnose, holdout
from hessalign.diagnosis.draw import draw_samples
from hessalign.diagnosis.holdout import _STRENGTHS, holdout_report
from hessalign.diagnosis.single_heads import _rank_correlation


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
    assert any("not at its optimum" in text for text in report.reading.summary)
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
    half = draw.part(0)
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


def test_aligning_helps_where_a_spurious_feature_turns_around(found):
    by_domain = {entry.domain: entry for entry in found[0].holdout.domains}
    target = by_domain[3]
    assert target.plain < 0.6
    assert target.plain < target.others[0] < target.others[1] < target.others[2]
    assert target.others[2] > target.plain + 0.15
    assert target.aligned == target.others[_STRENGTHS.index(target.strength)]
    assert target.strength in _STRENGTHS


def test_the_strength_is_not_chosen_by_the_domain_held_out(monkeypatch):
    z, y, domain = shifted("correlation", samples=120)
    loss = make_loss("cross_entropy")

    def chosen(labels):
        draw = draw_samples(z, labels, domain)
        return holdout_report(draw, loss, 0.01, [3], 0).domains[0]

    wrong = y.clone()
    wrong[domain == 3] = 1 - wrong[domain == 3]
    first, second = chosen(y), chosen(wrong)
    assert first.strength == second.strength
    assert first.aligned == pytest.approx(1 - second.aligned)


def test_two_training_domains_choose_by_samples_kept_aside(monkeypatch):
    z, y, domain = shifted("correlation", domains=2, samples=120)
    fitted = []
    fit = holdout.quick_fit
    monkeypatch.setattr(
        holdout,
        "quick_fit",
        lambda objective, *rest, **options: (
            fitted.append(len(objective.samples.targets)) or fit(objective, *rest, **options)
        ),
    )
    report = holdout_report(draw_samples(z, y, domain), make_loss("cross_entropy"), 0.01, [2], 0)
    assert fitted == [240] * 4 + [192] * 4
    assert "every 5th sample of the training domains" in report.how


def test_samples_to_train_on_and_to_choose_by_keep_the_class_shares(monkeypatch):
    """A draw lists each group's samples by class, so every fifth of them would be of one class."""
    domain = torch.arange(3).repeat_interleave(160)
    y = torch.arange(480) % 160 // 120  # a quarter of each domain has label 1
    z = torch.randn(480, 2) + y.unsqueeze(1)
    seen = []
    fit, test = holdout.quick_fit, holdout._Bench._test
    monkeypatch.setattr(
        holdout,
        "quick_fit",
        lambda objective, *rest, **options: (
            seen.append(objective.samples.targets) or fit(objective, *rest, **options)
        ),
    )
    monkeypatch.setattr(
        holdout._Bench,
        "_test",
        lambda self, head, rows: seen.append(self.draw.y[rows]) or test(self, head, rows),
    )
    monkeypatch.setattr(holdout, "_INNER_TRAINING", 200)
    for seed in range(3):
        draw = draw_samples(z, y, domain, seed=seed)
        holdout_report(draw, make_loss("cross_entropy"), 0.01, [2], 0)
    assert {len(labels) for labels in seen} == {320, 160, 40}
    for labels in seen:
        assert float(labels.double().mean()) == pytest.approx(0.25, abs=0.03)


def test_heads_of_the_other_domains_are_those_of_the_classifier(monkeypatch):
    """The same samples and weights: the first aligned head that was fitted, by both."""
    z, y, domain = shifted("label", domains=3, samples=100)
    fits = []
    fit = holdout.quick_fit
    monkeypatch.setattr(holdout, "_NEAR", 1e-7)

    def record(objective, *rest, **options):
        fits.append((objective.samples, rest, fit(objective, *rest, **options)))
        return fits[-1][-1]

    monkeypatch.setattr(holdout, "quick_fit", record)
    holdout_report(draw_samples(z, y, domain), make_loss("binary"), 0.01, [3], 0)
    samples, (weights, *_), found = fits[1]
    z, y = samples.features[:, :-1].numpy(), samples.targets.numpy()
    domain = np.repeat([0, 1, 2], samples.domains.sizes)
    options = {"alpha": weights.alpha, "beta": weights.beta, "l2": samples.l2, "tol": 1e-7}
    model = ha.AlignedClassifier(standardize=False, **options).fit(z, y, domain)
    wanted = np.c_[model.coef_, model.intercept_]
    np.testing.assert_allclose(found.parameters.numpy(), wanted, atol=1e-3)


def test_the_gain_has_the_spread_of_paired_differences(found):
    for entry in found[0].holdout.domains:
        middle = (entry.low + entry.high) / 2
        assert middle == pytest.approx(entry.aligned - entry.plain)
        # Differences are −1, 0 or 1; their variance is at most 1.
        assert 0 <= entry.high - entry.low <= 2 * 1.96 / entry.samples**0.5


def test_the_odd_one_out_is_the_target(found):
    report = found[0]
    assert report.domains[report.reading.odd_one_out] == "target"
    assert any("“target” is the odd one out" in text for text in report.reading.summary)


def test_seeds_determine_everything():
    z, y, domain = shifted("label", domains=1, samples=60)
    first, second, other = (diagnose(z, y, domain, samples=30, seed=seed) for seed in (1, 1, 2))
    torch.testing.assert_close(first.distances.hessian.low, second.distances.hessian.low)
    assert first.holdout == second.holdout
    assert not torch.equal(first.distances.hessian.measured, other.distances.hessian.measured)
