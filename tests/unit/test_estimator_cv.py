"""AlignedClassifierCV chooses what leaving domains out shows, and falls back to a plain fit."""

from statistics import fmean, linear_regression

import numpy as np
import pytest
from sklearn.base import clone

import hessalign as ha
from hessalign.bench.data import make_shifted_data
from hessalign.estimator import worst_domain
from hessalign.heads.held_out import HeldOutScores, choose, make_candidates

pytestmark = pytest.mark.usefixtures("unchecked")


def sources(shift="correlation", seed=1, domains=3, samples=300, **options):
    data = make_shifted_data(shift, seed, domains=domains, samples=samples, **options)
    X = np.concatenate([part.x.double() for part in data.source])
    y = np.concatenate([part.y for part in data.source])
    return X, y, np.repeat(np.arange(domains), samples), data.target


def test_scores_and_refit_are_those_of_fits_by_hand():
    """Everything, scales included, is learned from the domains that are not left out."""
    X, y, domain, _ = sources()
    model = ha.AlignedClassifierCV(["diagonal", None], strengths=[10, 1], tol=1e-6).fit(
        X, y, domain
    )
    found = model.cv_results_
    assert found["strength"].tolist() == [0, 1, 10, 1, 10]
    assert found["alignment"].tolist() == ["diagonal", "diagonal", "diagonal", None, None]
    for index, (kind, s) in enumerate(zip(found["alignment"], found["strength"], strict=True)):
        for e in range(3):
            seen = domain != e
            by_hand = ha.AlignedClassifier(kind, alpha=s, beta=s, tol=1e-6)
            score = by_hand.fit(X[seen], y[seen], domain[seen]).score(X[~seen], y[~seen])
            # Further along a path the start is another, and so may be the local minimum.
            near = 0.05 if s == 10 else 1e-9
            assert found[f"split{e}_test_score"][index] == pytest.approx(score, abs=near)
    chosen = ha.AlignedClassifier(
        model.alignment_, alpha=model.strength_, beta=model.strength_, tol=1e-6
    ).fit(X, y, domain)
    np.testing.assert_array_equal(model.coef_, chosen.coef_)
    np.testing.assert_array_equal(model.predict(X), chosen.predict(X))
    assert model.best_score_ in found["mean_test_score"]
    assert 0 <= worst_domain(found) < 5


def test_it_finds_half_of_the_best_gain_and_loses_hardly_anything_where_there_is_none():
    gains = {}
    for strength in (1.0, 0.0):
        for seed in range(15):
            X, y, domain, target = sources(seed=seed, domains=4, samples=500, strength=strength)
            models = [ha.AlignedClassifierCV()]
            models += [ha.AlignedClassifier(None, alpha=s, beta=s) for s in (0, 1, 10, 100)]
            found = [model.fit(X, y, domain).score(target.x, target.y) for model in models]
            gains.setdefault(strength, []).append(np.array(found) - found[1])
    chosen, *fixed = np.mean(gains[1.0], axis=0)
    assert chosen > max(fixed) / 2 > 0.05
    assert np.mean(gains[0.0], axis=0)[0] > -0.005


def scores(*accuracies, size=400):
    """Domains with so many right answers of each candidate, right where the better ones are."""
    weight = np.full(size, 1 / size)
    return [
        HeldOutScores(np.array([np.arange(size) < a * size for a in own]), None, weight)
        for own in accuracies
    ]


@pytest.mark.parametrize(
    ("domains", "chosen"),
    [
        ([(0.97, 0.95), (0.95, 0.95), (0.85, 0.9)], 1),  # gains where it is hard
        ([(0.95, 0.97), (0.9, 0.9), (0.85, 0.845)], 0),  # where it is easy
        ([(0.9, 0.95), (0.9, 0.95), (0.9, 0.95)], 1),  # better everywhere
        ([(0.9, 0.9025), (0.9, 0.9), (0.9, 0.9)], 0),  # by one answer of 1200
        ([(0.98, 0.965), (0.93, 0.93), (0.88, 0.91)], 1),  # corrects a large share of few errors
        ([(0.6, 0.585), (0.5, 0.5), (0.4, 0.43)], 0),  # corrects as much, of many
        ([(0.99, 0.93), (0.99, 0.96), (0.9, 0.95)], 1),
        ([(0.99, 0.9), (0.99, 0.93), (0.9, 0.95)], 0),  # costs more than 2 points on average
        ([(0.97, 0.7), (0.95, 0.7), (0.7, 0.7)], 0),  # levelled down
        ([(0.97, 0.95, 0.94), (0.95, 0.95, 0.95), (0.85, 0.9, 0.92)], 2),  # the better of two
        ([(1.0, 1.0), (1.0, 0.99), (1.0, 0.98)], 0),  # nothing to correct
        ([(0.9, 0.9), (0.8, 0.8), (0.7, 0.7)], 0),
    ],
)
def test_more_than_a_nudge_needs_evidence(domains, chosen):
    candidates = make_candidates(["diagonal"], [1, 10][: len(domains[0]) - 1])
    assert choose(candidates, scores(*domains)) == chosen


@pytest.mark.parametrize(
    ("domains", "chosen"),
    [
        ([(0.9, 0.9, 0.8), (0.8, 0.8, 0.7), (0.7, 0.7025, 0.6)], 1),  # nothing speaks against it
        ([(0.9, 0.895, 0.8), (0.8, 0.79, 0.7), (0.7, 0.69, 0.6)], 1),  # 0.7 points there
        ([(0.9, 0.89, 0.8), (0.8, 0.785, 0.7), (0.7, 0.68, 0.6)], 0),  # 1.25 points there
        ([(0.9, 0.9, 0.8), (0.8, 0.8, 0.7), (0.7, 0.7, 0.6)], 0),  # what changes nothing
        ([(0.97, 0.96, 0.95), (0.95, 0.95, 0.95), (0.85, 0.87, 0.9)], 2),  # there is more to gain
    ],
)
def test_a_nudge_needs_none(domains, chosen):
    assert choose(make_candidates(["diagonal"], [0.03, 1]), scores(*domains)) == chosen
    assert choose(make_candidates(["diagonal"], [0.1, 1]), scores(*domains)) == chosen
    none = {1: 0}.get(chosen, chosen)
    assert choose(make_candidates(["diagonal"], [0.11, 1]), scores(*domains)) == none


@pytest.mark.parametrize(("first", "chosen"), [(0.87, 1), (0.85, 2)])
def test_a_kind_is_taken_where_those_before_it_gain_nothing(first, chosen):
    candidates = make_candidates(["diagonal", None], [1])
    domains = [(0.97, 0.97, 0.97), (0.95, 0.95, 0.95), (0.85, first, 0.9)]
    assert choose(candidates, scores(*domains, size=4000)) == chosen


def chosen_by_hand(candidates, domains):
    """The rule, domain by domain; several places if they are equally good."""
    found = {}
    for place in range(1, len(candidates)):
        answers = [(own.right[0], own.right[place]) for own in domains]
        every = fmean(plain.mean() for plain, _ in answers)
        corrected = fmean(np.mean(~plain & other) for plain, other in answers) / (1 - every)
        spoilt = fmean(np.mean(plain & ~other) for plain, other in answers) / every
        there = corrected / 3 - 2 * spoilt / 3
        each = [
            (~plain & other) / (3 * (1 - every)) - (plain & ~other) * 2 / (3 * every)
            for plain, other in answers
        ]
        sure = there - 1.28 * np.sqrt(sum(own.var() / len(own) for own in each)) / len(each)
        levels = [(plain.mean() + other.mean()) / 2 for plain, other in answers]
        gains = [other.mean() - plain.mean() for plain, other in answers]
        chance = fmean(np.var(other * 1.0 - plain) / len(plain) for plain, other in answers)
        slope, constant = linear_regression(levels, gains)
        rest = np.subtract(gains, slope * np.array(levels) + constant)
        noise = max(rest @ rest / (len(domains) - 2), chance)
        told = slope < -0.5 * np.sqrt(noise / (np.var(levels) * len(levels)))
        told |= fmean(gains) >= 0.02
        found[place] = there, sure, sure > 0 and fmean(gains) >= -0.02 and told
    good = {place: sure for place, (_, sure, fine) in found.items() if fine}
    if good:
        first = candidates[min(good)].kind
        good = {place: sure for place, sure in good.items() if candidates[place].kind == first}
        return {place for place, sure in good.items() if sure > max(good.values()) - 1e-9}
    return {int(candidates[1].strength <= 0.1 and found[1][0] >= -0.01)}


def test_the_choice_is_the_rule_by_hand():
    rng = np.random.default_rng(0)
    candidates = make_candidates(["diagonal", None], [0.03, 1])
    found = []
    for _ in range(400):
        domains, spoils = [], rng.uniform(0, 4)
        for level in rng.uniform(0.5, 0.95, rng.integers(3, 6)):
            plain = rng.random(97) < level  # of 97 answers none are 1 or 2 points exactly
            flips = rng.random((4, 97)) < rng.uniform(0, 0.2, (4, 1))
            flips &= ~plain | (rng.random((4, 97)) < spoils * (1 - level))
            right = np.vstack([plain, plain ^ flips])
            domains.append(HeldOutScores(right, None, np.full(97, 1 / 97)))
        found.append(choose(candidates, domains))
        assert found[-1] in chosen_by_hand(candidates, domains)
    assert np.bincount(found, minlength=5).min() > 10  # every answer is given


def test_a_few_answers_of_a_small_domain_are_no_evidence():
    """Two answers corrected and one spoilt, of 20 or of as large a share of 2,000."""
    candidates = make_candidates(["diagonal"], [1])
    alike = scores((0.9, 0.9), (0.85, 0.85), (0.8, 0.8))

    def hard(times):
        right = np.array([np.arange(20) < 12, np.abs(np.arange(20) - 7) < 7]).repeat(times, 1)
        return HeldOutScores(right, None, np.full(20 * times, 1 / (20 * times)))

    assert choose(candidates, [*alike, hard(1)]) == 0
    assert choose(candidates, [*alike, hard(100)]) == 1


def test_a_lucky_domain_of_the_plain_head_makes_no_slope():
    """Answers by chance, in all domains alike: more often than not the choice is plain."""
    rng = np.random.default_rng(0)
    weight = np.full(200, 1 / 200)
    candidates = make_candidates(["diagonal"], [1])

    def alike():
        return HeldOutScores(rng.random((2, 200)) < 0.8, None, weight)

    assert np.mean([choose(candidates, [alike() for _ in range(4)]) for _ in range(400)]) < 0.5


def test_few_domains_are_told():
    X, y, domain, _ = sources()
    plain = ha.AlignedClassifier("diagonal", alpha=0, beta=0)
    for groups, found in ((domain // 2, "got 2"), (None, "got no domains")):
        with pytest.warns(UserWarning, match=f"at least 3 domains, {found}: the fit is plain"):
            model = ha.AlignedClassifierCV().fit(X, y, groups)
        assert (model.strength_, model.cv_results_) == (0, {})
        np.testing.assert_array_equal(model.coef_, clone(plain).fit(X, y, groups).coef_)
    with pytest.warns(UserWarning, match="All samples come from the domain"):
        assert ha.AlignedClassifierCV().fit(X, y, 0 * domain).strength_ == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alignments": "full"}, "alignments as a list of kinds, got 'full'"),
        ({"alignments": None}, "alignments as a list of kinds, got None"),
        ({"strengths": 0.1}, "strengths as a list of numbers, got 0.1"),
        ({"alignments": ["ful"]}, "Did you mean 'full'"),
        ({"strengths": [-1]}, "finite strength of 0 or more"),
        ({"tol": 0}, "positive, finite tol"),
    ],
)
def test_bad_options_are_named(options, message):
    X, y, domain, _ = sources()
    with pytest.raises(ValueError, match=message):
        ha.AlignedClassifierCV(**options).fit(X, y, domain)
