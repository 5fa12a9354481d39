"""A classifier for embeddings that scikit-learn's tools can fit, score and search."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch

from hessalign._errors import InputError, MissingPackageError
from hessalign._names import check_name
from hessalign._numbers import check_count, check_not_negative, check_positive, check_size
from hessalign.alignment.penalties import HESSIAN_KINDS, HessianKind
from hessalign.heads.fit import MAX_STEPS, TOLERANCE, fit_aligned_head
from hessalign.heads.samples import check_l2, feature_scales

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise MissingPackageError(
        f"AlignedClassifier needs scikit-learn 1.6 or newer ({error}). "
        "Install it with: pip install 'hessalign[sklearn]'"
    ) from error

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


@final
class AlignedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc] # it has no types
    r"""A linear classifier whose derivatives agree between the domains it is fitted to.

    It minimises the mean over domains of their mean cross-entropy, plus

    $$\frac\lambda2 \|W\|^2 + \alpha \frac1E \sum_e \|H_e - \bar H\|^2
    + \beta \frac1E \sum_e \|g_e - \bar g\|^2$$

    with each domain's Hessian and gradient in the head, as `fit_aligned_head` does. Two classes
    have a single logit. Fitted without `domain`, or to one domain, it is plain logistic regression.

    A step costs about as much as one of logistic regression, except for "full" and "expected" with
    many features: there it grows with the square of the number of samples.

    Args:
        alignment: What stands for the Hessian: "full", "diagonal", "sampled", "expected",
            "product", or None for gradients only.
        alpha: Weight α of the Hessian term. No value travels between data sets: search it, and
            β, over powers of ten, with the domains left out in turn.
        beta: Weight β of the gradient term.
        l2: Weight λ of the L2 term over the weights, after standardising; the intercept is free.
            Without domains λ = 1/(C n) is scikit-learn's C.
        standardize: Whether to bring every feature to mean 0 and variance 1 first, over all
            samples. `coef_` and `intercept_` are for the features as they came.
        probes: Probes per domain for "sampled" and "expected".
        max_iter: Steps of L-BFGS, at most.
        tol: The slope to reach, as a share of the mean gradient norm of single samples at zero.
        random_state: Source of the probes of "sampled"; nothing else is random.

    Attributes:
        classes_: The labels, sorted.
        coef_: Weights, one row per class; a single row for two classes.
        intercept_: Biases.
        domains_: The domains it was fitted to, sorted; None without.
        hessian_dispersion_: What is left of the Hessian term, before α.
        gradient_dispersion_: What is left of the gradient term, before β.
        n_iter_: Steps taken.
        n_features_in_: Features seen in `fit`.

    Example:
        >>> from hessalign.bench.data import make_shifted_data
        >>> data = make_shifted_data("correlation", seed=0, domains=3)
        >>> X = np.concatenate([part.x for part in data.source])
        >>> y = np.concatenate([part.y for part in data.source])
        >>> domain = np.repeat(["north", "south", "west"], 500)
        >>> plain = AlignedClassifier(alpha=0, beta=0).fit(X, y, domain)
        >>> aligned = AlignedClassifier(beta=100).fit(X, y, domain)
        >>> accuracy = [model.score(data.target.x, data.target.y) for model in (plain, aligned)]
        >>> accuracy[1] > accuracy[0] + 0.1
        True
    """

    # Under metadata routing, `domain` reaches `fit` without set_fit_request.
    __metadata_request__fit = {"domain": True}  # noqa: RUF012 - scikit-learn's own form

    def __init__(
        self,
        alignment: HessianKind | None = "full",
        *,
        alpha: float = 1.0,
        beta: float = 10.0,
        l2: float = 1e-3,
        standardize: bool = True,
        probes: int = 100,
        max_iter: int = MAX_STEPS,
        tol: float = TOLERANCE,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.alignment = alignment
        self.alpha = alpha
        self.beta = beta
        self.l2 = l2
        self.standardize = standardize
        self.probes = probes
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike, domain: ArrayLike | None = None) -> AlignedClassifier:
        """Fit the head.

        Args:
            X: Features, one row per sample.
            y: Labels of any kind.
            domain: The domain of each sample, any integers or names; None if they are all one.

        Returns:
            The classifier itself.

        Raises:
            InputError: If there is only one class.
        """
        self._check_options()
        z, targets = validate_data(self, X, y, dtype=np.float64)
        check_size(torch.tensor(z), "features X")
        check_classification_targets(targets)
        self.classes_, labels = np.unique(targets, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(
                f"Expected samples of at least 2 classes, got one class only: {self.classes_[0]}."
            )
        self.domains_, domains = _check_domain(domain, len(z))
        mean, scale = np.zeros(1), np.ones(1)
        if self.standardize:  # by a copy: z may be read-only
            mean, scale = (part.numpy() for part in feature_scales(torch.tensor(z))[:2])
        binary = len(self.classes_) == 2
        fitted = fit_aligned_head(
            torch.from_numpy((z - mean) / scale),
            torch.from_numpy(labels),
            torch.from_numpy(domains),
            alpha=float(self.alpha),
            beta=float(self.beta),
            hessian=self.alignment,
            loss="binary" if binary else "cross_entropy",
            l2=float(self.l2),
            outputs=1 if binary else len(self.classes_),
            probes=self.probes,
            seed=int(check_random_state(self.random_state).randint(2**31 - 1)),
            max_steps=self.max_iter,
            tolerance=float(self.tol),
        )
        if not fitted.converged:
            warnings.warn(
                f"No minimum reached in {fitted.steps} steps: the largest slope left is "
                f"{fitted.slope:.1e}. Raise max_iter or l2, or lower alpha and beta.",
                ConvergenceWarning,
                stacklevel=2,
            )
        head = fitted.parameters.numpy()
        self.coef_ = head[:, :-1] / scale
        self.intercept_ = head[:, -1] - (self.coef_ * mean).sum(1)
        self.hessian_dispersion_ = fitted.hessian
        self.gradient_dispersion_ = fitted.gradient
        self.n_iter_ = fitted.steps
        return self

    def _check_options(self) -> None:
        """All but the probes, which `fit_aligned_head` checks, and the random state."""
        check_name("alignment", self.alignment, (*HESSIAN_KINDS, None))
        check_not_negative(self.alpha, "alpha")
        check_not_negative(self.beta, "beta")
        check_l2(self.l2)
        check_count(self.max_iter, "max_iter")
        check_positive(self.tol, "tol")
        if not isinstance(self.standardize, bool | np.bool_):
            raise InputError(f"Expected standardize as True or False, got {self.standardize!r}.")

    def decision_function(self, X: ArrayLike) -> np.ndarray:
        """The logits, one column per class; for two classes that of the second, one per sample."""
        check_is_fitted(self)
        z = validate_data(self, X, dtype=np.float64, reset=False)
        check_size(torch.tensor(z), "features X")
        logits: np.ndarray = z @ self.coef_.T + self.intercept_
        return logits[:, 0] if len(self.classes_) == 2 else logits

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """The probability of every class, one column each, in the order of `classes_`."""
        logits = torch.from_numpy(self.decision_function(X))
        if logits.ndim == 1:
            logits = torch.stack([torch.zeros_like(logits), logits], dim=1)
        return np.asarray(logits.softmax(1))

    def predict(self, X: ArrayLike) -> np.ndarray:
        """The most probable class of each sample, a label as it was in `fit`."""
        logits = self.decision_function(X)
        index = (logits > 0).astype(int) if logits.ndim == 1 else logits.argmax(1)
        return np.asarray(self.classes_[index])


def _check_domain(domain: Any, samples: int) -> tuple[np.ndarray | None, np.ndarray]:  # noqa: ANN401
    """The domains there are, and the number of each sample's."""
    if domain is None:
        return None, np.zeros(samples, dtype=np.int64)
    values = np.asarray(domain)
    if values.shape != (samples,):
        raise InputError(
            f"Expected one domain per row of X, shape ({samples},), got {values.shape}."
        )
    missing = [row for row, value in enumerate(values) if _is_missing(value)]
    if missing:
        raise InputError(
            f"Expected a domain for every sample, but {len(missing)} have none, the first in row "
            f"{missing[0]}. Give them a name of their own, or leave them out."
        )
    if len({type(value) for value in values}) > 1:
        values = values.astype(str)
    ids, numbers = np.unique(values, return_inverse=True)
    if len(ids) == 1:
        warnings.warn(
            f"All samples come from the domain {str(ids[0])!r}: there is nothing to align, and the "
            "fit is plain logistic regression.",
            stacklevel=3,
        )
    return ids, numbers


def _is_missing(value: object) -> bool:
    """None, what is not equal to itself such as NaN, and what cannot tell such as pandas.NA."""
    try:
        return value is None or not bool(value == value)
    except TypeError:
        return True


def worst_domain(results: Mapping[str, Any]) -> int:
    """Which candidate of a search does best in its worst domain, for `GridSearchCV(refit=…)`.

    With domains left out in turn, every split is the score of a domain that was not seen. Their
    mean hardly falls while a model relies on what holds in most of them; their minimum does.

    A candidate without a score in some domain, NaN, is not chosen; a domain in which none has one
    does not count, with a warning.

    Args:
        results: `cv_results_` of a search with a single score.

    Returns:
        The index of the candidate, the first of equals.

    Raises:
        InputError: If there are no scores of splits, as after a search with several scores, or no
            candidate has one in every domain.

    Example:
        >>> worst_domain({"split0_test_score": [0.9, 0.8], "split1_test_score": [0.5, 0.7]})
        1
    """
    splits = [key for key in results if key.startswith("split") and key.endswith("_test_score")]
    if not splits:
        raise InputError(
            "Expected the scores of each split, split0_test_score and so on, found none: use "
            "worst_domain with a single scoring."
        )
    scores = np.stack([np.asarray(results[key], dtype=float) for key in splits])
    scored = ~np.isnan(scores).all(1)
    worst = (scores[scored] if scored.any() else scores).min(0)
    if np.isnan(worst).all():
        raise InputError(
            f"Expected a candidate with a score in every one of {len(splits)} splits, got none: "
            "all have NaN in some. Search with error_score='raise' to see why."
        )
    if not scored.all():
        missing = ", ".join(key.removesuffix("_test_score") for key in np.array(splits)[~scored])
        warnings.warn(
            f"No candidate has a score in {missing}, only NaN: the worst domain is that of the "
            "other splits.",
            stacklevel=2,
        )
    return int(np.nanargmax(worst))
