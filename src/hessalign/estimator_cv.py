"""An aligned classifier whose kind and strength are chosen by leaving domains out."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from hessalign._errors import InputError, check_name
from hessalign._numbers import check_not_negative
from hessalign.alignment.penalties import HESSIAN_KINDS
from hessalign.estimator import (
    STILL,
    TOL,
    AlignedClassifier,
    ClassWeight,
    Kind,
    choose_kind,
    read_samples,
)
from hessalign.heads.fit import MAX_STEPS
from hessalign.heads.held_out import (
    Candidate,
    HeldOutScores,
    choose,
    held_out_scores,
    make_candidates,
)

# isort: split
# After hessalign.estimator, which says how to install it.
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

STRENGTHS: Final = (0.05, 0.3, 1.0)


@final
class AlignedClassifierCV(ClassifierMixin, BaseEstimator):  # type: ignore[misc] # it has no types
    r"""`AlignedClassifier` for those who do not want to choose: it leaves its domains out in turn.

    Every kind and strength, 0 included, is fitted to all domains but one and tested on that one,
    with everything learned from the others, standardising too; each kind along one path of rising
    strengths. What would be best in a domain that is hard for the plain fit is chosen, if it gains
    more than chance would there and gains grow with hardness; else the smallest strength, a nudge,
    unless that costs more than 1 point there; else 0. The choice is fitted to all
    (`hessalign.heads.held_out.choose`). It needs three domains; with fewer it is plain logistic
    regression, and says so.

    Args:
        alignments: The kinds to choose from, as of `AlignedClassifier`; one is taken only if those
            before it gain nothing.
        strengths: Values of α = β to choose from; 0 is always among them. The smallest is taken
            without evidence for it if it is at most 0.1. More than 1 gains more from a shortcut,
            and costs more where there is none.
        l2: As of `AlignedClassifier`, like the rest.
        standardize: Whether to standardise features.
        class_weight: What the samples of each class count.
        probes: Probes per domain for "sampled" and "expected".
        max_iter: Steps of each fit, at most.
        tol: The slope to reach.
        random_state: Source of the probes of "sampled".

    Attributes:
        strength_: The strength that was chosen; 0 is plain logistic regression.
        alignment_: The kind that was chosen; None also stands for gradients only.
        best_score_: Mean accuracy of the choice in the domains left out; NaN without a search.
        cv_results_: For every candidate `alignment`, `strength`, the accuracy in each domain left
            out `split0_test_score` and so on, in the order of `domains_`, and `mean_test_score`,
            `std_test_score`; empty without a search.
        estimator_: The `AlignedClassifier`, fitted to all samples.
        classes_: The labels, sorted.
        coef_: Weights, one row per class; a single row for two classes.
        intercept_: Biases.
        domains_: The domains, sorted; None without.
        n_features_in_: Features seen in `fit`.

    Example:
        >>> from hessalign.bench.data import make_shifted_data
        >>> data = make_shifted_data("correlation", seed=1, domains=4)
        >>> X = np.concatenate([part.x for part in data.source])
        >>> y = np.concatenate([part.y for part in data.source])
        >>> model = AlignedClassifierCV().fit(X, y, np.repeat([1, 2, 3, 4], 500))
        >>> model.strength_ > 0
        True
    """

    # Under metadata routing, `domain` reaches `fit` without set_fit_request.
    __metadata_request__fit = {"domain": True}  # noqa: RUF012 - scikit-learn's own form

    def __init__(
        self,
        alignments: Sequence[Kind] = ("diagonal", None),
        *,
        strengths: Sequence[float] = STRENGTHS,
        l2: float = 1e-3,
        standardize: bool = True,
        class_weight: ClassWeight = None,
        probes: int = 100,
        max_iter: int = MAX_STEPS,
        tol: float = TOL,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.alignments = alignments
        self.strengths = strengths
        self.l2 = l2
        self.standardize = standardize
        self.class_weight = class_weight
        self.probes = probes
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        domain: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> AlignedClassifierCV:
        """Choose, and fit the choice to all samples.

        Args:
            X: Features, one row per sample, dense or sparse.
            y: Labels of any kind.
            domain: The domain of each sample, any integers or names.
            sample_weight: What each sample counts in the mean of its domain, fitted or left out.

        Returns:
            The classifier itself.
        """
        self._check_options()
        self._aligned(Candidate(None, 0.0)).check_options()
        data = read_samples(self, X, y, domain, sample_weight)
        kinds = list(dict.fromkeys(choose_kind(kind, data) for kind in self.alignments))
        candidates = make_candidates(kinds, self.strengths)
        chosen, self.cv_results_, self.best_score_ = 0, {}, float("nan")
        if data.count > 2:
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
            test = partial(
                held_out_scores,
                data,
                candidates,
                tolerance=float(self.tol),
                still=STILL * float(self.tol),
                max_steps=self.max_iter,
                probes=self.probes,
                seed=seed,
            )
            scores = [test(e) for e in range(data.count)]
            chosen = choose(candidates, scores)
            self.cv_results_ = _results(candidates, scores)
            self.best_score_ = float(self.cv_results_["mean_test_score"][chosen])
        elif domain is None or data.count == 2:
            found = "no domains" if domain is None else "2"
            warnings.warn(
                f"Choosing how strongly to align needs at least 3 domains, got {found}: the fit is "
                "plain logistic regression. Give domain=…, one name or number per sample; for two "
                "domains AlignedClassifier takes a strength of your choice.",
                stacklevel=2,
            )
        self.alignment_, self.strength_ = candidates[chosen]
        self.estimator_ = self._aligned(candidates[chosen]).fit(X, y, domain, sample_weight)
        self.coef_, self.intercept_ = self.estimator_.coef_, self.estimator_.intercept_
        self.n_iter_ = self.estimator_.n_iter_
        return self

    def _aligned(self, candidate: Candidate) -> AlignedClassifier:
        """The classifier that a candidate is."""
        kind, strength = candidate
        options = self.get_params(deep=False)
        del options["alignments"], options["strengths"]
        return AlignedClassifier(kind, alpha=strength, beta=strength, **options)

    def _check_options(self) -> None:
        """Kinds and strengths; the others are those of the classifier."""
        if not _is_list(self.alignments) or not len(self.alignments):
            raise InputError(
                f"Expected alignments as a list of kinds, got {self.alignments!r}. Give, for "
                'example, ["diagonal", None].'
            )
        for kind in self.alignments:
            check_name("alignment", kind, (*HESSIAN_KINDS, "auto", None))
        if not _is_list(self.strengths):
            raise InputError(
                f"Expected strengths as a list of numbers, got {self.strengths!r}. Give, for "
                f"example, {list(STRENGTHS)}."
            )
        for strength in self.strengths:
            check_not_negative(strength, "strength")

    def __sklearn_tags__(self) -> Any:  # noqa: ANN401 - scikit-learn has no types
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def decision_function(self, X: ArrayLike) -> np.ndarray:
        """The logits, one column per class; for two classes that of the second, one per sample."""
        check_is_fitted(self)
        return self.estimator_.decision_function(X)

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """The probability of every class, one column each, in the order of `classes_`."""
        check_is_fitted(self)
        return self.estimator_.predict_proba(X)

    def predict(self, X: ArrayLike) -> np.ndarray:
        """The most probable class of each sample, a label as it was in `fit`."""
        check_is_fitted(self)
        return self.estimator_.predict(X)


def _is_list(value: object) -> bool:
    """Whether it is several values, an array included."""
    return isinstance(value, Sequence | np.ndarray) and not isinstance(value, str)


def _results(candidates: list[Candidate], scores: list[HeldOutScores]) -> dict[str, Any]:
    """As scikit-learn's searches have them."""
    accuracy = np.stack([own.accuracy for own in scores])
    return {
        "alignment": np.array([candidate.kind for candidate in candidates], dtype=object),
        "strength": np.array([candidate.strength for candidate in candidates]),
        **{f"split{e}_test_score": own for e, own in enumerate(accuracy)},
        "mean_test_score": accuracy.mean(0),
        "std_test_score": accuracy.std(0),
    }
