"""Remedies: each does what it says, choices are made without the site, and luck is not named."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tests.diagnosis_data import alike, shifted

from hessalign.diagnosis.preparation import standardised
from hessalign.diagnosis.remedies import (
    REMEDIES,
    STRENGTHS,
    RemedyModels,
    Trial,
    _AlignedHeads,
    recommend,
    remedy_report,
    reweighted,
)
from hessalign.diagnosis.scores import Estimate
from hessalign.diagnosis.transfer import Sites, transfer_report


def _tried(z, y, domain, classes, sites=None):
    return remedy_report(RemedyModels(Sites(z, y, domain, classes)), sites)


def _trials(report):
    return {trial.remedy: trial for trial in report.trials}


def test_nothing_helps_where_sites_are_alike():
    report = _tried(*alike(4, 120, 4, 2), classes=2)
    assert report.recommended == "nothing"
    assert report.left_out is None
    assert tuple(trial.remedy for trial in report.trials) == REMEDIES
    nothing = report.trials[0]
    assert nothing.gain == Estimate(0, 0, 0)
    for trial in report.trials:
        assert trial.accuracy == pytest.approx(np.mean(trial.sites))
        assert trial.gain.value == pytest.approx(trial.accuracy - nothing.accuracy)
        assert trial.scores["accuracy"] == trial.accuracy
        assert trial.gain.low <= trial.gain.value <= trial.gain.high


@pytest.mark.slow
def test_offsets_want_standardising_and_it_is_a_refit_by_hand():
    z, y, domain = alike(4, 80, 4)
    z += 3 * torch.randn(4, 4, generator=torch.Generator().manual_seed(0))[domain]
    report = _tried(z, y, domain, classes=3)
    assert report.recommended == "standardise"
    by_site = np.empty_like(z.numpy())
    for e in range(4):
        mine = (domain == e).numpy()
        by_site[mine] = StandardScaler().fit_transform(z[mine].numpy())
    for e, found in enumerate(_trials(report)["standardise"].sites):
        test = (domain == e).numpy()
        model = make_pipeline(StandardScaler(), LogisticRegression())
        model.fit(by_site[~test], y[~test].numpy())
        assert found == pytest.approx(model.score(by_site[test], y[test].numpy()))


def test_standardising_by_site_skips_what_is_missing():
    z = torch.tensor([[1.0, 5.0], [float("nan"), 5.0], [3.0, 5.0], [0.0, 1.0], [4.0, float("nan")]])
    domain = torch.tensor([0, 0, 0, 1, 1])
    found = standardised(z, domain)
    for e in (0, 1):
        wanted = StandardScaler().fit_transform(z[domain == e].numpy())
        np.testing.assert_allclose(found[domain == e], wanted, atol=1e-6)


def _em_by_hand(p, prior, steps=500):
    """Sample by sample, class by class."""
    shares = list(prior)
    for _ in range(steps):
        rows = []
        for row in p:
            terms = [
                value * now / then for value, now, then in zip(row, shares, prior, strict=True)
            ]
            rows.append([term / sum(terms) for term in terms])
        shares = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    return np.array(rows), shares


def test_weights_are_those_of_expectation_maximisation():
    generator = torch.Generator().manual_seed(0)
    p = torch.randn(60, 3, generator=generator).double().softmax(1)
    prior = p.mean(0).roll(1)
    wanted, _ = _em_by_hand(p.tolist(), prior.tolist())
    np.testing.assert_allclose(reweighted(p.unsqueeze(0), prior)[0], wanted, atol=5e-3)


def test_shares_are_found_without_labels_and_classes_not_seen_stay_out():
    generator = torch.Generator().manual_seed(0)
    y = (torch.rand(4000, generator=generator) < 0.9).long()
    x = 2.0 * y - 1 + torch.randn(4000, generator=generator)
    p = torch.stack([torch.zeros(4000), (-2 * x).sigmoid(), (2 * x).sigmoid()], dim=1).double()
    found = reweighted(p.unsqueeze(0), torch.tensor([0.0, 0.5, 0.5]).double())[0]
    assert found.mean(0).tolist() == pytest.approx([0, 0.1, 0.9], abs=0.02)


def test_label_shift_wants_weights():
    generator = torch.Generator().manual_seed(0)
    domain = torch.arange(4).repeat_interleave(200)
    y = (torch.rand(800, generator=generator) < torch.tensor([0.1, 0.9, 0.15, 0.85])[domain]).long()
    z = torch.randn(800, 3, generator=generator) + y.unsqueeze(1)
    report = _tried(z, y, domain, classes=2)
    assert report.recommended == "weights"
    assert _trials(report)["weights"].gain.low > 0


def test_a_site_with_wrong_labels_is_left_out():
    z, y, domain = alike(4, 120, 4)
    y[domain == 1] = (y[domain == 1] + 1) % 3
    report = _tried(z, y, domain, classes=3)
    assert (report.recommended, report.left_out) == ("leave_out", 1)
    trial = _trials(report)["leave_out"]
    assert trial.choices == (1, None, 1, 1)
    # What it is without that site, by hand.
    train, test = (domain == 2) | (domain == 3), domain == 0
    model = make_pipeline(StandardScaler(), LogisticRegression())
    model.fit(z[train].numpy(), y[train].numpy())
    assert trial.sites[0] == pytest.approx(model.score(z[test].numpy(), y[test].numpy()))


@pytest.mark.slow
def test_choices_do_not_know_the_site_left_out():
    z, y, domain = shifted("correlation", samples=80)
    wrong = torch.where(domain == 3, 1 - y, y)
    first, second = (_trials(_tried(z, each, domain, classes=2, sites=[3])) for each in (y, wrong))
    for remedy in ("leave_out", "align"):
        assert first[remedy].choices == second[remedy].choices
        assert first[remedy].sites[0] == pytest.approx(1 - second[remedy].sites[0])
    assert set(first["align"].choices) <= set(STRENGTHS)


def test_models_answer_for_any_batch_of_a_site():
    z, y, domain = alike(4, 60, 3)
    data = Sites(z, y, domain, 3)
    models, plain = RemedyModels(data), data.unseen(2)
    batch = z[domain == 2][:20] + 1
    models._choices.update({("leave_out", 2): None, ("align", 2): 0.0, ("leave_out", 1): 3})
    for remedy in ("nothing", "leave_out", "align"):
        np.testing.assert_array_equal(models.answer(remedy, 2, batch), plain.alone().answer(batch))
    without = data.unseen(1, 3).alone().answer(batch)
    np.testing.assert_array_equal(models.answer("leave_out", 1, batch), without)
    weighted = reweighted(plain.alone().answer(batch), plain.shares)
    np.testing.assert_array_equal(models.answer("weights", 2, batch), weighted)
    # A move of the batch is lost on a model of standardised features.
    first, second = (models.answer("standardise", 2, each) for each in (batch, batch + 5))
    np.testing.assert_allclose(first, second, atol=1e-9)
    assert len(models.answer("standardise", 2, batch, replicates=True)) > 1


def test_the_plain_model_is_the_one_that_was_tested():
    data = Sites(*alike(4, 40, 3), 3)
    tested = [site.unseen["accuracy"].value for site in transfer_report(data).sites]
    assert remedy_report(RemedyModels(data)).trials[0].sites == pytest.approx(tested)


def test_no_strength_is_tried_beyond_one_that_loses(monkeypatch):
    gains, tried = {}, []

    def right(heads, place, z, y):
        tried.append(place)
        return torch.arange(len(y)).double() % 2 * 1e-3 + gains[place]

    monkeypatch.setattr(_AlignedHeads, "right", right)
    models = RemedyModels(Sites(*alike(4, 40, 3), 3))
    for values, chosen, last in [
        ((0.0, 0.1, 0.2, 0.3), 10.0, 3),
        ((0.0, 0.1, -0.2, 0.3), 0.1, 2),
        ((0.0, -0.1, 0.2, 0.3), 0.0, 1),
        ((0.0, 0.0, 0.2, 0.1), 1.0, 3),
    ]:
        gains.update(enumerate(values))
        tried.clear()
        assert (models._strength(0), max(tried)) == (chosen, last)


def test_few_sites_try_what_they_can():
    assert tuple(_trials(_tried(*alike(2, 40, 3), classes=3))) == REMEDIES[:3]
    three = _trials(_tried(*alike(3, 40, 3), classes=3))
    assert "leave_out" not in three
    assert three["align"].choices == (1.0, 1.0, 1.0)


@pytest.mark.slow
def test_odd_data_do_no_harm():
    z, y, domain = alike(5, 24, 3)
    z[:, 0] = 2.0
    z[::5, 1] = float("nan")
    y[domain == 1] = 0
    y[domain != 0] = y[domain != 0].clamp_max(1)
    keep = (domain != 4) | (torch.arange(120) < 100)
    report = _tried(z[keep], y[keep], domain[keep], classes=3)
    assert all(0 <= value <= 1 for trial in report.trials for value in trial.sites)


def _trial(remedy, gain, half):
    return Trial(remedy, 0.8 + gain, Estimate(gain, gain - half, gain + half), (), {})


@pytest.mark.parametrize(
    ("gains", "errors", "wanted"),
    [
        ((0.0, 0.012), (0.0, 0.01), "nothing"),  # luck
        ((0.0, 0.03), (0.0, 0.01), "standardise"),
        ((0.0, 0.03, 0.034), (0.0, 0.01, 0.01), "standardise"),  # as good, and simpler
        ((0.0, 0.03, 0.05), (0.0, 0.01, 0.01), "weights"),
        ((0.0, 0.03, 0.05), (0.0, 0.01, 0.06), "standardise"),
        ((0.0, 0.004), (0.0, 0.001), "nothing"),  # not worth it
    ],
)
def test_the_rule(gains, errors, wanted):
    trials = [
        _trial(REMEDIES[i], gain, 2 * error)
        for i, (gain, error) in enumerate(zip(gains, errors, strict=True))
    ]
    assert recommend(trials, errors) == wanted


def test_a_gain_that_most_sites_lose_by_is_not_named():
    trials = [_trial("nothing", 0.0, 0.0), _trial("align", 0.02, 0.2)]
    assert recommend(trials, [0.0, 0.005]) == "nothing"
