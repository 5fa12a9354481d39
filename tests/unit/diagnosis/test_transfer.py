"""Sites left out in turn: the same as a refit by hand in scikit-learn, and nothing leaks."""

import numpy as np
import pytest
import torch
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tests.diagnosis_data import alike

from hessalign.diagnosis import diagnose
from hessalign.diagnosis.preparation import first_copies
from hessalign.diagnosis.transfer import NUMBERS, Sites, stratified_folds, transfer_report


def _with_gaps(classes=3, sizes=(60, 50, 40)):
    z, y, _ = alike(1, sum(sizes), 5, classes)
    z = z * torch.tensor([1.0, 10.0, 1.0, 1.0, 0.1]) + torch.tensor([0.0, 100.0, 0.0, 0.0, 0.0])
    generator = torch.Generator().manual_seed(1)
    gaps = torch.rand(z[:, :2].shape, generator=generator) < 0.15
    z[:, :2] = torch.where(gaps, torch.nan, z[:, :2])
    domain = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    z[domain == 1, 4] = torch.nan  # all missing at one site
    return z, y, domain


def _by_hand(z, y, train, test, **options):
    model = make_pipeline(
        SimpleImputer(strategy="median", add_indicator=True),
        StandardScaler(),
        LogisticRegression(**options),
    )
    return model.fit(z[train].numpy(), y[train].numpy()).predict_proba(z[test].numpy())


@pytest.mark.parametrize("classes", [2, 3])
def test_probabilities_are_those_of_the_pipeline(classes):
    z, y, domain = _with_gaps(classes)
    sites = Sites(z, y, domain, classes)
    for e in range(3):
        test = domain == e
        wanted = _by_hand(z, y, ~test, test, tol=1e-12, max_iter=100_000)
        found = sites.unseen(e).answer(z[test])[0]
        np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_a_model_of_a_site_is_not_tested_on_copies_of_what_it_saw():
    generator = torch.Generator().manual_seed(0)
    z, y = torch.randn(80, 40, generator=generator), torch.arange(80) % 2  # nothing to learn
    twice = torch.arange(80).repeat(2)
    domain = torch.arange(2).repeat_interleave(40)[twice]
    report = transfer_report(Sites(z[twice], y[twice], domain, 2))
    assert all(site.within["accuracy"].value < 0.7 for site in report.sites)  # 0.9 by memory


def test_values_that_are_equal_by_chance_are_no_copies():
    z, y, domain = torch.arange(12)[:, None] % 3.0, torch.arange(12) % 2, torch.arange(12) // 6
    assert first_copies(z, y, domain).tolist() == list(range(12))
    gaps = torch.tensor([[0.3, torch.nan], [0.3, torch.nan], [0.3, 0.1]])
    same = torch.zeros(3, dtype=torch.long)
    assert first_copies(gaps, same, same).tolist() == [0, 0, 2]


def test_the_report_is_a_refit_by_hand():
    z, y, domain = _with_gaps()
    report = transfer_report(Sites(z, y, domain, 3))
    assert [entry.domain for entry in report.sites] == [0, 1, 2]
    for entry in report.sites:
        test = domain == entry.domain
        said = _by_hand(z, y, ~test, test)
        truth = y[test].numpy()
        unseen = {name: estimate.value for name, estimate in entry.unseen.items()}
        assert unseen["accuracy"] == pytest.approx((said.argmax(1) == truth).mean())
        assert unseen["log_loss"] == pytest.approx(log_loss(truth, said), abs=1e-3)
        area = roc_auc_score(truth, said, multi_class="ovr")
        assert unseen["auc"] == pytest.approx(area, abs=1e-3)
        assert entry.samples == len(truth)
        assert entry.majority == np.bincount(truth).max() / len(truth)
        shares = np.bincount(y[~test].numpy()) / int((~test).sum())
        assert entry.guess == pytest.approx(-np.log(shares[truth]).mean())
        for estimate in (*entry.unseen.values(), *entry.within.values()):
            assert estimate.low <= estimate.value <= estimate.high
        for name, drop in entry.drop.items():
            sign = -1 if name in ("log_loss", "calibration_error") else 1
            wanted = sign * (entry.within[name].value - entry.unseen[name].value)
            assert drop.value == pytest.approx(wanted)
    means = [np.mean([entry.unseen[name].value for entry in report.sites]) for name in report.mean]
    assert [estimate.value for estimate in report.mean.values()] == pytest.approx(means)
    assert report.chance == pytest.approx(1 / 3)
    assert "LogisticRegression(tol=1e-8, max_iter=10_000)" in report.how


def test_within_is_cross_validated():
    z, y, domain = _with_gaps()
    report = transfer_report(Sites(z, y, domain, 3, seed=3))
    rows = (domain == 2).nonzero().squeeze(1)
    fold = stratified_folds(y[rows], 5, 3)
    right = []
    for k in range(5):
        train, test = rows[fold != k], rows[fold == k]
        right += (_by_hand(z, y, train, test).argmax(1) == y[test].numpy()).tolist()
        counts = y[test].bincount(minlength=3) - y[rows].bincount(minlength=3) / 5
        assert float(counts.abs().max()) < 1
    assert report.sites[2].within["accuracy"].value == pytest.approx(np.mean(right))


def test_l2_of_the_callers():
    z, y, domain = _with_gaps(2)
    found = Sites(z, y, domain, 2, l2=0.3).unseen(0).answer(z[domain == 0])[0]
    test = domain == 0
    c = 1 / (0.3 * int((~test).sum()))
    wanted = _by_hand(z, y, ~test, test, C=c, tol=1e-12, max_iter=10_000)
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    assert "C=1 / (0.3 * len(y))" in transfer_report(Sites(z, y, domain, 2, l2=0.3)).how


def test_nothing_of_the_site_left_out_is_known():
    """The page of a site whose features are stretched used to know its scale."""
    z, y, domain = alike(3, 100, 4, 2)
    z[domain == 2] *= 30
    test = domain == 2
    right = (_by_hand(z, y, ~test, test).argmax(1) == y[test].numpy()).mean()
    found = diagnose(z, y, domain).transfer.sites[2].unseen["accuracy"].value
    assert found == pytest.approx(right)


def test_only_some_sites_are_left_out_but_all_train():
    z, y, domain = alike(4, 40, 3)
    whole = transfer_report(Sites(z, y, domain, 3))
    some = transfer_report(Sites(z, y, domain, 3), [2])
    assert len(some.sites) == 1
    assert some.sites[0].unseen["accuracy"].value == whole.sites[2].unseen["accuracy"].value


def test_tiny_sites_and_classes_that_are_missing():
    z, y, domain = alike(5, 40, 3)
    keep = torch.cat(
        [(domain == e).nonzero().squeeze(1)[:n] for e, n in enumerate((40,) * 4 + (4,))]
    )
    z, y, domain = z[keep], y[keep], domain[keep]
    y[domain == 1] = 0  # one class only
    y[domain != 0] = y[domain != 0].clamp_max(1)  # class 2 at site 0 alone
    z[:, 2] = 7.0
    report = transfer_report(Sites(z, y, domain, 3))
    by_site = {entry.domain: entry for entry in report.sites}
    assert by_site[4].within is None
    assert by_site[4].drop is None
    assert by_site[4].unseen["accuracy"].high - by_site[4].unseen["accuracy"].low > 0.3
    assert by_site[1].within is None
    assert set(by_site[1].unseen) == {"accuracy", "log_loss", "calibration_error"}
    assert "auc" not in by_site[0].unseen or by_site[0].samples
    assert all(np.isfinite(v).all() for entry in report.sites for v in entry.unseen.values())


def test_two_sites_one_of_which_has_a_single_class():
    z, y, domain = alike(2, 30, 3, 2)
    y[domain == 0] = 1
    report = transfer_report(Sites(z, y, domain, 2))
    known = {entry.domain: entry for entry in report.sites}[1]
    share = float((y[domain == 1] == 1).double().mean())
    assert known.unseen["accuracy"].value == pytest.approx(share)
    assert known.unseen["auc"].value == pytest.approx(0.5)


def test_large_data_keep_the_shares_of_sites():
    domain = torch.arange(4).repeat_interleave(torch.tensor([40_000, 20_000, 100, 4]))
    places = torch.arange(len(domain))
    data = Sites(torch.zeros(1, 3000).expand(len(domain), -1), places, domain, 2, seed=1)
    few = data.fewer(NUMBERS)
    sizes = few.domain.bincount().tolist()
    assert sizes[0] == pytest.approx(2 * sizes[1], rel=0.01)
    assert sizes[2:] == [50, 4]
    assert torch.equal(few.y, few.y.unique())
    assert torch.equal(few.domain, domain[few.y])
    assert few.z.numel() == pytest.approx(NUMBERS, rel=0.01)
    narrow = Sites(data.z[:, :3], places, domain, 2)
    assert narrow.fewer(NUMBERS) is narrow


@pytest.mark.slow
def test_intervals_cover_the_accuracy_over_draws_of_training_and_test_samples():
    """A site's accuracy, averaged over draws, is inside the 95 % interval in about 95 %."""
    found, values = [], []
    generator = torch.Generator().manual_seed(0)
    offsets = torch.randn(3, 6, generator=generator) * 0.7
    for _ in range(120):
        domain = torch.arange(3).repeat_interleave(60)
        z = torch.randn(180, 6, generator=generator) + offsets[domain]
        slope = torch.tensor([1.0, 1.0, 0.5, 0.0, 0.0, 0.0])
        y = (z @ slope + torch.randn(180, generator=generator) > 0).long()
        report = transfer_report(Sites(z, y, domain, 2), [2])
        found.append(report.sites[0].unseen)
    for name in ("accuracy", "auc", "log_loss"):
        values = torch.tensor([list(each[name]) for each in found])
        truth = values[:, 0].mean()
        share = ((values[:, 1] <= truth) & (truth <= values[:, 2])).double().mean()
        assert 0.9 <= float(share) <= 0.995, name
