"""AlignedClassifier is a scikit-learn classifier, with the objective it says."""

import pickle
import warnings

import numpy as np
import pytest
import sklearn
import torch
from scipy.sparse import csr_array, csr_matrix
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, LeaveOneGroupOut, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import hessalign as ha
from hessalign.bench.data import make_shifted_data
from hessalign.estimator import worst_domain
from hessalign.heads import fit_aligned_head

pytestmark = pytest.mark.usefixtures("unchecked")

KINDS = ("full", "diagonal", "sampled", "expected", "product", None)
PLAIN = {"alpha": 0, "beta": 0}


@parametrize_with_checks(
    [
        ha.AlignedClassifier(),
        ha.AlignedClassifier(None, standardize=False),
        ha.AlignedClassifierCV(),
    ]
)
def test_scikit_learns_own_checks(estimator, check):
    with warnings.catch_warnings():
        # Some checks allow few steps on purpose, and none knows of domains.
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.filterwarnings("ignore", "No domains were given|Choosing how strongly")
        check(estimator)


def samples(seed=0, classes=3, size=40, features=4):
    """Names for labels and domains; means and scales that differ between domains."""
    rng = np.random.default_rng(seed)
    domain = np.repeat(["east", "north", "west"], size)
    shift = {name: rng.normal(size=features) for name in ("east", "north", "west")}
    X = rng.normal(size=(len(domain), features)) * [1, 10, 0.1, 3]
    X += np.stack([shift[name] for name in domain])
    logits = X @ rng.normal(size=(features, classes)) / 5 + rng.gumbel(size=(len(X), classes))
    y = np.array(["a", "b", "c"])[logits.argmax(1)]
    return X, y, domain


@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize("classes", [2, 3])
def test_without_penalties_it_is_logistic_regression(classes, standardize):
    """Domains of the same size, so that the mean over domains is that over samples."""
    X, y, domain = samples(classes=classes)
    l2 = 0.02
    options = {"alpha": 0, "beta": 0, "l2": l2, "tol": 1e-9, "standardize": standardize}
    ours = ha.AlignedClassifier(**options).fit(X, y, domain)
    # Of K logits only the differences count; scikit-learn's two classes have one, as ours do.
    theirs = LogisticRegression(C=1 / (l2 * len(X)), tol=1e-10, max_iter=10_000)
    if standardize:
        theirs = make_pipeline(StandardScaler(), theirs)
    theirs.fit(X, y)
    assert ours.coef_.shape == ((1 if classes == 2 else classes), X.shape[1])
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-5)
    np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))
    if not standardize:
        np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-4)


@pytest.mark.parametrize("alignment", KINDS)
def test_the_weights_are_relative_to_the_loss_of_the_plain_head(alignment):
    X, y, domain = samples()
    model = ha.AlignedClassifier(
        alignment, alpha=0.5, beta=2, probes=7, l2=0.01, standardize=False, random_state=3, tol=1e-9
    ).fit(X, y, domain)
    problem = (
        torch.tensor(X),
        torch.tensor(["abc".index(label) for label in y]),
        torch.tensor([["east", "north", "west"].index(name) for name in domain]),
    )
    seed = int(np.random.RandomState(3).randint(2**31 - 1))
    options = {"hessian": alignment, "l2": 0.01, "probes": 7, "seed": seed, "tolerance": 1e-9}
    plain = fit_aligned_head(*problem, **options)
    alpha = 0.5 * plain.loss / plain.hessian if alignment else 0.0
    head = fit_aligned_head(*problem, alpha=alpha, beta=2 * plain.loss / plain.gradient, **options)
    np.testing.assert_allclose(model.coef_, head.parameters[:, :-1], atol=1e-3)
    assert model.hessian_dispersion_ == pytest.approx(head.hessian, rel=1e-2)
    assert model.gradient_dispersion_ == pytest.approx(head.gradient, rel=1e-2)
    assert list(model.domains_) == ["east", "north", "west"]
    assert model.alignment_ == alignment


@pytest.mark.parametrize("classes", [2, 3])
def test_units_of_the_features_do_not_matter_when_standardised(classes):
    X, y, domain = samples(classes=classes)
    constant = np.full((len(X), 1), 7.0)
    model = ha.AlignedClassifier(tol=1e-8).fit(np.c_[X, constant], y, domain)
    other = ha.AlignedClassifier(tol=1e-8).fit(np.c_[X * 1000 - 3, constant], y, domain)
    np.testing.assert_allclose(
        other.predict_proba(np.c_[X * 1000 - 3, constant]),
        model.predict_proba(np.c_[X, constant]),
        atol=1e-4,
    )
    np.testing.assert_allclose(other.coef_[:, :-1] * 1000, model.coef_[:, :-1], rtol=1e-2)
    np.testing.assert_allclose(model.coef_[:, -1], 0, atol=1e-9)


def test_a_constant_column_has_no_weight_and_a_time_stamp_has():
    """0.1 is not a binary fraction: the mean of a thousand of them is off by rounding."""
    rng = np.random.default_rng(0)
    day = rng.normal(size=1000)
    y = (day + rng.logistic(size=1000) > 0).astype(int)
    X = np.c_[np.full(1000, 0.1), 1.7e9 + 1000 * day]
    model = ha.AlignedClassifier(**PLAIN, tol=1e-6).fit(X, y)
    plain = ha.AlignedClassifier(**PLAIN, tol=1e-6).fit(day[:, None], y)
    assert model.coef_[0, 0] == 0
    np.testing.assert_allclose(model.coef_[0, 1], plain.coef_[0, 0] / 1000, rtol=1e-3)
    np.testing.assert_allclose(model.predict_proba(X), plain.predict_proba(day[:, None]), atol=1e-4)


def test_probabilities_and_logits_agree():
    for classes in (2, 3):
        X, y, domain = samples(classes=classes)
        model = ha.AlignedClassifier().fit(X, y, domain)
        logits, p = model.decision_function(X), model.predict_proba(X)
        assert logits.shape == ((len(X),) if classes == 2 else (len(X), 3))
        expected = np.c_[np.zeros(len(X)), logits] if classes == 2 else logits
        expected = np.exp(expected) / np.exp(expected).sum(1, keepdims=True)
        np.testing.assert_allclose(p, expected, rtol=1e-9)
        np.testing.assert_array_equal(model.classes_[p.argmax(1)], model.predict(X))


def test_domains_may_be_numbers_names_or_a_mixture():
    X, y, domain = samples()
    numbers = np.array([{"east": 7, "north": -1, "west": 3}[name] for name in domain])
    mixed = np.array([7 if name == "east" else name for name in domain], dtype=object)
    models = [
        ha.AlignedClassifier(tol=1e-8).fit(X, y, d) for d in (domain, numbers, mixed, list(domain))
    ]
    for model in models[1:]:
        np.testing.assert_allclose(model.coef_, models[0].coef_, atol=1e-5)


class Unknown:
    """Behaves as pandas.NA: comparisons give itself, and it is neither true nor false."""

    def __eq__(self, other):
        return self

    def __bool__(self):
        raise TypeError("boolean value of NA is ambiguous")

    __hash__ = None


@pytest.mark.parametrize(
    ("domain", "message"),
    [
        (np.zeros(119), r"one domain per row of X, shape \(120,\), got \(119,\)"),
        (np.zeros((120, 1)), r"shape \(120,\), got \(120, 1\)"),
        (np.r_[np.zeros(119), np.nan], "but 1 have none, the first in row 119"),
        (np.array([None, *["a"] * 119], dtype=object), "but 1 have none, the first in row 0"),
        (np.array(["a", Unknown(), *["b"] * 118], dtype=object), "but 1 have none, .* row 1"),
    ],
)
def test_bad_domains_are_named(domain, message):
    X, y, _ = samples()
    with pytest.raises(ValueError, match=message):
        ha.AlignedClassifier().fit(X, y, domain)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alignment": "ful"}, "Unknown alignment 'ful'. .* Did you mean 'full'"),
        ({"alpha": -1}, "finite alpha of 0 or more"),
        ({"l2": -1}, "L2 weight of 0 or more"),
        ({"max_iter": 0}, "Expected max_iter of 1 or more, got 0"),
        ({"tol": 0}, "Expected a positive, finite tol, got 0"),
        ({"alpha": "1"}, "finite alpha of 0 or more, got '1', a str. Give a number"),
        ({"beta": "10"}, "finite beta of 0 or more, got '10', a str. Give a number"),
        ({"beta": True}, "finite beta of 0 or more, got True, a bool. Give a number"),
        ({"alpha": None}, "finite alpha of 0 or more, got None, a NoneType"),
        ({"alpha": float("nan")}, "finite alpha of 0 or more, got nan"),
        ({"alpha": 10**400}, "finite alpha of 0 or more, got 1000"),
        ({"beta": [1.0]}, r"finite beta of 0 or more, got \[1.0\], a list"),
        ({"l2": "0.1"}, "L2 weight of 0 or more, got '0.1', a str"),
        ({"tol": "1e-3"}, "positive, finite tol, got '1e-3', a str"),
        ({"max_iter": "9"}, "max_iter as a whole number of 1 or more, got '9', a str"),
        ({"max_iter": 2.5}, "max_iter as a whole number of 1 or more, got 2.5"),
        ({"probes": 1.5}, "probes as a whole number of 1 or more, got 1.5"),
        ({"standardize": "no"}, "standardize as True or False, got 'no'"),
    ],
)
def test_bad_options_are_named(options, message):
    X, y, domain = samples()
    with pytest.raises(ValueError, match=message):
        ha.AlignedClassifier(**options).fit(X, y, domain)


def test_numbers_of_numpy_are_numbers():
    X, y, domain = samples()
    options = {
        "alpha": np.float32(0.5),
        "beta": np.int64(2),
        "l2": np.float64(0.01),
        "standardize": np.bool_(True),
        "probes": np.int32(7),
        "max_iter": np.int64(500),
        "tol": np.float32(1e-3),
    }
    found = ha.AlignedClassifier(**options).fit(X, y, domain)
    plain = {name: value.item() for name, value in options.items()}
    np.testing.assert_allclose(found.coef_, ha.AlignedClassifier(**plain).fit(X, y, domain).coef_)


@pytest.mark.parametrize("standardize", [True, False])
def test_features_whose_products_overflow_are_refused(standardize):
    X, y, domain = samples()
    model = ha.AlignedClassifier(standardize=standardize)
    with pytest.raises(
        ValueError, match=r"X of at most 1e\+75 in size, found .*scale the features"
    ):
        model.fit(X * 1e200, y, domain)
    model.fit(X, y, domain)
    with pytest.raises(ValueError, match=r"X of at most 1e\+75 in size, found .* in row 3:"):
        model.predict_proba(np.where(np.arange(len(X))[:, None] == 3, 1e200, X))


@pytest.mark.parametrize("alignment", ["full", "diagonal", None])
@pytest.mark.parametrize(
    ("size", "dtype"), [(1e30, float), (1e70, float), (1e-90, float), (1e25, "f4"), (1e-25, "f4")]
)
@pytest.mark.parametrize("kind", [np.asarray, csr_array])
def test_huge_and_tiny_features_are_the_same_once_they_are_standardised(
    alignment, size, dtype, kind
):
    X, y, domain = samples()
    options = {"alignment": alignment, "tol": 1e-6}
    near = ha.AlignedClassifier(**options).fit(X, y, domain)
    far = ha.AlignedClassifier(**options).fit(kind((X * size).astype(dtype)), y, domain)
    np.testing.assert_allclose(far.coef_ * size, near.coef_, rtol=1e-3)
    np.testing.assert_allclose(far.intercept_, near.intercept_, rtol=1e-3)


@pytest.mark.parametrize("alignment", ["diagonal", None])
def test_large_features_as_they_are_have_finite_weights(alignment):
    X, y, domain = samples()
    model = ha.AlignedClassifier(alignment, standardize=False).fit(X * 1e10, y, domain)
    assert np.isfinite(model.coef_).all()
    assert model.score(X * 1e10, y) > 0.5


def test_one_class_and_one_domain():
    X, y, domain = samples()
    with pytest.raises(ValueError, match="at least 2 classes, got one class only: a"):
        ha.AlignedClassifier().fit(X, np.full(len(y), "a"), domain)
    for value, found in ((1, "one class only: b"), (0, "none that counts"), (-1, "finite class_w")):
        with pytest.raises(ValueError, match=found):
            ha.AlignedClassifier(class_weight={"a": 0, "b": value, "c": 0}).fit(X, y, domain)
    with pytest.warns(UserWarning, match="All samples come from the domain 'x'"):
        lone = ha.AlignedClassifier().fit(X, y, np.full(len(y), "x"))
    with pytest.warns(UserWarning, match="No domains were given, .* beside groups="):
        plain = ha.AlignedClassifier().fit(X, y)
    np.testing.assert_array_equal(lone.coef_, plain.coef_)
    assert plain.domains_ is None


def test_a_fit_that_did_not_converge_says_so():
    X, y, domain = samples()
    with pytest.warns(ConvergenceWarning, match=r"in 2 steps: the largest slope left .* max_iter"):
        assert ha.AlignedClassifier(max_iter=2).fit(X, y, domain).n_iter_ == 2


def test_pickle_and_clone():
    X, y, domain = samples()
    model = ha.AlignedClassifier("diagonal", beta=3).fit(X, y, domain)
    restored = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(restored.predict_proba(X), model.predict_proba(X))
    again = clone(model).fit(X, y, domain)
    np.testing.assert_array_equal(again.coef_, model.coef_)


@pytest.mark.parametrize("routing", [False, True])
def test_grid_search_leaves_one_domain_out(routing):
    """Each candidate's score is that of fits by hand, which know the domains of their samples."""
    X, y, domain = samples()
    grid = {"beta": [0.0, 1.0, 30.0], "alignment": ["full", None]}
    with sklearn.config_context(enable_metadata_routing=routing):
        search = GridSearchCV(ha.AlignedClassifier(), grid, cv=LeaveOneGroupOut())
        search.fit(X, y, groups=domain, domain=domain)
    for index, options in enumerate(search.cv_results_["params"]):
        for fold, name in enumerate(("east", "north", "west")):
            seen = domain != name
            by_hand = ha.AlignedClassifier(**options).fit(X[seen], y[seen], domain[seen])
            found = search.cv_results_[f"split{fold}_test_score"][index]
            assert found == by_hand.score(X[~seen], y[~seen])
    refitted = ha.AlignedClassifier(**search.best_params_).fit(X, y, domain)
    np.testing.assert_array_equal(search.best_estimator_.coef_, refitted.coef_)
    # Were the domains lost on the way, alignment would make no difference.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "No domains")
        plain = ha.AlignedClassifier(**search.best_params_).fit(X, y)
    assert search.best_params_["beta"] == 0 or not np.allclose(plain.coef_, refitted.coef_)


def test_search_by_the_worst_domain():
    X, y, domain = samples()
    grid = {"beta": [0.0, 30.0, 1000.0]}
    search = GridSearchCV(
        ha.AlignedClassifier(), grid, cv=LeaveOneGroupOut(), refit=worst_domain
    ).fit(X, y, groups=domain, domain=domain)
    scores = np.array([search.cv_results_[f"split{fold}_test_score"] for fold in range(3)])
    assert len(set(scores.min(0))) > 1
    assert search.best_params_["beta"] == grid["beta"][int(scores.min(0).argmax())]


def test_the_worst_domain_is_not_the_worst_mean():
    results = {"split0_test_score": [0.99, 0.7, 0.7], "split1_test_score": [0.5, 0.6, 0.6]}
    assert worst_domain({**results, "mean_test_score": [0.745, 0.65, 0.65]}) == 1
    with pytest.raises(ValueError, match="Expected the scores of each split"):
        worst_domain({"split0_test_accuracy": [1.0]})


def test_candidates_and_domains_without_a_score():
    nan = float("nan")
    results = {"split0_test_score": [nan, 0.7, 0.8], "split1_test_score": [0.9, 0.6, 0.7]}
    assert worst_domain(results) == 2
    with pytest.warns(UserWarning, match="No candidate has a score in split2, only NaN"):
        assert worst_domain({**results, "split2_test_score": [nan] * 3}) == 2
    for first, second in (([nan, 0.7], [0.9, nan]), ([nan, nan], [nan, nan])):
        with pytest.raises(ValueError, match="a score in every one of 2 splits, got none"):
            worst_domain({"split0_test_score": first, "split1_test_score": second})


@pytest.mark.parametrize("routing", [False, True])
def test_domains_pass_through_a_pipeline_and_cross_validation(routing):
    X, y, domain = samples()
    pipeline = make_pipeline(StandardScaler(), ha.AlignedClassifier(beta=30, standardize=False))
    name = "domain" if routing else "alignedclassifier__domain"
    with sklearn.config_context(enable_metadata_routing=routing):
        pipeline.fit(X, y, **{name: domain})
        scored = {"groups": domain} if not routing else {}
        params = {name: domain} if not routing else {name: domain, "groups": domain}
        scores = cross_val_score(pipeline, X, y, cv=LeaveOneGroupOut(), params=params, **scored)
    direct = ha.AlignedClassifier(beta=30).fit(X, y, domain)
    np.testing.assert_allclose(pipeline.predict_proba(X), direct.predict_proba(X), atol=1e-4)
    assert len(scores) == 3


def accuracies(shift, seed, **options):
    data = make_shifted_data(shift, seed, domains=3, samples=300)
    X = np.concatenate([part.x for part in data.source])
    y = np.concatenate([part.y for part in data.source])
    model = ha.AlignedClassifier(**options).fit(X, y, np.repeat([0, 1, 2], 300))
    return model.score(data.target.x, data.target.y)


@pytest.mark.parametrize(("shift", "least"), [("correlation", 0.1), ("label", 0.05)])
def test_alignment_helps_on_an_unseen_domain(shift, least):
    """The same weights for every seed; the gain is far beyond its spread over seeds."""
    gains = np.array(
        [
            accuracies(shift, seed, alpha=0, beta=10) - accuracies(shift, seed, **PLAIN)
            for seed in range(10)
        ]
    )
    assert gains.mean() > least
    assert gains.mean() > 3 * gains.std(ddof=1) / np.sqrt(len(gains))


@pytest.mark.parametrize("alignment", ["full", "diagonal", None])
@pytest.mark.parametrize("classes", [2, 3])
def test_a_weight_is_as_many_samples(alignment, classes):
    X, y, domain = samples(classes=classes)
    times = np.random.default_rng(0).integers(3, size=len(y))
    options = {"alpha": 1, "beta": 1, "tol": 1e-7}
    weighted = ha.AlignedClassifier(alignment, **options).fit(X, y, domain, sample_weight=5 * times)
    repeated = ha.AlignedClassifier(alignment, **options).fit(
        *(values.repeat(times, axis=0) for values in (X, y, domain))
    )
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, rtol=1e-3, atol=1e-4)
    classes_ = {"a": 2.0, "b": 0.5, "c": 1.0}
    by_class = ha.AlignedClassifier(alignment, class_weight=classes_, **options).fit(X, y, domain)
    own = np.array([classes_[label] for label in y])
    by_sample = ha.AlignedClassifier(alignment, standardize=False, **options).fit(
        (X - X.mean(0)) / X.std(0), y, domain, sample_weight=own
    )
    np.testing.assert_allclose(by_class.coef_ * X.std(0), by_sample.coef_, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("estimator", [ha.AlignedClassifier(), ha.AlignedClassifierCV()])
def test_a_domain_without_weight_is_none(estimator):
    X, y, domain = samples()
    domain[::4] = "south"
    seen = domain != "south"
    weighted = clone(estimator).fit(X, y, domain, sample_weight=seen)
    without = clone(estimator).fit(X[seen], y[seen], domain[seen])
    np.testing.assert_allclose(weighted.coef_, without.coef_, atol=1e-9)
    assert list(weighted.domains_) == ["east", "north", "west"]
    if isinstance(estimator, ha.AlignedClassifierCV):
        assert weighted.best_score_ == pytest.approx(without.best_score_)
        assert weighted.cv_results_.keys() == without.cv_results_.keys()
    with pytest.warns(UserWarning, match="All samples come from the domain 'east'"):
        clone(estimator).fit(X, y, domain, sample_weight=domain == "east")


def test_balanced_classes_count_the_same():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(300, 2)), np.r_[np.zeros(270), np.ones(30)]
    plain = ha.AlignedClassifier(**PLAIN, class_weight="balanced", l2=1e-2, tol=1e-8).fit(X, y)
    wanted = LogisticRegression(class_weight="balanced", C=1 / 3, tol=1e-10).fit(
        (X - X.mean(0)) / X.std(0), y
    )
    np.testing.assert_allclose(plain.coef_ * X.std(0), wanted.coef_, atol=1e-4)


@pytest.mark.parametrize("alignment", ["full", "diagonal", None])
@pytest.mark.parametrize("kind", [csr_matrix, csr_array])
def test_sparse_features_are_the_same_features(alignment, kind):
    X, y, domain = samples()
    X[np.random.default_rng(0).random(X.shape) < 0.7] = 0
    options = {"alpha": 1, "beta": 1, "tol": 1e-7}
    dense = ha.AlignedClassifier(alignment, **options).fit(X, y, domain)
    sparse = ha.AlignedClassifier(alignment, **options).fit(kind(X), y, domain)
    np.testing.assert_allclose(sparse.coef_, dense.coef_, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(sparse.predict_proba(kind(X)), dense.predict_proba(X), atol=1e-4)


@pytest.mark.parametrize("alignment", ["full", "diagonal", None])
@pytest.mark.parametrize(("dtype", "far"), [("f4", 2e3), (float, 1e8)])
def test_sparse_columns_far_from_zero_keep_their_digits(alignment, dtype, far):
    """Such as a year beside counts; and a column that never changes."""
    X, y, domain = samples()
    X[np.random.default_rng(0).random(X.shape) < 0.5] = 0
    X = np.round(8 * X) / 8  # exact with what is added
    moved = X + np.array([far, 0, 0, 0])
    moved = np.c_[moved, np.full(len(X), 0.1)].astype(dtype)
    options = {"alpha": 1, "beta": 1, "tol": 1e-7}
    near = ha.AlignedClassifier(alignment, **options).fit(X, y, domain)
    away = ha.AlignedClassifier(alignment, **options).fit(csr_array(moved), y, domain)
    np.testing.assert_allclose(away.coef_[:, :4], near.coef_, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(away.coef_[:, 4], 0, atol=1e-9)
    logits = near.decision_function(X)
    np.testing.assert_allclose(away.decision_function(csr_array(moved)), logits, atol=1e-2)


def test_the_kind_is_chosen_by_cost_and_said():
    X, y, domain = samples()
    assert ha.AlignedClassifier().fit(X, y, domain).alignment_ == "full"
    rng = np.random.default_rng(0)
    X, y, domain = rng.normal(size=(3000, 30)), np.arange(3000) % 20, np.arange(3000) // 1500
    with pytest.warns(UserWarning, match="aligns Hessian diagonals: .* 20 classes and 30 features"):
        assert ha.AlignedClassifier().fit(X, y, domain).alignment_ == "diagonal"


def test_a_search_without_domains_says_so():
    X, y, domain = samples()
    search = GridSearchCV(ha.AlignedClassifier(), {"beta": [1.0]}, cv=LeaveOneGroupOut())
    with pytest.warns(UserWarning, match="Give domain=…, .* in a search"):
        search.fit(X, y, groups=domain)


def test_it_is_imported_on_demand(python):
    script = """
import sys
import hessalign
assert "sklearn" not in sys.modules
assert hessalign.AlignedClassifier.__name__ == "AlignedClassifier"
assert "sklearn" in sys.modules
try:
    hessalign.AlignedClasifier
except AttributeError as error:
    print(error)
"""
    assert python(script) == "module 'hessalign' has no attribute 'AlignedClasifier'\n"


def test_without_scikit_learn_the_error_names_the_extra(python):
    script = """
import sys
sys.modules["sklearn"] = None
import hessalign
try:
    hessalign.AlignedClassifier
except ImportError as error:
    print(error)
"""
    assert "pip install 'hessalign[sklearn]'" in python(script)
