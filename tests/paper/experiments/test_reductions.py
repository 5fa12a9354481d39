"""Ratios of dispersions to the reference's, over trials."""

import math

import pytest
import torch
from torch import nn

from hessalign.alignment.distance import AttributeDispersion, attribute_dispersions
from hessalign.bench.runs.run import TrainedHead
from hessalign.paper.table1 import Reduction, _log_ratio, chance_share, measure, reductions


def spread(dispersion, mean_square=1.0, chance=0.0):
    return {"loss": AttributeDispersion(dispersion, mean_square, chance)}


def test_ratios_are_geometric_means_within_and_over_trials():
    pairs = {
        0: [(spread(1.0), spread(2.0)), (spread(4.0), spread(2.0))],  # 1/2 and 2: no change
        3: [(spread(1.0), spread(4.0)), (spread(1.0), spread(1.0))],  # 1/4 and 1: one half
    }
    found = reductions(pairs, relative=False)["loss"]
    assert (found.low, found.high) == pytest.approx((0.5, 1.0))
    assert found.mean == pytest.approx(math.sqrt(0.5))


def test_relative_ratios_divide_each_dispersion_by_its_own_mean_square():
    pairs = {0: [(spread(1.0, 2.0), spread(3.0, 12.0))]}
    assert reductions(pairs, relative=False)["loss"].mean == pytest.approx(1 / 3)
    assert reductions(pairs, relative=True)["loss"].mean == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("ratios", "change", "text"),
    [
        ((0.5, 0.2, 0.9), "reduced", "0.5 [0.2, 0.9]"),
        ((0.5, 0.2, 1.1), "unchanged", "0.5 [0.2, 1.1]"),  # the trials do not agree
        ((0.9, 0.9, 0.9), "unchanged", "0.9"),
        ((2.0, 1.5, 3.0), "raised", "2 [1.5, 3]"),
        ((2.0, 0.9, 3.0), "unchanged", "2 [0.9, 3]"),
        ((1e-5, 1e-6, 1e-4), "reduced", "1e-05 [1e-06, 1e-04]"),
    ],
)
def test_a_change_needs_all_trials(ratios, change, text):
    found = Reduction(*ratios)
    assert found.change() == change
    assert str(found) == text


def test_a_change_must_exceed_that_of_another_start():
    noise = Reduction(0.5, 0.4, 0.6)
    assert Reduction(0.3, 0.3, 0.3).change(0.1, noise) == "reduced"
    assert Reduction(0.6, 0.6, 0.6).change(0.1, noise) == "unchanged"
    assert Reduction(1.9, 1.9, 1.9).change(0.1, noise) == "unchanged"
    assert Reduction(2.1, 2.1, 2.1).change(0.1, noise) == "raised"
    assert Reduction(0.1, 0.1, 0.1).change(math.nan) == "unclear"
    assert Reduction(0.1, 0.1, 0.1).change(0.9) == "unclear"


def test_no_dispersion_at_all_is_finite():
    assert math.isfinite(_log_ratio(spread(0.0)["loss"], spread(1.0)["loss"], relative=False))
    assert _log_ratio(spread(0.0)["loss"], spread(0.0)["loss"], relative=True) == 0


def test_the_share_of_chance_is_that_of_the_sums():
    assert chance_share([spread(1.0, chance=0.5), spread(3.0, chance=0.5)]) == {"loss": 0.25}


def test_sources_leave_the_unseen_domain_out():
    head = nn.Linear(2, 3)
    z, y, domain = torch.randn(30, 2), torch.randint(3, (30,)), torch.arange(30) % 3
    trained = TrainedHead(
        z, y, domain, head, "cross_entropy", ("a", "b", "c"), (1,), "erm", 0
    )  # fmt: skip
    rows = domain != 1
    logits = head(z).detach()
    expected = attribute_dispersions(z[rows], logits[rows], y[rows], domain[rows])
    assert measure(trained, "sources") == expected
    assert measure(trained, "all") == attribute_dispersions(z, logits, y, domain)
