"""Data of several sites that differ in a known way, or do not, for `benchmarks.known_shifts`.

What sites are like is drawn apart from their samples, so that further samples of them can be had.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self, final

import numpy as np
from numpy.typing import NDArray

from hessalign.diagnosis.explanations import Cause

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SITES, SAMPLES, FEATURES, CLASSES, RELEVANT = 4, 300, 10, 3, 4
MIXED_SHARES = ((0.7, 0.2, 0.1), (0.1, 0.7, 0.2), (0.2, 0.1, 0.7), (0.34, 0.33, 0.33))
MILD_SHARES = ((0.34, 0.33, 0.33),) * 3 + ((0.5, 0.25, 0.25),)


class Draws(NamedTuple):
    """Random numbers: what the sites are like, and their samples."""

    world: np.random.Generator
    samples: np.random.Generator

    @classmethod
    def seeded(cls, *seed: int, again: int = 0) -> Self:
        """The same sites for the same seed, with other samples each time."""
        return cls(np.random.default_rng(seed), np.random.default_rng([*seed, 1, again]))


@final
@dataclass(frozen=True, eq=False)
class Sites:
    """Samples of several sites.

    Attributes:
        x: Features.
        y: Labels.
        domain: Site of each sample.
        classes: How many classes there are.
    """

    x: Floats
    y: Ints
    domain: Ints
    classes: int = CLASSES


@final
@dataclass(frozen=True)
class Case:
    """A known answer.

    Attributes:
        name: What the sites differ in.
        strength: "none" if they do not; how often the answer must be right depends on it.
        causes: The kinds of shift.
        site: The only site concerned, None if there are several.
        make: From random numbers to the samples.
    """

    name: str
    strength: Literal["none", "mild", "strong"]
    causes: frozenset[Cause]
    site: int | None
    make: Callable[[Draws], Sites]


def clusters(
    draws: Draws,
    *,
    sizes: Sequence[int] = (SAMPLES,) * SITES,
    features: int = FEATURES,
    classes: int = CLASSES,
    shares: Sequence[Sequence[float]] | None = None,
    apart: float = 2.5,
    noise: Callable[[tuple[int, int]], Floats] | None = None,
) -> Sites:
    """Classes that are clusters in the first few features; P(x|y) is the same at all sites.

    Args:
        draws: Random numbers.
        sizes: Samples of each site.
        features: Features.
        classes: Classes.
        shares: Class shares of each site, equal by default.
        apart: Mean distance of the clusters' centres.
        noise: Draws what is around a centre, normal by default.

    Returns:
        The samples.
    """
    domain = np.repeat(np.arange(len(sizes)), sizes)
    shares = shares or [[1 / classes] * classes] * len(sizes)
    world, rng = draws
    y = np.concatenate([rng.choice(classes, n, p=p) for n, p in zip(sizes, shares, strict=True)])
    centres = np.zeros((classes, features))
    centres[:, :RELEVANT] = world.normal(size=(classes, RELEVANT))
    gaps = np.linalg.norm(centres[:, None] - centres, axis=2)
    centres *= apart * classes * (classes - 1) / gaps.sum()
    around = (noise or rng.standard_normal)((len(y), features))
    return Sites(centres[y] + around, y, domain, classes)


def labelled(draws: Draws, moves: Floats, samples: int = SAMPLES, *, thinned: float = 1.0) -> Sites:
    """Features around the sites' own means, labelled by the same rule everywhere.

    Args:
        draws: Random numbers.
        moves: Mean of each site.
        samples: Of each site.
        thinned: Share of the commonest class's samples that are left at the first site.

    Returns:
        The samples.
    """
    rule = draws.world.normal(size=(RELEVANT, CLASSES))
    domain = np.arange(len(moves)).repeat(samples)
    x, y = _by_rule(draws.samples, rule, moves[domain])
    common = np.bincount(_by_rule(draws.world, rule, moves[[0] * 10_000])[1]).argmax()
    keep = (domain != 0) | (y != common) | (draws.samples.random(len(y)) < thinned)
    return Sites(x[keep], y[keep], domain[keep])


def _by_rule(rng: np.random.Generator, rule: Floats, means: Floats) -> tuple[Floats, Ints]:
    """Features around some means, and what a rule says of them, not quite surely."""
    x = rng.normal(size=means.shape) + means
    scores = x[:, : len(rule)] @ rule + 0.3 * rng.gumbel(size=(len(x), rule.shape[1]))
    return x, scores.argmax(1)


def _moves(draws: Draws, sites: Sequence[int], size: float) -> Floats:
    """Means of sites, some of them moved in the features that matter."""
    moves = np.zeros((SITES, FEATURES))
    moves[list(sites), :RELEVANT] = size * draws.world.normal(size=(len(sites), RELEVANT))
    return moves


def _changed(data: Sites, x: Floats | None = None, y: Ints | None = None) -> Sites:
    return Sites(data.x if x is None else x, data.y if y is None else y, data.domain, data.classes)


def _irrelevant(draws: Draws) -> Sites:
    data = clusters(draws)
    move = np.zeros((SITES, FEATURES))
    move[:, RELEVANT:] = 1.5 * draws.world.normal(size=(SITES, FEATURES - RELEVANT))
    return _changed(data, data.x + move[data.domain])


def _permuted(data: Sites, draws: Draws, site: int, share: float) -> Sites:
    hit = (data.domain == site) & (draws.samples.random(len(data.y)) < share)
    return _changed(data, y=np.where(hit, (data.y + 1) % data.classes, data.y))


def _noisy(draws: Draws) -> Sites:
    data = clusters(draws)
    hit = (data.domain == 1) & (draws.samples.random(len(data.y)) < 0.3)
    other = (data.y + draws.samples.integers(1, CLASSES, len(data.y))) % CLASSES
    return _changed(data, y=np.where(hit, other, data.y))


def _scaled(draws: Draws) -> Sites:
    data = clusters(draws)
    scale = np.exp(draws.world.normal(size=(SITES, FEATURES)))
    return _changed(data, data.x * scale[data.domain])


def _scaled_once(draws: Draws) -> Sites:
    data = clusters(draws)
    return _changed(data, data.x * np.where(data.domain == 3, 3.0, 1.0)[:, None])


def _offset(draws: Draws, shares: Sequence[Sequence[float]] | None = None) -> Sites:
    data = clusters(draws, shares=shares)
    move = 2 * draws.world.normal(size=(SITES, FEATURES))
    return _changed(data, data.x + move[data.domain])


def _spurious(draws: Draws, agreement: Sequence[float]) -> Sites:
    data = clusters(draws, classes=2, apart=2.0)
    rng = draws.samples
    agree = rng.random(len(data.y)) < np.asarray(agreement)[data.domain]
    data.x[:, -1] = 3 * np.where(agree, data.y, 1 - data.y) + rng.normal(size=len(data.y))
    return data


def _table(draws: Draws, move: float) -> Sites:
    """Measurements beside yes and no, counts and missing values; a site's instruments moved."""
    world, rng = draws
    domain = np.arange(SITES).repeat(SAMPLES)
    y = rng.integers(2, size=len(domain))
    measured = rng.normal(size=(len(y), 4)) + y[:, None] * world.uniform(0.5, 1.5, 4)
    measured[domain == 2, :2] += move
    answers = rng.random((len(y), 4)) < np.where(y == 1, 0.6, 0.35)[:, None]
    x = np.column_stack([measured, answers, rng.poisson(1 + y), rng.integers(1, 5, len(y))])
    return Sites(np.where(rng.random(x.shape) < 0.1, np.nan, x), y, domain, 2)


def _label_and_covariate(draws: Draws) -> Sites:
    return labelled(draws, _moves(draws, [2], 1.0), 450, thinned=0.3)


def _concept_and_covariate(draws: Draws) -> Sites:
    return _permuted(labelled(draws, _moves(draws, [1], 1.2)), draws, 3, 1.0)


def _case(
    name: str,
    strength: Literal["none", "mild", "strong"],
    causes: Sequence[Cause],
    make: Callable[[Draws], Sites],
    site: int | None = None,
) -> Case:
    return Case(name, strength, frozenset(causes), site, make)


CASES = (
    _case("no shift", "none", (), clusters),
    _case(
        "no shift, 300 features, 100 samples",
        "none",
        (),
        lambda draws: clusters(draws, sizes=(100,) * SITES, features=300),
    ),
    _case(
        "no shift, t with 2 degrees of freedom",
        "none",
        (),
        lambda draws: clusters(draws, noise=lambda size: draws.samples.standard_t(2, size=size)),
    ),
    _case(
        "no shift, Cauchy",
        "none",
        (),
        lambda draws: clusters(draws, noise=draws.samples.standard_cauchy),
    ),
    _case(
        "no shift, 95 % in one class",
        "none",
        (),
        lambda draws: clusters(draws, classes=2, shares=[[0.95, 0.05]] * SITES),
    ),
    _case(
        "no shift, one site 10 times smaller",
        "none",
        (),
        lambda draws: clusters(draws, sizes=(300, 300, 300, 30)),
    ),
    _case("no shift, same rule", "none", (), lambda draws: labelled(draws, _moves(draws, [], 0.0))),
    _case("label", "strong", ["label"], lambda draws: clusters(draws, shares=MIXED_SHARES)),
    _case("label, mild", "mild", ["label"], lambda draws: clusters(draws, shares=MILD_SHARES), 3),
    _case(
        "covariate, all sites",
        "strong",
        ["covariate"],
        lambda draws: labelled(draws, _moves(draws, range(SITES), 1.0)),
    ),
    _case(
        "covariate",
        "strong",
        ["covariate"],
        lambda draws: labelled(draws, _moves(draws, [2], 1.0)),
        2,
    ),
    _case(
        "covariate, mild",
        "mild",
        ["covariate"],
        lambda draws: labelled(draws, _moves(draws, [2], 0.4)),
        2,
    ),
    _case("irrelevant features", "strong", ["covariate"], _irrelevant),
    _case(
        "permuted labels",
        "strong",
        ["concept"],
        lambda draws: _permuted(clusters(draws), draws, 2, 1.0),
        2,
    ),
    _case(
        "half permuted",
        "strong",
        ["concept"],
        lambda draws: _permuted(clusters(draws), draws, 2, 0.5),
        2,
    ),
    _case("30 % noise", "strong", ["noise"], _noisy, 1),
    _case("scale, all sites", "strong", ["scale"], _scaled),
    _case("scale", "strong", ["scale"], _scaled_once, 3),
    _case("offset", "strong", ["offset"], _offset),
    _case(
        "spurious feature",
        "strong",
        ["concept"],
        lambda draws: _spurious(draws, (0.9, 0.9, 0.9, 0.1)),
        3,
    ),
    _case(
        "spurious feature, all sites",
        "strong",
        ["concept"],
        lambda draws: _spurious(draws, (0.95, 0.8, 0.6, 0.1)),
    ),
    _case("label and covariate", "strong", ["label", "covariate"], _label_and_covariate),
    _case(
        "label and offset",
        "strong",
        ["label", "offset"],
        lambda draws: _offset(draws, MIXED_SHARES),
    ),
    _case("concept and covariate", "strong", ["concept", "covariate"], _concept_and_covariate),
    # Seeds depend on the place of a case: further ones come last.
    _case("no shift, table with gaps", "none", (), lambda draws: _table(draws, 0.0)),
    _case("offset, table with gaps", "strong", ["offset"], lambda draws: _table(draws, 1.5), 2),
)
