"""The two lanes of tests: what is named as slow is there, and grids keep their pairs."""

import re
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.conftest import SLOW, pytest_collection_modifyitems

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("file", SLOW)
def test_what_the_table_of_slow_tests_names_is_there(file):
    text = (ROOT / file).read_text(encoding="utf-8")
    for pattern in SLOW[file]:
        beginning = re.match(r"\w*", pattern)[0]
        assert f"def {beginning}" in text, f"{file} has no test that begins with {beginning}"


class Item:
    """What the hook sees of a test."""

    def __init__(self, name, marker=None, **parameters):
        self.nodeid, self.marker, self.slow = name, marker, False
        self.callspec = SimpleNamespace(params=parameters)

    def get_closest_marker(self, name):
        return self.marker if name == "pairwise" else None

    def add_marker(self, name):
        self.slow = name == "slow"


def lanes(items):
    pytest_collection_modifyitems(items)
    return [item.slow for item in items]


@pytest.mark.parametrize(
    ("marker", "quick"),
    [
        (pytest.mark.pairwise, 9),
        (pytest.mark.pairwise(meetings=lambda row: {row["a"]}), 3),
        (None, 27),
    ],
)
def test_a_grid_is_divided_between_the_lanes(marker, quick):
    grid = list(product(range(3), repeat=3))
    items = [
        Item(f"{file}::test[{a}{b}{c}]", marker and marker.mark, a=a, b=b, c=c)
        for file in ("one.py", "other.py")
        for a, b, c in grid
    ]
    assert lanes(items).count(False) == 2 * quick


def test_the_table_puts_tests_in_the_slow_lane():
    file = "tests/unit/heads/test_attack_search.py"
    ascent = f"{file}::test_plain_ascent_from_many_starts_finds_no_more[binary-6-1-3.0-{{}}]"
    names = [ascent.format(seed) for seed in range(3)]
    names += [
        f"{file}::test_more_restarts_never_find_less[x]",
        f"{file}::test_nothing_is_certified",
    ]
    assert lanes([Item(name) for name in names]) == [False, True, True, True, False]
    assert lanes([Item("tests/bench/sweep/test_ray.py::test_anything")]) == [True]
