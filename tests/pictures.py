"""Small image data sets, made where a test needs them."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

PACS = Path(__file__).parents[2] / "shared" / "data" / "PACS"
MNIST = PACS.parent / "mnist"

needs_pacs = pytest.mark.skipif(not PACS.is_dir(), reason=f"PACS is not in {PACS}")
needs_mnist = pytest.mark.skipif(not MNIST.is_dir(), reason=f"MNIST is not in {MNIST}")


def picture(seed, size=(12, 10)):
    """A smooth colour image of width × height pixels; each seed gives another one."""
    random = np.random.RandomState(seed)
    corners = random.randint(0, 256, (2, 2, 3)).astype(np.uint8)
    return Image.fromarray(corners).resize(size, Image.Resampling.BILINEAR)


def save(path, seed, size=(12, 10)):
    path.parent.mkdir(parents=True, exist_ok=True)
    picture(seed, size).save(path)
    return path


def make_folder(root, domains=("photo", "sketch"), classes=("cat", "dog"), each=2, size=(12, 10)):
    """`root/<domain>/<class>/<number>.png`, all images different."""
    seed = 0
    for domain in domains:
        for label in classes:
            for number in range(each):
                save(root / domain / label / f"{number}.png", seed, size)
                seed += 1
    return root
