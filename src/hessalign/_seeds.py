"""Seeds derived from whatever identifies a random choice, as DomainBed derives them."""

from __future__ import annotations

import hashlib
from typing import Final

LARGEST_SEED: Final = 2**32 - 1
"""What every source of randomness takes."""


def seed_hash(*parts: object) -> int:
    """A seed from the things that identify a random choice.

    The MD5 sum of the tuple as Python prints it, modulo 2³¹, so a list and a tuple, or 1 and 1.0,
    give different seeds.

    Args:
        *parts: Numbers, strings and lists of them.

    Returns:
        A seed from 0 to 2³¹ − 1.

    Example:
        >>> seed_hash(1, 0), seed_hash("VLCS", "ERM", [1, 2], 1, 0)
        (785910682, 360234358)
    """
    digest = hashlib.md5(str(parts).encode(), usedforsecurity=False).hexdigest()
    return int(digest, 16) % 2**31
