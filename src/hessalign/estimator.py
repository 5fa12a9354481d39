"""A classifier for embeddings that scikit-learn's tools can fit, score and search."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, final

import numpy as np
import torch

from hessalign._errors import InputError, MissingPackageError, check_name
from hessalign._numbers import (
    check_count,
    check_not_negative,
    check_positive,
    check_size,
    largest,
)
from hessalign.alignment.penalties import HESSIAN_KINDS, HessianKind
from hessalign.heads.aligned_objective import Weights
from hessalign.heads.fit import MAX_STEPS, FittedHead, plain_head, strength_path
from hessalign.heads.labelled import Labelled
from hessalign.heads.samples import check_l2

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.utils import check_random_state
    from sklearn.utils.class_weight import compute_class_weight
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
except ImportError as error:
    raise MissingPackageError(
        f"AlignedClassifier needs scikit-learn 1.6 or newer ({error}). "
        "Install it with: pip install 'hessalign[sklearn]'"
    ) from error

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Kind = HessianKind | Literal["auto"] | None
ClassWeight = Literal["balanced"] | Mapping[Any, float] | None
TOL: Final = 1e-4
# An aligned fit also ends with a step that lowers its objective by a smaller share than so many
# tolerances: it is not convex, and its last digits cost most of the steps.
STILL: Final = 10


@final
class AlignedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc] # it has no types
    r"""A linear classifier whose derivatives agree between the domains it is fitted to.

    It minimises the mean over domains of their mean cross-entropy, plus

    $$\frac\lambda2 \|W\|^2 + \alpha \frac{L}{D_H} \frac1E \sum_e \|H_e - \bar H\|^2
    + \beta \frac{L}{D_g} \frac1E \sum_e \|g_e - \bar g\|^2$$

    with each domain's Hessian and gradient in the head, as `fit_aligned_head` does, in units of the
    loss $L$ and the dispersions $D_H$, $D_g$ at α = β = 0: there, each penalty is α or β times the
    loss. So a value means the same whatever the units of the features. Two classes have a single
    logit. Fitted without `domain`, or to one domain, it is plain logistic regression.

    `AlignedClassifierCV` chooses kind and weights by leaving domains out.

    Args:
        alignment: What stands for the Hessian: "full", "diagonal", "sampled", "expected",
            "product", None for gradients only, or "auto": "full" where that is cheap, else
            "diagonal", with a warning.
        alpha: Weight α of the Hessian term, relative to the loss.
        beta: Weight β of the gradient term, likewise.
        l2: Weight λ of the L2 term over the weights, after standardising; the intercept is free.
            Without domains λ = 1/(C n) is scikit-learn's C.
        standardize: Whether to bring every feature to mean 0 and variance 1 first, over all
            samples. `coef_` and `intercept_` are for the features as they came.
        class_weight: What the samples of each class count, as a dictionary; "balanced" for the same
            sum of all classes.
        probes: Probes per domain for "sampled" and "expected".
        max_iter: Steps of L-BFGS, at most.
        tol: The slope to reach, as a share of the mean gradient norm of single samples at zero. A
            step that lowers the objective of an aligned fit by less than 10 times this share ends
            it, too.
        random_state: Source of the probes of "sampled"; nothing else is random.

    Attributes:
        classes_: The labels, sorted.
        coef_: Weights, one row per class; a single row for two classes.
        intercept_: Biases.
        domains_: The domains it was fitted to, sorted; None without.
        alignment_: What stands for the Hessian.
        hessian_dispersion_: What is left of the dispersion of Hessians.
        gradient_dispersion_: What is left of that of gradients.
        n_iter_: Steps taken.
        n_features_in_: Features seen in `fit`.

    Example:
        >>> from hessalign.bench.data import make_shifted_data
        >>> data = make_shifted_data("correlation", seed=0, domains=3)
        >>> X = np.concatenate([part.x for part in data.source])
        >>> y = np.concatenate([part.y for part in data.source])
        >>> domain = np.repeat(["north", "south", "west"], 500)
        >>> plain = AlignedClassifier(alpha=0, beta=0).fit(X, y, domain)
        >>> aligned = AlignedClassifier(alpha=10, beta=10).fit(X, y, domain)
        >>> accuracy = [model.score(data.target.x, data.target.y) for model in (plain, aligned)]
        >>> accuracy[1] > accuracy[0] + 0.1
        True
    """

    # Under metadata routing, `domain` reaches `fit` without set_fit_request.
    __metadata_request__fit = {"domain": True}  # noqa: RUF012 - scikit-learn's own form

    def __init__(
        self,
        alignment: Kind = "auto",
        *,
        alpha: float = 0.1,
        beta: float = 0.1,
        l2: float = 1e-3,
        standardize: bool = True,
        class_weight: ClassWeight = None,
        probes: int = 100,
        max_iter: int = MAX_STEPS,
        tol: float = TOL,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.alignment = alignment
        self.alpha = alpha
        self.beta = beta
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
    ) -> AlignedClassifier:
        """Fit the head.

        Args:
            X: Features, one row per sample; sparse ones stay sparse for "diagonal" and None.
            y: Labels of any kind.
            domain: The domain of each sample, any integers or names; None, with a warning, if they
                are all one.
            sample_weight: What each sample counts in the mean of its domain.

        Returns:
            The classifier itself.
        """
        self.check_options()
        data = read_samples(self, X, y, domain, sample_weight)
        if domain is None and (self.alpha or self.beta):
            warnings.warn(_NO_DOMAIN, stacklevel=2)
        self.alignment_ = choose_kind(self.alignment, data)
        design = data.design(range(data.count))
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        objective = data.objective(design, self.alignment_, self.probes, seed)
        fitted = plain_head(objective, tolerance=float(self.tol), max_steps=self.max_iter)
        if len(design.groups) > 1 and (self.alpha or self.beta):
            (fitted,) = strength_path(
                objective,
                fitted,
                [Weights(float(self.alpha), float(self.beta))],
                tolerance=float(self.tol),
                still=STILL * float(self.tol),
                max_steps=self.max_iter,
            )
        self._keep(fitted)
        self.coef_, self.intercept_ = design.as_they_came(fitted.parameters.numpy())
        return self

    def _keep(self, fitted: FittedHead) -> None:
        """How the fit went."""
        if not fitted.converged:
            warnings.warn(
                f"No minimum reached in {fitted.steps} steps: the largest slope left is "
                f"{fitted.slope:.1e}. Raise max_iter or l2, or lower alpha and beta.",
                ConvergenceWarning,
                stacklevel=3,
            )
        self.hessian_dispersion_ = fitted.hessian
        self.gradient_dispersion_ = fitted.gradient
        self.n_iter_ = fitted.steps

    def check_options(self) -> None:
        """Raise an InputError if an option is not what it should be; `fit` does so by itself."""
        check_name("alignment", self.alignment, (*HESSIAN_KINDS, "auto", None))
        check_not_negative(self.alpha, "alpha")
        check_not_negative(self.beta, "beta")
        check_l2(self.l2)
        check_count(self.probes, "probes")
        check_count(self.max_iter, "max_iter")
        check_positive(self.tol, "tol")
        if not isinstance(self.standardize, bool | np.bool_):
            raise InputError(f"Expected standardize as True or False, got {self.standardize!r}.")

    def __sklearn_tags__(self) -> Any:  # noqa: ANN401 - scikit-learn has no types
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def decision_function(self, X: ArrayLike) -> np.ndarray:
        """The logits, one column per class; for two classes that of the second, one per sample."""
        check_is_fitted(self)
        z = _features(self, X, reset=False)
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


_NO_DOMAIN: Final = (
    "No domains were given, so there is nothing to align, and the fit is plain logistic "
    "regression. Give domain=…, one name or number per sample, to fit; in a search or a "
    "cross-validation beside groups=…, which only says how to split. alpha=0 and beta=0 say that a "
    "plain fit is meant."
)


def _features(estimator: Any, X: ArrayLike, y: Any = "no_validation", **options: Any) -> Any:  # noqa: ANN401
    """Checked features, dense or CSR, as they came in float32 or float64; and labels, if given."""
    checked = validate_data(
        estimator, X, y, accept_sparse="csr", dtype=[np.float64, np.float32], **options
    )
    x = checked[0] if isinstance(checked, tuple) else checked
    values = x if isinstance(x, np.ndarray) else x.data
    if values.size and not _all_within(values, largest(torch.float64)):
        check_size(torch.from_numpy(x if isinstance(x, np.ndarray) else x.toarray()), "features X")
    return checked


def _all_within(values: np.ndarray, most: float) -> bool:
    """Whether no number is larger; their sum of squares says so for most, in half the time."""
    if values.flags.forc:
        flat = values.ravel("K")
        with np.errstate(over="ignore"):
            if float(flat @ flat) <= most:
                return True
    return max(float(values.max()), -float(values.min())) <= most


def read_samples(
    estimator: Any,  # noqa: ANN401 - one of ours
    X: ArrayLike,
    y: ArrayLike,
    domain: ArrayLike | None,
    sample_weight: ArrayLike | None,
) -> Labelled:
    """Check what `fit` is given, keep classes and domains in the estimator, and number them."""
    x, targets = _features(estimator, X, y)
    check_classification_targets(targets)
    weight = _check_sample_weight(sample_weight, x, dtype=np.float64, ensure_non_negative=True)
    estimator.classes_, labels = np.unique(targets, return_inverse=True)
    counted = weight
    if estimator.class_weight is not None:
        classes = compute_class_weight(
            estimator.class_weight, classes=estimator.classes_, y=targets, sample_weight=weight
        )
        for name, value in zip(estimator.classes_, classes, strict=True):
            check_not_negative(value, f"class_weight of {name}")
        counted = weight * classes[labels]
    found = np.unique(labels[counted > 0])
    if len(found) < 2:
        only = (
            f"one class only: {estimator.classes_[found[0]]}" if len(found) else "none that counts"
        )
        raise InputError(f"Expected samples of at least 2 classes, got {only}.")
    estimator.domains_, domains = _check_domain(domain, counted)
    return Labelled(
        x,
        labels,
        len(estimator.classes_),
        domains,
        1 if estimator.domains_ is None else len(estimator.domains_),
        counted,
        weight,
        bool(estimator.standardize),
        float(estimator.l2),
    )


def choose_kind(kind: Kind, data: Labelled) -> HessianKind | None:
    """What "auto" stands for, with a warning if that is not whole Hessians."""
    if kind != "auto":
        return kind
    if data.affordable():
        return "full"
    if data.count > 1:
        warnings.warn(
            f'alignment="auto" aligns Hessian diagonals: whole Hessians of {data.classes} classes '
            f"and {data.x.shape[1]:,} features in {data.x.shape[0]:,} samples would take far "
            'longer than a plain fit. alignment="full" insists on them, "diagonal" says that this '
            "is meant.",
            stacklevel=3,
        )
    return "diagonal"


def _check_domain(domain: Any, weight: np.ndarray) -> tuple[np.ndarray | None, np.ndarray]:  # noqa: ANN401
    """The domains with samples that count, and the number of each such sample's."""
    if domain is None:
        return None, np.zeros(len(weight), dtype=np.int64)
    values = np.asarray(domain)
    if values.shape != weight.shape:
        raise InputError(
            f"Expected one domain per row of X, shape {weight.shape}, got {values.shape}."
        )
    missing = _missing(values)
    if len(missing):
        raise InputError(
            f"Expected a domain for every sample, but {len(missing)} have none, the first in row "
            f"{missing[0]}. Give them a name of their own, or leave them out."
        )
    if values.dtype == object and len({type(value) for value in values}) > 1:
        values = values.astype(str)
    ids = np.unique(values[weight > 0])
    numbers = np.searchsorted(ids, values)
    if len(ids) == 1:
        warnings.warn(
            f"All samples come from the domain {str(ids[0])!r}: there is nothing to align, and the "
            "fit is plain logistic regression.",
            stacklevel=4,
        )
    return ids, numbers


def _missing(values: np.ndarray) -> np.ndarray:
    """The rows that have no domain."""
    if values.dtype != object:
        return np.flatnonzero(values != values)  # NaN and NaT are not
    return np.flatnonzero([_is_missing(value) for value in values])


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
