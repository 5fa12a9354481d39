"""The combinations of the quick lane: every pair of values, in few rows."""

from itertools import combinations, product

import pytest
from tests.pairwise import covering, meetings


def grid(**columns):
    return [dict(zip(columns, values, strict=True)) for values in product(*columns.values())]


def quick(rows):
    return [rows[position] for position in covering([meetings(row) for row in rows])]


def pairs(rows):
    return {pair for row in rows for pair in combinations(sorted(row.items()), 2)}


@pytest.mark.parametrize(
    ("shape", "most"),
    [((3, 4), 12), ((3, 4, 5), 26), ((2, 2, 2, 2, 2), 8), ((5, 2, 2, 4, 3), 28), ((1, 6, 1), 6)],
)
def test_every_pair_is_there_in_few_rows(shape, most):
    rows = grid(**{f"column {number}": range(size) for number, size in enumerate(shape)})
    chosen = quick(rows)
    assert pairs(chosen) == pairs(rows)
    assert len(chosen) <= most


def test_pairs_that_no_row_has_are_not_asked_for():
    rows = [row for row in grid(a="xyz", b="xyz", c="xy") if row["a"] != row["b"]]
    chosen = quick(rows)
    assert pairs(chosen) == pairs(rows)
    assert len(chosen) < len(rows)


def test_a_single_column_keeps_all_values():
    assert [row["a"] for row in quick([{"a": value} for value in "xyxz"])] == ["x", "y", "z"]


def test_values_that_are_equal_but_not_the_same_are_told_apart():
    assert len(quick([{"a": value} for value in (1, True, 1.0, [1], [1])])) == 5


def test_nothing_of_nothing():
    assert covering([]) == []
