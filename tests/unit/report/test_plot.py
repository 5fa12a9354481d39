"""Axes and places: round ticks, powers, a place for 0, and drawings of few digits."""

import math
import re

import pytest

from hessalign.report.plot import Plot, make_axis, names_axis


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([0, 1], ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
        ([-13.2, 12.0], ["-10", "-5", "0", "5", "10"]),
        ([61.2, 61.9], ["61.2", "61.4", "61.6", "61.8"]),
        ([0, 5000], ["0", "1000", "2000", "3000", "4000", "5000"]),
        ([7.0], ["6.5", "7", "7.5"]),
        ([], ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
    ],
)
def test_ticks_are_round_and_few(values, labels):
    assert [label for _, label in make_axis("", values).ticks] == labels


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([1e-6, 1e-2], ["1e-6", "1e-5", "0.0001", "0.001", "0.01"]),
        ([8, 45], ["10", "20"]),
        ([3.0, 3.5], ["3", "3.2", "3.4"]),
        ([1e-9, 1e9], ["1e-9", "1e-5", "0.1", "1000", "1e7"]),
        ([0.0, 1e-3, 1.0], ["0", "0.001", "0.01", "0.1", "1"]),
        ([5.0, 5.0], ["5", "10"]),
    ],
)
def test_ticks_of_powers(values, labels):
    assert [label for _, label in make_axis("", values, log=True).ticks] == labels


def test_places_follow_the_logarithm_and_zero_has_one_of_its_own():
    axis = make_axis("", [0.0, 1e-4, 3e-3, 1e-1], log=True)
    places = [axis.place(value) for value in (0.0, 1e-4, 3e-3, 1e-1)]
    assert places[0] == 0 < places[1]
    shares = [(place - places[1]) / (1 - places[1]) for place in places[1:]]
    assert shares == pytest.approx([0, math.log10(30) / 3, 1])
    assert make_axis("", [1.0, 10.0], log=True).place(1.0) == 0
    assert not make_axis("", [0.0, 0.0], log=True).log


def test_all_that_is_drawn_is_between_the_axes():
    plot = Plot("c", make_axis("x", [1, 5]), make_axis("y", [0.2, 0.9]))
    plot.dot(1, 0.2, "mark c0", "low")
    plot.dot(5, 0.9, "mark c1", "high")
    plot.dot(3, 0.5, "c0")
    plot.dot(3, 0.6, "c0")
    plot.line([(1, 0.2), (5, 0.9)], "line c0")
    (left, low, *_), (right, high, *_) = plot.dots
    assert plot.left < left < right < plot.left + plot.width
    assert plot.top < high < low < plot.top + plot.tall  # upwards
    (line, path), (bare, dots) = plot.paths
    assert (line, path) == ("line c0", f"M{left:g} {low:g}L{right:g} {high:g}")
    assert bare == "bare c0"
    assert len(re.findall(r"M[\d.]+ [\d.]+h0", dots)) == 2


def test_names_are_rows_from_the_top():
    plot = Plot("c", make_axis("x", [0, 1]), names_axis(["first", "second", "third"]))
    heights = [y for y, _ in plot.up_ticks]
    assert [name for _, name in plot.up_ticks] == ["first", "second", "third"]
    assert heights == sorted(heights)
    plot.dot(0, -1, "mark c0", "second")
    assert plot.dots[0][1] == heights[1]
