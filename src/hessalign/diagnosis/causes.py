r"""Why may a model fail on a site that it has not seen? Kinds of shift, each by a test.

Two tests permute sites: one class shares, the other everything else inside classes. If the latter
finds something, sites are set aside, the farthest first, until the rest, the reference, agrees
inside classes. What kind of shift a site set aside shows is read off its labels: the simplest
explanation that is not clearly worse than the best. Indices: n sample, w column, e site, c class.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Final, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hessalign._shapes import Float, Int
from hessalign.diagnosis.draw import explain
from hessalign.diagnosis.explanations import (
    CAUSES,
    RELATION,
    VIEWS,
    Cause,
    Explanation,
    SiteLabels,
    choose,
    common_causes,
    cut_off,
    displacement,
    rebiased,
    site_labels,
)
from hessalign.diagnosis.label_models import (
    LabelModel,
    fit_label_model,
    log_likelihood,
    robust_scale,
    softmax,
)
from hessalign.diagnosis.permutation import (
    Exchange,
    Floats,
    Ints,
    counts,
    exchange_test,
    rank_scores,
    share_test,
)
from hessalign.diagnosis.preparation import first_copies, fit_preparation

_LEVEL: Final = 0.05
_LARGE: Final = 1 << 20  # numbers from which on fewer permutations are done
_DIRECTIONS: Final = 8  # main directions whose pairs are looked at
_WIDE: Final = 128  # main directions that models of sites see, at most
_TOP: Final = 128  # columns that are looked at again after a move
_FEW: Final = 32  # values of a column that stay such when it is moved
_REST: Final = 0.3  # share of the squared distance that a move may leave
_LEFT: Final = 0.02  # and that by which it is not enough
_GRID: Final = 0.2  # standard deviations to which columns are rounded after a move
_SAME: Final = 0.2  # p-value from which on features are taken to be distributed alike
_NAMED: Final = 5  # features that are named, at most
_POINT: Final = 0.01

_WEIGHT: Final = ("concept", "scale", "offset", "noise", "label", "covariate", "sample_size")
_UNITS: Final[dict[Cause, str]] = {
    "label": "largest difference of class shares",
    "covariate": "largest move of a feature, in standard deviations",
    "offset": "largest move of a feature, in standard deviations",
    "scale": "largest ratio of a feature's standard deviations",
    "concept": "accuracy lost against a model of the site itself",
    "noise": "share of wrong labels",
    "sample_size": "accuracy beyond the commonest class, samples left out in turn",
}


@final
@dataclass(frozen=True)
class Finding:
    """One kind of difference, between all sites or of one.

    Attributes:
        cause: Which kind.
        domain: Position of the site that differs; None if it is not a single one.
        p_value: Of its test, corrected for the number of tests.
        size: How large it is, in the unit of its kind.
        unit: That unit in words, such as "largest difference of class shares".
        harmful: Whether it costs accuracy on a site not seen, as far as can be told.
        features: Positions of the features that differ the most, first the most.
        missing: Those of them that differ in where they are missing, rather than in their values.
    """

    cause: Cause
    domain: int | None
    p_value: float
    size: float
    unit: str
    harmful: bool
    features: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()


@final
@dataclass(frozen=True)
class CauseReport:
    """Why not?

    Attributes:
        findings: What was found at the 5 % level for all tests together, first what matters most;
            empty if nothing was.
        p_values: Of every test that was done, by cause, corrected; of class shares also where
            features explain them, so that label shift is not among the findings.
        odd_one_out: Position of the one site that differs from all others; None if there is none.
        how: How it was computed.
    """

    findings: tuple[Finding, ...]
    p_values: dict[str, float]
    odd_one_out: int | None
    how: str


@final
@dataclass(frozen=True, eq=False)
class _Data:
    """Columns without gaps, of which feature each one is, and whether it marks what is missing."""

    x: Floats
    gaps: NDArray[np.bool_]  # where values are filled in
    feature: Ints
    marks: NDArray[np.bool_]
    y: Ints
    domain: Ints
    classes: int
    seed: int

    @property
    def sites(self) -> int:
        return int(self.domain.max()) + 1

    @property
    def permutations(self) -> int:
        return 499 if self.x.size < _LARGE else 199

    def rows(self, sites: list[int]) -> Ints:
        return np.flatnonzero(np.isin(self.domain, sites))


@final
@dataclass(frozen=True, eq=False)
class _Site:
    """A site set aside: what was chosen, what there was to choose from, how columns differ."""

    causes: tuple[Cause, ...]
    labels: SiteLabels
    move: Floats  # in standard deviations
    ratio: Floats
    gradient: Floats

    @property
    def harmful(self) -> bool:
        """Whether linear models of other sites do worse there than at home, or than they could."""
        raw, there, home = self.labels.plain.right, self.labels.there, self.labels.home
        worse = home.mean() - there.mean()
        noise = (there.var() / len(there) + home.var() / len(home)) ** 0.5
        gains = [
            option.right - raw for option in self.labels.options if option.causes == self.causes
        ]
        could = any(g.mean() > max(_POINT, 3 * (g.var() / len(g)) ** 0.5) for g in gains)
        return could or bool(worse > max(_POINT, 3 * noise))


def cause_report(
    z: Float[Tensor, "n d"],
    y: Int[Tensor, " n"],
    domain: Int[Tensor, " n"],
    *,
    classes: int,
    seed: int = 0,
) -> CauseReport:
    """Name the kinds of shift between sites, at a level of 5 % for all together.

    Features are as they came, NaN where missing. Exact copies of a sample count once.

    Returns:
        What was found.

    Example:
        >>> draws = torch.Generator().manual_seed(0)
        >>> domain = torch.arange(3).repeat_interleave(100)
        >>> z = torch.randn(300, 4, generator=draws)
        >>> y = (z[:, 0] > 0).long()
        >>> z[domain == 2] += 3
        >>> [(f.cause, f.domain) for f in cause_report(z, y, domain, classes=2).findings]
        [('offset', 2)]
    """
    new = first_copies(z, y, domain).unique()
    data = _make_data(z[new], y[new], domain[new], classes, seed)
    model = fit_label_model(data.x, data.y, classes)
    p_share, parts = share_test(data.y, data.domain, permutations=1999, seed=seed)
    blocks = _blocks(data, model)
    inside = _exchange(data, blocks, list(range(data.sites)))
    p_few, few = _too_few(data, model)
    p = _holm({"label": p_share, "inside": inside.p_value, "sample_size": p_few})
    kept, aside = _reference(data, blocks, inside, p["inside"])
    sites = _explain_sites(data, kept, aside, p["label"] <= _LEVEL) if aside else {}
    label = _label_finding(data, model, p["label"], parts, kept, sites)
    findings = [*_site_findings(data, p["inside"], sites), *([label] if label else [])]
    if few is not None and p["sample_size"] <= _LEVEL:
        size = _UNITS["sample_size"]
        findings.append(Finding("sample_size", None, p["sample_size"], few, size, harmful=True))
    findings.sort(key=lambda found: (not found.harmful, _WEIGHT.index(found.cause)))
    how = explain(
        "causes",
        permutations=data.permutations,
        columns=data.x.shape[1],
        wide=_WIDE if data.x.shape[1] > _WIDE else 0,
        aside=len(aside),
    )
    return CauseReport(tuple(findings), _p_values(p, findings, sites), _odd(findings, aside), how)


def _make_data(z: Tensor, y: Tensor, domain: Tensor, classes: int, seed: int) -> _Data:
    prepared = fit_preparation(z.double(), scale=False)
    x = prepared.apply(z.double()).numpy()
    gaps = np.zeros_like(x, dtype=bool)
    gaps[:, : z.shape[1]] = z.isnan().numpy()
    feature = torch.cat([torch.arange(z.shape[1]), prepared.marked]).numpy()
    varies = x.max(0) > x.min(0)
    varies[0] |= not varies.any()
    marks = np.arange(x.shape[1]) >= z.shape[1]
    columns = x[:, varies], gaps[:, varies], feature[varies], marks[varies]
    return _Data(*columns, y.numpy(), domain.numpy(), classes, seed)


def _blocks(data: _Data, model: LabelModel) -> list[NDArray[np.float32]]:
    """Columns in which sites may differ: features, their main directions, what the model says."""
    place, spread = rank_scores(data.x, data.y)
    cut = cut_off(data.x)
    for c in np.unique(data.y):
        cut[data.y == c] -= cut[data.y == c].mean(0)
    cut /= np.maximum(cut.std(0), 1e-12)
    main = cut @ np.linalg.eigh(cut.T @ cut)[1][:, ::-1][:, :_DIRECTIONS]
    pairs = [main[:, i] * main[:, j] for i, j in combinations(range(main.shape[1]), 2)]
    directions, _ = rank_scores(np.stack([*main.T, *pairs], axis=1), data.y)
    loss = log_likelihood(model.logits, data.y)[:, None]
    said, _ = rank_scores(np.concatenate([model.logits, loss], axis=1), data.y)
    # A few wrong labels hardly move ranks.
    wrong = (model.logits.argmax(1) != data.y).astype(np.float32)[:, None]
    return [place, spread, directions, np.concatenate([said, wrong], axis=1)]


def _exchange(data: _Data, blocks: list[NDArray[np.float32]], kept: list[int]) -> Exchange:
    """Whether some sites differ inside classes."""
    rows = data.rows(kept)
    position = np.searchsorted(kept, data.domain[rows])
    parts = [block[rows] for block in blocks]
    return exchange_test(
        parts, data.y[rows], position, permutations=data.permutations, seed=data.seed
    )


def _reference(
    data: _Data, blocks: list[NDArray[np.float32]], test: Exchange, p: float
) -> tuple[list[int], list[int]]:
    """Sites that agree inside classes, and those set aside, the farthest first."""
    kept: list[int] = list(range(data.sites))
    aside: list[int] = []
    level = _LEVEL  # of all tests together, for the first of them
    while p <= level:
        eligible = test.clear | ~test.clear.any()
        aside.append(kept.pop(int(np.where(eligible, test.distance, -np.inf).argmax())))
        if len(kept) == 1:
            break
        test = _exchange(data, blocks, kept)
        p, level = test.p_value, _POINT
    return kept, aside


def _explain_sites(
    data: _Data, kept: list[int], aside: list[int], shares: bool
) -> dict[int, _Site]:
    """Of every site set aside, why its labels or features are different."""
    # Sites whose features mean another label are taken out of the others' pool one by one, the
    # clearest first, and all are explained again. A reference of a single site may be the odd one.
    x, y, home = _filled_by_site(data), data.y, data.rows(kept)
    there = {e: data.rows([e]) for e in range(data.sites)}
    moves = {e: displacement(x[home], y[home], x[there[e]], y[there[e]]) for e in aside}
    views = _views(data, moves)
    allowed = {e: _allowed(data, views, kept, e) for e in aside}
    tried = [*aside, *(kept if len(kept) == 1 else [])]
    own = {e: fit_label_model(views[0][there[e]], y[there[e]], data.classes) for e in tried}
    pool = [*kept, *aside]
    while True:
        found = {
            e: site_labels(views, y, others, there[e], own[e], allowed.get(e, {}), shares=shares)
            for e in tried
            for others in [data.rows([f for f in pool if f != e])]
        }
        common = common_causes([found[e] for e in tried if e in pool])
        chosen = {e: choose(found[e].options, common) for e in tried}
        odd = {e: _oddness(found[e]) for e in tried if e in pool and chosen[e].kind in RELATION}
        if not odd or len(pool) <= 2:
            break
        pool.remove(max(odd, key=lambda e: odd[e]))
    return _settle(data, kept, aside, found, chosen, moves)


def _oddness(labels: SiteLabels) -> float:
    """How much better labels follow from another relation than from the same one."""
    parts: tuple[list[float], list[float]] = [], []
    for option in labels.options:
        parts[option.kind in RELATION].append(option.value)
    return max(parts[1]) - max(parts[0])


def _settle(
    data: _Data,
    kept: list[int],
    aside: list[int],
    found: dict[int, SiteLabels],
    chosen: dict[int, Explanation],
    moves: dict[int, tuple[Floats, Floats, Floats]],
) -> dict[int, _Site]:
    """Sites with their kinds, after a look at whether features are distributed differently."""
    sites = {}
    alone = data.sites == 2 and chosen[kept[0]].kind == "noise"
    for e in aside if not alone else kept:
        causes = chosen[e].causes
        elsewhere = not alone and any(chosen[f].kind == "concept" for f in aside if f != e)
        if causes == ("noise",) and elsewhere:
            causes = choose(found[e].options, ("concept",)).causes
        if causes == ("covariate",) or causes[0] in RELATION:
            same_shares, p = _features_alike(data, kept if not alone else aside, e)
            if same_shares and causes[0] in RELATION and p <= _POINT:
                causes = ("covariate", *causes)
            elif same_shares and causes[0] not in RELATION and p > _SAME:
                relations = [o for o in found[e].options if o.kind in RELATION]
                causes = choose(relations, ("concept",) if elsewhere else None).causes
        move, ratio, _ = moves[aside[0] if alone else e]
        rows = data.rows([e])
        width = (data.x[data.rows(kept)].var(0) + data.x[rows].var(0)) / 2
        width = np.sqrt(np.where(width > 0, width, data.x.var(0)))
        sites[e] = _Site(causes, found[e], move / width, ratio, _gradient(data, rows, found[e]))
    return sites


def _features_alike(data: _Data, kept: list[int], e: int) -> tuple[bool, float]:
    """Whether class shares are those of the reference, and the p-value of the features' being."""
    rows = np.concatenate([data.rows(kept), data.rows([e])])
    position = (data.domain[rows] == e).astype(np.int64)
    p_share, _ = share_test(data.y[rows], position, permutations=499, seed=data.seed)
    nobody = np.zeros(len(rows), dtype=np.int64)
    scores = list(rank_scores(data.x[rows], nobody))
    test = exchange_test(scores, nobody, position, permutations=99, seed=data.seed)
    return p_share > _LEVEL, test.p_value


def _gradient(data: _Data, rows: Ints, labels: SiteLabels) -> Floats:
    """Of each column, the gradient of the other sites' model at a site, by its standard error."""
    error = softmax(labels.logits) - np.eye(data.classes)[data.y[rows]]
    centre, scale = robust_scale(data.x[rows])
    x = np.clip((data.x[rows] - centre) / scale, -4, 4)
    mean = error.T @ x
    noise = np.sqrt(np.square(error).T @ np.square(x))
    return np.asarray(np.abs(mean / np.maximum(noise, 1e-12)).max(0))


def _filled_by_site(data: _Data) -> Floats:
    """Columns whose gaps are in the middle of their site's values, if it has any."""
    if not data.gaps.any():
        return data.x
    filled: Floats = data.x.copy()
    for e in range(data.sites):
        rows = data.rows([e])
        gaps = data.gaps[rows]
        part = torch.from_numpy(np.where(gaps, np.nan, data.x[rows]))
        own = fit_preparation(part, scale=False, marks=False).fill.numpy()
        filled[rows] = np.where(gaps & ~gaps.all(0), own, data.x[rows])
    return filled


def _views(data: _Data, moves: dict[int, tuple[Floats, Floats, Floats]]) -> list[Floats]:
    """Columns as they are, moved to the reference, and stretched; of many their main directions."""
    raw, moved, scaled = data.x, data.x.copy(), data.x.copy()
    for e, (move, ratio, middle) in moves.items():
        rows = data.rows([e])
        moved[rows] -= move
        scaled[rows] = (moved[rows] - middle) / ratio + middle
    # What has few values keeps them: a move that is not quite exact would undo all ties.
    moved[data.gaps] = scaled[data.gaps] = raw[data.gaps]
    for w, values in enumerate(map(np.unique, raw.T)):
        if len(values) == 2:  # yes or no
            moved[:, w] = scaled[:, w] = raw[:, w]
        elif len(values) <= _FEW:
            for view in (moved, scaled):
                view[:, w] = values[np.searchsorted((values[1:] + values[:-1]) / 2, view[:, w])]
    views = [raw, moved, scaled]
    if raw.shape[1] > _WIDE:
        centre, scale = robust_scale(scaled)
        cut = np.clip((scaled - centre) / scale, -4, 4)
        basis = np.linalg.eigh(cut.T @ cut)[1][:, -_WIDE:]
        views = [np.clip((view - centre) / scale, -20, 20) @ basis for view in views]
    return views


def _allowed(data: _Data, views: list[Floats], kept: list[int], e: int) -> dict[Cause, bool]:
    """Whether a view brings a site to the reference inside classes, for the most part."""
    rows = np.concatenate([data.rows(kept), data.rows([e])])
    position = (data.domain[rows] == e).astype(np.int64)
    tests = []
    centre, scale = robust_scale(views[0][data.rows(kept)])
    for view in views:  # rounded, so that a move that is not quite exact does not undo ties
        coarse = np.round((view[rows] - centre) / (_GRID * scale))[:, -_TOP:]
        scores = rank_scores(coarse, data.y[rows])
        tests.append(
            exchange_test(list(scores), data.y[rows], position, permutations=99, seed=data.seed)
        )
    limit = _REST * tests[0].distance[1]
    allowed: dict[Cause, bool] = {
        kind: found.p_value > _POINT or bool(found.distance[1] < limit)
        for kind, found in zip(VIEWS[1:], tests[1:], strict=True)
    }
    # What is stretched, as by another unit, is often moved as well: moving it back is not enough.
    left = tests[1].distance[1] > _LEFT * tests[0].distance[1]
    if left and tests[1].p_value <= _POINT < tests[2].p_value:
        allowed |= {"covariate": False, "offset": False}
    return allowed


def _site_findings(data: _Data, p: float, sites: dict[int, _Site]) -> list[Finding]:
    """One finding for every kind but the class shares'."""
    found = []
    for cause in CAUSES:
        concerned = [e for e, site in sites.items() if cause in site.causes]
        if cause == "label" or not concerned:
            continue
        members = [sites[e] for e in concerned]
        single = (
            concerned[0] if len(concerned) == 1 and (data.sites > 2 or cause == "noise") else None
        )
        amounts = np.max([_amounts(cause, site) for site in members], axis=0)
        order = np.argsort(-amounts, kind="stable")[: 0 if cause == "noise" else 2 * _NAMED]
        first = {data.feature[j].item(): j for j in order[::-1]}
        named = list(dict.fromkeys(data.feature[j].item() for j in order))[:_NAMED]
        missing = tuple(d for d in named if data.marks[first[d]])
        size = max(_size(cause, site) for site in members)
        harmful = any(site.harmful for site in members)
        shown = tuple(named), missing
        found.append(Finding(cause, single, p, size, _UNITS[cause], harmful, *shown))
    return found


def _amounts(cause: Cause, site: _Site) -> Floats:
    """How much each column has to do with it."""
    if cause == "scale":
        return np.abs(np.log(site.ratio))
    return site.gradient if cause == "concept" else np.abs(site.move)


def _size(cause: Cause, site: _Site) -> float:
    """How large it is at a site, in the unit of its kind."""
    if cause == "concept":
        lost = site.labels.find("concept").right - site.labels.plain.right
        return max(float(lost.mean()), 0.0)
    if cause == "noise":
        return site.labels.find("noise").wrong
    largest = float(_amounts(cause, site).max())
    return float(np.exp(largest)) if cause == "scale" else largest


def _label_finding(
    data: _Data,
    model: LabelModel,
    p: float,
    parts: Floats,
    kept: list[int],
    sites: dict[int, _Site],
) -> Finding | None:
    """Class shares that differ for themselves, not because features do."""
    if p > _LEVEL:
        return None
    if sites and not any("label" in site.causes for site in sites.values()):
        rows = data.rows(kept)
        position = np.searchsorted(kept, data.domain[rows])
        if (
            len(kept) < 2
            or share_test(data.y[rows], position, permutations=999, seed=0)[0] > _POINT
        ):
            return None
    table = counts(data.y, data.domain)
    shares = table / table.sum(1, keepdims=True)
    worst, single = int(parts.argmax()), None
    if data.sites > 2:
        rows = np.flatnonzero(data.domain != worst)
        position = data.domain[rows] - (data.domain[rows] > worst)
        rest, _ = share_test(data.y[rows], position, permutations=999, seed=0)
        single = worst if rest > _LEVEL else None
    gain = -(model.logits.argmax(1) == data.y).astype(np.float64)
    for e in range(data.sites):
        rows = data.rows([e])
        gain[rows] += rebiased(model.logits[rows], data.y[rows]).argmax(1) == data.y[rows]
    harmful = bool(gain.mean() > max(_POINT / 2, 2 * (gain.var() / len(gain)) ** 0.5))
    size = float((shares.max(0) - shares.min(0)).max())
    return Finding("label", single, p, size, _UNITS["label"], harmful)


def _too_few(data: _Data, model: LabelModel) -> tuple[float, float | None]:
    """The p-value of a free fit's not failing on samples left out, and what accuracy is left."""
    # With more samples than columns, and twenty per class, nothing is learned for other reasons.
    from scipy.stats import norm

    target = np.eye(data.classes)[data.y]
    guess = (target.mean(0) * len(target) - target) / (len(target) - 1)
    base = np.square(target - guess).sum(1)
    gain = base - np.square(target - guess - model.left_out).sum(1)
    noise = norm.isf(_LEVEL) * gain.std() / len(gain) ** 0.5
    learned = gain.mean() > max(noise, 2 * _POINT * base.mean())
    if learned or len(gain) >= max(data.x.shape[1], 20 * data.classes):
        return 1.0, None
    columns = np.concatenate(
        [(data.x - model.centre) / model.scale, np.ones((len(gain), 1))], axis=1
    )
    seen = (columns @ np.linalg.lstsq(columns, target, rcond=None)[0]).argmax(1) == data.y
    right = model.logits.argmax(1) == data.y
    lost = seen.astype(float) - right
    p = float(norm.sf(lost.mean() / max(lost.std() / len(lost) ** 0.5, 1e-12)))
    return p, float(right.mean() - np.bincount(data.y).max() / len(data.y))


def _p_values(
    p: dict[str, float], findings: list[Finding], sites: dict[int, _Site]
) -> dict[str, float]:
    """By cause: of the test inside classes, and of the labels' asking for that kind."""
    from scipy.stats import norm

    named = {found.cause: found.p_value for found in findings}
    result: dict[str, float] = {}
    for cause in CAUSES:
        if cause in ("label", "sample_size") or cause in named:
            result[cause] = named.get(cause, p.get(cause, 1.0))
            continue
        leads = [
            option.lead(choose(site.labels.options))
            for site in sites.values()
            for option in site.labels.options
            if option.kind == cause
        ]
        result[cause] = max(p["inside"], float(norm.sf(max(leads, default=0.0))))
    return result


def _odd(findings: list[Finding], aside: list[int]) -> int | None:
    """The one site that differs, at least inside classes; None if another one is named too."""
    places = {found.domain for found in findings if found.cause != "sample_size"}
    if len(aside) == 1:  # classes may have other shares at several sites
        places.discard(None)
    return places.pop() if len(places) == 1 else None


def _holm(p: dict[str, float]) -> dict[str, float]:
    """Holm's correction."""
    found, least = {}, 0.0
    for rank, name in enumerate(sorted(p, key=lambda name: p[name])):
        least = max(least, min(1.0, p[name] * (len(p) - rank)))
        found[name] = least
    return found
