"""Data of several sites that differ in a known way, or do not, for `benchmarks.known_shifts`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray

from hessalign.diagnosis.answers import Cause

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Rng = np.random.Generator

SITES, SAMPLES, FEATURES, CLASSES, RELEVANT = 4, 300, 10, 3, 4
MIXED_SHARES = ((0.7, 0.2, 0.1), (0.1, 0.7, 0.2), (0.2, 0.1, 0.7), (0.34, 0.33, 0.33))
MILD_SHARES = ((0.34, 0.33, 0.33),) * 3 + ((0.5, 0.25, 0.25),)


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
    make: Callable[[Rng], Sites]


def clusters(
    rng: Rng,
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
        rng: Random numbers.
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
    y = np.concatenate([rng.choice(classes, n, p=p) for n, p in zip(sizes, shares, strict=True)])
    centres = np.zeros((classes, features))
    centres[:, :RELEVANT] = rng.normal(size=(classes, RELEVANT))
    gaps = np.linalg.norm(centres[:, None] - centres, axis=2)
    centres *= apart * classes * (classes - 1) / gaps.sum()
    around = (noise or rng.standard_normal)((len(y), features))
    return Sites(centres[y] + around, y, domain, classes)


def labelled(rng: Rng, moves: Floats, samples: int = SAMPLES) -> Sites:
    """Features around the sites' own means, labelled by the same rule everywhere.

    Args:
        rng: Random numbers.
        moves: Mean of each site.
        samples: Of each site.

    Returns:
        The samples.
    """
    domain = np.arange(len(moves)).repeat(samples)
    x = rng.normal(size=(len(domain), moves.shape[1])) + moves[domain]
    rule = rng.normal(size=(RELEVANT, CLASSES))
    scores = x[:, :RELEVANT] @ rule + 0.3 * rng.gumbel(size=(len(x), CLASSES))
    return Sites(x, scores.argmax(1), domain)


def _moves(rng: Rng, sites: Sequence[int], size: float) -> Floats:
    """Means of sites, some of them moved in the features that matter."""
    moves = np.zeros((SITES, FEATURES))
    moves[list(sites), :RELEVANT] = size * rng.normal(size=(len(sites), RELEVANT))
    return moves


def _changed(data: Sites, x: Floats | None = None, y: Ints | None = None) -> Sites:
    return Sites(data.x if x is None else x, data.y if y is None else y, data.domain, data.classes)


def _irrelevant(rng: Rng) -> Sites:
    data = clusters(rng)
    move = np.zeros((SITES, FEATURES))
    move[:, RELEVANT:] = 1.5 * rng.normal(size=(SITES, FEATURES - RELEVANT))
    return _changed(data, data.x + move[data.domain])


def _permuted(data: Sites, rng: Rng, site: int, share: float) -> Sites:
    hit = (data.domain == site) & (rng.random(len(data.y)) < share)
    return _changed(data, y=np.where(hit, (data.y + 1) % data.classes, data.y))


def _noisy(rng: Rng) -> Sites:
    data = clusters(rng)
    hit = (data.domain == 1) & (rng.random(len(data.y)) < 0.3)
    other = (data.y + rng.integers(1, CLASSES, len(data.y))) % CLASSES
    return _changed(data, y=np.where(hit, other, data.y))


def _scaled(rng: Rng) -> Sites:
    data = clusters(rng)
    return _changed(data, data.x * np.exp(rng.normal(size=(SITES, FEATURES)))[data.domain])


def _scaled_once(rng: Rng) -> Sites:
    data = clusters(rng)
    return _changed(data, data.x * np.where(data.domain == 3, 3.0, 1.0)[:, None])


def _offset(rng: Rng, shares: Sequence[Sequence[float]] | None = None) -> Sites:
    data = clusters(rng, shares=shares)
    return _changed(data, data.x + 2 * rng.normal(size=(SITES, FEATURES))[data.domain])


def _spurious(rng: Rng, agreement: Sequence[float]) -> Sites:
    data = clusters(rng, classes=2, apart=2.0)
    agree = rng.random(len(data.y)) < np.asarray(agreement)[data.domain]
    data.x[:, -1] = 3 * np.where(agree, data.y, 1 - data.y) + rng.normal(size=len(data.y))
    return data


def _label_and_covariate(rng: Rng) -> Sites:
    data = labelled(rng, _moves(rng, [2], 1.0), 450)
    common = np.bincount(data.y[data.domain == 0]).argmax()
    keep = (data.domain != 0) | (data.y != common) | (rng.random(len(data.y)) < 0.3)
    return Sites(data.x[keep], data.y[keep], data.domain[keep])


def _concept_and_covariate(rng: Rng) -> Sites:
    return _permuted(labelled(rng, _moves(rng, [1], 1.2)), rng, 3, 1.0)


def _case(
    name: str,
    strength: Literal["none", "mild", "strong"],
    causes: Sequence[Cause],
    make: Callable[[Rng], Sites],
    site: int | None = None,
) -> Case:
    return Case(name, strength, frozenset(causes), site, make)


CASES = (
    _case("no shift", "none", (), clusters),
    _case(
        "no shift, 300 features, 100 samples",
        "none",
        (),
        lambda rng: clusters(rng, sizes=(100,) * SITES, features=300),
    ),
    _case(
        "no shift, t with 2 degrees of freedom",
        "none",
        (),
        lambda rng: clusters(rng, noise=lambda size: rng.standard_t(2, size=size)),
    ),
    _case("no shift, Cauchy", "none", (), lambda rng: clusters(rng, noise=rng.standard_cauchy)),
    _case(
        "no shift, 95 % in one class",
        "none",
        (),
        lambda rng: clusters(rng, classes=2, shares=[[0.95, 0.05]] * SITES),
    ),
    _case(
        "no shift, one site 10 times smaller",
        "none",
        (),
        lambda rng: clusters(rng, sizes=(300, 300, 300, 30)),
    ),
    _case("no shift, same rule", "none", (), lambda rng: labelled(rng, _moves(rng, [], 0.0))),
    _case("label", "strong", ["label"], lambda rng: clusters(rng, shares=MIXED_SHARES)),
    _case("label, mild", "mild", ["label"], lambda rng: clusters(rng, shares=MILD_SHARES), 3),
    _case(
        "covariate, all sites",
        "strong",
        ["covariate"],
        lambda rng: labelled(rng, _moves(rng, range(SITES), 1.0)),
    ),
    _case(
        "covariate", "strong", ["covariate"], lambda rng: labelled(rng, _moves(rng, [2], 1.0)), 2
    ),
    _case(
        "covariate, mild",
        "mild",
        ["covariate"],
        lambda rng: labelled(rng, _moves(rng, [2], 0.4)),
        2,
    ),
    _case("irrelevant features", "strong", ["covariate"], _irrelevant),
    _case(
        "permuted labels",
        "strong",
        ["concept"],
        lambda rng: _permuted(clusters(rng), rng, 2, 1.0),
        2,
    ),
    _case(
        "half permuted", "strong", ["concept"], lambda rng: _permuted(clusters(rng), rng, 2, 0.5), 2
    ),
    _case("30 % noise", "strong", ["noise"], _noisy, 1),
    _case("scale, all sites", "strong", ["scale"], _scaled),
    _case("scale", "strong", ["scale"], _scaled_once, 3),
    _case("offset", "strong", ["offset"], _offset),
    _case(
        "spurious feature",
        "strong",
        ["concept"],
        lambda rng: _spurious(rng, (0.9, 0.9, 0.9, 0.1)),
        3,
    ),
    _case(
        "spurious feature, all sites",
        "strong",
        ["concept"],
        lambda rng: _spurious(rng, (0.95, 0.8, 0.6, 0.1)),
    ),
    _case("label and covariate", "strong", ["label", "covariate"], _label_and_covariate),
    _case(
        "label and offset", "strong", ["label", "offset"], lambda rng: _offset(rng, MIXED_SHARES)
    ),
    _case("concept and covariate", "strong", ["concept", "covariate"], _concept_and_covariate),
)
