r"""How labels follow from features: quick models whose predictions never saw their own sample.

A ridge regression of the classes, whose leave-one-out scores have a closed form, and a softmax
regression from scores to probabilities. Where the rule is not linear, products of two columns join
the columns. Indices: n sample, w column, j product, c class, k score.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import numpy as np

from hessalign.diagnosis.permutation import Floats, Ints

_STRENGTHS: Final = np.logspace(-3, 3, 13)  # of the ridge term, by the mean squared singular value
_STEPS: Final = 100  # of L-BFGS, at most
_PLENTY: Final = 5  # samples per column from which on weights are those of a softmax regression
_FAR: Final = 4.0  # standard deviations at which features are cut off
_CALLED: Final = 1e-3  # level, for all together, at which products are called for
_COLUMNS: Final = 128  # columns up to which their products are looked at
_PRODUCTS: Final = 40  # that join them, at most
_SAMPLES: Final = 10  # there must be, for every column and product
_BETTER: Final = 2.0  # standard errors by which they must lower the error


@final
@dataclass(frozen=True, eq=False)
class LabelModel:
    """Class probabilities from features."""

    centre: Floats  # of each column
    scale: Floats
    weight: Floats  # from columns to scores
    bias: Floats  # of the scores
    head: Floats  # from scores and a constant to logits
    left_out: Floats  # scores of the training samples, of each from a fit without it
    logits: Floats  # these as logits
    shares: Floats  # of classes among the training samples
    strength: float  # of the ridge term
    pairs: Ints  # the two columns of each product; products follow the columns

    def predict(self, x: Floats) -> Floats:
        """Logits of samples that were not trained on."""
        cut = np.clip((x - self.centre) / self.scale, -_FAR, _FAR)
        scores = _with_products(cut, self.pairs) @ self.weight + self.bias
        return with_constant(scores) @ self.head


def fit_label_model(x: Floats, y: Ints, classes: int, *, products: bool = True) -> LabelModel:
    r"""Fit ridge scores, strength by leave-one-out error, then softmax on leave-one-out scores.

    With hat matrix $A = U\,\mathrm{diag}(s^2/(s^2+\lambda))\,U^\top + 1/n$, the score of sample i
    from a fit without it is $y_i - (y_i - \hat y_i)/(1 - A_{ii})$; the mean of the other labels is
    taken off. Products of columns may join, if what a linear rule leaves calls for them.

    Returns:
        The model.
    """
    centre, scale = robust_scale(x)
    cut = np.clip((x - centre) / scale, -_FAR, _FAR)
    nothing = np.zeros((0, 2), dtype=np.int64)
    model, left = _fit(centre, scale, cut, y, classes, nothing)
    pairs = _called_for(cut, left) if products else nothing
    if not len(pairs):
        return model
    other, _ = _fit(centre, scale, _with_products(cut, pairs), y, classes, pairs)
    gain = log_likelihood(other.logits, y) - log_likelihood(model.logits, y)
    return other if gain.mean() > _BETTER * gain.std() / len(gain) ** 0.5 else model


def _fit(
    centre: Floats, scale: Floats, cut: Floats, y: Ints, classes: int, pairs: Ints
) -> tuple[LabelModel, Floats]:
    """A model of these columns, and what its probabilities leave of the labels."""
    target = np.eye(classes)[y]
    weight, left_out, strength = _ridge(cut - cut.mean(0), target)
    left_out = left_out - (len(y) * target.mean(0) - target) / (len(y) - 1)  # it tells the label
    bias = -cut.mean(0) @ weight
    head = fit_softmax(with_constant(left_out), y, classes)
    said = logits = with_constant(left_out) @ head
    if len(y) >= _PLENTY * cut.shape[1]:
        l2 = strength * float(np.square(target - left_out).mean())
        whole = fit_softmax(with_constant(cut), y, classes, l2=l2)
        weight, bias, said = whole[:-1], whole[-1], with_constant(cut) @ whole
        head = np.concatenate([np.eye(classes), np.zeros((1, classes))])
    counts = np.bincount(y, minlength=classes).astype(np.float64)
    shares: Floats = (counts + 0.5) / (len(y) + 0.5 * classes)
    model = LabelModel(centre, scale, weight, bias, head, left_out, logits, shares, strength, pairs)
    return model, target - softmax(said)


def _with_products(cut: Floats, pairs: Ints) -> Floats:
    """Columns, then products of pairs of them."""
    if not len(pairs):
        return cut
    return np.concatenate([cut, cut[:, pairs[:, 0]] * cut[:, pairs[:, 1]]], axis=1)


def _called_for(cut: Floats, error: Floats) -> Ints:
    """Pairs of columns whose product goes with what a model leaves, the clearest first."""
    from scipy.stats import norm

    count, width = cut.shape
    most = min(_PRODUCTS, count // _SAMPLES - width)
    if width > _COLUMNS or most < 1:
        return np.zeros((0, 2), dtype=np.int64)
    square = np.square(cut)
    mean = cut.T @ cut / count
    largest = np.zeros((width, width))
    for e in (error - error.mean(0)).T:
        weighed = np.square(e)[:, None]
        sums = (cut * e[:, None]).T @ cut
        noise = (square * weighed).T @ square - 2 * mean * ((cut * weighed).T @ cut)
        noise += np.square(mean) * weighed.sum()
        floor = 1e-9 * max(float(noise.max()), 1e-300)
        largest = np.maximum(largest, np.abs(sums) / np.sqrt(np.maximum(noise, floor)))
    above = np.triu_indices(width)
    found = largest[above]
    clear = norm.isf(_CALLED / 2 / (len(found) * error.shape[1]))
    order = np.argsort(-found, kind="stable")[:most]
    order = order[found[order] > clear]
    return np.stack([above[0][order], above[1][order]], axis=1)


def robust_scale(x: Floats) -> tuple[Floats, Floats]:
    """Middle and width of every column; the width from quartiles unless half of it is one value."""
    low, centre, high = np.quantile(x, [0.25, 0.5, 0.75], axis=0)
    width = (high - low) / 1.349
    spread = x.std(0)
    flat = width <= 1e-9 * np.maximum(spread, 1e-300)
    width = np.where(flat, np.where(spread > 1e-12 * np.abs(centre), spread, 1.0), width)
    return centre, np.where(width > 0, width, 1.0)


def fit_softmax(s: Floats, y: Ints, classes: int, *, l2: float = 0.3) -> Floats:
    """Softmax regression by L-BFGS: the sum of losses and λ/2 ‖Θ‖², the last column a constant."""
    from scipy.optimize import minimize

    target = np.eye(classes)[y]
    penalty = np.full((s.shape[1], 1), l2)
    penalty[-1] = 1e-3

    def value_and_gradient(flat: Floats) -> tuple[float, Floats]:
        theta = flat.reshape(-1, classes)
        logits = s @ theta
        top = logits.max(1, keepdims=True)
        grown = np.exp(logits - top)
        norm = grown.sum(1, keepdims=True)
        loss = (np.log(norm) + top).sum() - (logits * target).sum()
        gradient = s.T @ (grown / norm - target) + penalty * theta
        return float(loss + (penalty * np.square(theta)).sum() / 2), gradient.reshape(-1)

    options = {"maxiter": _STEPS, "ftol": 1e-8}
    start = np.zeros(s.shape[1] * classes)
    found = minimize(value_and_gradient, start, jac=True, method="L-BFGS-B", options=options)
    return np.asarray(found.x.reshape(-1, classes))


def softmax(logits: Floats) -> Floats:
    """Probabilities."""
    grown = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(grown / grown.sum(1, keepdims=True))


def log_likelihood(logits: Floats, y: Ints) -> Floats:
    """Log probability of the class of each sample."""
    top = logits.max(1)
    norm = np.log(np.exp(logits - top[:, None]).sum(1))
    return np.asarray(logits[np.arange(len(y)), y] - top - norm)


def with_constant(s: Floats) -> Floats:
    """A column of ones added."""
    return np.concatenate([s, np.ones((len(s), 1))], axis=1)


def _ridge(x: Floats, target: Floats) -> tuple[Floats, Floats, float]:
    """Weights of the best strength, the leave-one-out scores, and that strength."""
    count, width = x.shape
    wide = width > count
    values, vectors = np.linalg.eigh(x @ x.T if wide else x.T @ x)
    keep = values > 1e-9 * max(values[-1], 1e-300)
    values, vectors = values[keep], vectors[:, keep]
    left = vectors if wide else x @ vectors / np.sqrt(values)
    inner = left.T @ (target - target.mean(0))
    mean = np.broadcast_to(target.mean(0), target.shape)
    best, found = np.inf, (np.zeros((width, target.shape[1])), mean, 1.0)
    typical = values.mean() if len(values) else 1.0
    squares = np.square(left)
    for strength in _STRENGTHS * typical:
        shrink = values / (values + strength)
        fitted = left @ (shrink[:, None] * inner) + target.mean(0)
        hat = np.minimum(squares @ shrink + 1 / count, 0.999)
        error = (target - fitted) / (1 - hat)[:, None]
        if (loss := float(np.square(error).sum())) < best:
            right = x.T @ vectors / np.sqrt(values) if wide else vectors
            best = loss
            found = right @ ((shrink / np.sqrt(values))[:, None] * inner), target - error, strength
    return found
