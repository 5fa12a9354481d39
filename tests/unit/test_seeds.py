"""Seeds, as DomainBed derives them."""

import pytest

from hessalign._protocol import seed_hash


@pytest.mark.parametrize(
    ("parts", "seed"),
    [
        ((1, 0), 785910682),
        ((0, 0), 894182419),
        ((0, 1), 1514274641),
        ((2, 1), 181139023),
        (("VLCS", "ERM", [1, 2], 1, 0), 360234358),
    ],
)
def test_published_seeds(parts, seed):
    assert seed_hash(*parts) == seed
