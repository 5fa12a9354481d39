"""Points, curves and intervals between two axes, as places in a drawing; `figures.svg.j2` draws.

What is drawn is given by value and placed here, so that a page holds numbers of few digits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, final

_WIDTH: Final = 400.0
_TALL: Final = 220.0
_ROW: Final = 54.0  # of a name, which stands above what is drawn
_MARGIN: Final = 10.0  # inside of the axes, around what is drawn
_ZERO: Final = 0.08  # of a logarithmic axis, for values of 0


@final
@dataclass(frozen=True)
class Axis:
    """What an axis shows, from where to where, by powers if it is logarithmic.

    A logarithmic axis has a place for 0, left of the others, if `zero` says so. Names stand for
    rows, from the first at the top.

    Example:
        >>> axis = make_axis("lr", [0.0, 1e-5, 1e-3], log=True)
        >>> [round(axis.place(value), 2) for value in (0, 1e-5, 1e-4, 1e-3)]
        [0.0, 0.08, 0.54, 1.0]
        >>> axis.ticks
        [(0.0, '0'), (0.08, '1e-5'), (0.54, '0.0001'), (1.0, '0.001')]
    """

    title: str
    low: float
    high: float
    log: bool = False
    zero: bool = False
    names: tuple[str, ...] = ()

    def place(self, value: float) -> float:
        """Where a value is, from 0 to 1."""
        if not self.log:
            return (value - self.low) / (self.high - self.low)
        if value <= 0:
            return 0.0
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return _ZERO + (1 - _ZERO) * share if self.zero else share

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Places and labels of round values, or of the names."""
        if self.names:
            return [(self.place(-i), name) for i, name in enumerate(self.names)]
        values = _powers(self.low, self.high) if self.log else _round_values(self.low, self.high)
        found = [0.0] * self.zero + values
        return [(round(self.place(value), 4), _label(value)) for value in found]


def make_axis(title: str, values: Iterable[float], *, log: bool = False) -> Axis:
    """An axis that holds some values; logarithmic if that is asked for and some are above 0."""
    given = list(values)
    found = [value for value in given if value > 0] if log else given
    if not found:
        return Axis(title, 0.0, 1.0)
    low, high = min(found), max(found)
    if log:
        low, high = (low, high) if low < high else (low / 2, high * 2)
        return Axis(title, low, high, log=True, zero=min(given) <= 0)
    if low == high:
        space = abs(low) / 10 or 1.0
        low, high = low - space, high + space
    return Axis(title, low, high)


def names_axis(names: Sequence[str]) -> Axis:
    """An axis of names: the first is at 0, the next at −1, and so on."""
    return Axis("", 0.5 - len(names), 0.5, names=tuple(names))


def _round_values(low: float, high: float, most: int = 6) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, so many at most."""
    size = 10.0 ** math.floor(math.log10((high - low) / most))
    step = next(size * each for each in (1, 2, 5, 10, 20) if (high - low) / (size * each) <= most)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def _powers(low: float, high: float, most: int = 6) -> list[float]:
    """Powers of ten; within one decade 1, 2 and 5 times them, or what is round."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    if last - first >= 1:
        every = -(-(last - first + 1) // most)
        return [10.0**power for power in range(first, last + 1, every)]
    found = [float(f"{n}e{power}") for power in range(first - 1, last + 2) for n in (1, 2, 5)]
    inside = [value for value in found if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
    return inside if len(inside) > 1 else _round_values(low, high, most - 2)


def _label(value: float) -> str:
    return f"{value:.4g}".replace("e-0", "e-").replace("e+0", "e")


@final
class Plot:
    """A drawing between two axes, filled by its methods, to be shown as a `Figure` is.

    `keys` says what classes of marks stand for.
    """

    kind: Final = "plot"

    def __init__(
        self,
        caption: str,
        across: Axis,
        up: Axis,
        title: str = "",
        keys: Sequence[tuple[str, str]] = (),
    ) -> None:
        self.caption = caption
        self.title = title or caption
        self.across, self.up, self.keys = across, up, keys
        longest = max((len(text) for _, text in up.ticks), default=0)
        self.left = 12.0 if up.names else 36.0 + 8.6 * longest
        self.top = 8.0
        self.width = _WIDTH
        self.row = _ROW if up.names else 0.0
        self.tall = _ROW * len(up.names) if up.names else _TALL
        # Where each is, its class, and what it says when pointed at.
        self.dots: list[tuple[float, float, str, str]] = []
        self._lines: list[tuple[str, str]] = []  # class, and what is drawn
        self._bare: dict[str, list[str]] = {}  # dots that say nothing, by class

    def _point(self, across: float, up: float) -> tuple[float, float]:
        return self._across(self.across.place(across)), self._up(self.up.place(up))

    def _across(self, share: float) -> float:
        return round(self.left + _MARGIN + (self.width - 2 * _MARGIN) * share, 1)

    def _up(self, share: float) -> float:
        space = 0.0 if self.up.names else _MARGIN
        return round(self.top + space + (self.tall - 2 * space) * (1 - share), 1)

    @property
    def across_ticks(self) -> list[tuple[float, str]]:
        """Places and labels of the axis across."""
        return [(self._across(share), text) for share, text in self.across.ticks]

    @property
    def up_ticks(self) -> list[tuple[float, str]]:
        """Places and labels of the axis upwards."""
        return [(self._up(share), text) for share, text in self.up.ticks]

    def dot(self, across: float, up: float, kind: str, title: str = "") -> None:
        """Draw a dot; one that says nothing takes a tenth of the space."""
        x, y = self._point(across, up)
        if title:
            self.dots.append((x, y, kind, title))
        else:
            self._bare.setdefault(kind, []).append(f"M{x:g} {y:g}h0")

    def line(self, points: Iterable[tuple[float, float]], kind: str) -> None:
        """Draw lines from point to point."""
        places = ["{:g} {:g}".format(*self._point(*point)) for point in points]
        self._lines.append((kind, "M" + "L".join(places)))

    @property
    def paths(self) -> list[tuple[str, str]]:
        """Lines, and dots that say nothing, each as a class and what is drawn."""
        bare = [(f"bare {kind}", "".join(places)) for kind, places in self._bare.items()]
        return self._lines + bare
