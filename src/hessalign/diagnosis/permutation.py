r"""Do sites differ, in class shares or inside classes? Tests that permute the sites of samples.

Indices: n sample, m column, e site, c class, b permutation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_CHUNK: Final = 1 << 24  # numbers that are held at a time


@final
@dataclass(frozen=True, eq=False)
class Exchange:
    """What a test of differences inside classes found."""

    p_value: float  # how often sites permuted inside classes differ as much
    # Of every site and column, the sum of its scores less the expected, by its standard deviation
    # under permutation; classes together.
    z: Floats
    # Of every site, its squared distance from the others, in standard deviations, less noise.
    distance: Floats
    clear: NDArray[np.bool_]  # which sites are farther than 99 of 100 permuted ones


def share_test(y: Ints, domain: Ints, *, permutations: int, seed: int) -> tuple[float, Floats]:
    r"""Whether class shares differ between sites, by Pearson's χ² with sites permuted.

    Returns:
        The p-value, and each site's part of χ².

    Example:
        >>> y, domain = np.tile([0, 1], 100), np.repeat([0, 1], 100)
        >>> share_test(y, domain, permutations=99, seed=0)
        (1.0, array([0., 0.]))
    """
    from scipy.stats import random_table

    table = counts(y, domain)
    table = table[:, table.sum(0) > 0]
    rows, columns = table.sum(1), table.sum(0)
    expected = np.maximum(np.outer(rows, columns) / table.sum(), 1e-12)
    permuted = random_table.rvs(rows, columns, size=permutations, random_state=seed)
    measured = (np.square(table - expected) / expected).sum(1)
    others = (np.square(permuted - expected) / expected).sum((1, 2))
    return _p_value(measured.sum(), others), measured


def rank_scores(x: Floats, y: Ints) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Where a value stands in its class, and how far from the middle; both without units."""
    # Ranks among all sites, so that heavy tails do no harm, by the number of samples of the class.
    from scipy.stats import rankdata

    place = np.zeros(x.shape, dtype=np.float32)
    spread = np.zeros_like(place)
    for c in np.unique(y):
        rows = np.flatnonzero(y == c)
        place[rows] = (rankdata(x[rows], axis=0) - (len(rows) + 1) / 2) / len(rows)
        spread[rows] = np.abs(place[rows])
    return place, spread


def exchange_test(
    blocks: list[NDArray[np.float32]], y: Ints, domain: Ints, *, permutations: int, seed: int
) -> Exchange:
    r"""Whether sites differ inside classes, with sites permuted among the samples of a class.

    Of every block, the largest |z| of a site in a column with classes together, the largest with
    classes apart, and the sum of all z² with classes apart. Each is brought to the scale of a
    p-value, as if z were normal and sums had a gamma distribution, and the smallest of these is
    compared with that of every permutation. Blocks are columns that do not depend on sites, such
    as scores of `rank_scores`.

    Returns:
        What was found; exact if sites do not differ inside classes, whatever their class shares.
    """
    rng = np.random.default_rng(seed)
    scores = np.concatenate(blocks, axis=1)
    edges = np.cumsum([block.shape[1] for block in blocks])[:-1]
    table = counts(y, domain)
    sites, classes = table.shape
    groups = [np.flatnonzero(y == c) for c in range(classes)]
    for rows in groups:
        scores[rows] = _standardised(scores[rows])
    chunk = max(1, _CHUNK // (sites * max(classes * scores.shape[1], len(y))))
    found, site_sums = [], []
    for start in range(0, permutations + 1, chunk):
        count = min(chunk, permutations + 1 - start)
        sums = np.empty((classes, count, sites, scores.shape[1]), dtype=np.float32)
        for c, rows in enumerate(groups):
            dealt = np.tile(domain[rows], (count, 1))
            kept = dealt[0].copy()
            dealt = rng.permuted(dealt, axis=1)
            if start == 0:
                dealt[0] = kept
            marks = (dealt[:, None, :] == np.arange(sites)[None, :, None]).astype(np.float32)
            sums[c] = (marks.reshape(count * sites, -1) @ scores[rows]).reshape(sums[c].shape)
        together, apart = _z_values(sums, table, [scores[rows] for rows in groups])
        if start == 0:
            z = together[0].astype(np.float64)
        parts = zip(np.split(together, edges, 2), np.split(apart, edges, 3), strict=True)
        values = []
        for joint, single in parts:
            values += [np.abs(joint).max((1, 2)), np.abs(single).max((0, 2, 3))]
            values.append(np.square(single).sum((0, 2, 3)))
        found.append(np.stack(values, axis=1))
        site_sums.append(np.square(apart).sum((0, 3)))
    statistics = np.concatenate(found).astype(np.float64)
    by_site = np.concatenate(site_sums).astype(np.float64)
    largest = _surprise(statistics, [block.shape[1] for block in blocks], sites, classes)
    beyond = by_site[0] - by_site[1:].mean(0)
    size = table.sum(1)
    weight = size * (len(y) - size) / len(y)
    clear = (by_site[0] > np.quantile(by_site[1:], 0.99, axis=0)) | (np.abs(z).max(1) > 5)
    return Exchange(_p_value(float(largest[0]), largest[1:]), z, beyond / weight, clear)


def _z_values(
    sums: NDArray[np.float32], table: Ints, scores: list[NDArray[np.float32]]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Sums by their standard deviation under permutation, classes together and apart."""
    size = table.sum(0)
    variance = table * (size - table) / np.maximum(size - 1, 1)
    alive = np.stack([np.square(part).sum(0) for part in scores])  # n where not constant
    alive = alive / np.maximum(size, 1)[:, None]
    each = variance.T[:, :, None] * alive[:, None, :]
    apart = np.divide(
        sums,
        np.sqrt(each, dtype=np.float32)[:, None],
        where=each[:, None] > 0,
        out=np.zeros_like(sums),
    )
    whole = each.sum(0)
    together = sums.sum(0)
    together = np.divide(together, np.sqrt(whole), where=whole > 0, out=np.zeros_like(together))
    return together, apart


def _surprise(statistics: Floats, widths: list[int], sites: int, classes: int) -> Floats:
    """Of every permutation, the largest negative logarithm of a nominal p-value."""
    from scipy.stats import gamma, norm

    found = []
    for k, width in enumerate(widths):
        joint, single, total = statistics[:, 3 * k : 3 * k + 3].T
        found.append(-norm.logsf(joint) - np.log(2 * sites * width))
        found.append(-norm.logsf(single) - np.log(2 * sites * classes * width))
        mean, variance = total.mean(), max(float(total.var()), 1e-12)
        if mean > 0:
            found.append(-gamma.logsf(total, mean**2 / variance, scale=variance / mean))
    return np.asarray(np.max(found, axis=0))


def counts(y: Ints, domain: Ints) -> Ints:
    """How many samples of each class each site has."""
    table = np.zeros((int(domain.max()) + 1, int(y.max()) + 1), dtype=np.int64)
    np.add.at(table, (domain, y), 1)
    return table


def _p_value(measured: float, permuted: Floats) -> float:
    """The share of permutations that are as large, the identity among them."""
    return float((1 + (permuted >= measured - 1e-9 * abs(measured)).sum()) / (1 + len(permuted)))


def _standardised(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Mean 0 and variance 1, or 0 where all values are the same."""
    if not len(x):
        return x
    moved: NDArray[np.float32] = x - x.mean(0)
    spread = moved.std(0)
    return np.asarray(np.where(spread > 1e-5, moved / np.maximum(spread, 1e-5), 0), np.float32)
