"""What DomainBed's protocol fixes for data, models and runs alike: seeds, statistics of images."""

from __future__ import annotations

import hashlib
from typing import Final

# Statistics of ImageNet's pixels, with which images reach every network.
IMAGENET_MEAN: Final = (0.485, 0.456, 0.406)
IMAGENET_STD: Final = (0.229, 0.224, 0.225)

LARGEST_SEED: Final = 2**32 - 1  # what every source of randomness takes


def seed_hash(*parts: object) -> int:
    """A seed from what identifies a random choice: its MD5 sum, as Python prints it, modulo 2³¹."""
    # So a list and a tuple, or 1 and 1.0, give different seeds.
    digest = hashlib.md5(str(parts).encode(), usedforsecurity=False).hexdigest()
    return int(digest, 16) % 2**31
