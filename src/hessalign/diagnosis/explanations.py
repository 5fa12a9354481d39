r"""How the labels of a site follow from a model of other sites, under each kind of shift.

The model is taken to the site's features as they are (covariate shift: the same features mean the
same label), moved so that classes have the reference's mean (offset), stretched as well (scale),
with class shares corrected (label), with labels wrong at random (noise), or replaced by a model of
the site itself (concept). Indices: n sample, w column, c class, k kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, final, get_args

import numpy as np

from hessalign.diagnosis.label_models import (
    LabelModel,
    fit_label_model,
    log_likelihood,
    robust_scale,
    softmax,
)
from hessalign.diagnosis.permutation import Floats, Ints

Cause = Literal["label", "covariate", "offset", "scale", "concept", "noise", "sample_size"]
CAUSES: Final[tuple[Cause, ...]] = get_args(Cause)
"""Why a model may fail on a site that it has not seen.

- label: classes have other shares.
- covariate: patients are different, the same ones get the same label.
- offset: features are moved by a constant at a site, as by another calibration.
- scale: features are stretched at a site, as by another unit.
- concept: the same features mean another label.
- noise: labels at a site are wrong at random.
- sample_size: there are too few samples to learn from.
"""

VIEWS: Final[tuple[Cause, ...]] = ("covariate", "offset", "scale")
RELATION: Final[tuple[Cause, ...]] = ("concept", "noise")  # kinds that change what features mean
_ORDER: Final[tuple[tuple[Cause, ...], ...]] = (  # from the simplest on
    ("covariate",),
    ("offset",),
    ("label", "covariate"),
    ("label", "offset"),
    ("scale",),
    ("label", "scale"),
    ("noise",),
    ("concept",),
)
_FLOOR: Final = -8.0  # log likelihood that a sample counts with, at least
_CONCEDED: Final = 2.0  # log likelihood by which one must be better in any case
_SMALL: Final = 0.01  # log likelihood of a sample that does not matter
_CHANCE: Final = 0.05  # log likelihood of a sample that a move may gain by chance, at most
_CLEAR: Final = 2.0  # standard errors by which one must be better
_RATES: Final = np.linspace(0, 1, 41)  # of wrong labels, tried
_DIRECTION: Final = 0.8  # of the noise that hides the relation: up to it labels are noisy


@final
@dataclass(frozen=True, eq=False)
class Explanation:
    """What a kind of shift makes of a site's labels."""

    causes: tuple[Cause, ...]
    fit: Floats  # log likelihood of each sample's label
    right: Floats  # whether it is classified right, 1 or 0
    cost: float = 0.0  # of what was fitted to these labels, in log likelihood
    # What it may gain over features as they are because chance weights of the other sites' model
    # meet features that are far away.
    chance: float = 0.0
    wrong: float = 0.0  # share of wrong labels, for noise
    alone: bool = False  # whether no other view brings features that matter to the reference

    @property
    def kind(self) -> Cause:
        """The kind without the class shares."""
        return self.causes[-1]

    @property
    def value(self) -> float:
        """Log likelihood of all labels, less the cost."""
        return float(self.fit.sum() - self.cost)

    def lead(self, other: Explanation) -> float:
        """How much better it is than another one, in standard errors of the difference."""
        noise = float((self.fit - other.fit).std()) * len(self.fit) ** 0.5
        conceded = _CONCEDED + _SMALL * len(self.fit)
        same_rule = other.kind == "covariate" and self.kind in RELATION
        if same_rule or other.causes == ("covariate",):
            conceded += self.chance
        return float((self.value - other.value - conceded) / max(noise, 1e-9))

    def clearly_better(self, other: Explanation) -> bool:
        """Whether it is to be preferred to a simpler one; a move that matters is no simpler."""
        moved = self.kind in ("offset", "scale") and self.chance == 0
        plain = moved and other.causes == ("covariate",)
        return self.lead(other) > (0 if plain else _CLEAR)


@final
@dataclass(frozen=True, eq=False)
class SiteLabels:
    """A site's labels, seen from other sites."""

    options: tuple[Explanation, ...]  # what they could follow from, the simplest first
    logits: Floats  # of the other sites' model, features as they are
    there: Floats  # whether its samples are classified right by a linear model of the others
    home: Floats  # whether the other sites' samples are, by a fit without them

    @property
    def plain(self) -> Explanation:
        """The other sites' model as it is."""
        return self.options[0]

    def find(self, kind: Cause) -> Explanation:
        """The best explanation of a kind."""
        options = [option for option in self.options if option.kind == kind]
        return max(options, key=lambda option: option.value)


def choose(
    options: Sequence[Explanation], preferred: tuple[Cause, ...] | None = None
) -> Explanation:
    """The preferred explanation, or else the simplest, that none is clearly better than."""
    # Those by which features mean the same compete first, their winner with the others then.
    same = [option for option in options if option.kind not in RELATION]
    rest = [option for option in options if option.kind in RELATION]
    # If features leave one view, it is taken unless labels speak against it.
    best = max((option.value for option in same), default=0.0)
    same = [o for o in same if o.alone and o.value > best - _SMALL * len(o.fit)] or same
    return _winner([*([_winner(same, preferred)] if same else []), *rest], preferred)


def _winner(options: Sequence[Explanation], preferred: tuple[Cause, ...] | None) -> Explanation:
    """The preferred one, or else the first, that the best is not clearly better than."""
    best = max(options, key=lambda option: option.value)
    first = [option for option in options if option.causes == preferred]
    return next(option for option in (*first, *options) if not best.clearly_better(option))


def common_causes(sites: Sequence[SiteLabels]) -> tuple[Cause, ...] | None:
    """The simplest kinds, other than of the relation, that suit all sites together."""
    joint = []
    for causes in _ORDER:
        found = [option for site in sites for option in site.options if option.causes == causes]
        if causes[-1] not in RELATION and found and len(found) == len(sites):
            fits, rights = [o.fit for o in found], [o.right for o in found]
            cost, chance = sum(o.cost for o in found), sum(o.chance for o in found)
            whole = np.concatenate(fits), np.concatenate(rights)
            alone = all(option.alone for option in found)
            joint.append(Explanation(causes, *whole, cost, chance, alone=alone))
    return choose(joint).causes if joint else None


def displacement(x0: Floats, y0: Ints, x: Floats, y: Ints) -> tuple[Floats, Floats, Floats]:
    """How a site's columns are moved and stretched inside classes, and the reference's mean."""
    # Classes are weighted alike on both sides, values far out cut off.
    classes = np.intersect1d(y0, y)
    if len(classes) == 0:
        return np.zeros(x.shape[1]), np.ones(x.shape[1]), np.zeros(x.shape[1])
    weight = np.array([1 / (1 / (y0 == c).sum() + 1 / (y == c).sum()) for c in classes])
    weight /= weight.sum()
    sides = [[cut_off(a[b == c]) for c in classes] for a, b in ((x0, y0), (x, y))]
    here, there = (np.tensordot(weight, [part.mean(0) for part in side], 1) for side in sides)
    low, high = (np.tensordot(weight, [part.var(0) for part in side], 1) ** 0.5 for side in sides)
    alive = np.minimum(low, high) > 1e-6 * np.maximum(low, high)
    ratio = np.divide(high, low, where=alive, out=np.ones(x.shape[1]))
    return there - here, ratio, here


def cut_off(x: Floats) -> Floats:
    """Columns whose values are at most four standard deviations from their middle."""
    centre, scale = robust_scale(x)
    return np.clip(x, centre - 4 * scale, centre + 4 * scale)


def site_labels(
    views: Sequence[Floats],
    y: Ints,
    home: Ints,
    there: Ints,
    own: LabelModel,
    allowed: Mapping[Cause, bool],
    *,
    shares: bool,
) -> SiteLabels:
    """What the labels of a site could follow from, columns seen in all ways of `VIEWS`.

    Rows are those of the other sites at home, and of the site, of which there is a model of its
    own, there. A view that is not allowed explains nothing, and if features as they are cannot be
    the explanation either, the last view is alone; class shares may be another kind.

    Returns:
        The explanations.
    """
    classes, target = len(own.shares), y[there]
    found: list[Explanation] = []
    for kind, view in zip(VIEWS, views, strict=True):
        if kind != "covariate" and not allowed.get(kind, True):
            continue
        linear = model = fit_label_model(view[home], y[home], classes)
        if len(model.pairs):
            linear = fit_label_model(view[home], y[home], classes, products=False)
            model = max(
                (linear, model),  # if products do not reach that far, this is no other rule
                key=lambda each: _explanation((kind,), each.predict(view[there]), target).value,
            )
        logits = model.predict(view[there])
        if kind == "covariate":
            plain, raw = model, logits
            right = linear.predict(view[there]).argmax(1) == target
            at_home = linear.logits.argmax(1) == y[home]
            shifted, cost = rebiased(logits, target), (classes - 1) / 2 * np.log(len(target))
            chance, p = 0.0, softmax(model.logits)
            error = float((p * (1 - p)).mean())
        else:
            shifted, cost = logits + _log_shares(target, classes) - np.log(model.shares), 0.0
            chance = _chance_gain(plain, view[there] - views[0][there], views[0][home], error)
        alone = kind == "scale" and chance == 0 and not allowed.get("covariate", True)
        found.append(_explanation((kind,), logits, target, chance=chance, alone=alone))
        if shares:
            found.append(_explanation(("label", kind), shifted, target, cost, chance))
    moved = _chance_gain(plain, views[1][there] - views[0][there], views[0][home], error)
    cost = 2.0 + (classes**2 - 1) / 2  # of a model of the site itself, samples left out in turn
    itself = _explanation(("concept",), own.logits, target, cost)
    found += [_noise(raw, target), _relabelled(raw, target), itself]
    found[-3:] = [replace(option, chance=moved) for option in found[-3:]]
    ordered = sorted(found, key=lambda option: _ORDER.index(option.causes))
    return SiteLabels(tuple(ordered), raw, right.astype(np.float64), at_home.astype(np.float64))


def _chance_gain(model: LabelModel, delta: Floats, x: Floats, error: float) -> float:
    """The log likelihood a move gains at most where weights of columns moved are chance; else 0."""
    # Weights of no meaning have covariance (v XᵀX)⁻¹, v the variance of a label, so a move δ
    # changes the log likelihood by v/2 Σₙ |Wδₙ|², in expectation (C − 1)/2 tr ΔᵀΔ(XᵀX)⁻¹. A move
    # that changes it by more than chance explains is one along columns that matter.
    from scipy.stats import chi2

    x = np.clip((x - model.centre) / model.scale, -4, 4)
    x = x - x.mean(0)
    delta = delta / model.scale
    gram = x.T @ x + model.strength * np.eye(x.shape[1])
    product = np.linalg.solve(gram, delta.T @ delta)
    trace = max(float(np.trace(product)), 1e-12)
    freedom = (len(model.shares) - 1) * trace**2 / max(float((product * product.T).sum()), 1e-24)
    most = float(chi2.isf(0.01, freedom)) / freedom * (len(model.shares) - 1) * trace
    weight = model.weight[: x.shape[1]] @ model.head[:-1]
    weight = weight - weight.mean(1, keepdims=True)
    changed = error * float(np.square(delta @ weight).sum())
    return min(most / 2, _CHANCE * len(delta)) if changed <= most else 0.0


def _other_names(p: Floats, y: Ints) -> Floats:
    """How often a class has the name of another one, by expectation maximisation."""
    classes = p.shape[1]
    names = np.full((classes, classes), 1 / classes)
    for _ in range(20):
        joint = p * names[:, y].T
        joint /= joint.sum(1, keepdims=True)
        names = np.stack([joint[y == c].sum(0) for c in range(classes)], axis=1) + 1e-3
        names /= names.sum(1, keepdims=True)
    np.fill_diagonal(names, 0)
    return names


def _relabelled(logits: Floats, y: Ints) -> Explanation:
    """Each class called by the name of another one, at the rate that suits labels best."""
    p, classes = softmax(logits), logits.shape[1]
    other = p @ np.eye(classes)[_other_names(p, y).argmax(1)]
    cost = 2.0 + classes * np.log(max(classes - 1, 1))
    tried = [
        _explanation(("concept",), np.log((1 - r) * p + r * other + 1e-12), y, cost) for r in _RATES
    ]
    return max(tried, key=lambda option: option.value)


def _explanation(
    causes: tuple[Cause, ...],
    logits: Floats,
    y: Ints,
    cost: float = 0.0,
    chance: float = 0.0,
    wrong: float = 0.0,
    *,
    alone: bool = False,
) -> Explanation:
    fit = np.maximum(log_likelihood(logits, y), _FLOOR)
    right = (logits.argmax(1) == y).astype(np.float64)
    return Explanation(causes, fit, right, cost, chance, wrong, alone)


def _log_shares(y: Ints, classes: int) -> Floats:
    """Logarithms of class shares, none of them 0."""
    shares = (np.bincount(y, minlength=classes) + 0.5) / (len(y) + 0.5 * classes)
    return np.asarray(np.log(shares))


def rebiased(logits: Floats, y: Ints) -> Floats:
    """Logits with the biases that give the classes their shares."""
    bias = np.zeros(logits.shape[1])
    for _ in range(30):
        bias += _log_shares(y, logits.shape[1]) - np.log(softmax(logits + bias).mean(0))
    return logits + bias


def _noise(logits: Floats, y: Ints) -> Explanation:
    """Labels replaced by another class, drawn anew, or one missed, at the rate that suits best."""
    p, classes = softmax(logits), logits.shape[1]
    share = np.exp(_log_shares(y, classes))
    names = p.mean(0)[:, None] * _other_names(p, y)
    missed, instead = np.unravel_index(names.argmax(), names.shape)
    moved = p.copy()
    moved[:, instead] += moved[:, missed]
    moved[:, missed] = 0
    one_sided = 2.0 + np.log(classes * (classes - 1))
    kinds = (
        ((1 - p) / (classes - 1), (classes - 1) / classes, 1.0, 2.0),
        (np.broadcast_to(share, p.shape), 1.0, 1 - float(np.square(share).sum()), 2.0),
        (moved, 1.0, float(p[:, missed].mean()), one_sided),
    )
    tried = [
        _explanation(
            ("noise",), np.log((1 - r) * p + r * q + 1e-12), y, cost, 0.0, float(r * wrong)
        )
        for q, most, wrong, cost in kinds
        for r in _RATES * most * _DIRECTION
    ]
    return max(tried, key=lambda option: option.value)
