"""Spawrious (Lynch et al., 2023, arXiv 2303.05470): dogs whose surroundings predict their breed.

    spawrious224/COPY/LOCATION/BREED/*.png     with copies 0 and 1, six locations and four breeds

Each of the six settings has two training domains and a test domain, in which breeds and locations
are combined otherwise. One-to-one (O2O): a breed has the same location in both training domains,
in 97 % and 87 % of its images; the rest have a location that all breeds share. Many-to-many (M2M):
pairs of breeds and of locations, combined one way in one training domain and the other way in the
other. Combinations and numbers are those of the authors' code and of DomainBed, which take any
images of a folder up to a number; here they are the first by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hessalign._errors import InputError
from hessalign.bench.data.catalog import PRESETS
from hessalign.bench.data.images import find_root, list_images, read_exclusions
from hessalign.bench.data.samples import DomainDataset, group_samples

_BREEDS: Final = ("bulldog", "dachshund", "labrador", "corgi")
_TEST, *_GROUPS = PRESETS["SpawriousO2O_easy"].domains
_EACH: Final = 3168  # images of a breed in a location, and in a training domain
_SHARES: Final = (0.97, 0.87)

_LOCATIONS: Final = {
    "SpawriousO2O_easy": ("desert jungle dirt snow", "dirt snow desert jungle", "beach"),
    "SpawriousO2O_medium": ("mountain beach dirt jungle", "jungle dirt beach snow", "desert"),
    "SpawriousO2O_hard": ("jungle mountain snow desert", "mountain snow desert jungle", "beach"),
    "SpawriousM2M_easy": ("desert mountain dirt jungle", "dirt jungle mountain desert", ""),
    "SpawriousM2M_medium": ("beach snow mountain desert", "desert mountain beach snow", ""),
    "SpawriousM2M_hard": ("dirt jungle snow beach", "snow beach dirt jungle", ""),
}
"""Locations of the breeds in training and in the test, and the one that all breeds share."""

_SWAPPED: Final = (1, 0, 3, 2)  # the other breed of each pair


def combinations(setting: str) -> Iterator[tuple[str, str, str, int, int | None]]:
    """What a setting consists of.

    Yields:
        Domain, breed, location, copy, and the number of images; None for all of them.

    Example:
        >>> [row for row in combinations("SpawriousO2O_easy") if row[:2] == ("SC_group_2", "corgi")]
        [('SC_group_2', 'corgi', 'snow', 1, 2756), ('SC_group_2', 'corgi', 'beach', 1, 412)]
    """
    trained, tested, shared = _LOCATIONS[setting]
    for place, breed in enumerate(_BREEDS):
        for copy, group in enumerate(_GROUPS):
            if shared:
                own = int(_SHARES[copy] * _EACH)
                yield group, breed, trained.split()[place], copy, own
                yield group, breed, shared, copy, _EACH - own
                yield _TEST, breed, tested.split()[place], copy, None
            else:
                where = _SWAPPED[place] if copy else place
                yield group, breed, trained.split()[where], 0, _EACH
                yield _TEST, breed, tested.split()[where], 0, None


def read_spawrious(root: Path, name: str) -> DomainDataset:
    """Read a setting of Spawrious, as `SpawriousO2O_hard`, from its folder or what holds that."""
    folder = find_root(root, PRESETS[name])
    left_out, _ = read_exclusions(folder)
    rows = []
    for domain, breed, location, copy, limit in combinations(name):
        place = folder / str(copy) / location / breed
        if not place.is_dir():
            raise FileNotFoundError(
                f"Expected images of {name} in {place}, found no such folder. "
                f"{name} can be obtained from {PRESETS[name].source}."
            )
        found = [path for path in list_images(place) if path not in left_out]
        if not found:
            raise InputError(f"Expected images of {name} in {place}, found none.")
        rows += [(domain, breed, path) for path in found[:limit]]
    return group_samples(
        name, rows, folder, PRESETS[name].domains, official_tests=(_TEST,), variant=name
    )
