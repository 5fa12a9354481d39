"""Which rows of a grid of parameters to keep so that every two values still meet.

Most mistakes need one value, or two that meet, to show. A test with the marker `pairwise` runs in
the quick lane with as few combinations as have every such pair, and with all others in the slow
lane (`conftest.py`).
"""

import heapq
from collections.abc import Hashable
from itertools import combinations


def meetings(row):
    """The pairs of values in a row, and each value itself, which is all a single column has.

    Args:
        row: The values by the names of their columns.

    Returns:
        A set; what cannot be hashed is itself and equals nothing else.
    """
    values = [
        (column, type(value), value if isinstance(value, Hashable) else id(value))
        for column, value in row.items()
    ]
    return {*combinations(values, 2), *((value,) for value in values)}


def covering(sets):
    """Positions of sets that together hold all that the sets hold.

    The set with most that is new comes first, then again, until nothing is missing; of equals the
    first. What a set would add only gets less, so one whose number is up to date and still the
    largest need not be compared with all the others.

    Args:
        sets: One for each row of a grid.

    Returns:
        A sorted list.
    """
    missing = set().union(*sets)
    chosen = []
    queue = [(-len(each), position) for position, each in enumerate(sets)]
    heapq.heapify(queue)
    while missing:
        known, position = heapq.heappop(queue)
        new = len(sets[position] & missing)
        if new == -known:
            missing -= sets[position]
            chosen.append(position)
        elif new:
            heapq.heappush(queue, (-new, position))
    return sorted(chosen)
