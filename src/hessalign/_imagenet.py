"""Statistics of ImageNet's pixels, with which images reach every network."""

from __future__ import annotations

from typing import Final

IMAGENET_MEAN: Final = (0.485, 0.456, 0.406)
IMAGENET_STD: Final = (0.229, 0.224, 0.225)
