"""Reading image files, with Pillow, as the protocol reads them.

An image becomes RGB and is resized to a square without regard to its shape: what torchvision's
`Resize((224, 224))` does to a Pillow image, to the byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, final

import numpy as np

from hessalign._errors import InputError, MissingPackageError

_Damage = Literal["truncated", "unreadable"]

_DEEP_MODES: Final = ("I", "F")
"""Pillow's modes with more than 8 bits for a grey value, or the beginning of their names."""


@final
class ImageError(InputError):
    """An image that cannot be read.

    Args:
        path: The file.
        damage: "truncated" if a part of the image can be read, else "unreadable".
        reason: What is wrong with it.
    """

    def __init__(self, path: Path, damage: _Damage, reason: str) -> None:
        remedy = (
            "Replace it, or leave it out: name it in exclude.txt in the folder of the domains, or "
            "take it off the manifest."
        )
        if damage == "truncated":
            remedy += (
                " Or let `hessalign datasets prepare --allow-truncated` fill what is missing with "
                "grey, as DomainBed does."
            )
        super().__init__(f"The image {path} is {damage}: {reason}. {remedy}")
        self.path = path
        self.damage = damage
        self.reason = reason

    def __reduce__(self) -> tuple[type[ImageError], tuple[Path, _Damage, str]]:
        return ImageError, (self.path, self.damage, self.reason)


@final
@dataclass(frozen=True, eq=False)
class ResizedImage:
    """An image at the size that networks take.

    Attributes:
        pixels: Grey values 0 to 255 as uint8, [size, size, 3].
        width: Width of the file's image in pixels.
        height: Height of the file's image in pixels.
    """

    pixels: np.ndarray
    width: int
    height: int


def read_image(path: Path, size: int, *, allow_truncated: bool = False) -> ResizedImage:
    """Read an image and resize it to a square.

    Args:
        path: The file.
        size: Height and width of the result.
        allow_truncated: Fill what is missing of a truncated image with grey.

    Returns:
        The image.

        A file that is not a complete image raises an `ImageError`.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> path = Path(tempfile.mkdtemp()) / "red.png"
        >>> Image.new("RGB", (30, 20), "red").save(path)
        >>> image = read_image(path, 4)
        >>> image.pixels.shape, image.pixels[0, 0].tolist(), image.width, image.height
        ((4, 4, 3), [255, 0, 0], 30, 20)
    """
    _, resampling = _pillow()
    image = _decoded(path, allow_truncated)
    width, height = image.size
    return ResizedImage(np.asarray(image.resize((size, size), resampling)), width, height)


def find_damage(path: Path) -> ImageError | None:
    """What is wrong with an image, read to its end; None if nothing is."""
    try:
        _decoded(path, allow_truncated=False)
    except ImageError as error:
        return error
    return None


def _decoded(path: Path, allow_truncated: bool) -> Any:  # noqa: ANN401
    """A Pillow image; untyped, because Pillow is only imported where it is used."""
    open_image, _ = _pillow()
    try:
        return _loaded(open_image, path, allow_truncated)
    except Exception as error:  # a damaged file makes Pillow's readers stumble in any way
        raise ImageError(path, _damage(open_image, path), _reason(error)) from error


def _loaded(open_image: Any, path: Path, allow_truncated: bool) -> Any:  # noqa: ANN401
    with _truncated_images(allow_truncated), path.open("rb") as file, open_image(file) as image:
        if image.mode.startswith(_DEEP_MODES):
            raise InputError(
                f"it has more than 8 bits for a grey value (mode {image.mode}), and would be cut "
                "off at 255; scale it to 8 bits first"
            )
        return image.convert("RGB")


def _damage(open_image: Any, path: Path) -> _Damage:  # noqa: ANN401
    try:
        _loaded(open_image, path, allow_truncated=True)
    except Exception:
        return "unreadable"
    return "truncated"


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    # Pillow's message for what is no image names the open file object: not for people.
    if type(error).__name__ == "UnidentifiedImageError":
        return "not an image of any known kind"
    return str(error).rstrip(".") or type(error).__name__


@contextmanager
def _truncated_images(allowed: bool) -> Iterator[None]:
    from PIL import ImageFile

    before = ImageFile.LOAD_TRUNCATED_IMAGES
    ImageFile.LOAD_TRUNCATED_IMAGES = allowed
    try:
        yield
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = before


def _pillow() -> tuple[Any, Any]:
    """How to open an image, and the filter that resizes it."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingPackageError(
            "Reading images needs Pillow: pip install 'hessalign[images]'."
        ) from error
    return Image.open, Image.Resampling.BILINEAR
