"""What is said of the three answers, in words of a reader who knows no mathematics."""

import re
from dataclasses import replace

import pytest
import torch
from tests.diagnosis_data import cause_report, estimate, remedy_report, transfer_report

from hessalign.diagnosis.draw import draw_samples
from hessalign.diagnosis.explanations import CAUSES
from hessalign.diagnosis.remedies import REMEDIES
from hessalign.diagnosis.scores import Estimate
from hessalign.diagnosis.verdict import _clear, _dropped, input_notes, make_verdict, points

SITES = ["north", "east", "south", "west"]
GOOD, POOR = [0.8, 0.82, 0.78, 0.8], [0.8, 0.82, 0.44, 0.8]
FORBIDDEN = re.compile(r"logit|hessian|gradient|table 1|theorem|needed for|nan|inf\b", re.I)


def words(verdict):
    return " ".join([verdict.headline, *verdict.transfer, *verdict.causes, *verdict.remedies])


@pytest.mark.parametrize(
    ("unseen", "within", "half", "holds", "headline"),
    [
        (GOOD, GOOD, 0.05, "yes", "Yes, as far as 4 sites can tell"),
        (POOR, GOOD, 0.05, "no", "Not everywhere: at “south” a model of the other sites is right"),
        ([0.6] * 4, GOOD, 0.05, "no", "No: on a site that it has not seen a model is right in 60"),
        (GOOD, GOOD, 0.15, "unclear", "It cannot be told from these data"),
        (GOOD, None, 0.05, "unclear", "sites are too small for models of their own"),
        ([0.5] * 4, [0.51] * 4, 0.05, "nothing to learn", "neither at their own site nor at one"),
        ([0.5] * 4, None, 0.05, "nothing to learn", "guessing, at sites they have not seen."),
    ],
)  # fmt: skip
def test_whether_it_holds(unseen, within, half, holds, headline):
    verdict = make_verdict(SITES, transfer_report(unseen, within, half=half), cause_report(), None)
    assert verdict.holds == holds
    assert headline in verdict.headline


def test_a_drop_must_be_clear_for_all_sites_together_and_worth_speaking_of():
    barely = transfer_report([0.8, 0.8, 0.745, 0.8], [0.8] * 4)  # 95 % interval: 0.005 to 0.105
    assert make_verdict(SITES, barely, cause_report(), None).holds != "no"
    trifle = transfer_report([0.79] * 4, [0.8] * 4, half=0.001)
    assert make_verdict(SITES, trifle, cause_report(), None).holds == "yes"


def test_an_unclear_verdict_names_the_site_that_looks_worst():
    # Drops of 16 and 18 points, each clear were its site the only one: 95 % intervals of ± 15.
    report = transfer_report([0.8, 0.62, 0.64, 0.8], [0.8] * 4, half=0.15)
    verdict = make_verdict(SITES, report, cause_report(), None)
    assert verdict.holds == "unclear"
    worst = "It looks worst at “east”, with a drop of 18.0 points (95 %: 3.0 to 33.0)."
    assert verdict.headline.endswith(worst)
    luck = transfer_report([0.8, 0.66, 0.7, 0.8], [0.8] * 4, half=0.15)
    verdict = make_verdict(SITES, luck, cause_report(), None)
    assert verdict.holds == "unclear"
    assert "worst" not in verdict.headline


def test_the_interval_of_several_tests_is_wider():
    found = Estimate(1.0, 1.0 - 1.959964, 1.0 + 1.959964)  # of a normal variable with spread 1
    assert _clear(found, 1.0 - 1.97)
    assert not _clear(found, 1.0 - 1.95)
    # 2.5 % for 10 tests is 0.25 % each: the quantile is 2.807.
    assert _clear(found, 1.0 - 2.81, 10)
    assert not _clear(found, 1.0 - 2.80, 10)


def test_figures_are_said_with_their_intervals_and_yardsticks():
    verdict = make_verdict(SITES, transfer_report(POOR, GOOD), cause_report(), None)
    text = " ".join(verdict.transfer)
    assert "right in 71.5 % of cases (95 %: 69.0 to 74.0)" in text
    assert "a drop of 8.5 points (95 %: 6.0 to 11.0)" in text
    assert "worst at “south”" in text
    assert "always naming the commonest class would be right in 60.0 %" in text
    assert "At “south” it cannot be told from guessing" in text
    assert "(AUC 0.7" in text
    assert "mislead" not in text


def test_the_order_may_hold_where_the_dividing_line_does_not():
    report = transfer_report([0.8, 0.8, 0.54], [0.8] * 3)  # AUC 0.59, interval above 0.5
    text = " ".join(make_verdict(SITES[:3], report, cause_report(), None).transfer)
    assert "it ranks cases better than chance at “south”" in text


def test_a_site_that_fails_in_its_probabilities_alone():
    report = transfer_report([0.8, 0.8, 0.75, 0.8], [0.8] * 4)
    drop, unseen = report.sites[2].drop, report.sites[2].unseen
    assert make_verdict(SITES, report, cause_report(), None).holds == "yes"
    unseen["log_loss"], drop["log_loss"] = estimate(1.5), estimate(0.02)
    assert make_verdict(SITES, report, cause_report(), None).holds == "yes"  # its own are as bad
    drop["log_loss"] = estimate(1.1)
    verdict = make_verdict(SITES, report, cause_report(), None)
    assert verdict.holds == "no"
    assert "“south” a model" in verdict.headline
    assert "Its probabilities there are worse than quoting" in verdict.headline


@pytest.mark.parametrize(("site", "where"), [(2, "at “south”"), (None, "between sites")])
def test_a_difference_that_costs_is_not_passed_over(site, where):
    good = transfer_report(GOOD, GOOD)
    verdict = make_verdict(SITES, good, cause_report(("offset", site, True)), None)
    assert verdict.holds == "mostly"
    assert verdict.headline.startswith("Mostly, as far as 4 sites can tell")
    assert f"But offset {where} costs accuracy as far as can be told." in verdict.headline
    harmless = make_verdict(SITES, good, cause_report(("offset", site, False)), None)
    assert harmless.holds == "yes"


def test_probabilities_that_are_worse_than_shares():
    report = transfer_report(POOR, GOOD, guess=0.5)
    text = " ".join(make_verdict(SITES, report, cause_report(), None).transfer)
    assert "probabilities mislead at “south”: quoting" in text


@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("site", [None, 2])
def test_every_cause_is_named_with_its_site(cause, site):
    found = cause_report((cause, site, True), odd=site)
    verdict = make_verdict(SITES, transfer_report(POOR, GOOD), found, None, ["age", "b", "blood"])
    assert ("“south”" in verdict.causes[0]) == (site is not None)
    assert "It shows most in “blood”, “age”." in verdict.causes[0]
    assert "As far as can be told it costs accuracy" in verdict.causes[0]
    gaps = replace(found, findings=(replace(found.findings[0], missing=(0,)),))
    verdict = make_verdict(SITES, transfer_report(POOR, GOOD), gaps, None, ["age", "b", "blood"])
    assert "in “blood”, “age” (in where it is missing)." in verdict.causes[0]
    assert any("differs from all others" in text for text in verdict.causes) == (site is not None)
    harmless = make_verdict(
        SITES, transfer_report(POOR, GOOD), cause_report((cause, 2, False)), None
    )
    assert "was not shown" in harmless.causes[0]
    assert "it was not shown that this is why" in harmless.causes[-1]
    assert not FORBIDDEN.search(words(verdict) + words(harmless))


def test_nothing_found_is_said_with_what_could_have_been_missed():
    verdict = make_verdict(SITES, transfer_report(GOOD, GOOD), cause_report(), None)
    assert verdict.causes[0].startswith("No difference between sites was found")
    assert "2.5 points of accuracy on average at most" in verdict.causes[1]
    lost = make_verdict(SITES, transfer_report([0.6] * 4, GOOD), cause_report(), None)
    assert "none of the tests says why" in lost.causes[0]


@pytest.mark.parametrize("remedy", REMEDIES[1:])
def test_every_remedy_is_recommended_with_its_gain(remedy):
    gains = dict.fromkeys(REMEDIES[1:], 0.01) | {"weights": -0.08, remedy: 0.1}
    left_out = 3 if remedy == "leave_out" else None
    found = make_verdict(
        SITES, None, cause_report(), remedy_report(POOR, gains, remedy, left_out)
    ).remedies
    assert ("Train without “west”" in found[0]) == (remedy == "leave_out")
    assert "needs" in found[0]
    assert "by +10.0 points (95 %: +7.0 to +13.0), to 81.5 % from 71.5 %" in found[1]
    assert ("Made it worse: class weights −8.0" in " ".join(found)) == (remedy != "weights")
    assert "Tried without a clear gain" in found[2]
    assert not FORBIDDEN.search(" ".join(found))


def test_nothing_that_helps_is_said_plainly():
    report = remedy_report(GOOD, {"standardise": 0.01, "align": 0.05})
    found = make_verdict(SITES, None, cause_report(), report).remedies
    assert found[0].startswith("Nothing that was tried helps beyond luck; a plain model")
    assert "A gain of up to 8.0 points could have been missed." in found[0]
    assert "not beyond luck with so many tries: aligning +5.0" in found[1]
    poor = make_verdict(SITES, transfer_report(POOR, GOOD), cause_report(), report).remedies
    assert poor[1].startswith("At “south” a model of the site itself does better: labelled cases")
    alone = make_verdict(SITES[:2], None, cause_report(), remedy_report(GOOD[:2], {}))
    assert alone.remedies == (
        "Nothing could be tried: there is one site to train on when the other is left out.",
    )


def test_two_sites_many_sites_and_no_auc():
    two = make_verdict(
        SITES[:2], transfer_report(GOOD[:2], GOOD[:2], auc=False), cause_report(), None
    )
    text = " ".join(two.transfer)
    assert "With two sites each model has seen a single one" in text
    assert "AUC" not in text
    names = [f"site {e}" for e in range(20)]
    many = make_verdict(
        names, transfer_report([0.45] * 19 + [0.8], [0.8] * 20), cause_report(), None
    )
    assert "A clear drop is seen at 19 of 20 sites." in many.headline
    assert "and “site 4” and 14 more" in " ".join(many.transfer)


def test_what_was_not_tested():
    verdict = make_verdict(SITES, None, cause_report(), None)
    assert verdict.holds == "not tested"
    assert "needs an L2 term" in verdict.headline
    assert verdict.remedies == ("Not tested.",)


def test_names_stay_in_one_sentence():
    sites = ["a\n- b", "c" * 200, "south"]
    report = transfer_report([0.45, 0.8, 0.8], [0.8] * 3)
    verdict = make_verdict(sites, report, cause_report(("label", 1, True)), None)
    assert "“a - b”" in verdict.headline
    assert f"“{'c' * 40}…{'c' * 19}”" in verdict.causes[0]
    assert len(verdict.causes) == 1


def test_points_have_a_sign_and_drops_a_word():
    assert points(Estimate(-0.0004, -0.02, 0.0196)) == "0.0 points (95 %: −2.0 to +2.0)"
    assert _dropped(Estimate(0.02, -0.01, 0.05)) == "a drop of 2.0 points (95 %: −1.0 to 5.0)"
    assert _dropped(Estimate(-0.02, -0.05, 0.01)) == "a gain of 2.0 points (95 %: −1.0 to 5.0)"
    assert estimate(0.5).low == 0.45


def test_notes_on_the_input():
    z = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    z[:, 1], z[:, 2] = 0, z[:, 0]
    y, domain = torch.arange(60) % 2, torch.arange(60) // 20
    y[40], y[domain == 0] = 2, 1
    draw = draw_samples(z, y, domain, domain_names=SITES[:3])
    notes = input_notes(draw, 0.0, (0, 1), at_optimum=False)
    expected = [
        "1 of 3 columns is constant: it tells nothing.",
        "1 of 3 columns is an exact copy of another: it counts again.",
        "Class “2” is seen at site “south” only: models trained without that site do not know it.",
        "Of 3 sites, 2 were looked at one by one, spread evenly from the most alike to the most "
        "different.",
        "The model that was given is not at the best of its own training loss. It is compared as "
        "it is.",
        "Without an L2 term (l2 = 0) models of single sites need not exist: what needs them is "
        "left out. Use l2 > 0.",
    ]
    assert list(notes) == expected
    assert not FORBIDDEN.search(" ".join(notes))


def test_a_site_of_one_class_has_no_balanced_accuracy():
    report = transfer_report(POOR, GOOD)
    for name in ("balanced_accuracy", "auc"):
        del report.sites[2].unseen[name], report.sites[2].drop[name]
    verdict = make_verdict(SITES, report, cause_report(), None)
    assert "guessing" not in " ".join(verdict.transfer)
    assert "at “south”" in verdict.headline
