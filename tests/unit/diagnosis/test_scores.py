"""Metrics are those of scikit-learn, weighted or not; intervals behave."""

import numpy as np
import pytest
import torch
from sklearn import metrics

from hessalign.diagnosis.scores import judge, mean_scores, scores


def _said(n, classes, seed=0, ties=False):
    generator = torch.Generator().manual_seed(seed)
    p = (2 * torch.randn(n, classes, generator=generator)).double().softmax(1)
    if ties:
        p = (p * 4).round().clamp_min(0.5)
        p /= p.sum(1, keepdim=True)
    return p, torch.randint(classes, (n,), generator=generator)


def _ece(p, y, w):
    """By definition, one bin after another."""
    sure, right = p.max(1), p.argmax(1) == y
    total = 0.0
    for k in range(10):
        inside = (sure >= k / 10) & ((sure < (k + 1) / 10) | (k == 9))
        if inside.any():
            share = w[inside].sum() / w.sum()
            gap = np.average(right[inside], weights=w[inside]) - np.average(
                sure[inside], weights=w[inside]
            )
            total += share * abs(gap)
    return total


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("ties", [False, True])
def test_metrics_are_those_of_scikit_learn(classes, ties):
    p, y = _said(70, classes, ties=ties)
    weights = torch.empty(3, 70, dtype=torch.float64).exponential_()
    found = scores(p.unsqueeze(0), y, weights)
    q, truth = p.numpy(), y.numpy()
    for i, w in enumerate(weights.numpy()):
        wanted = {
            "accuracy": metrics.accuracy_score(truth, q.argmax(1), sample_weight=w),
            "balanced_accuracy": metrics.balanced_accuracy_score(
                truth, q.argmax(1), sample_weight=w
            ),
            "auc": metrics.roc_auc_score(truth, q[:, 1], sample_weight=w)
            if classes == 2
            else metrics.roc_auc_score(truth, q, sample_weight=w, multi_class="ovr"),
            "log_loss": metrics.log_loss(truth, q, sample_weight=w),
            "calibration_error": _ece(q, truth, w),
        }
        assert {name: float(found[name][i]) for name in found} == pytest.approx(wanted)


def test_several_models_are_judged_one_by_one():
    (p, y), (q, _) = _said(40, 3), _said(40, 3, seed=1)
    both = scores(torch.stack([p, q]), y)
    for i, each in enumerate((p, q)):
        alone = scores(each.unsqueeze(0), y)
        assert {n: float(v[i]) for n, v in both.items()} == pytest.approx(
            {n: float(v) for n, v in alone.items()}
        )


def test_what_does_not_exist_is_missing():
    p, _ = _said(20, 3)
    two = scores(p.unsqueeze(0), torch.arange(20) % 2)
    assert "auc" not in two
    assert "balanced_accuracy" in two
    one = scores(p.unsqueeze(0), torch.ones(20).long())
    assert set(one) == {"accuracy", "log_loss", "calibration_error"}


def test_a_probability_of_nothing_costs_a_finite_loss():
    p = torch.tensor([[[1.0, 0.0]]])
    assert float(scores(p, torch.tensor([1]))["log_loss"]) == pytest.approx(36.04, abs=0.01)


def test_intervals_of_a_fixed_model_are_wilsons():
    p, y = _said(100, 2)
    found = judge(p.expand(6, -1, -1), y, torch.Generator().manual_seed(0))
    estimate = found.estimates()["accuracy"]
    from scipy.stats import binomtest

    right = int((p.argmax(1) == y).sum())
    wanted = binomtest(right, 100).proportion_ci(method="wilson")
    assert estimate.value == pytest.approx(right / 100)
    assert estimate.low == pytest.approx(wanted.low, abs=0.015)
    assert estimate.high == pytest.approx(wanted.high, abs=0.015)


def test_all_right_is_not_certain():
    p = torch.tensor([[0.9, 0.1], [0.1, 0.9]] * 5).double()
    y = torch.tensor([0, 1] * 5)
    found = judge(p.expand(4, -1, -1), y, torch.Generator().manual_seed(0))
    accuracy = found.estimates()["accuracy"]
    assert accuracy.value == accuracy.high == pytest.approx(1)
    assert accuracy.low == pytest.approx(10 / (10 + 1.96**2), abs=1e-6)
    drop = found.less(found).estimates(difference=True)["accuracy"]
    assert drop.low < 0 < drop.high


def test_fits_that_differ_widen_the_interval():
    p, y = _said(100, 2)
    generator = torch.Generator().manual_seed(0)
    replicates = torch.where(torch.rand(20, 100, 1, generator=generator) < 0.5, p, p.flip(1))
    replicates[:10] = p
    still = judge(p.expand(21, -1, -1), y, torch.Generator().manual_seed(0)).estimates()
    said = torch.cat([p.unsqueeze(0), replicates])
    moving = judge(said, y, torch.Generator().manual_seed(0)).estimates()
    for name in ("auc", "log_loss"):
        assert moving[name].high - moving[name].low > still[name].high - still[name].low


def test_means_are_over_the_sites_that_have_a_metric():
    first, second = (
        judge(p.expand(5, -1, -1), y, torch.Generator().manual_seed(0))
        for p, y in ((_said(30, 2)[0], torch.zeros(30).long()), _said(50, 2, seed=1))
    )
    mean = mean_scores([first, second]).estimates()
    parts = [each.estimates() for each in (first, second)]
    assert mean["auc"].value == parts[1]["auc"].value
    wanted = (parts[0]["accuracy"].value + parts[1]["accuracy"].value) / 2
    assert mean["accuracy"].value == pytest.approx(wanted)
    # Two sites are surer than each of them.
    widths = [each["accuracy"].high - each["accuracy"].low for each in (*parts, mean)]
    assert widths[2] < max(widths[:2])
